//! Query parameters.

use axum::extract::{FromRequestParts, Query};
use http::request::Parts;
use model::Version;

use crate::{refusal::Refusal, resource_api::Api};

/// The query parameters of a request. Unknown ones are ignored, as Kubernetes does.
#[derive(Clone, Debug, Default)]
pub(crate) struct Params(Vec<(String, String)>);

impl FromRequestParts<Api> for Params {
    type Rejection = Refusal;
    async fn from_request_parts(parts: &mut Parts, _: &Api) -> Result<Self, Refusal> {
        Query::try_from_uri(&parts.uri)
            .map(|Query(pairs)| Self(pairs))
            .map_err(|_| Refusal::bad_request("the query is malformed: escape it as key=value&…"))
    }
}

impl Params {
    /// The value of a parameter; an empty one is as good as none.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        let pair = self.0.iter().find(|(key, _)| key == name);
        pair.map(|(_, value)| value.as_str())
            .filter(|value| !value.is_empty())
    }

    fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0
            .iter()
            .filter(move |(key, _)| key == name)
            .map(|(_, value)| value.as_str())
    }

    /// Whether a switch is on. `?watch` alone counts.
    pub(crate) fn is_on(&self, name: &str) -> Result<bool, Refusal> {
        match self.all(name).next() {
            None | Some("false" | "0" | "False" | "f") => Ok(false),
            Some("" | "true" | "1" | "True" | "t") => Ok(true),
            Some(other) => Err(Refusal::bad_field(
                name,
                format!("{other:?} is not true or false"),
            )),
        }
    }

    pub(crate) fn number(&self, name: &str) -> Result<Option<u64>, Refusal> {
        self.get(name)
            .map(|text| {
                text.parse().map_err(|_| {
                    Refusal::bad_field(name, format!("{text:?} is not a whole number from 0 up"))
                })
            })
            .transpose()
    }

    pub(crate) fn version(&self) -> Result<Option<Version>, Refusal> {
        self.get("resourceVersion")
            .map(|text| {
                text.parse()
                    .map_err(|e| Refusal::bad_field("resourceVersion", format!("{e}")))
            })
            .transpose()
    }

    pub(crate) fn pretty(&self) -> bool {
        self.is_on("pretty").unwrap_or(false)
    }

    /// Whether the request is only tried.
    pub(crate) fn dry_run(&self) -> Result<bool, Refusal> {
        dry_run(self.all("dryRun"))
    }

    /// How a write is checked.
    pub(crate) fn write_options(&self) -> Result<WriteOptions, Refusal> {
        if self
            .get("fieldManager")
            .is_some_and(|m| m.len() > 128 || m.chars().any(char::is_control))
        {
            return Err(Refusal::invalid_option(
                "fieldManager",
                "use at most 128 printable characters",
            ));
        }
        let validation = match self.get("fieldValidation") {
            None | Some("Strict") => FieldValidation::Strict,
            Some("Warn") => FieldValidation::Warn,
            Some("Ignore") => FieldValidation::Ignore,
            Some(other) => {
                return Err(Refusal::invalid_option(
                    "fieldValidation",
                    format!("{other:?} is not known: use Strict, Warn or Ignore"),
                ));
            }
        };
        Ok(WriteOptions {
            dry_run: self.dry_run()?,
            validation,
        })
    }
}

pub(crate) fn dry_run<'a>(values: impl Iterator<Item = &'a str>) -> Result<bool, Refusal> {
    let mut on = false;
    for value in values {
        match value {
            "All" => on = true,
            "" => {}
            other => {
                return Err(Refusal::bad_field(
                    "dryRun",
                    format!("{other:?} is not known: use All"),
                ));
            }
        }
    }
    Ok(on)
}

/// How a write is checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriteOptions {
    pub(crate) dry_run: bool,
    pub(crate) validation: FieldValidation,
}

/// What happens to unknown and duplicate fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FieldValidation {
    /// They are refused by name.
    Strict,
    /// They are dropped, and the client is told.
    Warn,
    /// They are dropped.
    Ignore,
}
