//! Requests on one repository, with the token that they need.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Limited};
use hyper::body::Incoming;
use kit::Tasks;
use parking_lot::Mutex;
use serde::Deserialize;

use super::{
    Credentials, Reach, Registry,
    credentials::Login,
    http::{Ask, Scheme, unreachable},
};
use crate::{
    error::{ImageError, Result},
    reference::Reference,
};

/// A conversation about one repository.
#[derive(Debug)]
pub(super) struct Session<'a> {
    pub(super) registry: &'a Registry,
    pub(super) reference: &'a Reference,
    pub(super) tasks: Tasks,
    /// What is asked for when logging in.
    scopes: Vec<String>,
    writes: bool,
    scheme: Scheme,
    credentials: Option<Credentials>,
    reach: Reach,
    /// Whether what is on this host counts only if its repository has served it.
    pub(super) proves: bool,
    authorization: Mutex<Option<HeaderValue>>,
}

#[derive(Deserialize)]
struct TokenAnswer {
    #[serde(default)]
    token: String,
    #[serde(default)]
    access_token: String,
}

/// Longest answer of a token server.
const MAX_TOKEN: usize = 1 << 20;

impl<'a> Session<'a> {
    pub(super) async fn open(
        registry: &'a Registry,
        reference: &'a Reference,
        tasks: Tasks,
        login: &Login,
        reach: Reach,
    ) -> Result<Self> {
        Ok(Self {
            scopes: Vec::new(),
            writes: false,
            scheme: registry.scheme(reference.host(), reach).await?,
            reach,
            proves: false,
            credentials: login.find(&registry.options, reference.registry())?,
            authorization: Mutex::default(),
            registry,
            reference,
            tasks,
        })
    }

    /// The same, for writing; `from` is another repository of the registry that is read.
    pub(super) fn for_writing(mut self, from: Option<&str>) -> Self {
        let repository = self.reference.repository();
        self.scopes = vec![format!("repository:{repository}:pull,push")];
        self.scopes
            .extend(from.map(|from| format!("repository:{from}:pull")));
        self.writes = true;
        self
    }

    pub(super) fn host(&self) -> &str {
        self.reference.host()
    }

    /// Asks for something of the repository, and says who asks if the registry wants to know.
    pub(super) async fn get(&self, path: &str, headers: HeaderMap) -> Result<Response<Incoming>> {
        let asked = self.ask(Method::GET, self.uri(path)?, headers, Bytes::new());
        self.check(asked.await?.1)
    }

    /// Where something of the repository is.
    pub(super) fn uri(&self, path: &str) -> Result<Uri> {
        let host = self.host();
        let repository = self.reference.repository();
        let uri = format!("{}://{host}/v2/{repository}/{path}", self.scheme.as_str());
        uri.parse().map_err(|error| unreachable(host, &error))
    }

    /// Sends something, and says who does if the registry wants to know. The answer may have any
    /// status but those that say to try later.
    pub(super) async fn ask(
        &self,
        method: Method,
        uri: Uri,
        headers: HeaderMap,
        body: Bytes,
    ) -> Result<(Uri, Response<Incoming>)> {
        let own = uri.authority().is_some_and(|a| a.as_str() == self.host());
        let ask = || {
            let mut headers = headers.clone();
            // What lets us in here is nobody else's.
            if let Some(authorization) = self.authorization.lock().clone().filter(|_| own) {
                headers.insert(header::AUTHORIZATION, authorization);
            }
            let what = Ask {
                method: method.clone(),
                uri: uri.clone(),
                headers,
                body: body.clone(),
            };
            self.registry.ask(&self.tasks, what, self.reach)
        };
        let (from, response) = ask().await?;
        if response.status() != StatusCode::UNAUTHORIZED || !own {
            return Ok((from, response));
        }
        // None yet, or it has expired.
        self.log_in(response.headers()).await?;
        ask().await
    }

    fn check(&self, response: Response<Incoming>) -> Result<Response<Incoming>> {
        match response.status() {
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Err(self.unauthorized()),
            StatusCode::NOT_FOUND => Err(ImageError::Unknown {
                registry: self.reference.registry().into(),
                name: self.reference.to_string().into(),
            }),
            status if status.is_success() || status == StatusCode::RANGE_NOT_SATISFIABLE => {
                Ok(response)
            }
            status => Err(unreachable(self.host(), &format!("it answered {status}"))),
        }
    }

    pub(super) fn unauthorized(&self) -> ImageError {
        ImageError::Unauthorized {
            registry: self.reference.registry().into(),
            name: self.reference.to_string().into(),
            doing: if self.writes { "write" } else { "read" },
            remedy: match self.credentials {
                Some(_) => "the user or the password is wrong, or may not",
                None => {
                    "no credentials are known for it; log in with `docker login`, or name them in \
                     the configuration (credential helpers are not asked)"
                }
            },
        }
    }

    /// Does what a `WWW-Authenticate` asks for.
    async fn log_in(&self, headers: &HeaderMap) -> Result<()> {
        let challenges = headers.get_all(header::WWW_AUTHENTICATE);
        let challenges: Vec<_> = challenges.iter().filter_map(|v| v.to_str().ok()).collect();
        let scheme = |challenge: &str| challenge.split(' ').next().map(str::to_lowercase);
        let of = |wanted: &str| {
            let found = challenges
                .iter()
                .find(|c| scheme(c).as_deref() == Some(wanted));
            found.copied()
        };
        if let Some(challenge) = of("bearer") {
            let token = self.fetch_token(challenge).await?;
            return self.authorize(&format!("Bearer {token}"));
        }
        match (of("basic"), &self.credentials) {
            (Some(_), Some(credentials)) => self.authorize(&credentials.basic()),
            (Some(_), None) | (None, _) => Err(self.unauthorized()),
        }
    }

    fn authorize(&self, text: &str) -> Result<()> {
        let mut value = HeaderValue::from_str(text).map_err(|_| self.unauthorized())?;
        value.set_sensitive(true);
        *self.authorization.lock() = Some(value);
        Ok(())
    }

    async fn fetch_token(&self, challenge: &str) -> Result<String> {
        let parameter = |name| parameter(challenge, name);
        let host = self.host();
        let realm = parameter("realm").ok_or_else(|| unreachable(host, "no realm to log in at"))?;
        let repository = self.reference.repository();
        let asked =
            || parameter("scope").unwrap_or_else(|| format!("repository:{repository}:pull"));
        let scopes = match self.scopes.as_slice() {
            [] => vec![asked()],
            scopes => scopes.to_vec(),
        };
        let mut uri = realm.clone();
        let scopes = scopes.iter().map(|scope| ("scope", scope.as_str()));
        let service = parameter("service");
        for (name, value) in scopes.chain(service.as_deref().map(|value| ("service", value))) {
            uri.push(separator(&uri));
            uri.push_str(&format!("{name}={}", encode(value)));
        }
        let uri: Uri = uri.parse().map_err(|error| unreachable(host, &error))?;
        // Whoever is reached with TLS does not send us elsewhere with a password in the open.
        if self.scheme == Scheme::Https && uri.scheme_str() != Some("https") {
            return Err(ImageError::Insecure {
                registry: realm.into(),
            });
        }
        let mut headers = HeaderMap::new();
        if let Some(credentials) = &self.credentials {
            let basic = HeaderValue::from_str(&credentials.basic());
            let mut basic = basic.map_err(|_| self.unauthorized())?;
            basic.set_sensitive(true);
            headers.insert(header::AUTHORIZATION, basic);
        }
        let what = Ask {
            method: Method::GET,
            uri,
            headers,
            body: Bytes::new(),
        };
        let (_, response) = self.registry.ask(&self.tasks, what, self.reach).await?;
        match response.status() {
            StatusCode::OK => {}
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => return Err(self.unauthorized()),
            status => {
                return Err(unreachable(
                    host,
                    &format!("its token server answered {status}"),
                ));
            }
        }
        let body = Limited::new(response.into_body(), MAX_TOKEN).collect();
        let body = self.registry.within(host, body).await?.to_bytes();
        // The answer is a secret: nothing of it is said.
        let answer: TokenAnswer = serde_json::from_slice(&body)
            .map_err(|_| unreachable(host, "its token server did not send a token"))?;
        let token = [answer.token, answer.access_token]
            .into_iter()
            .find(|token| !token.is_empty());
        token.ok_or_else(|| unreachable(host, "its token server did not send a token"))
    }
}

fn separator(realm: &str) -> char {
    if realm.contains('?') { '&' } else { '?' }
}

/// `name="value"` of a challenge.
fn parameter(challenge: &str, name: &str) -> Option<String> {
    let (_, rest) = challenge.split_once(' ')?;
    let mut rest = rest;
    loop {
        let (key, after) = rest.split_once('=')?;
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_once(',').unwrap_or((after, "")),
        };
        if key.trim_matches([' ', ',']).eq_ignore_ascii_case(name) {
            return Some(value.to_owned());
        }
        rest = next;
    }
}

/// For a query: everything but letters and digits is escaped.
fn encode(text: &str) -> String {
    let byte = |byte: u8| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            char::from(byte).to_string()
        } else {
            format!("%{byte:02X}")
        }
    };
    text.bytes().map(byte).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn challenges_are_read_whatever_their_order_and_quotes() {
        let text = r#"Bearer realm="https://a/t?x=1",service="b, c",scope=repository:d:pull"#;
        assert_eq!(parameter(text, "realm").unwrap(), "https://a/t?x=1");
        assert_eq!(parameter(text, "service").unwrap(), "b, c");
        assert_eq!(parameter(text, "scope").unwrap(), "repository:d:pull");
        assert_eq!(parameter(text, "error"), None);
        assert_eq!(parameter("Basic", "realm"), None);
        assert_eq!(encode("repository:a/b:pull"), "repository%3Aa%2Fb%3Apull");
    }
}
