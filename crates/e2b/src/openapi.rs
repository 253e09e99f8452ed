//! The OpenAPI document, made from the routes.

use schemars::{SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use crate::{
    route::{Route, Served},
    routes, wire,
};

/// Describes everything this crate serves.
#[must_use]
pub fn openapi() -> Value {
    let mut schemas = SchemaSettings::openapi3().into_generator();
    let error = schemas.subschema_for::<wire::Error>().to_value();
    let mut paths = Map::new();
    for route in routes::all() {
        // OpenAPI has no name for "the rest of the path".
        let path = route.path.replace("{*", "{");
        let methods = paths.entry(path).or_insert_with(|| json!({}));
        methods[route.verb.as_str().to_ascii_lowercase()] = operation(route, &error, &mut schemas);
    }
    let mut definitions = schemas.take_definitions(true);
    definitions.sort_keys();
    json!({
        "openapi": "3.0.3",
        "info": {
            "title": "Dormouse: the control API of E2B",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "What unmodified E2B SDKs and the CLI call. Routes that answer only 501 are not supported.",
        },
        "paths": paths,
        "components": {
            "schemas": definitions,
            "securitySchemes": {
                "key": {"type": "apiKey", "in": "header", "name": "X-API-KEY"},
                "bearer": {"type": "http", "scheme": "bearer"},
            },
        },
    })
}

fn operation(route: &Route, error: &Value, schemas: &mut SchemaGenerator) -> Value {
    let in_path = route.path.split('/').filter_map(|part| {
        let name = part.strip_prefix('{')?.strip_suffix('}')?;
        let name = name.trim_start_matches('*');
        Some(json!({"name": name, "in": "path", "required": true, "schema": {"type": "string"}}))
    });
    let in_query = route.query.iter().map(|param| {
        json!({
            "name": param.name,
            "in": "query",
            "description": param.what,
            "schema": {"type": "string"},
        })
    });
    let mut operation = json!({
        "summary": route.what,
        "parameters": in_path.chain(in_query).collect::<Vec<_>>(),
        "responses": responses(route, error, schemas),
        "security": match route.served {
            Served::Open(_) | Served::Signed(_) => json!([]),
            Served::Key(_) => json!([{"key": []}]),
            Served::KeyOrBearer(_) => json!([{"key": []}, {"bearer": []}]),
        },
    });
    if let Some((schema, required)) = route.takes {
        let schema = schema(schemas).to_value();
        // Where a body may be left out, `null` says the same.
        let schema = match required {
            true => schema,
            false => json!({"allOf": [schema], "nullable": true}),
        };
        operation["requestBody"] = json!({
            "required": required,
            "content": {"application/json": {"schema": schema}},
        });
    }
    operation
}

fn responses(route: &Route, error: &Value, schemas: &mut SchemaGenerator) -> Value {
    let mut responses = Map::new();
    for status in (200..600).filter(|status| route.may_answer(*status)) {
        let reason = http::StatusCode::from_u16(status)
            .ok()
            .and_then(|s| s.canonical_reason());
        let mut response = json!({"description": reason.unwrap_or("")});
        let schema = match (status, route.gives) {
            (400.., _) => Some(error.clone()),
            (204, _) | (_, None) => None,
            (_, Some(gives)) => Some(gives(schemas).to_value()),
        };
        if let Some(schema) = schema {
            response["content"] = json!({"application/json": {"schema": schema}});
        }
        responses.insert(status.to_string(), response);
    }
    responses.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Beside the code, so that a change of the API is seen in a review.
    const CHECKED_IN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/openapi.json");

    #[test]
    fn the_checked_in_document_is_what_the_code_says() {
        let now = format!("{:#}\n", openapi());
        if std::env::var_os("UPDATE_OPENAPI").is_some() {
            kit::durable::write_file(CHECKED_IN.as_ref(), now.as_bytes(), 0o644).unwrap();
        }
        let checked_in = std::fs::read_to_string(CHECKED_IN).unwrap_or_default();
        assert!(
            checked_in == now,
            "openapi.json is not what the routes say: run this test with UPDATE_OPENAPI=1"
        );
    }

    #[test]
    fn every_reference_leads_somewhere() {
        let document = openapi();
        let mut open = vec![&document];
        while let Some(value) = open.pop() {
            if let Some(Value::String(to)) = value.get("$ref") {
                let pointer = to.strip_prefix('#').unwrap();
                assert!(document.pointer(pointer).is_some(), "{to}");
            }
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(fields) => open.extend(fields.values()),
                Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
            }
        }
    }
}
