//! The OpenAPI v3 document of the group, as an API server publishes it for custom resources.
//!
//! `kubectl explain` reads the schemas; `kubectl apply` and `create` look at the operations, to
//! learn by the parameter `fieldValidation` that the server validates.

use serde_json::{Map, Value, json};

use crate::{
    kinds::{self, KindInfo, Scope},
    meta::{API_VERSION, GROUP, GROUP_VERSION},
};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";

/// The OpenAPI v3 document of all kinds.
#[must_use]
pub fn openapi_v3() -> Value {
    let mut schemas = shared_schemas();
    let mut paths = Map::new();
    for info in &kinds::ALL {
        let gvk = gvk(info);
        let mut object = super::object(
            info,
            &json!({
                "allOf": [reference(&format!("{META}.ObjectMeta"))],
                "default": {},
                "description": "What tells it from others: name, namespace, labels.",
            }),
        );
        object["x-kubernetes-group-version-kind"] = json!([gvk]);
        schemas.insert(component(info.kind.0), object);
        schemas.insert(component(&info.list_kind()), list_schema(info));
        add_paths(info, &mut paths);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Dormouse", "version": API_VERSION},
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "BearerToken": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "The token that the server made at its first start.",
                },
            },
        },
        "security": [{"BearerToken": []}],
    })
}

fn gvk(info: &KindInfo) -> Value {
    json!({"group": GROUP, "version": API_VERSION, "kind": info.kind.0})
}

fn component(kind: &str) -> String {
    format!("dev.dormouse.{API_VERSION}.{kind}")
}

fn reference(name: &str) -> Value {
    json!({"$ref": format!("#/components/schemas/{name}")})
}

fn list_schema(info: &KindInfo) -> Value {
    json!({
        "description": format!("A list of {}.", info.plural),
        "type": "object",
        "required": ["items"],
        "properties": {
            "apiVersion": {"type": "string", "description": format!("Always {GROUP_VERSION}.")},
            "kind": {"type": "string", "description": format!("Always {}.", info.list_kind())},
            "metadata": {"allOf": [reference(&format!("{META}.ListMeta"))], "default": {}},
            "items": {"type": "array", "items": {"allOf": [reference(&component(info.kind.0))], "default": {}}},
        },
        "x-kubernetes-group-version-kind": [
            {"group": GROUP, "version": API_VERSION, "kind": info.list_kind()},
        ],
    })
}

/// What one operation on a path is.
struct Verb {
    method: &'static str,
    action: &'static str,
    summary: &'static str,
    parameters: &'static [&'static str],
    body: Body,
    answers_list: bool,
}

enum Body {
    None,
    Object,
    Patch,
    DeleteOptions,
}

const LIST_PARAMETERS: &[&str] = &[
    "allowWatchBookmarks",
    "continue",
    "fieldSelector",
    "labelSelector",
    "limit",
    "resourceVersion",
    "resourceVersionMatch",
    "timeoutSeconds",
    "watch",
];
const WRITE_PARAMETERS: &[&str] = &["dryRun", "fieldManager", "fieldValidation"];

const LIST: Verb = Verb {
    method: "get",
    action: "list",
    summary: "list or watch",
    parameters: LIST_PARAMETERS,
    body: Body::None,
    answers_list: true,
};
const CREATE: Verb = Verb {
    method: "post",
    action: "post",
    summary: "create",
    parameters: WRITE_PARAMETERS,
    body: Body::Object,
    answers_list: false,
};
const DELETE_MANY: Verb = Verb {
    method: "delete",
    action: "deletecollection",
    summary: "delete all that match",
    parameters: &[
        "continue",
        "dryRun",
        "fieldSelector",
        "labelSelector",
        "limit",
    ],
    body: Body::DeleteOptions,
    answers_list: true,
};
const READ: Verb = Verb {
    method: "get",
    action: "get",
    summary: "read",
    parameters: &["resourceVersion"],
    body: Body::None,
    answers_list: false,
};
const REPLACE: Verb = Verb {
    method: "put",
    action: "put",
    summary: "replace",
    parameters: WRITE_PARAMETERS,
    body: Body::Object,
    answers_list: false,
};
const PATCH: Verb = Verb {
    method: "patch",
    action: "patch",
    summary: "change",
    parameters: WRITE_PARAMETERS,
    body: Body::Patch,
    answers_list: false,
};
const DELETE: Verb = Verb {
    method: "delete",
    action: "delete",
    summary: "delete",
    parameters: &["dryRun", "gracePeriodSeconds", "propagationPolicy"],
    body: Body::DeleteOptions,
    answers_list: false,
};

fn add_paths(info: &KindInfo, paths: &mut Map<String, Value>) {
    let root = format!("/apis/{GROUP_VERSION}");
    let (collection, shared) = match info.scope {
        Scope::Namespaced => (
            format!("{root}/namespaces/{{namespace}}/{}", info.plural),
            vec!["namespace"],
        ),
        Scope::Cluster => (format!("{root}/{}", info.plural), vec![]),
    };
    let named = [shared.as_slice(), &["name"]].concat();
    let item = format!("{collection}/{{name}}");
    let status = format!("{item}/status");
    let mut add = |path: String, place: &str, shared: &[&str], verbs: &[Verb]| {
        paths.insert(path, path_item(info, place, shared, verbs));
    };
    add(collection, "", &shared, &[LIST, CREATE, DELETE_MANY]);
    add(item, "", &named, &[READ, REPLACE, PATCH, DELETE]);
    add(status, "Status", &named, &[READ, REPLACE, PATCH]);
    if info.scope == Scope::Namespaced {
        add(
            format!("{root}/{}", info.plural),
            "ForAllNamespaces",
            &[],
            &[LIST],
        );
    }
}

fn path_item(info: &KindInfo, place: &str, shared: &[&str], verbs: &[Verb]) -> Value {
    let mut item = Map::new();
    for verb in verbs {
        item.insert(verb.method.into(), operation(info, place, verb));
    }
    let parameters: Vec<Value> = shared
        .iter()
        .chain(&["pretty"])
        .map(|p| parameter(p))
        .collect();
    item.insert("parameters".into(), parameters.into());
    item.into()
}

fn operation(info: &KindInfo, place: &str, verb: &Verb) -> Value {
    let kind = info.kind.0;
    let object = component(kind);
    let answer = if verb.answers_list {
        component(&info.list_kind())
    } else {
        object.clone()
    };
    let status = format!("{META}.Status");
    let content = |schema: &str| json!({"application/json": {"schema": reference(schema)}});
    let mut operation = json!({
        "tags": ["dormouseDev_v1alpha1"],
        "operationId": format!("{}DormouseDevV1alpha1{kind}{place}", verb.action),
        "description": format!("{} {}", verb.summary, if verb.answers_list { info.plural } else { info.singular }),
        "parameters": verb.parameters.iter().map(|p| parameter(p)).collect::<Vec<_>>(),
        "responses": {
            "200": {"description": "OK", "content": content(&answer)},
            "401": {"description": "Unauthorized", "content": content(&status)},
            "default": {"description": "Refused or failed", "content": content(&status)},
        },
        "x-kubernetes-action": verb.action,
        "x-kubernetes-group-version-kind": gvk(info),
    });
    match verb.body {
        Body::None => {}
        Body::Object => {
            let schema = json!({"schema": reference(&object)});
            operation["requestBody"] = json!({
                "required": true,
                "content": {"application/json": schema, "application/yaml": schema},
            });
        }
        Body::Patch => {
            let schema = json!({"schema": reference(&format!("{META}.Patch"))});
            let types = info
                .patches
                .iter()
                .map(|p| (p.media_type().to_owned(), schema.clone()));
            operation["requestBody"] =
                json!({"required": true, "content": types.collect::<Map<_, _>>()});
        }
        Body::DeleteOptions => {
            operation["requestBody"] =
                json!({"content": content(&format!("{META}.DeleteOptions"))});
        }
    }
    if verb.method == "post" {
        operation["responses"]["201"] =
            json!({"description": "Created", "content": content(&object)});
    }
    if matches!(verb.body, Body::DeleteOptions) && !verb.answers_list {
        operation["responses"]["200"] = json!({"description": "OK", "content": content(&status)});
    }
    operation
}

fn parameter(name: &str) -> Value {
    let (place, kind, about) = match name {
        "name" => ("path", "string", "The object's name."),
        "namespace" => ("path", "string", "The namespace (team) of the object."),
        "pretty" => ("query", "string", "If 'true', the answer is indented."),
        "dryRun" => (
            "query",
            "string",
            "With 'All', everything is checked and nothing is written.",
        ),
        "fieldManager" => ("query", "string", "The name of who makes this change."),
        "fieldValidation" => (
            "query",
            "string",
            "What happens to unknown and duplicate fields: Strict refuses them by name (the default here), Warn drops them with a warning, Ignore drops them.",
        ),
        "labelSelector" => ("query", "string", "Only objects with these labels."),
        "fieldSelector" => (
            "query",
            "string",
            "Only objects with these values in selectable fields.",
        ),
        "limit" => (
            "query",
            "integer",
            "At most this many; the answer says how to continue.",
        ),
        "continue" => (
            "query",
            "string",
            "Continues a list where its last page ended.",
        ),
        "watch" => (
            "query",
            "boolean",
            "Follow changes instead of answering a list.",
        ),
        "allowWatchBookmarks" => (
            "query",
            "boolean",
            "Tell the version now and then, though nothing changed.",
        ),
        "resourceVersion" => (
            "query",
            "string",
            "Where a watch starts, or how fresh a list must be.",
        ),
        "resourceVersionMatch" => (
            "query",
            "string",
            "How resourceVersion applies to a list: Exact or NotOlderThan.",
        ),
        "timeoutSeconds" => ("query", "integer", "How long a watch lasts."),
        "gracePeriodSeconds" => (
            "query",
            "integer",
            "Accepted for compatibility; deletion begins at once.",
        ),
        "propagationPolicy" => (
            "query",
            "string",
            "Background or Foreground; dependents always go with their owner.",
        ),
        _ => ("query", "string", ""),
    };
    let mut parameter = json!({
        "name": name,
        "in": place,
        "description": about,
        "schema": {"type": kind, "uniqueItems": true},
    });
    if place == "path" {
        parameter["required"] = true.into();
    }
    parameter
}

fn shared_schemas() -> Map<String, Value> {
    let text = |about: &str| json!({"type": "string", "description": about});
    let number = |about: &str| json!({"type": "integer", "format": "int64", "description": about});
    let time = |about: &str| json!({"type": "string", "format": "date-time", "description": about});
    let pairs = |about: &str| json!({"type": "object", "additionalProperties": {"type": "string", "default": ""}, "description": about});
    let schemas = [
        (
            "ObjectMeta",
            json!({
                "description": "What tells objects apart and ties them together.",
                "type": "object",
                "properties": {
                    "name": text("Unique within kind and namespace. A DNS label. Cannot be changed."),
                    "generateName": text("A prefix to which the server adds five letters, where no name is given."),
                    "namespace": text("The tenant (team). Cannot be changed."),
                    "uid": text("Identity for life. Set by the server."),
                    "resourceVersion": text("The version this was read at. Set by the server; sent back with a change, it guards against lost updates."),
                    "generation": number("Counts changes of the spec. Set by the server."),
                    "creationTimestamp": time("When it was created. Set by the server."),
                    "deletionTimestamp": time("When its deletion was asked for. Set by the server."),
                    "labels": pairs("Pairs by which objects are selected. Keys under dormouse.dev/ are the server's."),
                    "annotations": pairs("Other pairs. Keys under dormouse.dev/ are the server's."),
                    "finalizers": {"type": "array", "items": {"type": "string", "default": ""}, "description": "Who still has to clean up before it may go."},
                    "ownerReferences": {"type": "array", "items": {"allOf": [reference(&format!("{META}.OwnerReference"))], "default": {}}, "description": "What it belongs to and goes with."},
                },
            }),
        ),
        ("OwnerReference", super::of::<crate::meta::OwnerReference>()),
        (
            "ListMeta",
            json!({
                "description": "What is known of a list.",
                "type": "object",
                "properties": {
                    "resourceVersion": text("A watch after this version continues without a gap."),
                    "continue": text("Asks for the next page; absent on the last."),
                    "remainingItemCount": number("How many follow."),
                },
            }),
        ),
        (
            "Status",
            json!({
                "description": "How a request ended.",
                "type": "object",
                "properties": {
                    "apiVersion": text("Always v1."),
                    "kind": text("Always Status."),
                    "metadata": {"allOf": [reference(&format!("{META}.ListMeta"))], "default": {}},
                    "status": text("Success or Failure."),
                    "message": text("A sentence for people."),
                    "reason": text("One word for machines."),
                    "code": {"type": "integer", "format": "int32", "description": "The HTTP status."},
                    "details": {
                        "type": "object",
                        "description": "What it is about, and which fields are wrong and why.",
                        "properties": {
                            "name": text("The object."), "group": text("Its group."), "kind": text("Its kind."), "uid": text("Its uid."),
                            "retryAfterSeconds": {"type": "integer", "format": "int32", "description": "When to try again."},
                            "causes": {"type": "array", "items": {"type": "object", "properties": {
                                "field": text("The field's path."), "message": text("What is wrong, and the remedy."), "reason": text("One word for machines."),
                            }}},
                        },
                    },
                },
                "x-kubernetes-group-version-kind": [{"group": "", "version": "v1", "kind": "Status"}],
            }),
        ),
        (
            "DeleteOptions",
            json!({
                "description": "How to delete.",
                "type": "object",
                "properties": {
                    "apiVersion": text("The version of this."),
                    "kind": text("Always DeleteOptions."),
                    "dryRun": {"type": "array", "items": {"type": "string", "default": ""}, "description": "With All, nothing is written."},
                    "gracePeriodSeconds": number("Accepted for compatibility; deletion begins at once."),
                    "propagationPolicy": text("Background or Foreground."),
                    "preconditions": {"type": "object", "description": "What must still be so.", "properties": {
                        "uid": text("It is this one."), "resourceVersion": text("It has not changed since."),
                    }},
                },
                "x-kubernetes-group-version-kind": [{"group": GROUP, "version": API_VERSION, "kind": "DeleteOptions"}],
            }),
        ),
        (
            "Patch",
            json!({"type": "object", "description": "A partial change, in the form its media type says."}),
        ),
    ];
    schemas
        .into_iter()
        .map(|(name, schema)| (format!("{META}.{name}"), schema))
        .collect()
}
