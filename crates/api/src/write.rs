//! Writing: create and replace, and what patches share with them.
//!
//! Everything about a request is checked before the store hears of it, in this order: syntax,
//! types, unknown fields (400), then rules (422). A dry run does all of it and asks the store's
//! rules what would happen.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::{HeaderValue, StatusCode, header};
use model::{
    Key, SandboxId, Uid,
    kinds::{Checked, KindInfo, Minting, Omission, Stored},
    validate::{Cause, Problem},
};
use store::{Change, Draft, Half, Query, Record, rules};

use crate::{
    body::RawBody,
    gate,
    negotiate::Accept,
    params::{FieldValidation, Params, WriteOptions},
    place::Place,
    refusal::{Refusal, clip, field_warnings},
    render::Renderer,
    resource_api::{Api, ResourceApi},
    served::Served,
    submission::{self, Submission},
    warnings,
};

/// How often a taken generated name is drawn again.
const NAME_ATTEMPTS: u32 = 8;

/// The most warnings of an answer, and their size in bytes: each, and in all.
const MAX_WARNINGS: usize = 32;
const MAX_WARNING_BYTES: usize = 256;
const MAX_WARNINGS_BYTES: usize = 4 << 10;

/// Which half of an object a request writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Main,
    Status,
}

/// A written record, and what the client should know besides.
pub(crate) struct Written {
    pub(crate) record: Arc<Record>,
    pub(crate) warnings: Vec<String>,
}

pub(crate) async fn create(
    State(api): State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    let info = place.writable()?;
    let options = params.write_options()?;
    let renderer = Renderer::new(place.served, accept, &params, api.now())?;
    let document = body.parse()?;
    let shared = Arc::clone(&api);
    let written = api
        .outlive(async move {
            let submission = Submission::new(document.value, &place, info)?;
            create_one(
                &shared,
                &place,
                info,
                submission,
                &document.duplicates,
                options,
            )
            .await
        })
        .await?;
    respond(&renderer, &written, options, StatusCode::CREATED)
}

async fn create_one(
    api: &ResourceApi,
    place: &Place,
    info: &'static KindInfo,
    mut submission: Submission,
    duplicates: &[String],
    options: WriteOptions,
) -> Result<Written, Refusal> {
    if submission.version.is_some() {
        return Err(Refusal::bad_field(
            "metadata.resourceVersion",
            "resourceVersion should not be set on objects to be created: leave it out",
        ));
    }
    let prefix = match (&submission.name, &submission.generate_name) {
        (Some(_), _) => None,
        (None, Some(prefix)) => Some(prefix.clone()),
        (None, None) => {
            let problem = Problem {
                field: "metadata.name".into(),
                cause: Cause::Required,
                reason: "name or generateName is required".into(),
                remedy: "name the object".into(),
            };
            return Err(Refusal::invalid(place.served.about(""), &[problem]));
        }
    };
    let spec = submission.spec_text(place.served)?;
    let first = submission.metadata.clone();
    let mut attempt = 1;
    loop {
        let name = match (&submission.name, &prefix) {
            (Some(name), _) => name.clone(),
            (None, prefix) => {
                submission::generated_name(prefix.as_deref().unwrap_or_default(), api.entropy.u64())
            }
        };
        let key = Key {
            kind: info.kind,
            namespace: place.namespace.clone(),
            name: submission::new_name(&name, place.served)?,
        };
        submission.metadata.clone_from(&first);
        let noted = submission.unknown.len();
        let metadata = submission.take_metadata(&key)?;
        let minting = Minting {
            now: api.now(),
            sandbox_id: SandboxId::from_random(api.entropy.u128()),
        };
        let checked = info
            .check_new(metadata, &spec, &minting)
            .map_err(|e| submission::misfit(&key, e))?;
        let warnings = passes(
            place.served,
            &checked,
            &submission.unknown,
            duplicates,
            options,
        )?;
        submission.unknown.truncate(noted);
        ensure_unique(api, info, &checked, None, place.served).await?;
        let draft = Draft {
            kind: info.kind,
            meta: checked.metadata,
            spec: checked.spec.into(),
            status: checked.status.into(),
            fields: checked.fields,
        };
        let holds = gate::before_create(api, &draft, place.served).await?;
        let result = if options.dry_run {
            let current = api.store.get(&key).await?;
            let uid = Uid::from_random(api.entropy.u128());
            rules::create(current.as_ref(), draft, uid, stamp(api)).map(rules::Effect::into_record)
        } else {
            api.store.create(draft).await
        };
        match result.map_err(Refusal::from) {
            Ok(record) => {
                if !options.dry_run {
                    holds.written(record.version());
                }
                return Ok(Written { record, warnings });
            }
            Err(refusal) if refusal.is_taken() && prefix.is_some() && attempt < NAME_ATTEMPTS => {
                attempt += 1;
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

pub(crate) async fn replace(
    api: State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    replace_part(api, place, params, accept, body, Part::Main).await
}

pub(crate) async fn replace_status(
    api: State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    replace_part(api, place, params, accept, body, Part::Status).await
}

async fn replace_part(
    State(api): State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
    part: Part,
) -> Result<Response, Refusal> {
    let info = place.writable()?;
    let options = params.write_options()?;
    let renderer = Renderer::new(place.served, accept, &params, api.now())?;
    let document = body.parse()?;
    let key = place.key()?;
    let shared = Arc::clone(&api);
    let written = api
        .outlive(async move {
            let submission = Submission::new(document.value, &place, info)?;
            let Some(current) = shared.store.get(&key).await? else {
                return Err(Refusal::not_found(place.served.about(key.name.as_str())));
            };
            submission.ensure_is(&key, current.uid(), place.served)?;
            if submission.version.is_none() {
                let problem = Problem {
                    field: "metadata.resourceVersion".into(),
                    cause: Cause::Invalid,
                    reason: "0x0".into(),
                    remedy: "must be specified for an update: send the version you read".into(),
                };
                return Err(Refusal::invalid(
                    place.served.about(key.name.as_str()),
                    &[problem],
                ));
            }
            let update = Update {
                info,
                part,
                current,
                options,
                omission: Omission::Keep,
            };
            update
                .apply(&shared, submission, &document.duplicates)
                .await
        })
        .await?;
    respond(&renderer, &written, options, StatusCode::OK)
}

/// A change of one half of a stored record.
pub(crate) struct Update {
    pub(crate) info: &'static KindInfo,
    pub(crate) part: Part,
    pub(crate) current: Arc<Record>,
    pub(crate) options: WriteOptions,
    pub(crate) omission: Omission,
}

impl Update {
    /// Checks what the client wants of the record, and writes it.
    pub(crate) async fn apply(
        self,
        api: &ResourceApi,
        mut submission: Submission,
        duplicates: &[String],
    ) -> Result<Written, Refusal> {
        let served = Served::Kind(self.info);
        let key = self.current.key();
        let stored = Stored {
            metadata: &self.current.meta,
            spec: &self.current.spec,
            status: &self.current.status,
        };
        let checked = match self.part {
            Part::Main => {
                let spec = submission.spec_text(served)?;
                let metadata = submission.take_metadata(&key)?;
                self.info
                    .check_replacement(stored, metadata, &spec, self.omission)
            }
            Part::Status => {
                warnings::take_off(&mut submission);
                self.info
                    .check_status(stored, &submission.status_text(served)?)
            }
        }
        .map_err(|e| submission::misfit(&key, e))?;
        let warnings = passes(
            served,
            &checked,
            &submission.unknown,
            duplicates,
            self.options,
        )?;
        ensure_unique(api, self.info, &checked, Some(&self.current), served).await?;
        let change = Change {
            uid: Some(self.current.uid()),
            expected: submission.version.unwrap_or(self.current.version()),
            half: match self.part {
                Part::Main => Half::Spec {
                    meta: Box::new(checked.metadata),
                    spec: checked.spec.into(),
                },
                Part::Status => Half::Status {
                    status: checked.status.into(),
                },
            },
            fields: checked.fields,
            key,
        };
        let holds = gate::before_update(api, &self.current, &change, served).await?;
        let record = if self.options.dry_run {
            rules::update(Some(&self.current), change, stamp(api))?.into_record()
        } else {
            let record = api.store.update(change).await?;
            holds.written(record.version());
            record
        };
        Ok(Written { record, warnings })
    }
}

/// What a store would stamp a record with that it is only asked about.
pub(crate) fn stamp(api: &ResourceApi) -> rules::Stamp {
    rules::Stamp {
        version: model::Version::ZERO,
        now: api.now(),
    }
}

/// Refuses what breaks rules; answers what the client should be warned of.
fn passes(
    served: Served,
    checked: &Checked,
    unknown: &[String],
    duplicates: &[String],
    options: WriteOptions,
) -> Result<Vec<String>, Refusal> {
    let unknown: Vec<String> = unknown.iter().chain(&checked.unknown).cloned().collect();
    let warnings = match options.validation {
        FieldValidation::Strict if !unknown.is_empty() || !duplicates.is_empty() => {
            return Err(Refusal::strict(&unknown, duplicates));
        }
        FieldValidation::Warn => field_warnings(&unknown, duplicates).collect(),
        FieldValidation::Strict | FieldValidation::Ignore => Vec::new(),
    };
    if checked.problems.is_empty() {
        Ok(warnings)
    } else {
        let about = served.about(checked.metadata.name.as_str());
        Err(Refusal::invalid(about, &checked.problems))
    }
}

/// Refuses a value that another object has where no two may have the same. Minted values never
/// collide; this keeps a client from taking another's by hand.
async fn ensure_unique(
    api: &ResourceApi,
    info: &KindInfo,
    checked: &Checked,
    current: Option<&Record>,
    served: Served,
) -> Result<(), Refusal> {
    for path in info.unique {
        let Some(value) = checked.fields.get(path) else {
            continue;
        };
        if current.is_some_and(|record| record.fields.get(path) == Some(value)) {
            continue;
        }
        let mut query = Query::kind(info.kind).field(*path, value);
        query.limit = Some(1);
        if !api.store.list(&query).await?.records.is_empty() {
            let problem = Problem {
                field: (*path).into(),
                cause: Cause::Duplicate,
                reason: format!("{value:?} is taken"),
                remedy: "use another, or leave it out where the server mints one".into(),
            };
            return Err(Refusal::invalid(
                served.about(checked.metadata.name.as_str()),
                &[problem],
            ));
        }
    }
    Ok(())
}

/// Answers a write.
pub(crate) fn respond(
    renderer: &Renderer,
    written: &Written,
    options: WriteOptions,
    code: StatusCode,
) -> Result<Response, Refusal> {
    let mut response = if options.dry_run && written.record.version() == model::Version::ZERO {
        // Nothing was stored, so there is no version to speak of.
        let mut shown = Record::clone(&written.record);
        shown.meta.resource_version = None;
        renderer.object(&shown, code)?
    } else {
        renderer.object(&written.record, code)?
    };
    // Headers are for a few words: clients limit them, and so does the map that holds them.
    let (mut left, all) = (MAX_WARNINGS_BYTES, written.warnings.len());
    for (i, warning) in written.warnings.iter().enumerate() {
        let mut warning = clip(warning.clone(), MAX_WARNING_BYTES);
        if i + 1 < all && (i + 1 >= MAX_WARNINGS || left < 3 * MAX_WARNING_BYTES) {
            warning = format!("and {} more fields that are unknown or duplicate", all - i);
            left = 0;
        }
        let text: String = warning
            .chars()
            .map(|c| {
                if c.is_ascii_graphic() || c == ' ' {
                    c
                } else {
                    '?'
                }
            })
            .collect();
        let quoted = text.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            left = left.saturating_sub(value.len());
            response.headers_mut().append(header::WARNING, value);
        }
        if left == 0 {
            break;
        }
    }
    Ok(response)
}
