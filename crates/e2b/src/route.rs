//! A route: where it is, what it takes and answers, and who serves it, in one place.
//!
//! The router, the check of query parameters and the OpenAPI document are made from the same rows,
//! so none of them can say something else.

use std::{panic::AssertUnwindSafe, pin::Pin, sync::Arc};

use auth::{
    Caller, Denied,
    audit::{Action, Entry},
};
use axum::{
    body::Body,
    extract::{FromRequestParts as _, RawPathParams, Request},
    response::{IntoResponse as _, Response},
    routing::MethodFilter,
};
use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{HeaderMap, HeaderValue, StatusCode, header};
use model::{Namespace, SandboxId, validate::is_alias};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::Serialize;

use crate::{
    body,
    layers::RequestId,
    meter::Ending,
    query::Query,
    refusal::Refusal,
    service::{Api, E2b},
};

/// Carries a key.
const KEY: &str = "x-api-key";
/// Names the team for which an administrator acts.
const TEAM: &str = "x-dormouse-team";
const DEFAULT_TEAM: &str = "default";

/// What a handler answers.
pub(crate) type Answer = Result<Response, Refusal>;
/// Serves a route.
pub(crate) type Handler = fn(Call) -> Pin<Box<dyn Future<Output = Answer> + Send>>;
type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// What a handler is given.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) api: Api,
    pub(crate) caller: Caller,
    /// Whether the caller administrates, and acts for the team.
    pub(crate) is_admin: bool,
    /// What the caller presented.
    pub(crate) presented: String,
    pub(crate) headers: HeaderMap,
    /// The host, with its port, by which the client knows this server.
    pub(crate) host: String,
    pub(crate) path: Vec<String>,
    pub(crate) query: Query,
    pub(crate) body: Bytes,
}

/// What a handler is given whose caller has no key, but was given the address by somebody who has.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) api: Api,
    pub(crate) path: Vec<String>,
    pub(crate) query: Query,
    /// As it arrives.
    pub(crate) body: Body,
}

/// Serves a route whose address is its own proof.
pub(crate) type Receiver = fn(Delivery) -> Pin<Box<dyn Future<Output = Answer> + Send>>;

impl Call {
    /// The first variable part of the path.
    pub(crate) fn subject(&self) -> &str {
        self.path.first().map_or("", String::as_str)
    }
}

/// Methods of this API.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Get,
    Post,
    Put,
    Patch,
    Delete,
}

impl Verb {
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
        }
    }

    pub(crate) const fn filter(self) -> MethodFilter {
        match self {
            Self::Get => MethodFilter::GET,
            Self::Post => MethodFilter::POST,
            Self::Put => MethodFilter::PUT,
            Self::Patch => MethodFilter::PATCH,
            Self::Delete => MethodFilter::DELETE,
        }
    }
}

/// A query parameter.
#[derive(Debug)]
pub(crate) struct Param {
    pub(crate) name: &'static str,
    pub(crate) what: &'static str,
    pub(crate) repeats: bool,
}

impl Param {
    pub(crate) const fn new(name: &'static str, what: &'static str) -> Self {
        Self {
            name,
            what,
            repeats: false,
        }
    }

    pub(crate) const fn list(name: &'static str, what: &'static str) -> Self {
        Self {
            name,
            what,
            repeats: true,
        }
    }
}

/// Who may ask, and who answers.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Served {
    /// Everybody.
    Open(fn(&E2b) -> Answer),
    /// Whoever has a key.
    Key(Handler),
    /// Whoever has a key, also as a bearer token.
    KeyOrBearer(Handler),
    /// Whoever was given the address; the handler checks it.
    Signed(Receiver),
}

/// One row.
#[derive(Debug)]
pub(crate) struct Route {
    pub(crate) verb: Verb,
    pub(crate) path: &'static str,
    pub(crate) what: &'static str,
    pub(crate) query: &'static [Param],
    pub(crate) takes: Option<(SchemaOf, bool)>,
    pub(crate) gives: Option<SchemaOf>,
    pub(crate) statuses: &'static [u16],
    /// Whether it does what E2B's does; one that does not answers 501 to everything.
    pub(crate) built: bool,
    /// The word for it in the audit, where it changes something.
    pub(crate) action: Option<&'static str>,
    pub(crate) served: Served,
}

impl Route {
    pub(crate) const fn new(
        verb: Verb,
        path: &'static str,
        what: &'static str,
        statuses: &'static [u16],
        handler: Handler,
    ) -> Self {
        Self {
            verb,
            path,
            what,
            query: &[],
            takes: None,
            gives: None,
            statuses,
            built: true,
            action: None,
            served: Served::Key(handler),
        }
    }

    /// A route of E2B's that this server does not have.
    pub(crate) const fn not_built(verb: Verb, path: &'static str, handler: Handler) -> Self {
        let mut route = Self::new(verb, path, "Not supported by this server", &[501], handler);
        route.built = false;
        route
    }

    /// Open to others than holders of a key in its header.
    pub(crate) const fn served(mut self, served: Served) -> Self {
        self.served = served;
        self
    }

    /// Recorded in the audit by this word.
    pub(crate) const fn audited(mut self, action: &'static str) -> Self {
        self.action = Some(action);
        self
    }

    /// With query parameters.
    pub(crate) const fn query(mut self, query: &'static [Param]) -> Self {
        self.query = query;
        self
    }

    /// With a body.
    pub(crate) const fn takes<T: JsonSchema>(mut self) -> Self {
        self.takes = Some((SchemaGenerator::subschema_for::<T>, true));
        self
    }

    /// With a body that may be left out.
    pub(crate) const fn may_take<T: JsonSchema>(mut self) -> Self {
        self.takes = Some((SchemaGenerator::subschema_for::<T>, false));
        self
    }

    /// Answering this.
    pub(crate) const fn gives<T: JsonSchema>(mut self) -> Self {
        self.gives = Some(SchemaGenerator::subschema_for::<T>);
        self
    }

    /// Whether it is about sandboxes: those of the caller, or the one that its path names.
    fn is_of_sandboxes(&self) -> bool {
        let path = self.path.strip_prefix("/v2").unwrap_or(self.path);
        path.starts_with("/sandboxes")
    }

    /// Statuses that every route can answer with, for reasons that are not its own.
    const COMMON: &'static [u16] = &[400, 408, 413, 414, 415, 500];

    /// Whether the route is known to answer with a status.
    pub(crate) fn may_answer(&self, status: u16) -> bool {
        let guarded = !matches!(self.served, Served::Open(_) | Served::Signed(_));
        self.statuses.contains(&status)
            || Self::COMMON.contains(&status)
            || (guarded && [401, 403, 429, 503].contains(&status))
    }
}

/// Serves a request of a route: counts it, asks who calls, reads it, has it handled, and answers.
pub(crate) async fn serve(
    api: Api,
    route: &'static Route,
    at: usize,
    request: Request,
) -> Response {
    let started = api.clock.monotonic();
    let measuring = api.meters[at].begin();
    let request_id = request.extensions().get::<RequestId>().cloned();
    let mut asked = Asked::default();
    let handled = AssertUnwindSafe(handle(&api, route, request, &mut asked));
    let answer = match handled.catch_unwind().await {
        Ok(answer) => answer,
        // The panic itself is in the log already.
        Err(_) => Err(Refusal::internal(
            "the request failed unexpectedly: see the server's log",
        )),
    };
    let response = answer.unwrap_or_else(|refusal| refusal.into_response());
    let status = response.status().as_u16();
    if let (Some(audit), Some(caller), Some(action)) = (&api.audit, &asked.caller, route.action) {
        let mut entry = Entry::new(api.now(), caller.actor(), Action::new(action));
        let made = response
            .extensions()
            .get::<Made>()
            .map(|made| made.0.clone());
        if action.starts_with("template.") {
            // What a client wrote, where it can be a template's name or id.
            let subject = asked.subject.as_deref().filter(|text| is_alias(text));
            entry.object = subject.map(|id| format!("template/{}/{id}", caller.team).into());
        } else {
            entry.sandbox = made.or_else(|| SandboxId::new(asked.subject.as_deref()?).ok());
        }
        entry = match Ending::of(status) {
            Ending::Served => entry,
            Ending::Refused | Ending::NotBuilt => entry.refused(word(status)),
            Ending::Failed | Ending::Abandoned => entry.failed(word(status)),
        };
        entry.request = request_id.map(|id| id.as_str().into());
        audit.record(entry).await;
    }
    measuring.end(status, api.clock.monotonic().saturating_sub(started));
    response
}

/// What a request made, for the audit.
#[derive(Clone, Debug)]
pub(crate) struct Made(pub(crate) SandboxId);

/// A status as a word.
fn word(status: u16) -> &'static str {
    let status = StatusCode::from_u16(status).ok();
    status
        .and_then(|s| s.canonical_reason())
        .unwrap_or("unknown")
}

#[derive(Default)]
struct Asked {
    caller: Option<Caller>,
    subject: Option<String>,
}

async fn handle(api: &Api, route: &'static Route, request: Request, asked: &mut Asked) -> Answer {
    let (mut parts, body) = request.into_parts();
    let length = parts.uri.path_and_query().map_or(0, |p| p.as_str().len());
    if length > api.options.uri_bytes {
        return Err(Refusal::uri_too_long(api.options.uri_bytes));
    }
    let (handler, bearer) = match route.served {
        Served::Open(answer) => return answer(api),
        Served::Key(handler) => (handler, false),
        Served::KeyOrBearer(handler) => (handler, true),
        Served::Signed(receiver) => {
            let path = read_path(&mut parts).await?;
            let delivery = Delivery {
                api: Arc::clone(api),
                path,
                query: Query::read(parts.uri.query(), route.query)?,
                body,
            };
            return receiver(delivery).await;
        }
    };
    if let Some(what) = api.unseen() {
        return Err(Refusal::blind(what));
    }
    let Admitted {
        caller,
        is_admin,
        presented,
    } = authenticate(api, bearer, &parts.headers)?;
    asked.caller = Some(caller.clone());
    api.seen_by_client(&parts.headers).await?;
    let path = read_path(&mut parts).await?;
    // Creates wait for nobody else's.
    if route.is_of_sandboxes() && (route.verb != Verb::Post || !path.is_empty()) {
        match path.first() {
            Some(id) => api.seen_of(&caller.team, id).await?,
            None => api.seen_of_all(&caller.team).await,
        }
    }
    if route.path != "/sandboxes" && route.path != "/v2/sandboxes" || route.verb != Verb::Post {
        api.all_shown(&caller.team).await;
    }
    asked.subject = path.first().cloned();
    let limits = &api.options;
    let body = body::collect(&parts.headers, body, limits.body_bytes, limits.body_timeout).await?;
    let query = if route.built {
        if route.takes.is_none() && !is_nothing(&body) {
            return Err(Refusal::bad_request("this route takes no request body"));
        }
        Query::read(parts.uri.query(), route.query)?
    } else {
        Query::default()
    };
    let named = parts.uri.authority().map(ToString::to_string);
    let host = || parts.headers.get(header::HOST)?.to_str().ok();
    let call = Call {
        api: Arc::clone(api),
        caller,
        is_admin,
        presented,
        host: named.or_else(|| host().map(Into::into)).unwrap_or_default(),
        headers: parts.headers,
        path,
        query,
        body,
    };
    handler(call).await
}

async fn read_path(parts: &mut http::request::Parts) -> Result<Vec<String>, Refusal> {
    match RawPathParams::from_request_parts(parts, &()).await {
        Ok(params) => Ok(params.iter().map(|(_, value)| value.to_owned()).collect()),
        Err(_) => Err(Refusal::bad_request("the path is not valid UTF-8")),
    }
}

/// Generic clients send an empty document where nothing is asked for.
fn is_nothing(body: &[u8]) -> bool {
    matches!(body.trim_ascii(), b"" | b"{}" | b"null")
}

/// Who was let in, and with what.
struct Admitted {
    caller: Caller,
    is_admin: bool,
    presented: String,
}

/// A key opens what its team has. An administrator says with [`TEAM`] for whom they act.
fn authenticate(api: &Api, or_bearer: bool, headers: &HeaderMap) -> Result<Admitted, Refusal> {
    let one = |name: &str| {
        let mut all = headers.get_all(name).iter();
        match (all.next(), all.next()) {
            // Of two, a proxy may have looked at the other one.
            (Some(only), None) => only.to_str().ok().map(str::to_owned),
            (_, _) => None,
        }
    };
    let authorization = || one(header::AUTHORIZATION.as_str());
    let bearer = || {
        let text = authorization()?;
        let (scheme, token) = text.split_once(' ')?;
        scheme
            .eq_ignore_ascii_case("bearer")
            .then(|| token.trim().to_owned())
    };
    let key = one(KEY);
    if key.is_none() && authorization().is_some_and(|text| api.admins.admits(text.as_bytes())) {
        let team = one(TEAM).unwrap_or_else(|| DEFAULT_TEAM.to_owned());
        return Ok(Admitted {
            caller: on_behalf_of(api, &team)?,
            is_admin: true,
            presented: bearer().unwrap_or_default(),
        });
    }
    let presented = key.or_else(|| or_bearer.then(bearer)?);
    let presented = presented.ok_or_else(Refusal::unauthorized)?;
    Ok(Admitted {
        caller: api.keys.authenticate(&presented)?,
        is_admin: false,
        presented,
    })
}

fn on_behalf_of(api: &Api, team: &str) -> Result<Caller, Refusal> {
    let unknown = || {
        Refusal::not_found(format!(
            "there is no team {team:?}: `dormouse key create NAME -n {team} --new-team` makes one"
        ))
    };
    let namespace = Namespace::new(team).map_err(|_| unknown())?;
    match api.keys.on_behalf_of(&namespace) {
        Err(Denied::NoTeam) => Err(unknown()),
        other => Ok(other?),
    }
}

/// An answer with a body.
pub(crate) fn json<T: Serialize>(status: StatusCode, value: &T) -> Answer {
    let text = serde_json::to_string(value).map_err(|error| {
        tracing::error!(%error, "an answer cannot be written as JSON");
        Refusal::internal("the answer could not be written: see the server's log")
    })?;
    let mut response = Response::new(Body::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    Ok(response)
}

/// An answer without a body.
pub(crate) fn nothing() -> Response {
    StatusCode::NO_CONTENT.into_response()
}
