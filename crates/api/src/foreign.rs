//! Writing objects of collections that are data.
//!
//! The order is that of [`crate::write`]: the request is taken apart, the catalogue completes the
//! object and checks the rules of its kind, and the store decides about versions.

use std::sync::Arc;

use axum::response::Response;
use http::StatusCode;
use model::{
    Key, Name, Uid, Version,
    validate::{Cause, Problem},
};
use serde_json::{Map, Value};
use store::{Change, Draft, Half, Record, rules};

use crate::{
    apply::Manager,
    body::RawBody,
    collection::{Admission, Collection, Denied, Part},
    negotiate::Accept,
    object,
    params::{FieldValidation, Params, WriteOptions},
    patch,
    place::Place,
    refusal::{About, Refusal, field_warnings},
    render::Renderer,
    resource_api::{Api, ResourceApi},
    served::Served,
    submission,
    write::{self, Written, stamp},
};

/// How often a taken generated name is drawn again.
const NAME_ATTEMPTS: u32 = 8;

/// What a write needs to know of its request.
struct Request {
    collection: &'static Collection,
    place: Place,
    options: WriteOptions,
    renderer: Renderer,
}

impl Request {
    fn new(
        api: &Api,
        collection: &'static Collection,
        place: Place,
        params: &Params,
        accept: Accept,
    ) -> Result<Self, Refusal> {
        place.deletable()?;
        Ok(Self {
            collection,
            renderer: Renderer::new(place.served, accept, params, api.now())?,
            options: options(params)?,
            place,
        })
    }
}

/// How a write is checked. Unlike the registry, Kubernetes only warns unless told otherwise.
fn options(params: &Params) -> Result<WriteOptions, Refusal> {
    let mut options = params.write_options()?;
    if params.get("fieldValidation").is_none() {
        options.validation = FieldValidation::Warn;
    }
    Ok(options)
}

pub(crate) async fn create(
    api: Api,
    collection: &'static Collection,
    place: Place,
    params: &Params,
    accept: Accept,
    body: RawBody,
) -> Result<Response, Refusal> {
    let request = Request::new(&api, collection, place, params, accept)?;
    let document = body.parse()?;
    let (renderer, options) = (request.renderer, request.options);
    let shared = Arc::clone(&api);
    let written = api
        .outlive(async move { create_one(&shared, &request, document.value).await })
        .await?;
    write::respond(&renderer, &written, options, StatusCode::CREATED)
}

async fn create_one(
    api: &ResourceApi,
    request: &Request,
    object: Value,
) -> Result<Written, Refusal> {
    let Request {
        collection,
        place,
        options,
        ..
    } = request;
    let Envelope { mut meta, mut rest } = Envelope::new(object, request)?;
    if collection.has_status {
        rest.remove("status");
    }
    if text(&meta, "resourceVersion").is_some_and(|v| v != "0") {
        return Err(Refusal::versioned_create());
    }
    for field in [
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
        "selfLink",
    ] {
        meta.remove(field);
    }
    meta.remove(rules::GRACE);
    let given = text(&meta, "name").map(str::to_owned);
    let prefix = text(&meta, "generateName").map(str::to_owned);
    let mut attempt = 1;
    loop {
        let name = match (&given, &prefix) {
            (Some(name), _) => name.clone(),
            (None, Some(prefix)) => submission::generated_name(prefix, api.entropy.u64()),
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
        let key = Key {
            kind: collection.stored_as,
            namespace: place.namespace.clone(),
            name: new_name(&name, collection)?,
        };
        meta.insert("name".into(), name.into());
        let mut object = Envelope {
            meta: meta.clone(),
            rest: rest.clone(),
        }
        .into_value();
        let warnings = admit(api, request, Part::Main, &key, None, &mut object).await?;
        let kept = object::kept(collection, &key, object)?;
        let draft = Draft {
            kind: key.kind,
            meta: kept.meta,
            spec: kept.body.into(),
            status: kept.status.into(),
            fields: kept.fields,
        };
        let result = if options.dry_run {
            let current = api.store.get(&key).await?;
            let uid = Uid::from_random(api.entropy.u128());
            rules::create(current.as_ref(), draft, uid, stamp(api)).map(rules::Effect::into_record)
        } else {
            api.store.create(draft).await
        };
        match result.map_err(Refusal::from) {
            Ok(record) => return Ok(Written { record, warnings }),
            Err(refusal) if refusal.is_taken() && given.is_none() && attempt < NAME_ATTEMPTS => {
                attempt += 1;
            }
            Err(refusal) => return Err(refusal),
        }
    }
}

/// The name a new object gets: a DNS name, but for roles, whose names only have to fit in a path.
fn new_name(text: &str, collection: &'static Collection) -> Result<Name, Refusal> {
    let label = |label: &str| Name::new(label).is_ok();
    let fits = collection.group.starts_with("rbac.") || text.split('.').all(label);
    match Name::foreign(text) {
        Ok(name) if fits => Ok(name),
        Ok(_) | Err(_) => {
            let problem = Problem {
                field: "metadata.name".into(),
                cause: Cause::Invalid,
                reason: format!("{text:?}"),
                remedy: "use lower case letters, digits, '-' and '.'".into(),
            };
            let about = Served::Foreign(collection).about(text);
            Err(Refusal::invalid(about, &[problem]))
        }
    }
}

pub(crate) async fn replace(
    api: Api,
    collection: &'static Collection,
    place: Place,
    params: &Params,
    accept: Accept,
    body: RawBody,
    part: Part,
) -> Result<Response, Refusal> {
    let request = Request::new(&api, collection, place, params, accept)?;
    let document = body.parse()?;
    let key = request.place.key()?;
    let (renderer, options) = (request.renderer, request.options);
    let shared = Arc::clone(&api);
    let written = api
        .outlive(async move {
            let sent = Envelope::new(document.value, &request)?;
            let version = text(&sent.meta, "resourceVersion");
            let unconditional = version.is_none_or(|v| v == "0");
            let object = sent.into_value();
            if unconditional && !collection.unconditional {
                let problem = Problem {
                    field: "metadata.resourceVersion".into(),
                    cause: Cause::Invalid,
                    reason: "0x0".into(),
                    remedy: "must be specified for an update: send the version you read".into(),
                };
                // Here Kubernetes names the place, not the kind.
                let about = request.place.served.about(key.name.as_str());
                let about = About {
                    kind: about.plural,
                    ..about
                };
                return Err(Refusal::invalid(about, &[problem]));
            }
            let mut attempt = 1;
            loop {
                let current = current(&shared, &request, &key).await?;
                let object = object.clone();
                match update(&shared, &request, &key, &current, object, part).await {
                    Err(refusal)
                        if refusal.is_conflict()
                            && unconditional
                            && attempt < shared.limits.patch_attempts =>
                    {
                        attempt += 1;
                    }
                    result => return result,
                }
            }
        })
        .await?;
    write::respond(&renderer, &written, options, StatusCode::OK)
}

pub(crate) async fn patch(
    api: Api,
    collection: &'static Collection,
    place: Place,
    params: &Params,
    accept: Accept,
    body: RawBody,
    part: Part,
) -> Result<Response, Refusal> {
    let request = Request::new(&api, collection, place, params, accept)?;
    let patch = patch::parse_any(&body, collection)?;
    let manager = Manager::new(&patch, params)?;
    let key = request.place.key()?;
    let (renderer, options) = (request.renderer, request.options);
    let shared = Arc::clone(&api);
    let (written, code) = api
        .outlive(async move {
            let mut attempt = 1;
            loop {
                let found = shared.store.get(&key).await?;
                let Some(current) = found else {
                    let Some(manager) = &manager else {
                        let about = request.place.served.about(key.name.as_str());
                        return Err(Refusal::not_found(about));
                    };
                    let object = manager.first(&shared, &key, collection)?;
                    match create_one(&shared, &request, object).await {
                        Err(refusal) if refusal.is_taken() => continue,
                        created => return Ok((created?, StatusCode::CREATED)),
                    }
                };
                let mut object = object::to_value(collection, &current)?;
                match &manager {
                    None => patch.apply(&mut object, shared.limits.body_bytes)?,
                    Some(manager) => {
                        let about = request.place.served.about(key.name.as_str());
                        manager.merge(&shared, &mut object, collection, about)?;
                    }
                }
                let named = object["metadata"]["resourceVersion"].as_str()
                    != Some(current.version().to_string().as_str());
                match update(&shared, &request, &key, &current, object, part).await {
                    Err(refusal)
                        if refusal.is_conflict()
                            && !named
                            && attempt < shared.limits.patch_attempts =>
                    {
                        attempt += 1;
                    }
                    result => return Ok((result?, StatusCode::OK)),
                }
            }
        })
        .await?;
    write::respond(&renderer, &written, options, code)
}

async fn current(api: &ResourceApi, request: &Request, key: &Key) -> Result<Arc<Record>, Refusal> {
    let found = api.store.get(key).await?;
    found.ok_or_else(|| Refusal::not_found(request.place.served.about(key.name.as_str())))
}

/// Writes a new version of an object, or of its status.
async fn update(
    api: &ResourceApi,
    request: &Request,
    key: &Key,
    current: &Arc<Record>,
    object: Value,
    part: Part,
) -> Result<Written, Refusal> {
    let Request {
        collection,
        place,
        options,
        ..
    } = request;
    let old = object::to_value(collection, current)?;
    let Envelope { mut meta, mut rest } = Envelope::new(object, request)?;
    let about = || place.served.about(key.name.as_str());
    if text(&meta, "name").is_some_and(|name| name != key.name.as_str()) {
        return Err(Refusal::bad_field(
            "metadata.name",
            "the name of the object does not match the name on the URL: use the latter",
        ));
    }
    let uid = current.uid().to_string();
    if let Some(expected) = text(&meta, "uid").filter(|expected| *expected != uid) {
        return Err(Refusal::conflict(
            about(),
            &format!(
                "Precondition failed: UID in precondition: {expected}, UID in object meta: {uid}"
            ),
        ));
    }
    let expected = match text(&meta, "resourceVersion").filter(|v| *v != "0") {
        None => current.version(),
        Some(version) => version
            .parse::<Version>()
            .map_err(|e| Refusal::bad_field("metadata.resourceVersion", e.to_string()))?,
    };
    // Before the rules of the kind: who is late should hear that, not what else has changed.
    if expected != current.version() {
        return Err(store::StoreError::Conflict {
            key: key.clone(),
            expected,
            actual: current.version(),
        }
        .into());
    }
    if let (Part::Main, Some(added)) = (part, added_finalizer(&meta, current)) {
        let problem = Problem {
            field: "metadata.finalizers".into(),
            cause: Cause::Forbidden,
            reason: format!(
                "no new finalizers can be added if the object is being deleted: {added}"
            ),
            remedy: "leave it out".into(),
        };
        return Err(Refusal::invalid(about(), &[problem]));
    }
    let mut new = match part {
        Part::Main => {
            keep_system_fields(&mut meta, &old);
            if collection.has_status {
                match old.get("status") {
                    Some(status) => rest.insert("status".into(), status.clone()),
                    None => rest.remove("status"),
                };
            }
            Envelope { meta, rest }.into_value()
        }
        Part::Status => {
            let mut new = old.clone();
            new["status"] = rest.remove("status").unwrap_or_default();
            new
        }
    };
    let warnings = admit(api, request, part, key, Some(&old), &mut new).await?;
    let kept = object::kept(collection, key, new)?;
    let change = Change {
        key: key.clone(),
        uid: Some(current.uid()),
        expected,
        half: match part {
            Part::Main => Half::Spec {
                meta: Box::new(kept.meta),
                spec: kept.body.into(),
            },
            Part::Status => Half::Status {
                status: kept.status.into(),
            },
        },
        fields: kept.fields,
    };
    let record = if options.dry_run {
        let same = rules::Stamp {
            version: current.version(),
            now: api.now(),
        };
        rules::update(Some(current), change, same)?.into_record()
    } else {
        api.store.update(change).await?
    };
    let let_go = record.meta.is_deleting()
        && record.meta.finalizers.is_empty()
        && rules::grace(&record) == 0;
    Ok(Written {
        record: if let_go { at(&record, current) } else { record },
        warnings,
    })
}

/// A record that is gone, as Kubernetes answers with it: at the version it last had.
fn at(record: &Record, last: &Record) -> Arc<Record> {
    let mut shown = record.clone();
    shown.meta.resource_version = last.meta.resource_version;
    Arc::new(shown)
}

fn added_finalizer<'m>(meta: &'m Map<String, Value>, current: &Record) -> Option<&'m str> {
    let wanted = meta.get("finalizers").and_then(Value::as_array);
    let mut wanted = wanted.into_iter().flatten().filter_map(Value::as_str);
    let new = wanted.find(|finalizer| !current.meta.has_finalizer(finalizer));
    new.filter(|_| current.meta.is_deleting())
}

/// What the server owns of metadata stays as it is, whatever a client sends back.
fn keep_system_fields(meta: &mut Map<String, Value>, old: &Value) {
    for field in [
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "deletionTimestamp",
        "generation",
        "generateName",
        rules::GRACE,
    ] {
        match old["metadata"].get(field) {
            Some(value) => meta.insert(field.to_owned(), value.clone()),
            None => meta.remove(field),
        };
    }
    if !meta.contains_key("managedFields")
        && let Some(managed) = old["metadata"].get("managedFields")
    {
        meta.insert("managedFields".into(), managed.clone());
    }
}

async fn admit(
    api: &ResourceApi,
    request: &Request,
    part: Part,
    key: &Key,
    old: Option<&Value>,
    new: &mut Value,
) -> Result<Vec<String>, Refusal> {
    let Some(catalogue) = &api.catalogue else {
        return Ok(Vec::new());
    };
    let admission = Admission {
        collection: request.collection,
        namespace: key.namespace.as_ref(),
        part,
        old,
    };
    let about = || request.place.served.about(key.name.as_str());
    let unknown = catalogue
        .admit(admission, new)
        .await
        .map_err(|denied| match denied {
            Denied::Invalid(problems) => Refusal::invalid(about(), &problems),
            Denied::Forbidden(why) => Refusal::forbidden(about(), &why),
            Denied::NoNamespace => Refusal::not_found(About {
                group: "",
                plural: "namespaces",
                kind: "Namespace",
                name: key
                    .namespace
                    .as_ref()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
            }),
            Denied::Store(error) => error.into(),
        })?;
    match request.options.validation {
        FieldValidation::Strict if !unknown.is_empty() => Err(Refusal::strict(&unknown, &[])),
        FieldValidation::Warn => Ok(field_warnings(&unknown, &[]).collect()),
        FieldValidation::Strict | FieldValidation::Ignore => Ok(Vec::new()),
    }
}

/// An object that is meant for a place: its metadata, and all else.
struct Envelope {
    meta: Map<String, Value>,
    rest: Map<String, Value>,
}

impl Envelope {
    fn new(object: Value, request: &Request) -> Result<Self, Refusal> {
        let Request {
            collection, place, ..
        } = request;
        let Value::Object(mut rest) = object else {
            return Err(Refusal::bad_field(
                ".",
                format!("the body is not an object: send a {}", collection.kind),
            ));
        };
        for (field, expected) in [
            ("apiVersion", collection.api_version),
            ("kind", collection.kind),
        ] {
            match rest.get(field) {
                Some(Value::String(given)) if given == expected => {}
                // The types of built-in kinds are known from the path.
                None if collection.strategic => {}
                given => {
                    let given = given.cloned().unwrap_or_default();
                    return Err(Refusal::bad_field(
                        field,
                        format!("{given} does not fit this path: use {expected:?}"),
                    ));
                }
            }
            rest.insert(field.to_owned(), expected.into());
        }
        let mut meta = match rest.remove("metadata") {
            Some(Value::Object(meta)) => meta,
            None | Some(Value::Null) => Map::new(),
            Some(_) => return Err(Refusal::bad_field("metadata", "it is not an object")),
        };
        meta.retain(|_, value| !value.is_null());
        let here = place.namespace.as_ref().map(AsRef::<str>::as_ref);
        match (text(&meta, "namespace").map(str::to_owned), here) {
            (None, Some(here)) => {
                meta.insert("namespace".into(), here.into());
            }
            (Some(given), here) if Some(given.as_str()) != here => {
                return Err(Refusal::bad_field(
                    "metadata.namespace",
                    "the namespace of the provided object does not match the namespace sent on the request",
                ));
            }
            (_, _) => {}
        }
        Ok(Self { meta, rest })
    }

    fn into_value(mut self) -> Value {
        self.rest.insert("metadata".into(), self.meta.into());
        self.rest.into()
    }
}

fn text<'m>(meta: &'m Map<String, Value>, field: &str) -> Option<&'m str> {
    let value = meta.get(field).and_then(Value::as_str);
    value.filter(|text| !text.is_empty())
}
