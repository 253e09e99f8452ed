//! Templates, as far as they are read: those of the installation that a team may use, and the
//! team's own pools, which are created from by name like templates.

use std::sync::Arc;

use http::StatusCode;
use model::{
    Namespace, Object, SandboxTemplate, Spec, Timestamp, sandbox::Resources, snapshot::DEFAULT_TAG,
};

use crate::{
    list::{MAX_PAGE, NEXT_TOKEN},
    names::may_use,
    refusal::Refusal,
    route::{Answer, Call, Param, json},
    service::E2b,
    wire::{Template, TemplateAlias, TemplateBuild, TemplateWithBuilds},
};

pub(crate) const FIRST_QUERY: &[Param] = &[Param::new(
    "teamID",
    "The caller's own team: others have nothing to show",
)];
pub(crate) const SECOND_QUERY: &[Param] = &[
    Param::new(
        "teamID",
        "The caller's own team: others have nothing to show",
    ),
    Param::new("nextToken", "Continue after the page that gave this"),
    Param::new("limit", "1 to 100; 100 if absent"),
];

/// `GET /templates`.
pub(crate) async fn first(call: Call) -> Answer {
    json(StatusCode::OK, &shown(&call))
}

/// `GET /v2/templates`.
pub(crate) async fn second(call: Call) -> Answer {
    let limit = call.query.number("limit", 1, MAX_PAGE)?.unwrap_or(MAX_PAGE);
    let limit = usize::try_from(limit).unwrap_or(1);
    let mut page = shown(&call);
    if let Some(after) = call.query.get("nextToken") {
        page.retain(|template| template.template_id.as_str() > after);
    }
    let more = page.len() > limit;
    page.truncate(limit);
    let next = page.last().filter(|_| more);
    let next = next.and_then(|template| template.template_id.parse().ok());
    let mut response = json(StatusCode::OK, &page)?;
    if let Some(token) = next {
        response.headers_mut().insert(NEXT_TOKEN, token);
    }
    Ok(response)
}

/// `GET /default-templates`.
pub(crate) async fn defaults(call: Call) -> Answer {
    let mut all = call.api.all_templates(&call.caller.team);
    all.retain(|template| template.is_default);
    json(StatusCode::OK, &all)
}

/// `GET /templates/{id}`.
pub(crate) async fn get(call: Call) -> Answer {
    let (api, team) = (&call.api, &call.caller.team);
    let template = api.one(team, call.subject())?;
    let known = api.builder.as_ref();
    let known = known.map(|builder| builder.builds(team, &template.template_id));
    let mut builds: Vec<TemplateBuild> = known
        .unwrap_or_default()
        .into_iter()
        .map(|build| TemplateBuild {
            build_id: build.id.to_string(),
            status: build.state.as_str(),
            created_at: build.created_at,
            updated_at: build.finished_at.unwrap_or(build.created_at),
            finished_at: build.finished_at.unwrap_or(build.created_at),
            cpu_count: template.cpu_count,
            memory_mb: template.memory_mb,
            disk_size_mb: template.disk_size_mb,
            envd_version: template.envd_version.clone(),
        })
        .collect();
    let build = TemplateBuild {
        build_id: template.build_id.clone(),
        status: template.build_status,
        created_at: template.created_at,
        updated_at: template.updated_at,
        finished_at: template.updated_at,
        cpu_count: template.cpu_count,
        memory_mb: template.memory_mb,
        disk_size_mb: template.disk_size_mb,
        envd_version: template.envd_version.clone(),
    };
    // One that nobody has built, or whose build is no longer remembered.
    if !builds.iter().any(|known| known.build_id == build.build_id) {
        builds.push(build);
    }
    let whole = TemplateWithBuilds { template, builds };
    json(StatusCode::OK, &whole)
}

/// `GET /templates/aliases/{alias}`.
pub(crate) async fn alias(call: Call) -> Answer {
    let template = call.api.one(&call.caller.team, call.subject())?;
    let alias = TemplateAlias {
        template_id: template.template_id,
        public: template.public,
    };
    json(StatusCode::OK, &alias)
}

fn shown(call: &Call) -> Vec<Template> {
    let team = &call.caller.team;
    match call.query.get("teamID") {
        Some(other) if other != team.as_str() => Vec::new(),
        Some(_) | None => call.api.all_templates(team),
    }
}

impl E2b {
    pub(crate) fn one(&self, team: &Namespace, name: &str) -> Result<Template, Refusal> {
        let meant = match self.meant(team, name) {
            Ok(meant) => meant,
            // A name alone is also that of a template which no build has the default tag of.
            Err(unknown) => {
                let some = self.some_build(team, name).ok_or(unknown)?;
                return Ok(self.describe(&*some, None, Some(&some)));
            }
        };
        Ok(match (&meant.pool, &meant.found) {
            (Some(pool), template) => self.describe(pool, pool.spec.resources, template.as_deref()),
            (None, Some(template)) => self.describe(template, None, Some(template)),
            (None, None) => return Err(Refusal::no_template(name)),
        })
    }

    /// A build of a team's own template of this name, whatever its tags.
    fn some_build(&self, team: &Namespace, name: &str) -> Option<Arc<SandboxTemplate>> {
        let id = self.builder.as_ref()?.template_of(team, name)?;
        let all = self.caches.templates.find_all();
        let found = all.iter().find(|template| {
            let build = template.spec.build.as_deref();
            build.is_some_and(|build| build.template == id) && is_shown(&all, template)
        });
        found.cloned()
    }

    /// Everything that a team can create from, in the order of names.
    fn all_templates(&self, team: &Namespace) -> Vec<Template> {
        let pools = self.caches.pools.find_all();
        let pools = pools
            .iter()
            .filter(|pool| pool.metadata.namespace.as_ref() == Some(team))
            .filter(|pool| !pool.metadata.is_deleting());
        let mut all: Vec<Template> = pools
            .map(|pool| {
                let template = self.template(team, &pool.spec.template);
                self.describe(pool, pool.spec.resources, template.as_deref())
            })
            .collect();
        let templates = self.caches.templates.find_all();
        for template in templates.iter().filter(|t| may_use(team, t)) {
            let name = template.metadata.name.as_str();
            // A pool of the same name is what its name means.
            let hidden = all.iter().any(|known| known.template_id == name);
            if !hidden && !template.metadata.is_deleting() && is_shown(&templates, template) {
                all.push(self.describe(template, None, Some(template)));
            }
        }
        all.sort_by(|a, b| a.template_id.cmp(&b.template_id));
        all
    }

    fn describe<S: Spec>(
        &self,
        object: &Object<S>,
        own: Option<Resources>,
        template: Option<&SandboxTemplate>,
    ) -> Template {
        let is_pool = object.metadata.namespace.is_some();
        let build = template.and_then(|template| template.spec.build.as_deref());
        let build = build.filter(|_| !is_pool);
        let name = match build {
            Some(build) => build.template.to_string(),
            None => object.metadata.name.to_string(),
        };
        let mut names = match build {
            Some(build) => vec![build.name.to_string()],
            None => vec![name.clone()],
        };
        if let Some(template) = template.filter(|_| !is_pool && build.is_none()) {
            for (alias, _) in template.spec.aliases() {
                if !names.iter().any(|known| known == alias) {
                    names.push(alias.to_owned());
                }
            }
        }
        let sizes = self.sizes(own, template);
        let created = object.metadata.creation_timestamp;
        let created = created.unwrap_or(Timestamp::from_micros(0));
        Template {
            // Python reads it as a UUID, which the record's own identity is.
            build_id: build.map_or(object.uid(), |build| build.id).to_string(),
            cpu_count: sizes.cpu_count,
            memory_mb: sizes.memory_mib,
            disk_size_mb: sizes.disk_mib,
            public: !is_pool && template.is_some_and(|t| t.spec.teams.is_empty()),
            aliases: names.clone(),
            names,
            created_at: created,
            updated_at: created,
            created_by: None,
            last_spawned_at: None,
            spawn_count: 0,
            build_count: 1,
            envd_version: self.options.envd_version.clone(),
            build_status: "ready",
            is_default: !is_pool && name == self.options.default_template.as_str(),
            template_id: name,
        }
    }
}

/// Whether a template stands for itself in a list: of the builds of one, the one that its name alone
/// means, or else the one that was tagged last.
fn is_shown(all: &[Arc<SandboxTemplate>], template: &SandboxTemplate) -> bool {
    let Some(build) = &template.spec.build else {
        return true;
    };
    let rank = |template: &SandboxTemplate| {
        let build = template.spec.build.as_deref()?;
        let last = build.tags.iter().map(|tag| tag.assigned_at).max()?;
        Some((
            build.tagged_at(DEFAULT_TAG),
            last,
            template.metadata.name.clone(),
        ))
    };
    let same = |other: &&Arc<SandboxTemplate>| {
        let its = other.spec.build.as_deref();
        its.is_some_and(|its| its.template == build.template)
    };
    let first = all.iter().filter(same).map(|other| rank(other)).max();
    rank(template).is_some_and(|own| first.flatten() == Some(own))
}
