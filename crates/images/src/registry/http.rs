//! One request: connect, ask, hear.

use std::{future::Future, io, net::SocketAddr, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use kit::Tasks;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::{Reach, Registry, host_of};
use crate::error::{ImageError, Result};

/// How many redirects are followed: to storage, and maybe once more.
const REDIRECTS: usize = 5;

/// How much of a body may take as long as an answer.
const PIECE: usize = 1 << 20;

/// What is asked.
#[derive(Clone, Debug)]
pub(super) struct Ask {
    pub(super) method: Method,
    pub(super) uri: Uri,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Whether an answer sends us elsewhere. What changes something is sent on only where the answer
/// says that it is still to be done.
fn follows(method: &Method, status: StatusCode) -> bool {
    let reads = *method == Method::GET || *method == Method::HEAD;
    let again = [
        StatusCode::TEMPORARY_REDIRECT,
        StatusCode::PERMANENT_REDIRECT,
    ];
    match reads {
        true => status.is_redirection() && status != StatusCode::NOT_MODIFIED,
        false => again.contains(&status),
    }
}

/// Whether an address is spoken to with TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scheme {
    Https,
    Http,
}

impl Scheme {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }
}

impl Registry {
    /// How a registry is to be spoken to. One that may be plain is tried with TLS first, and
    /// believed to be plain only if it does not speak TLS at all: a certificate that is not
    /// trusted is a failure, not a reason to talk openly.
    pub(super) async fn scheme(&self, authority: &str, reach: Reach) -> Result<Scheme> {
        if !self.may_be_plain(authority) {
            return Ok(Scheme::Https);
        }
        let stream = self.dial(authority, Scheme::Https, reach).await?;
        match self.handshake(authority, stream).await? {
            Ok(_) => Ok(Scheme::Https),
            Err(error) => match tls_error(&error) {
                Some(rustls::Error::InvalidCertificate(_)) => Err(unreachable(authority, &error)),
                Some(_) | None => Ok(Scheme::Http),
            },
        }
    }

    /// Sends a request and follows redirects. The answer may have any status but those that say to
    /// try later, which are failures. Answers where it came from too.
    pub(super) async fn ask(
        &self,
        tasks: &Tasks,
        what: Ask,
        reach: Reach,
    ) -> Result<(Uri, Response<Incoming>)> {
        let Ask {
            method,
            mut uri,
            mut headers,
            body,
        } = what;
        for _ in 0..=REDIRECTS {
            let (scheme, authority) = self.target(&uri)?;
            let request = (method.clone(), headers.clone(), body.clone());
            let to = (scheme, authority.as_str(), reach);
            let response = self.send(tasks, to, &uri, request).await?;
            let status = response.status();
            if follows(&method, status) {
                let next = location(&uri, response.headers())
                    .ok_or_else(|| unreachable(&authority, &"a redirect to nowhere"))?;
                let (next_scheme, next_authority) = self.target(&next)?;
                if scheme == Scheme::Https && next_scheme == Scheme::Http {
                    return Err(ImageError::Insecure {
                        registry: next_authority.into(),
                    });
                }
                // What lets us in here is nobody else's.
                if next_authority != authority {
                    headers.remove(header::AUTHORIZATION);
                }
                uri = next;
                continue;
            }
            if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
                return Err(unreachable(&authority, &format!("it answered {status}")));
            }
            return Ok((uri, response));
        }
        Err(unreachable(&uri, &"too many redirects"))
    }

    fn target(&self, uri: &Uri) -> Result<(Scheme, String)> {
        let authority = uri.authority().map(|a| a.as_str().to_owned());
        let authority = authority.unwrap_or_default();
        let scheme = match uri.scheme_str() {
            Some("https") => Scheme::Https,
            Some("http") if self.may_be_plain(&authority) => Scheme::Http,
            Some(_) | None => {
                return Err(ImageError::Insecure {
                    registry: authority.into(),
                });
            }
        };
        Ok((scheme, authority))
    }

    async fn send(
        &self,
        tasks: &Tasks,
        (scheme, authority, reach): (Scheme, &str, Reach),
        uri: &Uri,
        (method, headers, body): (Method, HeaderMap, Bytes),
    ) -> Result<Response<Incoming>> {
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        // A long body takes its time.
        let pieces = u32::try_from(body.len() / PIECE).unwrap_or(u32::MAX);
        let patience = self.options.patience.saturating_mul(pieces.max(1));
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .body(Full::new(body))
            .map_err(|error| unreachable(authority, &error))?;
        *request.headers_mut() = headers;
        let host = authority
            .parse()
            .map_err(|_| unreachable(authority, &"not a host"))?;
        request.headers_mut().insert(header::HOST, host);
        let agent = concat!("dormouse/", env!("CARGO_PKG_VERSION"));
        let agent = http::HeaderValue::from_static(agent);
        request.headers_mut().insert(header::USER_AGENT, agent);

        let stream = self.dial(authority, scheme, reach).await?;
        match scheme {
            Scheme::Http => {
                let asked = self.exchange(tasks, authority, stream, request);
                self.for_at_most(patience, authority, asked).await
            }
            Scheme::Https => {
                let stream = self.handshake(authority, stream).await?;
                let stream = stream.map_err(|error| unreachable(authority, &error))?;
                let asked = self.exchange(tasks, authority, stream, request);
                self.for_at_most(patience, authority, asked).await
            }
        }
    }

    async fn exchange<S>(
        &self,
        tasks: &Tasks,
        authority: &str,
        stream: S,
        request: Request<Full<Bytes>>,
    ) -> Result<Response<Incoming>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
    {
        let shake = hyper::client::conn::http1::handshake(TokioIo::new(stream));
        let (mut sender, connection) = self.within(authority, shake).await?;
        tasks.spawn(async move {
            // Its failure is the failure of whoever reads the answer.
            let _ = connection.await;
        });
        let answered = sender.send_request(request).await;
        answered.map_err(|error| unreachable(authority, &error))
    }

    async fn for_at_most<T>(
        &self,
        patience: Duration,
        authority: &str,
        work: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        match tokio::time::timeout(patience, work).await {
            Ok(done) => done,
            Err(_) => Err(unreachable(authority, &"it did not answer in time")),
        }
    }

    async fn dial(&self, authority: &str, scheme: Scheme, reach: Reach) -> Result<TcpStream> {
        let port = match (authority.rsplit_once(':'), scheme) {
            (Some((_, port)), _) if !port.ends_with(']') => port
                .parse()
                .map_err(|_| unreachable(authority, &"its port is not a number"))?,
            (_, Scheme::Https) => 443,
            (_, Scheme::Http) => 80,
        };
        let found = tokio::net::lookup_host((host_of(authority), port));
        let found: Vec<SocketAddr> = self.within(authority, found).await?.collect();
        let listed = self.options.insecure.contains(authority);
        if !listed && found.iter().any(|at| !reach.includes(at.ip())) {
            return Err(ImageError::OutOfReach {
                registry: authority.into(),
            });
        }
        // To what was looked at: a second look could find something else.
        let connect = TcpStream::connect(found.as_slice());
        let stream = self.within(authority, connect).await?;
        // Requests are small and wait for an answer.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }

    /// The outer failure is one of time, the inner one of the handshake.
    async fn handshake(
        &self,
        authority: &str,
        stream: TcpStream,
    ) -> Result<io::Result<tokio_rustls::client::TlsStream<TcpStream>>> {
        let name = ServerName::try_from(host_of(authority).to_owned())
            .map_err(|error| unreachable(authority, &error))?;
        let connector = TlsConnector::from(Arc::clone(&self.tls().await?));
        match tokio::time::timeout(self.options.patience, connector.connect(name, stream)).await {
            Ok(shaken) => Ok(shaken),
            Err(_) => Err(unreachable(authority, &"it did not answer in time")),
        }
    }

    /// Waits as long as patience lasts.
    pub(super) async fn within<T, E: std::fmt::Display>(
        &self,
        authority: &str,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T> {
        match tokio::time::timeout(self.options.patience, work).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) => Err(unreachable(authority, &error)),
            Err(_) => Err(unreachable(authority, &"it did not answer in time")),
        }
    }
}

fn tls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}

/// Where a redirect leads.
pub(super) fn location(from: &Uri, headers: &HeaderMap) -> Option<Uri> {
    let to: Uri = headers.get(header::LOCATION)?.to_str().ok()?.parse().ok()?;
    if to.authority().is_some() {
        return Some(to);
    }
    let mut parts = to.into_parts();
    parts.scheme = from.scheme().cloned();
    parts.authority = from.authority().cloned();
    Uri::from_parts(parts).ok()
}

pub(super) fn unreachable(
    registry: &(impl ToString + ?Sized),
    why: &(impl std::fmt::Display + ?Sized),
) -> ImageError {
    ImageError::Unreachable {
        registry: registry.to_string().into(),
        why: why.to_string().into(),
    }
}
