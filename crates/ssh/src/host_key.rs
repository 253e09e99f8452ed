//! Who the server is to its clients: one key, made once and kept.

use russh::keys::{
    HashAlg, PrivateKey,
    ssh_key::{LineEnding, private::Ed25519Keypair},
};
use thiserror::Error;

/// The server's own key.
#[derive(Clone)]
pub struct HostKey(pub(crate) PrivateKey);

// Not derived: it is a secret.
impl std::fmt::Debug for HostKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostKey({})", self.fingerprint())
    }
}

/// The text is not a key that can be used. What it says is not in here.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
#[error("it is not an OpenSSH private key without a passphrase")]
pub struct InvalidHostKey;

impl HostKey {
    /// The key of this seed, which is as secret as the key.
    #[must_use]
    pub fn from_seed(seed: &[u8; 32]) -> Self {
        Self(PrivateKey::from(Ed25519Keypair::from_seed(seed)))
    }

    /// Reads what [`HostKey::to_text`] wrote, or `ssh-keygen`.
    ///
    /// # Errors
    /// If it cannot be used.
    pub fn parse(text: &str) -> Result<Self, InvalidHostKey> {
        let key = PrivateKey::from_openssh(text).map_err(|_| InvalidHostKey)?;
        match key.is_encrypted() {
            true => Err(InvalidHostKey),
            false => Ok(Self(key)),
        }
    }

    /// The key as OpenSSH writes it.
    ///
    /// # Errors
    /// Never for a key that was made or read here.
    pub fn to_text(&self) -> Result<String, InvalidHostKey> {
        let text = self.0.to_openssh(LineEnding::LF);
        text.map(|text| text.to_string())
            .map_err(|_| InvalidHostKey)
    }

    /// What a client shows at its first visit.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.0.fingerprint(HashAlg::Sha256).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_as_it_was_written_and_is_not_shown() {
        let key = HostKey::from_seed(&[7; 32]);
        let text = key.to_text().unwrap();
        assert!(text.starts_with("-----BEGIN OPENSSH PRIVATE KEY-----"));
        let again = HostKey::parse(&text).unwrap();
        assert_eq!(again.fingerprint(), key.fingerprint());
        assert!(key.fingerprint().starts_with("SHA256:"));
        assert!(!format!("{key:?}").contains("PRIVATE"));
        assert_eq!(HostKey::parse("nonsense").unwrap_err(), InvalidHostKey);
    }
}
