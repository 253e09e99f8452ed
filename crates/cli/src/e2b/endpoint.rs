//! A URL that can be dialled: in plain HTTP, or with TLS under the certificates that this machine
//! trusts.

use std::{io, net::IpAddr, sync::Arc, time::Duration};

use agent_client::Io;
use anyhow::{Context as _, bail};
use http::{HeaderValue, Uri};
use rustls::{ClientConfig, RootCertStore, crypto::ring, pki_types::ServerName};
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where something answers.
#[derive(Clone)]
pub(crate) struct Endpoint {
    url: Arc<str>,
    host: Arc<str>,
    port: u16,
    authority: HeaderValue,
    tls: Option<TlsConnector>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Endpoint({})", self.url)
    }
}

impl Endpoint {
    /// Reads a URL without a path.
    pub(crate) fn parse(url: &str) -> anyhow::Result<Self> {
        let wrong = || format!("`{url}` is not a URL as http://127.0.0.1:3000");
        let uri: Uri = url.parse().with_context(wrong)?;
        let host = uri.host().with_context(wrong)?.trim_matches(['[', ']']);
        let secure = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => bail!(wrong()),
        };
        if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
            bail!("{}: leave out what comes after the host", wrong());
        }
        let port = uri.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let authority = uri.authority().with_context(wrong)?.as_str();
        Ok(Self {
            url: url.trim_end_matches('/').into(),
            host: host.into(),
            port,
            authority: HeaderValue::from_str(authority).with_context(wrong)?,
            tls: secure.then(trusting).transpose()?,
        })
    }

    /// The URL, without a slash at its end.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// What goes into `Host`.
    pub(crate) fn authority(&self) -> HeaderValue {
        self.authority.clone()
    }

    /// Whether what is sent there can be read by nobody on the way.
    pub(crate) fn is_private(&self) -> bool {
        let is_here = match self.host.parse::<IpAddr>() {
            Ok(address) => address.is_loopback(),
            Err(_) => &*self.host == "localhost",
        };
        self.tls.is_some() || is_here
    }

    /// A connection.
    pub(crate) async fn dial(&self) -> io::Result<Box<dyn Io>> {
        let dial = async {
            let stream = TcpStream::connect((&*self.host, self.port)).await?;
            stream.set_nodelay(true)?;
            let Some(tls) = &self.tls else {
                return Ok(Box::new(stream) as Box<dyn Io>);
            };
            let name = ServerName::try_from(self.host.to_string()).map_err(io::Error::other)?;
            Ok(Box::new(tls.connect(name, stream).await?) as Box<dyn Io>)
        };
        timeout(CONNECT_TIMEOUT, dial).await?
    }
}

/// TLS that trusts what this machine trusts; `SSL_CERT_FILE` names others.
fn trusting() -> anyhow::Result<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in rustls_native_certs::load_native_certs().certs {
        // One that cannot be read is one that nobody is trusted by.
        let _ = roots.add(certificate);
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_says_where_and_whether_others_can_read_along() {
        let read = |url: &str| Endpoint::parse(url).map_err(|e| format!("{e:#}"));
        let here = read("http://127.0.0.1:3000/").unwrap();
        assert_eq!((here.url(), here.port), ("http://127.0.0.1:3000", 3000));
        assert!(here.is_private());
        assert!(read("http://[::1]:3000").unwrap().is_private());
        assert!(!read("http://192.0.2.1").unwrap().is_private());
        let far = read("https://api.example.com").unwrap();
        assert_eq!((far.port, far.is_private()), (443, true));
        assert_eq!(far.authority(), "api.example.com");
        for bad in [
            "",
            "ftp://x",
            "127.0.0.1:3000",
            "http://x/path",
            "http://x?y",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
