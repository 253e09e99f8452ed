//! The routes, who may use them, and what is answered beside the services.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Extensions, HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use wire::envd::{
    ACCESS_TOKEN_HEADER, AGENT_PROTOCOL, AGENT_PROTOCOL_HEADER, ENVD_VERSION, ENVD_VERSION_HEADER,
    FORWARD_PATH, HttpError, INIT_KEY_HEADER, InitRequest, STALE_HEADER,
};

use crate::{
    files,
    forward::{self, Way},
    rpc::{self, Body, full},
    server::Agent,
    settings::{Access, Init, Shown},
    trust,
};

const MAX_INIT: usize = 4 * 1024 * 1024;
const ONLY_CONTROL: &str = "/init is for who made this sandbox";
const EXPOSED: &str = "Location, Cache-Control, X-Content-Type-Options, Content-Encoding, \
    Connect-Protocol-Version, Connect-Content-Encoding, Connect-Accept-Encoding, \
    Grpc-Status, Grpc-Message, Grpc-Status-Details-Bin";

/// A refusal of anything but the services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) status: StatusCode,
    pub(crate) message: String,
}

impl Refusal {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self {
            status,
            message: message.into(),
        }
    }

    /// What a call before the first `/init` is told.
    pub(crate) fn sealed() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "the agent waits for its settings: nobody is served before /init",
        )
    }

    pub(crate) fn into_response(self) -> Response<Body> {
        let body = HttpError {
            code: self.status.as_u16(),
            message: self.message,
        };
        json(self.status, &body)
    }
}

pub(crate) fn json(status: StatusCode, body: &impl serde::Serialize) -> Response<Body> {
    let bytes = serde_json::to_vec(body).unwrap_or_default();
    let mut response = Response::new(full(bytes));
    *response.status_mut() = status;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}

pub(crate) fn empty(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(full(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// What a call shows of itself.
pub(crate) fn shown<'a>(headers: &'a HeaderMap, way: &Extensions) -> Shown<'a> {
    let value = |name| headers.get(name).map(HeaderValue::as_bytes);
    Shown {
        origin: way.get().copied().unwrap_or_default(),
        token: value(ACCESS_TOKEN_HEADER),
        key: value(INIT_KEY_HEADER),
    }
}

/// Answers a request.
pub(crate) async fn serve(
    agent: Arc<Agent>,
    way: Arc<Way>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, Infallible> {
    request.extensions_mut().insert(way.origin);
    let mut response = if request.method() == Method::OPTIONS {
        preflight(request.headers())
    } else {
        route(agent, &way, request).await
    };
    let headers = response.headers_mut();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_ORIGIN,
        HeaderValue::from_static("*"),
    );
    headers.insert(
        header::ACCESS_CONTROL_EXPOSE_HEADERS,
        HeaderValue::from_static(EXPOSED),
    );
    Ok(response)
}

/// A browser asks first: anything may come from anywhere; the token decides.
fn preflight(asked: &HeaderMap) -> Response<Body> {
    let mut response = empty(StatusCode::NO_CONTENT);
    let headers = response.headers_mut();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_METHODS,
        HeaderValue::from_static("HEAD, GET, POST, PUT, PATCH, DELETE"),
    );
    let wanted = asked.get(header::ACCESS_CONTROL_REQUEST_HEADERS).cloned();
    headers.insert(
        header::ACCESS_CONTROL_ALLOW_HEADERS,
        wanted.unwrap_or_else(|| HeaderValue::from_static("*")),
    );
    headers.insert(
        header::ACCESS_CONTROL_MAX_AGE,
        HeaderValue::from_static("7200"),
    );
    response
}

async fn route(agent: Arc<Agent>, way: &Way, request: Request<Incoming>) -> Response<Body> {
    let path = request.uri().path().to_owned();
    let port = path.strip_prefix(FORWARD_PATH);
    if let Some(port) = port.filter(|_| request.method() == Method::GET) {
        let opened = forward::open(&agent, way, port, request.headers()).await;
        return opened.unwrap_or_else(Refusal::into_response);
    }
    match (request.method(), path.as_str()) {
        (&Method::GET, "/health") => {
            let mut response = empty(StatusCode::NO_CONTENT);
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            return response;
        }
        (&Method::GET, "/init") => {
            let shown = shown(request.headers(), request.extensions());
            return match agent.settings.delivery(shown) {
                Some(delivery) => json(StatusCode::OK, &delivery),
                None => Refusal::new(StatusCode::UNAUTHORIZED, ONLY_CONTROL).into_response(),
            };
        }
        (&Method::POST, "/init") => return init(&agent, request).await,

        (&Method::GET, "/files") => return files::download(agent, request).await,
        (&Method::POST, "/files") => return files::upload(agent, request).await,
        _ => {}
    }
    let shown = shown(request.headers(), request.extensions());
    match agent.settings.access(shown) {
        Access::Allowed => {}
        Access::Sealed => return Refusal::sealed().into_response(),
        Access::Denied => {
            return Refusal::new(
                StatusCode::UNAUTHORIZED,
                "unauthorized access, please provide a valid access token or method signing if supported",
            )
            .into_response();
        }
    }
    match (request.method(), path.as_str()) {
        (&Method::GET, "/metrics") => {
            let agent_ = Arc::clone(&agent);
            let sample = agent
                .blocking(move || agent_.metrics.sample(agent_.clock.as_ref()))
                .await;
            match sample {
                Ok(metrics) => json(StatusCode::OK, &metrics),
                Err(why) => {
                    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, why.to_string()).into_response()
                }
            }
        }
        (&Method::GET, "/envs") => {
            let mut response = json(StatusCode::OK, &agent.settings.env());
            response
                .headers_mut()
                .insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            response
        }
        (&Method::POST, "/files/compose") => files::compose(agent, request).await,
        (method, _) => {
            let found = path.strip_prefix('/').and_then(|path| path.split_once('/'));
            let (is_post, found) = (
                method == Method::POST,
                found.map(|(s, m)| (s.to_owned(), m.to_owned())),
            );
            let is_service = |service: &str| {
                service == wire::process::SERVICE || service == wire::filesystem::SERVICE
            };
            match found {
                Some((service, method)) if is_post && is_service(&service) => {
                    match rpc::serve(agent, &service, &method, request).await {
                        Some(response) => response,
                        None => unknown(&path),
                    }
                }
                Some((service, _)) if is_service(&service) => {
                    let mut response = empty(StatusCode::METHOD_NOT_ALLOWED);
                    response
                        .headers_mut()
                        .insert(header::ALLOW, HeaderValue::from_static("POST"));
                    response
                }
                _ => unknown(&path),
            }
        }
    }
}

fn unknown(path: &str) -> Response<Body> {
    Refusal::new(StatusCode::NOT_FOUND, format!("there is no {path} here")).into_response()
}

async fn init(agent: &Agent, request: Request<Incoming>) -> Response<Body> {
    let (head, body) = request.into_parts();
    let body = match Limited::new(body, MAX_INIT).collect().await {
        Ok(body) => body.to_bytes(),
        Err(why) => {
            return Refusal::new(StatusCode::BAD_REQUEST, format!("read request: {why}"))
                .into_response();
        }
    };
    // No body at all is an /init that says nothing.
    let parsed = if body.iter().all(u8::is_ascii_whitespace) {
        Ok(InitRequest::default())
    } else if wire::connect::is_object(&body) {
        serde_json::from_slice(&body).map_err(|why| why.to_string())
    } else {
        Err("not a JSON object".to_owned())
    };
    let message: InitRequest = match parsed {
        Ok(message) => message,
        Err(why) => {
            return Refusal::new(StatusCode::BAD_REQUEST, format!("read /init: {why}"))
                .into_response();
        }
    };
    let bundle = message
        .ca_bundle
        .clone()
        .filter(|bundle| !bundle.is_empty());
    let outcome = agent
        .settings
        .init(message, shown(&head.headers, &head.extensions));
    if let (Init::Applied, Some(bundle)) = (&outcome, bundle) {
        let installed = agent.blocking(move || trust::install(&bundle)).await;
        if let Ok(Err(why)) = installed {
            return Refusal::new(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("install caBundle: {why}"),
            )
            .into_response();
        }
    }
    match outcome {
        Init::Applied | Init::Stale => {
            let mut response = empty(StatusCode::NO_CONTENT);
            let headers = response.headers_mut();
            if outcome == Init::Stale {
                headers.insert(STALE_HEADER, HeaderValue::from_static("true"));
            }
            headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
            headers.insert(ENVD_VERSION_HEADER, HeaderValue::from_static(ENVD_VERSION));
            headers.insert(AGENT_PROTOCOL_HEADER, HeaderValue::from(AGENT_PROTOCOL));
            response
        }
        Init::Denied if agent.settings.is_keyed() => {
            Refusal::new(StatusCode::UNAUTHORIZED, ONLY_CONTROL).into_response()
        }
        Init::Denied => Refusal::new(
            StatusCode::UNAUTHORIZED,
            "an access token is set: /init needs it in X-Access-Token or as accessToken",
        )
        .into_response(),
        Init::Bad(why) => Refusal::new(StatusCode::BAD_REQUEST, why).into_response(),
        Init::Unsupported(field) => Refusal::new(
            StatusCode::NOT_IMPLEMENTED,
            format!("{field} is not supported by this agent"),
        )
        .into_response(),
    }
}
