//! The server's identity: a local certificate authority, made once and kept, and a server
//! certificate that it signs.
//!
//! Only the authority is on disk, because only it is trusted by somebody. The server certificate
//! and its key live in memory: made at each start for the names of that start, and made anew by the
//! first handshake that finds it old. So there is nothing to renew by hand, and no second key to
//! protect.

use std::{fmt, net::IpAddr, path::Path, sync::Arc};

use anyhow::{Context as _, bail};
use kit::Clock;
use parking_lot::Mutex;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, SerialNumber,
};
use rustls::{
    RootCertStore, ServerConfig,
    client::WebPkiServerVerifier,
    crypto::{CryptoProvider, ring},
    pki_types::{
        CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName, UnixTime,
        pem::PemObject as _,
    },
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::data_dir::{read_secret, write_secret};

/// How long a server certificate is valid.
const VALID_DAYS: i64 = 90;
/// A handshake that finds less than this left makes a new one.
const RENEW_DAYS: i64 = 30;

/// The certificate authority.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// For clients.
    pub(crate) pem: String,
}

// Not derived: it holds a key.
impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority(…)")
    }
}

impl Authority {
    /// The authority in a directory, made if there is none.
    ///
    /// # Errors
    /// If it is only half there, damaged, or its key could have been read by others.
    pub(crate) fn ensure(directory: &Path, clock: &dyn Clock) -> anyhow::Result<Self> {
        let certificate = directory.join("ca.crt");
        let key = directory.join("ca.key");
        let remedy = || {
            format!(
                "restore both from a backup, or delete {} to have a new authority made \
                 (clients then need the new kubeconfig)",
                directory.display()
            )
        };
        let pem = match std::fs::read_to_string(&certificate) {
            Ok(pem) => Some(pem),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
            Err(e) => return Err(e).with_context(|| format!("read {}", certificate.display())),
        };
        match (pem, read_secret(&key)?) {
            (Some(pem), Some(key_pem)) => Self::parse(pem, &key_pem).with_context(|| {
                format!(
                    "{} and ca.key do not work; {}",
                    certificate.display(),
                    remedy()
                )
            }),
            // The certificate is written last: a lone key is a first start that was interrupted,
            // and nobody has trusted it yet.
            (None, _) => Self::make(&certificate, &key, clock),
            (Some(_), None) => bail!("{} is missing; {}", key.display(), remedy()),
        }
    }

    fn make(certificate: &Path, key: &Path, clock: &dyn Clock) -> anyhow::Result<Self> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let mut params = authority_params();
        params.not_before = day(clock, -1)?;
        // The conventional "never" of RFC 5280: it is trusted through one kubeconfig only, and
        // replaced by deleting it.
        params.not_after = rcgen::date_time_ymd(9999, 12, 31);
        let pem = params.self_signed(&pair)?.pem();
        write_secret(key, &pair.serialize_pem())?;
        kit::durable::write_file(certificate, pem.as_bytes(), 0o644)
            .with_context(|| format!("write {}", certificate.display()))?;
        Ok(Self {
            issuer: Issuer::new(params, pair),
            pem,
        })
    }

    fn parse(pem: String, key_pem: &str) -> anyhow::Result<Self> {
        let pair = KeyPair::from_pem(key_pem).context("ca.key")?;
        CertificateDer::from_pem_slice(pem.as_bytes()).context("ca.crt")?;
        Ok(Self {
            // Subject and key identifier follow from the constants below and the key, so the
            // certificate need not be taken apart; `Identity::new` proves that they fit.
            issuer: Issuer::new(authority_params(), pair),
            pem,
        })
    }
}

fn authority_params() -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = name("Dormouse local CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn name(common: &str) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    name.push(DnType::CommonName, common);
    name
}

/// Midnight this many days from today.
fn day(clock: &dyn Clock, days: i64) -> anyhow::Result<time::OffsetDateTime> {
    let micros = i128::from(clock.wall_micros()) + i128::from(days) * 86_400_000_000;
    let moment = time::OffsetDateTime::from_unix_timestamp_nanos(micros * 1_000)
        .context("the machine's clock is out of range")?;
    Ok(moment.replace_time(time::Time::MIDNIGHT))
}

/// The server's certificate, always fresh.
pub(crate) struct Identity {
    authority: Authority,
    names: Vec<String>,
    clock: Arc<dyn Clock>,
    provider: Arc<CryptoProvider>,
    current: Mutex<Issued>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}

struct Issued {
    key: Arc<CertifiedKey>,
    renew_at: i64,
}

impl Identity {
    /// An identity for these names and addresses.
    ///
    /// # Errors
    /// If the authority's certificate and key do not belong together.
    pub(crate) fn new(
        authority: Authority,
        names: Vec<String>,
        clock: Arc<dyn Clock>,
    ) -> anyhow::Result<Self> {
        let provider = Arc::new(ring::default_provider());
        let issued = issue(&authority, &names, &*clock, &provider)?;
        let identity = Self {
            authority,
            names,
            clock,
            provider,
            current: Mutex::new(issued),
        };
        identity.prove()?;
        Ok(identity)
    }

    /// Sees the certificate as a client will.
    fn prove(&self) -> anyhow::Result<()> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(
            self.authority.pem.as_bytes(),
        )?)?;
        let verifier =
            WebPkiServerVerifier::builder_with_provider(Arc::new(roots), self.provider.clone())
                .build()?;
        let seconds = u64::try_from(self.clock.wall_micros() / 1_000_000).unwrap_or_default();
        let now = UnixTime::since_unix_epoch(std::time::Duration::from_secs(seconds));
        let key = self.current.lock().key.clone();
        let name = ServerName::try_from("localhost")?;
        rustls::client::danger::ServerCertVerifier::verify_server_cert(
            &*verifier,
            key.end_entity_cert()?,
            &[],
            &name,
            &[],
            now,
        )
        .context("pki/ca.crt and pki/ca.key do not belong together, or the machine's clock is wrong; restore both files from a backup, or delete the pki directory to have a new authority made")?;
        Ok(())
    }

    /// For the listener: HTTP/2 and HTTP/1.1.
    pub(crate) fn server_config(self: &Arc<Self>) -> anyhow::Result<ServerConfig> {
        let mut config = ServerConfig::builder_with_provider(self.provider.clone())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(self.clone());
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(config)
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let mut current = self.current.lock();
        if self.clock.wall_micros() >= current.renew_at {
            match issue(&self.authority, &self.names, &*self.clock, &self.provider) {
                Ok(issued) => *current = issued,
                // The old one is good for weeks; the next handshake tries again.
                Err(error) => tracing::warn!("cannot renew the server certificate: {error:#}"),
            }
        }
        Some(current.key.clone())
    }
}

fn issue(
    authority: &Authority,
    names: &[String],
    clock: &dyn Clock,
    provider: &CryptoProvider,
) -> anyhow::Result<Issued> {
    // Sorts addresses from names by itself.
    let mut params = CertificateParams::new(names.to_vec())?;
    params.distinguished_name = name("dormouse");
    params.not_before = day(clock, -1)?;
    params.not_after = day(clock, VALID_DAYS)?;
    params.serial_number = Some(SerialNumber::from(clock.wall_micros().unsigned_abs()));
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    params.use_authority_key_identifier_extension = true;
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
    let certificate = params.signed_by(&pair, &authority.issuer)?;
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialize_der()));
    let chain = vec![certificate.der().clone()];
    Ok(Issued {
        key: Arc::new(CertifiedKey::from_der(chain, key, provider)?),
        renew_at: clock.wall_micros() + (VALID_DAYS - RENEW_DAYS) * 86_400_000_000,
    })
}

/// The names by which a server that listens on this host is reached.
pub(crate) fn names_for(host: &str) -> Vec<String> {
    let mut names: Vec<String> = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).into();
    let is_wildcard = host
        .parse::<IpAddr>()
        .is_ok_and(|address| address.is_unspecified());
    if !is_wildcard && !names.iter().any(|name| name == host) {
        names.push(host.to_owned());
    }
    names
}

/// The names by which sandboxes of a domain are reached: `api.DOMAIN`, `PORT-ID.DOMAIN`.
pub(crate) fn names_of_domain(domain: &str) -> Vec<String> {
    let mut names = names_for(domain);
    names.push(format!("*.{domain}"));
    names
}

/// A certificate that somebody else has signed, for HTTP/2 and HTTP/1.1.
///
/// # Errors
/// If a file cannot be read, or the two do not belong together.
pub(crate) fn given(certificate: &Path, key: &Path) -> anyhow::Result<ServerConfig> {
    let chain = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .with_context(|| format!("read certificates from {}", certificate.display()))?;
    let private = PrivateKeyDer::from_pem_file(key)
        .with_context(|| format!("read a key from {}", key.display()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, private)
        .with_context(|| format!("use {} with {}", certificate.display(), key.display()))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(config)
}

#[cfg(test)]
mod tests {
    use kit::ManualClock;

    use super::*;

    // 2026-01-01
    const NOW: i64 = 1_767_225_600_000_000;
    const DAY: i64 = 86_400_000_000;

    fn clock() -> Arc<ManualClock> {
        Arc::new(ManualClock::starting_at(NOW))
    }

    #[tokio::test]
    async fn the_authority_is_made_once_and_proves_itself_again() {
        let root = tempfile::tempdir().unwrap();
        let first = Authority::ensure(root.path(), &*clock()).unwrap();
        let second = Authority::ensure(root.path(), &*clock()).unwrap();
        assert_eq!(first.pem, second.pem);
        Identity::new(second, names_for("example.test"), clock()).unwrap();
    }

    #[tokio::test]
    async fn a_key_of_another_authority_is_refused_with_the_remedy() {
        let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Authority::ensure(one.path(), &*clock()).unwrap();
        Authority::ensure(other.path(), &*clock()).unwrap();
        let key = std::fs::read_to_string(other.path().join("ca.key")).unwrap();
        write_secret(&one.path().join("ca.key"), &key).unwrap();
        let mixed = Authority::ensure(one.path(), &*clock()).unwrap();
        let refusal = Identity::new(mixed, names_for("localhost"), clock()).unwrap_err();
        assert!(
            refusal.to_string().contains("do not belong together"),
            "{refusal:#}"
        );
    }

    #[tokio::test]
    async fn damaged_and_half_missing_authorities_are_refused_by_file() {
        let root = tempfile::tempdir().unwrap();
        Authority::ensure(root.path(), &*clock()).unwrap();
        std::fs::remove_file(root.path().join("ca.key")).unwrap();
        let refusal = Authority::ensure(root.path(), &*clock()).unwrap_err();
        assert!(
            refusal.to_string().contains("ca.key is missing"),
            "{refusal:#}"
        );
        write_secret(&root.path().join("ca.key"), "nonsense").unwrap();
        let refusal = Authority::ensure(root.path(), &*clock()).unwrap_err();
        assert!(refusal.to_string().contains("do not work"), "{refusal:#}");
    }

    #[tokio::test]
    async fn the_certificate_is_made_anew_before_it_ends_and_kept_until_then() {
        let root = tempfile::tempdir().unwrap();
        let clock = clock();
        let authority = Authority::ensure(root.path(), &*clock).unwrap();
        let identity =
            Arc::new(Identity::new(authority, names_for("localhost"), clock.clone()).unwrap());
        let mut roots = RootCertStore::empty();
        let ca = CertificateDer::from_pem_slice(identity.authority.pem.as_bytes()).unwrap();
        roots.add(ca).unwrap();
        // `resolve` wants a real hello; a handshake in memory makes one.
        let handshake = || {
            let client = rustls::ClientConfig::builder_with_provider(identity.provider.clone())
                .with_safe_default_protocol_versions()
                .unwrap()
                .with_root_certificates(roots.clone())
                .with_no_client_auth();
            let name = ServerName::try_from("localhost").unwrap();
            let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
            let config = identity.server_config().unwrap();
            let mut server = rustls::ServerConnection::new(Arc::new(config)).unwrap();
            let mut hello = Vec::new();
            client.write_tls(&mut hello).unwrap();
            server.read_tls(&mut hello.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            identity.current.lock().key.cert[0].clone()
        };
        let first = handshake();
        clock.jump((VALID_DAYS - RENEW_DAYS) * DAY - 1_000_000);
        assert_eq!(handshake(), first);
        clock.jump(1_000_000);
        assert_ne!(handshake(), first);
        identity.prove().unwrap();
    }

    #[test]
    fn a_wildcard_is_not_a_name() {
        assert_eq!(names_for("0.0.0.0").len(), 3);
        assert_eq!(names_for("::").len(), 3);
        assert_eq!(names_for("127.0.0.1").len(), 3);
        assert_eq!(names_for("192.0.2.7").last().unwrap(), "192.0.2.7");
    }
}
