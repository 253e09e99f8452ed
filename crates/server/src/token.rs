//! The first user's bearer token: made once, kept in a file that only its owner can read. The
//! running server keeps its hash.

use std::path::Path;

use anyhow::bail;
use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use kit::Entropy;
use sha2::{Digest as _, Sha256};

use crate::data_dir::{read_secret, write_secret};

/// Fewer characters than this can be guessed.
const SHORTEST: usize = 32;

/// A bearer token. Its text goes to the kubeconfig and nowhere else.
pub(crate) struct Token(String);

// Not derived: secrets have no place in a log.
impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// The token in the file, made if there is none.
    ///
    /// # Errors
    /// If others could have read it, or it is too short to be one.
    pub(crate) fn ensure(path: &Path, entropy: &Entropy) -> anyhow::Result<Self> {
        if let Some(text) = read_secret(path)? {
            let text = text.trim();
            let visible = text.bytes().all(|byte| byte.is_ascii_graphic());
            if text.len() < SHORTEST || !visible {
                bail!(
                    "{} does not hold a token (at least {SHORTEST} visible characters): \
                     delete it to have a new one made",
                    path.display()
                );
            }
            return Ok(Self(text.to_owned()));
        }
        let mut bytes = [0; 32];
        entropy.fill(&mut bytes);
        let token = Self(BASE64_URL_SAFE_NO_PAD.encode(bytes));
        write_secret(path, &format!("{}\n", token.0))?;
        Ok(token)
    }

    /// For the client's side.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }

    /// For the server's side.
    pub(crate) fn hash(&self) -> [u8; 32] {
        Sha256::digest(&self.0).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_made_once_and_hides_from_debug_output() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        let entropy = Entropy::from_os();
        let first = Token::ensure(&path, &entropy).unwrap();
        let second = Token::ensure(&path, &entropy).unwrap();
        assert_eq!(first.reveal(), second.reveal());
        assert_eq!(first.hash(), second.hash());
        assert!(!format!("{first:?}").contains(first.reveal()));
    }

    #[test]
    fn an_empty_token_never_opens_the_api() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("token");
        write_secret(&path, "\n").unwrap();
        let refusal = Token::ensure(&path, &Entropy::from_os()).unwrap_err();
        assert!(refusal.to_string().contains("delete it"), "{refusal}");
    }
}
