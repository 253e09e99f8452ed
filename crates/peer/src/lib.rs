//! How Dormouse's own processes trust each other: mutual TLS from one shared key.
//!
//! Every process of an installation but the daemons of nodes ([`node`]) holds the same secret, the *peer key*. From it each derives the
//! same certificate authority, in memory, and signs itself a certificate with a key of its own. So
//! there is one thing to hand out and one to replace, nothing to renew, and no file besides. Who does
//! not hold the key can neither speak nor listen; TLS 1.3 refuses what is forged, cut or replayed.
//!
//! A key is replaced without a gap by holding two for a while: the first is spoken with, and whoever
//! speaks with any of them is heard.
//!
//! Certificates carry no dates that matter: they never leave their process, so a wrong clock shuts
//! nobody out, and a key is withdrawn by no longer holding it.

pub mod node;

use std::{fmt, sync::Arc};

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose, PKCS_ECDSA_P256_SHA256,
    PKCS_ED25519, SerialNumber,
};
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, ServerName},
    server::WebPkiClientVerifier,
    version::TLS13,
};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

pub use node::{NODE, NodeIdentity, NodeIdentityError};

/// What every peer calls itself.
pub const NAME: &str = "peer.dormouse.internal";

/// The fewest characters of a key. `openssl rand -hex 32` gives 64.
pub const MIN_KEY_CHARS: usize = 32;

/// What a private Ed25519 key looks like in PKCS #8, up to its 32 bytes (RFC 8410).
const ED25519_PKCS8: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// The keys a process holds: it speaks with the first, and hears whoever has any of them.
#[derive(Clone)]
pub struct Keys(Vec<[u8; 32]>);

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({} …)", self.0.len())
    }
}

impl Keys {
    /// The keys of a text, one a line, as a file holds them.
    ///
    /// # Errors
    /// If there is none, or one could be guessed.
    pub fn parse(text: &str) -> Result<Self, KeyError> {
        let mut keys = Vec::new();
        let lines = text.lines().map(str::trim).enumerate();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty()) {
            if line.chars().count() < MIN_KEY_CHARS {
                return Err(KeyError::Short { line: number + 1 });
            }
            keys.push(Sha256::digest(line).into());
        }
        if keys.is_empty() {
            return Err(KeyError::None);
        }
        Ok(Self(keys))
    }

    /// The one that is spoken with.
    fn first(&self) -> Result<&[u8; 32], IdentityError> {
        self.0.first().ok_or_else(|| broken("there is no key"))
    }
}

/// Why a text holds no peer keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// There is nothing in it.
    #[error("there is no peer key: write one on a line, for example by `openssl rand -hex 32`")]
    None,
    /// One of them is too short.
    #[error(
        "the peer key on line {line} has fewer than {MIN_KEY_CHARS} characters: make one by `openssl rand -hex 32`"
    )]
    Short {
        /// Where it is.
        line: usize,
    },
}

/// Why a process has no identity. Only a library that does not work can make this happen.
#[derive(Debug, thiserror::Error)]
#[error("cannot make the certificates that peers know each other by: {0}")]
pub struct IdentityError(Box<dyn std::error::Error + Send + Sync>);

/// What a process shows to its peers, and what it demands of them.
#[derive(Clone)]
pub struct Identity {
    server: Arc<ServerConfig>,
    client: Arc<ClientConfig>,
}

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Identity(…)")
    }
}

impl Identity {
    /// The identity of this process among those who hold one of these keys.
    ///
    /// # Errors
    /// If certificates cannot be made.
    pub fn new(keys: &Keys) -> Result<Self, IdentityError> {
        let mut roots = RootCertStore::empty();
        for key in &keys.0 {
            let root = authority(key)?.0.der().clone();
            roots.add(root).map_err(broken)?;
        }
        let roots = Arc::new(roots);
        let (signed, pair) = certificate(&authority(keys.first()?)?.1, NAME, &BOTH_WAYS)?;
        let chain = vec![signed.der().clone()];
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        let provider = Arc::new(ring::default_provider());
        Ok(Self {
            server: server_of(&provider, &roots, chain.clone(), key.clone_key())?,
            client: client_of(&provider, &roots, chain, key)?,
        })
    }

    /// For whoever listens.
    #[must_use]
    pub fn server_config(&self) -> Arc<ServerConfig> {
        Arc::clone(&self.server)
    }

    /// For whoever connects. The name to ask for is [`NAME`].
    #[must_use]
    pub fn client_config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.client)
    }

    /// Takes a connection that was accepted for one of a peer.
    ///
    /// # Errors
    /// If whoever is on the other side does not hold the key, or leaves.
    pub async fn accept<S>(&self, stream: S) -> std::io::Result<server::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        TlsAcceptor::from(self.server_config()).accept(stream).await
    }

    /// Takes a connection that was made for one to a peer.
    ///
    /// # Errors
    /// If whoever is on the other side does not hold the key, or leaves.
    pub async fn connect<S>(&self, stream: S) -> std::io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.connect_to(NAME, stream).await
    }

    /// Takes a connection that was made for one to the daemon of a node.
    ///
    /// # Errors
    /// If whoever is on the other side is none of this installation, or leaves.
    pub async fn connect_to_node<S>(&self, stream: S) -> std::io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.connect_to(NODE, stream).await
    }

    async fn connect_to<S>(
        &self,
        name: &'static str,
        stream: S,
    ) -> std::io::Result<client::TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(name).map_err(std::io::Error::other)?;
        let connector = TlsConnector::from(self.client_config());
        connector.connect(name, stream).await
    }
}

fn broken(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> IdentityError {
    IdentityError(error.into())
}

/// The authority of a key: the same wherever it is derived.
fn authority(key: &[u8; 32]) -> Result<(Certificate, Issuer<'static, KeyPair>), IdentityError> {
    let der = PrivatePkcs8KeyDer::from([ED25519_PKCS8.as_slice(), key].concat());
    let pair = KeyPair::from_pkcs8_der_and_sign_algo(&der, &PKCS_ED25519).map_err(broken)?;
    let mut params = dated(named("Dormouse peers"));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.serial_number = Some(SerialNumber::from(1));
    let certificate = params.self_signed(&pair).map_err(broken)?;
    Ok((certificate, Issuer::new(params, pair)))
}

/// Whom a peer's certificate is good to: those who connect, and those it connects to.
const BOTH_WAYS: [ExtendedKeyUsagePurpose; 2] = [
    ExtendedKeyUsagePurpose::ServerAuth,
    ExtendedKeyUsagePurpose::ClientAuth,
];

/// A certificate of that name, with a new key.
fn certificate(
    authority: &Issuer<'static, KeyPair>,
    name: &str,
    good_for: &[ExtendedKeyUsagePurpose],
) -> Result<(Certificate, KeyPair), IdentityError> {
    let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(broken)?;
    let mut params = CertificateParams::new(vec![name.to_owned()]).map_err(broken)?;
    params.distinguished_name = named(name).distinguished_name;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = good_for.to_vec();
    let signed = dated(params).signed_by(&pair, authority).map_err(broken)?;
    Ok((signed, pair))
}

fn named(common: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, common);
    params
}

fn dated(mut params: CertificateParams) -> CertificateParams {
    params.not_before = rcgen::date_time_ymd(1970, 1, 1);
    params.not_after = rcgen::date_time_ymd(9999, 12, 31);
    params
}

fn server_of(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ServerConfig>, IdentityError> {
    let clients =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider))
            .build()
            .map_err(broken)?;
    let config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(broken)?
        .with_client_cert_verifier(clients)
        .with_single_cert(chain, key)
        .map_err(broken)?;
    Ok(Arc::new(config))
}

fn client_of(
    provider: &Arc<CryptoProvider>,
    roots: &Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<Arc<ClientConfig>, IdentityError> {
    let config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(broken)?
        .with_root_certificates(Arc::clone(roots))
        .with_client_auth_cert(chain, key)
        .map_err(broken)?;
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;

    pub(crate) const ONE: &str = "0123456789abcdef0123456789abcdef";
    pub(crate) const OTHER: &str = "fedcba9876543210fedcba9876543210";

    pub(crate) fn holding(text: &str) -> Identity {
        let keys = Keys::parse(text).expect("keys");
        Identity::new(&keys).expect("an identity")
    }

    /// Whether a word from one reaches the other and comes back.
    pub(crate) async fn talks(from: &Identity, to: &Identity) -> bool {
        exchange(|near| from.connect(near), |far| to.accept(far)).await
    }

    /// The same, however they meet.
    pub(crate) async fn exchange<C, A>(
        connect: impl FnOnce(DuplexStream) -> C,
        accept: impl FnOnce(DuplexStream) -> A,
    ) -> bool
    where
        C: Future<Output = std::io::Result<client::TlsStream<DuplexStream>>>,
        A: Future<Output = std::io::Result<server::TlsStream<DuplexStream>>>,
    {
        let (near, far) = duplex(1 << 14);
        let listen = async {
            let mut stream = accept(far).await?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).await?;
            stream.write_all(&word).await?;
            stream.shutdown().await
        };
        let speak = async {
            let mut stream = connect(near).await?;
            stream.write_all(b"word").await?;
            let mut word = [0; 4];
            stream.read_exact(&mut word).await?;
            std::io::Result::Ok(word)
        };
        let (heard, answer) = tokio::join!(listen, speak);
        heard.is_ok() && answer.is_ok_and(|word| &word == b"word")
    }

    #[tokio::test]
    async fn those_who_hold_the_same_key_hear_each_other() {
        assert!(talks(&holding(ONE), &holding(ONE)).await);
    }

    #[tokio::test]
    async fn who_holds_another_key_is_neither_heard_nor_spoken_to() {
        assert!(!talks(&holding(ONE), &holding(OTHER)).await);
        assert!(!talks(&holding(OTHER), &holding(ONE)).await);
    }

    #[tokio::test]
    async fn a_key_is_replaced_without_a_gap() {
        let (old, new) = (holding(ONE), holding(OTHER));
        let learning = holding(&format!("{ONE}\n{OTHER}\n"));
        let leaving = holding(&format!("{OTHER}\n\n{ONE}"));
        for (from, to) in [
            (&old, &learning),
            (&learning, &old),
            (&learning, &leaving),
            (&leaving, &learning),
            (&leaving, &new),
            (&new, &leaving),
        ] {
            assert!(talks(from, to).await);
        }
    }

    #[tokio::test]
    async fn who_shows_no_certificate_is_refused() {
        let keys = Keys::parse(ONE).expect("keys");
        let mut roots = RootCertStore::empty();
        roots
            .add(authority(&keys.0[0]).expect("an authority").0.der().clone())
            .expect("a root");
        let provider = Arc::new(ring::default_provider());
        let nobody = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        let nobody = Identity {
            server: holding(ONE).server,
            client: Arc::new(nobody),
        };
        assert!(!talks(&nobody, &holding(ONE)).await);
    }

    #[test]
    fn a_key_that_could_be_guessed_is_refused_by_its_line() {
        let short = Keys::parse(&format!("{ONE}\nsecret\n")).map(|_| ());
        assert_eq!(short, Err(KeyError::Short { line: 2 }));
        assert_eq!(Keys::parse(" \n\n").map(|_| ()), Err(KeyError::None));
    }

    #[test]
    fn keys_are_never_shown() {
        let keys = Keys::parse(ONE).expect("keys");
        assert_eq!(format!("{keys:?}"), "Keys(1 …)");
    }
}
