//! Records to answers, in the shape the client asked for.

use axum::{body::Body, response::Response};
use http::{HeaderValue, StatusCode, header};
use model::Timestamp;
use serde_json::{Value, json};
use store::Record;

use crate::{
    negotiate::{Accept, Format, View},
    params::Params,
    refusal::Refusal,
    served::Served,
    table::{self, IncludeObject},
};

/// Turns records into answers to one request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renderer {
    pub(crate) served: Served,
    accept: Accept,
    pretty: bool,
    include: IncludeObject,
    now: Timestamp,
}

/// What is said of a list.
#[derive(Debug)]
pub(crate) struct ListMeta {
    pub(crate) version: String,
    pub(crate) next: Option<String>,
}

impl Renderer {
    pub(crate) fn new(
        served: Served,
        accept: Accept,
        params: &Params,
        now: Timestamp,
    ) -> Result<Self, Refusal> {
        let include = match params.get("includeObject") {
            None | Some("Metadata") => IncludeObject::Metadata,
            Some("None") => IncludeObject::None,
            Some("Object") => IncludeObject::Object,
            Some(other) => {
                return Err(Refusal::bad_field(
                    "includeObject",
                    format!("{other:?} is not known: use None, Metadata or Object"),
                ));
            }
        };
        Ok(Self {
            served,
            accept,
            pretty: params.pretty(),
            include,
            now,
        })
    }

    /// The same, at a later moment: rows of a long watch have an age too.
    pub(crate) fn at(self, now: Timestamp) -> Self {
        Self { now, ..self }
    }

    pub(crate) const fn view(&self) -> View {
        self.accept.view
    }

    /// One record as a response.
    pub(crate) fn object(&self, record: &Record, code: StatusCode) -> Result<Response, Refusal> {
        let text = match self.accept.view {
            View::Object => self.served.to_text(record)?,
            View::Table | View::Partial => self.one(record, true)?.to_string(),
        };
        self.respond(text, code)
    }

    /// One record as a value, in the view asked for.
    pub(crate) fn one(&self, record: &Record, headings: bool) -> Result<Value, Refusal> {
        Ok(match self.accept.view {
            View::Object => self.served.to_value(record)?,
            View::Partial => self.partial(record),
            View::Table => {
                let meta = json!({"resourceVersion": record.meta.resource_version});
                table::table(
                    self.served,
                    [record],
                    &meta,
                    self.include,
                    self.now,
                    headings,
                )?
            }
        })
    }

    /// Records as a list.
    pub(crate) fn list<'r>(
        &self,
        records: impl IntoIterator<Item = &'r Record>,
        meta: &ListMeta,
    ) -> Result<Response, Refusal> {
        let mut about = json!({"resourceVersion": meta.version});
        if let Some(next) = &meta.next {
            about["continue"] = next.as_str().into();
        }
        let text = match self.accept.view {
            View::Object => {
                // Written by hand: a long list is mostly text that is there already.
                let mut text = format!(
                    r#"{{"kind":"{}","apiVersion":"{}","metadata":{about},"items":["#,
                    self.served.list_kind(),
                    self.served.api_version()
                );
                for (i, record) in records.into_iter().enumerate() {
                    if i > 0 {
                        text.push(',');
                    }
                    text.push_str(&self.served.to_item(record)?);
                }
                text.push_str("]}");
                text
            }
            View::Partial => json!({
                "kind": "PartialObjectMetadataList",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": about,
                "items": records.into_iter().map(|r| self.partial(r)).collect::<Vec<_>>(),
            })
            .to_string(),
            View::Table => {
                table::table(self.served, records, &about, self.include, self.now, true)?
                    .to_string()
            }
        };
        self.respond(text, StatusCode::OK)
    }

    fn partial(&self, record: &Record) -> Value {
        json!({
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": self.served.metadata(record),
        })
    }

    /// JSON text as a response, in the format asked for.
    pub(crate) fn respond(&self, text: String, code: StatusCode) -> Result<Response, Refusal> {
        let broken = |_| Refusal::internal("the answer could not be written");
        let (text, media) = match (self.accept.format, self.pretty) {
            (Format::Json, false) => (text, "application/json"),
            (Format::Json, true) => {
                let value: Value = serde_json::from_str(&text).map_err(broken)?;
                (
                    serde_json::to_string_pretty(&value).map_err(broken)? + "\n",
                    "application/json",
                )
            }
            (Format::Yaml, _) => {
                let value: Value = serde_json::from_str(&text).map_err(broken)?;
                let yaml = serde_saphyr::to_string(&value)
                    .map_err(|_| Refusal::internal("the answer could not be written as YAML"))?;
                (yaml, "application/yaml")
            }
        };
        let mut response = Response::new(Body::from(text));
        *response.status_mut() = code;
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static(media));
        Ok(response)
    }
}

/// Plain JSON as a response.
pub(crate) fn json_response(value: &Value) -> Response {
    let mut response = Response::new(Body::from(value.to_string()));
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(header::CONTENT_TYPE, json);
    response
}
