//! What the client wants to read: objects, a table, or metadata only; as JSON or YAML.

use axum::extract::FromRequestParts;
use http::{header, request::Parts};

use crate::{refusal::Refusal, resource_api::Api};

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Json,
    Yaml,
}

/// What of an object is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// All of it.
    Object,
    /// A row.
    Table,
    /// Its metadata.
    Partial,
}

/// The first of the client's wishes that can be met.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Accept {
    pub(crate) format: Format,
    pub(crate) view: View,
}

impl FromRequestParts<Api> for Accept {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Refusal> {
        let wishes: Vec<&str> = parts
            .headers
            .get_all(header::ACCEPT)
            .iter()
            .filter_map(|v| v.to_str().ok())
            .collect();
        negotiate(&wishes.join(",")).ok_or_else(Refusal::not_acceptable)
    }
}

/// Clients list what they prefer first; weights are rare among them and not looked at, except
/// that a weight of zero is a refusal.
fn negotiate(accept: &str) -> Option<Accept> {
    if accept.trim().is_empty() {
        return Some(Accept {
            format: Format::Json,
            view: View::Object,
        });
    }
    accept.split(',').find_map(|wish| {
        let mut parts = wish.split(';').map(str::trim);
        let format = match parts.next()?.to_ascii_lowercase().as_str() {
            "application/json" | "application/*" | "*/*" => Format::Json,
            "application/yaml" => Format::Yaml,
            _ => return None,
        };
        let (mut transform, mut version, mut group) = (None, None, None);
        for parameter in parts {
            match parameter.split_once('=') {
                Some(("as", v)) => transform = Some(v),
                Some(("v", v)) => version = Some(v),
                Some(("g", v)) => group = Some(v),
                Some(("q", v))
                    if v.trim_matches('0').trim_matches('.').is_empty() && v.starts_with('0') =>
                {
                    return None;
                }
                Some(_) | None => {}
            }
        }
        let view = match (transform, group, version) {
            (None, _, _) => View::Object,
            (Some("Table"), Some("meta.k8s.io"), Some("v1")) => View::Table,
            (
                Some("PartialObjectMetadata" | "PartialObjectMetadataList"),
                Some("meta.k8s.io"),
                Some("v1"),
            ) => View::Partial,
            (Some(_), _, _) => return None,
        };
        Some(Accept { format, view })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_wish_that_can_be_met_wins() {
        const KUBECTL: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
        let table = [
            ("", Some((Format::Json, View::Object))),
            ("*/*", Some((Format::Json, View::Object))),
            (
                "application/vnd.kubernetes.protobuf, application/json",
                Some((Format::Json, View::Object)),
            ),
            ("application/vnd.kubernetes.protobuf", None),
            ("text/html", None),
            ("application/json;q=0", None),
            ("application/yaml", Some((Format::Yaml, View::Object))),
            (KUBECTL, Some((Format::Json, View::Table))),
            ("application/json;as=Table;v=v1beta1;g=meta.k8s.io", None),
            (
                "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1",
                Some((Format::Json, View::Partial)),
            ),
            (
                "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json",
                Some((Format::Json, View::Object)),
            ),
            (
                "application/json;stream=watch",
                Some((Format::Json, View::Object)),
            ),
        ];
        for (accept, expected) in table {
            let expected = expected.map(|(format, view)| Accept { format, view });
            assert_eq!(negotiate(accept), expected, "{accept}");
        }
    }
}
