//! Deleting: one object, or all that match.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use model::{Uid, Version};
use serde::Deserialize;
use serde_json::{Value, json};
use store::{Deletion, Precondition, Record, rules};

use crate::{
    body::RawBody,
    gate,
    negotiate::Accept,
    page::Page,
    params::{self, Params},
    place::Place,
    read,
    refusal::Refusal,
    render::{ListMeta, Renderer},
    resource_api::{Api, ResourceApi},
    selector::Selector,
    served::Served,
    submission, write,
};

/// What Kubernetes' clients may send along that decides nothing here.
const MEANINGLESS: [&str; 2] = [
    "apiVersion",
    "ignoreStoreReadErrorWithClusterBreakingPotential",
];

/// `DeleteOptions`, as far as it means something here.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Options {
    preconditions: Preconditions,
    propagation_policy: Option<String>,
    orphan_dependents: Option<bool>,
    grace_period_seconds: Option<i64>,
    dry_run: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Preconditions {
    uid: Option<String>,
    resource_version: Option<String>,
}

/// What was asked of a deletion, checked.
#[derive(Clone, Debug)]
struct Wish {
    uid: Option<String>,
    version: Option<Version>,
    dry_run: bool,
    grace: Option<u64>,
}

fn read_options(body: &RawBody, params: &Params) -> Result<Wish, Refusal> {
    let mut options = if body.bytes.is_empty() {
        Options::default()
    } else {
        let document = body.parse()?;
        let Value::Object(mut fields) = document.value else {
            return Err(Refusal::bad_field(
                ".",
                "the body is not an object: send DeleteOptions, or nothing",
            ));
        };
        fields.retain(|name, v| !v.is_null() && !MEANINGLESS.contains(&name.as_str()));
        if let Some(kind) = fields.remove("kind").filter(|kind| kind != "DeleteOptions") {
            return Err(Refusal::bad_field(
                "kind",
                format!("{kind} does not fit a deletion: use \"DeleteOptions\""),
            ));
        }
        if fields.get("preconditions").is_some_and(|p| !p.is_object()) {
            return Err(Refusal::bad_field("preconditions", "it is not an object"));
        }
        let (options, unknown) = model::codec::decode(&Value::Object(fields).to_string())
            .map_err(|e| submission::wrong_type("", &e))?;
        let unknown: Vec<String> = unknown.fields().map(ToString::to_string).collect();
        // A misspelt precondition must not be taken for none.
        if !unknown.is_empty() || !document.duplicates.is_empty() {
            return Err(Refusal::strict(&unknown, &document.duplicates));
        }
        options
    };
    if let Some(policy) = params.get("propagationPolicy") {
        options.propagation_policy = Some(policy.to_owned());
    }
    if let Some(text) = params.get("gracePeriodSeconds") {
        let seconds = text.parse().map_err(|_| {
            Refusal::bad_field(
                "gracePeriodSeconds",
                format!("{text:?} is not a whole number"),
            )
        })?;
        options.grace_period_seconds = Some(seconds);
    }
    match options.propagation_policy.as_deref() {
        None | Some("Background" | "Foreground") => {}
        Some("Orphan") => {
            return Err(Refusal::invalid_option(
                "propagationPolicy",
                "Orphan is not supported, because dependents always go with their owner: use Background or Foreground",
            ));
        }
        Some(other) => {
            return Err(Refusal::invalid_option(
                "propagationPolicy",
                format!("{other:?} is not known: use Background or Foreground"),
            ));
        }
    }
    if options.orphan_dependents == Some(true) {
        return Err(Refusal::invalid_option(
            "orphanDependents",
            "it is not supported, because dependents always go with their owner: leave it out",
        ));
    }
    if options
        .grace_period_seconds
        .is_some_and(|seconds| seconds < 0)
    {
        return Err(Refusal::invalid_option(
            "gracePeriodSeconds",
            "it is negative: use 0 or more",
        ));
    }
    let version = options
        .preconditions
        .resource_version
        .as_deref()
        .filter(|v| !v.is_empty());
    let version = version
        .map(|text| {
            text.parse()
                .map_err(|e| Refusal::bad_field("preconditions.resourceVersion", format!("{e}")))
        })
        .transpose()?;
    let in_body = params::dry_run(options.dry_run.iter().map(String::as_str))?;
    Ok(Wish {
        uid: options.preconditions.uid.filter(|uid| !uid.is_empty()),
        version,
        dry_run: params.dry_run()? || in_body,
        grace: options
            .grace_period_seconds
            .and_then(|seconds| u64::try_from(seconds).ok()),
    })
}

pub(crate) async fn delete(
    State(api): State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    place.deletable()?;
    let renderer = Renderer::new(place.served, accept, &params, api.now())?;
    let wish = read_options(&body, &params)?;
    let key = place.key()?;
    let shared = Arc::clone(&api);
    let served = place.served;
    let deletion = api
        .outlive(async move {
            let Some(current) = shared.store.get(&key).await? else {
                return Err(Refusal::not_found(served.about(key.name.as_str())));
            };
            delete_one(&shared, &current, &wish, served).await
        })
        .await?;
    match deletion {
        // It waits for its finalizers, and the client may want to see for which.
        Deletion::Marked(record) => renderer.object(&record, StatusCode::OK),
        Deletion::Removed(record) if served.shows_deleted() => {
            renderer.object(&record, StatusCode::OK)
        }
        Deletion::Removed(record) => {
            let about = served.about(record.meta.name.as_str());
            let status = json!({
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": {
                    "name": about.name,
                    "group": about.group,
                    "kind": about.plural,
                    "uid": record.uid(),
                },
            });
            renderer.respond(status.to_string(), StatusCode::OK)
        }
    }
}

async fn delete_one(
    api: &ResourceApi,
    current: &Arc<Record>,
    wish: &Wish,
    served: Served,
) -> Result<Deletion, Refusal> {
    let key = current.key();
    let uid = match &wish.uid {
        None => None,
        Some(text) => Some(text.parse::<Uid>().map_err(|_| {
            Refusal::conflict(
                served.about(key.name.as_str()),
                &format!(
                    "Precondition failed: UID in precondition: {text}, UID in object meta: {}",
                    current.uid()
                ),
            )
        })?),
    };
    let only_if = Precondition {
        uid,
        version: wish.version,
    };
    if let (Served::Foreign(collection), Some(catalogue), false) =
        (served, &api.catalogue, wish.dry_run)
    {
        let deleted = catalogue.delete(collection, &key, only_if, wish.grace);
        return Ok(deleted.await?);
    }
    gate::before_delete(api, current, served).await?;
    if wish.dry_run {
        let effect = rules::delete(Some(current), &key, only_if, write::stamp(api))?;
        return Ok(effect.into_deletion());
    }
    Ok(api.store.delete(&key, only_if).await?)
}

/// How many objects are looked at between two deletions of a long list.
const CHUNK: usize = 256;

pub(crate) async fn delete_collection(
    State(api): State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    place.deletable()?;
    let renderer = Renderer::new(place.served, accept, &params, api.now())?;
    let selector = Selector::new(place.served, place.namespace.clone(), &params)?;
    let mut wish = read_options(&body, &params)?;
    if wish.uid.is_some() || wish.version.is_some() {
        return Err(Refusal::invalid_option(
            "preconditions",
            "they are for one object: delete it by its name",
        ));
    }
    let shared = Arc::clone(&api);
    let (deleted, version) = api
        .outlive(async move {
            let mut deleted = Vec::new();
            let mut page: Option<Page> = None;
            let mut version = Version::ZERO;
            loop {
                let found = read::find(&shared, &selector, Some(CHUNK), page.as_ref()).await?;
                version = version.max(found.version);
                for record in &found.records {
                    // Exactly the one that was found: its name may have a new bearer by now.
                    wish.uid = Some(record.uid().to_string());
                    match delete_one(&shared, record, &wish, place.served).await {
                        // As Kubernetes shows it: as it was found.
                        Ok(Deletion::Removed(_)) if matches!(place.served, Served::Foreign(_)) => {
                            deleted.push(Arc::clone(record));
                        }
                        Ok(Deletion::Removed(record) | Deletion::Marked(record)) => {
                            deleted.push(record);
                        }
                        Err(refusal) if refusal.is_gone() => {}
                        Err(refusal) => return Err(refusal),
                    }
                }
                match found.records.last() {
                    Some(last) if found.more => page = Some(Page::after(last, found.version)),
                    Some(_) | None => return Ok((deleted, version)),
                }
            }
        })
        .await?;
    let meta = ListMeta {
        version: version.to_string(),
        next: None,
    };
    renderer.list(deleted.iter().map(|r| &**r), &meta)
}
