//! Registries: pulling and pushing over HTTP.
//!
//! A small client of our own on hyper and rustls, which the rest of the program uses already; why
//! not a ready-made one is in `docs/decisions/images.md`.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`credentials`] | who we are, from settings or from Docker's configuration |
//! | [`reach`] | which addresses may be asked |
//! | `http` | one request: TLS or not, deadlines, redirects |
//! | `session` | requests on one repository, with the token that they need |
//! | `served` | what a repository has served: a digest alone proves nothing |
//! | `blob` | a download that goes on where it broke off |
//! | `pull` | from a name to an image |
//! | `upload` | an upload that goes on where it broke off |
//! | `push` | from an image to a name |
//! | `remote` | single questions |
//! | `capture` | a captured layer from where it was published |

mod blob;
mod capture;
pub mod credentials;
mod http;
mod pull;
mod push;
pub mod reach;
mod remote;
mod served;
mod session;
mod upload;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use kit::{Backoff, Entropy};
use rustls::{
    ClientConfig, RootCertStore, pki_types::CertificateDer, pki_types::pem::PemObject as _,
};
use tokio::sync::{OnceCell, Semaphore};

pub(crate) use capture::fetch_capture;
pub use credentials::{Credentials, Login};
pub(crate) use pull::{pull, resolve};
pub(crate) use push::{Parcel, push};
pub use reach::Reach;
pub(crate) use remote::Remote;

use crate::error::{Doing as _, ImageError, Result};

/// How registries are reached.
#[derive(Clone, Debug)]
pub struct RegistryOptions {
    /// Who we are to a registry, by its host and port.
    pub credentials: BTreeMap<String, Credentials>,
    /// A user and the file of a password, by the registry's host and port.
    pub password_files: BTreeMap<String, (String, PathBuf)>,
    /// Docker's `config.json`, for registries that are not in `credentials`.
    pub docker_config: Option<PathBuf>,
    /// Registries that may be reached without TLS, by host and port; those on loopback always may.
    pub insecure: BTreeSet<String>,
    /// Certificates in PEM that are trusted besides the host's.
    pub ca_file: Option<PathBuf>,
    /// How long connecting, and any wait for the next bytes, may take.
    pub patience: Duration,
    /// How often a download is taken up again without having got any further.
    pub retries: u32,
    /// Largest layer as it is downloaded, in bytes.
    pub max_blob_bytes: u64,
    /// Downloads at once, of all pulls together.
    pub downloads: usize,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        Self {
            credentials: BTreeMap::new(),
            password_files: BTreeMap::new(),
            docker_config: None,
            insecure: BTreeSet::new(),
            ca_file: None,
            patience: Duration::from_secs(30),
            retries: 4,
            max_blob_bytes: 32 << 30,
            downloads: 3,
        }
    }
}

/// The registries of the world, as this process may use them.
#[derive(Debug)]
pub(crate) struct Registry {
    options: RegistryOptions,
    /// Made when it is first needed: reading the host's certificates takes milliseconds.
    tls: OnceCell<Arc<ClientConfig>>,
    downloads: Semaphore,
    served: served::Served,
    entropy: Entropy,
}

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(200),
    cap: Duration::from_secs(5),
};

impl Registry {
    pub(crate) fn new(options: RegistryOptions) -> Result<Self> {
        Ok(Self {
            downloads: Semaphore::new(options.downloads.max(1)),
            tls: OnceCell::new(),
            served: served::Served::default(),
            entropy: Entropy::from_os(),
            options,
        })
    }

    async fn tls(&self) -> Result<Arc<ClientConfig>> {
        let make = || async {
            let ca_file = self.options.ca_file.clone();
            let made = tokio::task::spawn_blocking(move || trust(ca_file)).await;
            made.map_err(std::io::Error::other)
                .doing("read the certificates to trust")?
        };
        self.tls.get_or_try_init(make).await.cloned()
    }

    /// Whether a registry may be spoken to in clear text.
    fn may_be_plain(&self, authority: &str) -> bool {
        self.options.insecure.contains(authority) || is_loopback(host_of(authority))
    }
}

fn trust(ca_file: Option<PathBuf>) -> Result<Arc<ClientConfig>> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    // Some hosts have odd certificates among good ones; without any, the handshake says so.
    roots.add_parsable_certificates(found.certs);
    if let Some(path) = ca_file {
        let pem = fs::read(&path).doing(format!("read {}", path.display()))?;
        for certificate in CertificateDer::pem_slice_iter(&pem) {
            let certificate = certificate
                .map_err(|error| ImageError::malformed(path.display().to_string(), error))?;
            roots
                .add(certificate)
                .map_err(|error| ImageError::malformed(path.display().to_string(), error))?;
        }
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(std::io::Error::other)
        .doing("set TLS up")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

/// The host of `host:port`, without the brackets of an address.
fn host_of(authority: &str) -> &str {
    if let Some(rest) = authority.strip_prefix('[') {
        return rest.split(']').next().unwrap_or(rest);
    }
    authority
        .rsplit_once(':')
        .map_or(authority, |(host, _)| host)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}
