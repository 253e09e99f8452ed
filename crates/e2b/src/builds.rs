//! Building templates: asking for a build, uploading its files, starting it, following it.
//!
//! ```text
//!  POST /v3/templates ─▶ ids ─▶ GET files/{hash} ─▶ PUT the address ─▶ POST builds/{id} ─▶ GET status …
//! ```
//!
//! What a client has to say is checked here and in [`build::Recipe`]; the build itself goes on in
//! [`build::Builder`], whoever leaves.

pub(crate) mod files;
pub(crate) mod wire;

use std::sync::Arc;

use build::{Asked, AskedStep, Builder, Line, Login, Page, Recipe, Refused, Wish, recipe::Base};
use http::StatusCode;
use model::{Level, Namespace, sandbox::Resources, workload::Secret};

use crate::{
    body,
    order::may_choose,
    refusal::Refusal,
    route::{Answer, Call, Param, json, nothing},
    service::E2b,
};
use wire::{
    BuildInfo, BuildLogEntry, BuildLogs, BuildReason, ImageRegistry, NewBuild, RequestedBuild,
    StartBuild, TemplateNames, TemplateUpdate,
};

pub(crate) const STATUS_QUERY: &[Param] = &[
    Param::new("logsOffset", "Lines from this one on, counted from 0"),
    Param::new("limit", "1 to 100 lines; 100 if absent"),
    Param::new(
        "level",
        "Lines at least this bad: debug, info, warn or error",
    ),
];
pub(crate) const LOGS_QUERY: &[Param] = &[
    Param::new("cursor", "Lines from this moment on, in milliseconds"),
    Param::new("limit", "1 to 100 lines; 100 if absent"),
    Param::new("direction", "forward or backward"),
    Param::new(
        "level",
        "Lines at least this bad: debug, info, warn or error",
    ),
    Param::new("source", "Without effect: there is one"),
];
const MAX_LINES: i64 = 100;
/// The user that Google's registries know a service account by.
const GOOGLE: &str = "_json_key";

impl E2b {
    pub(crate) fn builder(&self) -> Result<&Arc<Builder>, Refusal> {
        let builder = self.builder.as_ref();
        builder.ok_or_else(|| Refusal::not_built("template builds"))
    }
}

/// `POST /v3/templates` and `POST /v2/templates`.
pub(crate) async fn request(call: Call) -> Answer {
    let asked: NewBuild = body::parse(&call.body)?;
    let (api, team) = (&call.api, &call.caller.team);
    let builder = api.builder()?;
    if asked
        .team_id
        .as_deref()
        .is_some_and(|id| id != team.as_str())
    {
        return Err(Refusal::bad_field("teamID", "it is not the caller's team"));
    }
    let name = asked.name.or(asked.alias).unwrap_or_default();
    refuse_taken(api, team, &name)?;
    let resources = Resources {
        cpu_millis: asked.cpu_count.map(|count| count.saturating_mul(1000)),
        memory_mib: asked.memory_mb,
        disk_mib: None,
    };
    if asked.cpu_count == Some(0) || asked.memory_mb.is_some_and(|mb| mb < 16) {
        let why = "a sandbox needs a processor and 16 MiB at least";
        return Err(Refusal::bad_field("cpuCount, memoryMB", why));
    }
    let limited = resources.cpu_millis.is_some() || resources.memory_mib.is_some();
    let build = builder.request(Wish {
        owner: call.caller.owner(),
        name,
        tags: asked.tags.unwrap_or_default(),
        resources: limited.then_some(resources),
    })?;
    let names = vec![format!("{team}/{}", build.name)];
    json(
        StatusCode::ACCEPTED,
        &RequestedBuild {
            template_id: build.template.to_string(),
            build_id: build.id.to_string(),
            public: false,
            names,
            tags: build.tags.iter().map(ToString::to_string).collect(),
            aliases: vec![build.name.into()],
        },
    )
}

/// A name that is a pool's, or a template's that no team has built, stays that.
fn refuse_taken(api: &E2b, team: &Namespace, name: &str) -> Result<(), Refusal> {
    let plain = name.split(':').next().unwrap_or(name);
    let Ok(meant) = api.meant(team, plain) else {
        return Ok(());
    };
    // Another team's that this one may use is no obstacle: a team's own goes before it.
    let found = meant.found.as_ref();
    let built = found.is_some_and(|found| found.spec.build.is_some());
    match built && meant.pool.is_none() && meant.start.is_none() {
        true => Ok(()),
        false => Err(Refusal::conflict(format!(
            "name: a pool, a snapshot or a template of the installation is called {plain:?}: use \
             another"
        ))),
    }
}

/// `POST /v2/templates/{id}/builds/{buildID}`.
pub(crate) async fn start(call: Call) -> Answer {
    let asked: StartBuild = body::parse(&call.body)?;
    let (api, caller) = (&call.api, &call.caller);
    let builder = api.builder()?;
    let (template, id) = (part(&call, 0), part(&call, 1));
    // Who has no such build learns that first.
    builder.find(&caller.team, template, id)?;
    let image = asked.from_image.as_deref();
    // What clients may choose anyway, they may have as whom the installation is to registries.
    let trusted = image.is_some_and(|image| may_choose(&api.options.images, image));
    let recipe = Recipe::read(read(asked, trusted)?)?;
    let parent = match &recipe.base {
        Base::Image { .. } => None,
        Base::Template(name) => {
            let meant = api.meant(&caller.team, name);
            let meant = meant.map_err(|_| {
                Refusal::bad_field("fromTemplate", format!("there is no template {name:?}"))
            })?;
            if meant.start.is_some() {
                let why = format!("{name:?} is a snapshot: a build starts from a template");
                return Err(Refusal::bad_field("fromTemplate", why));
            }
            meant.found
        }
    };
    builder.start(&caller.team, template, id, caller.account(), recipe, parent)?;
    let mut response = nothing();
    *response.status_mut() = StatusCode::ACCEPTED;
    Ok(response)
}

fn read(asked: StartBuild, trusted: bool) -> Result<Asked, Refusal> {
    let login = asked.from_image_registry.map(login).transpose()?;
    let steps = asked.steps.unwrap_or_default().into_iter();
    let steps = steps.map(|step| AskedStep {
        kind: step.kind,
        args: step.args.unwrap_or_default(),
        files_hash: step.files_hash,
        force: step.force.unwrap_or_default(),
    });
    Ok(Asked {
        from_image: asked.from_image,
        from_template: asked.from_template,
        login,
        trusted,
        force: asked.force.unwrap_or_default(),
        steps: steps.collect(),
        start: asked.start_cmd,
        ready: asked.ready_cmd,
    })
}

fn login(asked: ImageRegistry) -> Result<Login, Refusal> {
    const FIELD: &str = "fromImageRegistry";
    match (asked.kind.as_str(), asked.username, asked.password) {
        ("registry", Some(user), Some(password)) => Ok(Login {
            user,
            password: Secret::new(password),
        }),
        ("gcp", _, _) => match asked.service_account_json {
            Some(account) => Ok(Login {
                user: GOOGLE.into(),
                password: Secret::new(account),
            }),
            None => Err(Refusal::bad_field(FIELD, "it has no serviceAccountJson")),
        },
        ("registry", _, _) => Err(Refusal::bad_field(
            FIELD,
            "it needs a username and a password",
        )),
        ("aws", _, _) => Err(Refusal::bad_field(
            FIELD,
            "type aws is not supported by this server: give the user AWS and the password of \
             `aws ecr get-login-password` as type registry",
        )),
        (_, _, _) => Err(Refusal::bad_field(FIELD, "use the type registry or gcp")),
    }
}

/// `GET /templates/{id}/builds/{buildID}/status`.
pub(crate) async fn status(call: Call) -> Answer {
    let (team, query) = (&call.caller.team, &call.query);
    let builder = call.api.builder()?;
    let offset = query.number("logsOffset", 0, i64::MAX)?.unwrap_or_default();
    let offset = usize::try_from(offset).unwrap_or(usize::MAX);
    let limit = limit(&call)?;
    let least = level(&call)?;
    let (template, id) = (part(&call, 0), part(&call, 1));
    // The state first: what is said until then is in the lines.
    let build = builder.find(team, template, id)?;
    let page = Page {
        offset,
        limit,
        least,
        cursor: None,
        backward: false,
    };
    let lines = builder.lines(team, template, id, page).await?;
    let reason = build.reason.as_ref().map(|reason| BuildReason {
        message: reason.message.clone(),
        step: reason.step.clone(),
        log_entries: Vec::new(),
    });
    json(
        StatusCode::OK,
        &BuildInfo {
            template_id: build.template.to_string(),
            build_id: build.id.to_string(),
            status: build.state.as_str(),
            logs: Vec::new(),
            log_entries: lines.into_iter().map(entry).collect(),
            reason,
        },
    )
}

/// `GET /templates/{id}/builds/{buildID}/logs`.
pub(crate) async fn logs(call: Call) -> Answer {
    let (team, query) = (&call.caller.team, &call.query);
    let builder = call.api.builder()?;
    let limit = limit(&call)?;
    let cursor = query.number("cursor", 0, i64::MAX)?;
    let backward = match query.get("direction") {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(Refusal::bad_field("direction", "use forward or backward")),
    };
    let (template, id) = (part(&call, 0), part(&call, 1));
    let page = Page {
        offset: 0,
        limit,
        least: level(&call)?,
        cursor,
        backward,
    };
    let lines = builder.lines(team, template, id, page).await?;
    let logs = lines.into_iter().map(entry).collect();
    json(StatusCode::OK, &BuildLogs { logs })
}

/// `PATCH /v2/templates/{id}` and `PATCH /templates/{id}`.
pub(crate) async fn update(call: Call) -> Answer {
    let asked: TemplateUpdate = body::parse_or_default(&call.body)?;
    let (builder, team) = (call.api.builder()?, &call.caller.team);
    builder.tags(team, call.subject())?;
    if asked.public == Some(true) {
        return Err(Refusal::forbidden(
            "public: what a team builds is its own; an administrator can change `spec.teams` of the \
             template",
        ));
    }
    let meant = call.api.meant(team, call.subject())?;
    let build = meant.found.and_then(|found| found.spec.build.clone());
    let names = build.map(|build| format!("{team}/{}", build.name));
    json(
        StatusCode::OK,
        &TemplateNames {
            names: names.into_iter().collect(),
        },
    )
}

/// `DELETE /templates/{id}`, of a template that the team has built.
pub(crate) async fn delete(call: &Call) -> Answer {
    let (api, text) = (Arc::clone(&call.api), call.subject().to_owned());
    let team = call.caller.team.clone();
    if let Some(builder) = api.builder.clone() {
        let (team, text) = (team.clone(), text.clone());
        let deleted = api.outlive(async move { Ok(builder.delete(&team, &text).await?) });
        if deleted.await? {
            return Ok(nothing());
        }
    }
    Err(match api.meant(&team, &text) {
        Ok(_) => Refusal::forbidden(format!(
            "template {text:?} belongs to the installation: an administrator can delete it"
        )),
        Err(unknown) => unknown,
    })
}

fn part(call: &Call, at: usize) -> &str {
    call.path.get(at).map_or("", String::as_str)
}

fn limit(call: &Call) -> Result<usize, Refusal> {
    let limit = call.query.number("limit", 1, MAX_LINES)?;
    Ok(usize::try_from(limit.unwrap_or(MAX_LINES)).unwrap_or(1))
}

fn level(call: &Call) -> Result<Level, Refusal> {
    match call.query.get("level") {
        None => Ok(Level::Debug),
        Some(name) => Level::read(name)
            .ok_or_else(|| Refusal::bad_field("level", "use debug, info, warn or error")),
    }
}

fn entry(line: Line) -> BuildLogEntry {
    BuildLogEntry {
        timestamp: line.at,
        message: line.message,
        level: line.level.as_str(),
        step: line.step,
    }
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        match refused {
            Refused::Bad { field, why } => Self::bad_field(&field, why),
            Refused::NotFound(_) => Self::not_found(refused.to_string()),
            Refused::Conflict(why) => Self::conflict(why),
            Refused::TooMany(why) => Self::too_many(why),
            Refused::TooLarge(why) => Self::too_large(why),
            Refused::Quota(exceeded) => exceeded.into(),
            Refused::Store(error) => error.into(),
            Refused::Disk { doing, source } => {
                tracing::error!(%source, doing, "the disk failed");
                Self::internal(format!("the server could not {doing}: see its log"))
            }
        }
    }
}
