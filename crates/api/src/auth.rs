//! Who may use the API: holders of a bearer token.
//!
//! Tokens are kept as SHA-256 hashes only, so neither a dump nor a log of this process can give
//! one away, and compared in constant time.

use sha2::{Digest as _, Sha256};
use subtle::{Choice, ConstantTimeEq as _};

/// Knows the hashes of the tokens that open the API.
#[derive(Clone)]
pub struct Authenticator {
    hashes: Vec<[u8; 32]>,
}

// Not derived: even hashes have no place in a log.
impl std::fmt::Debug for Authenticator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Authenticator({} tokens)", self.hashes.len())
    }
}

impl Authenticator {
    /// Admits the tokens with these SHA-256 hashes. Without any, nobody is admitted.
    #[must_use]
    pub const fn from_token_hashes(hashes: Vec<[u8; 32]>) -> Self {
        Self { hashes }
    }

    /// Whether an `Authorization` header carries a known token.
    #[must_use]
    pub fn admits(&self, authorization: Option<&[u8]>) -> bool {
        let Some(token) = authorization.and_then(bearer) else {
            return false;
        };
        let hash: [u8; 32] = Sha256::digest(token).into();
        // Every known hash is looked at, so the time says nothing about which one fits.
        let known = self
            .hashes
            .iter()
            .fold(Choice::from(0), |any, known| any | known.ct_eq(&hash));
        known.into()
    }
}

fn bearer(header: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = header.split_at_checked(7)?;
    let token = token.trim_ascii();
    (scheme.eq_ignore_ascii_case(b"bearer ") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_bearer_token_with_a_known_hash_is_admitted() {
        let hash = |token: &str| Sha256::digest(token).into();
        let auth = Authenticator::from_token_hashes(vec![hash("one"), hash("two")]);
        for good in ["Bearer one", "bearer two", "Bearer  two "] {
            assert!(auth.admits(Some(good.as_bytes())), "{good}");
        }
        for bad in [
            "",
            "Bearer",
            "Bearer ",
            "Bearer three",
            "Basic one",
            "one",
            "Bearer one two",
        ] {
            assert!(!auth.admits(Some(bad.as_bytes())), "{bad}");
        }
        assert!(!auth.admits(None));
        assert!(!Authenticator::from_token_hashes(Vec::new()).admits(Some(b"Bearer one")));
    }
}
