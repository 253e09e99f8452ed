//! Manifests as text.

use serde_json::Value;

use crate::Manifest;

/// What cannot be written as YAML.
#[derive(Debug, thiserror::Error)]
#[error("{what} cannot be written as YAML: {source}")]
pub struct YamlError {
    what: String,
    source: serde_saphyr::SerializeError,
}

/// Several documents.
///
/// # Errors
/// If one cannot be written.
pub fn documents(manifests: &[Manifest]) -> Result<String, YamlError> {
    let texts: Result<Vec<String>, _> = manifests.iter().map(|m| document(&m.object)).collect();
    Ok(texts?.join("---\n"))
}

/// One document, without a mark before it.
///
/// # Errors
/// If it cannot be written.
pub fn document(object: &Value) -> Result<String, YamlError> {
    serde_saphyr::to_string(object).map_err(|source| YamlError {
        what: format!("{} {}", object["kind"], object["metadata"]["name"]),
        source,
    })
}
