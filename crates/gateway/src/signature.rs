//! Signed URLs of files: `/files?path=…&signature=v1_…`.
//!
//! The signature is a hash over the request's meaning and the sandbox's token, made by the client.
//! The agent checks it, always. The gateway computes it too in two cases: before it wakes a
//! sandbox for such a URL, and to find the sandbox of a URL that names none, which is what clients
//! make of a gateway without a domain.

use auth::Seal;
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use http::Method;
use model::SandboxId;
use routes::{Gate, Route, TokenHash};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Whether a request looks like a signed URL of a file. Whether it is one, the agent says.
pub(crate) fn is_signed(method: &Method, path: &str, query: Option<&str>) -> bool {
    path == "/files"
        && (method == Method::GET || method == Method::POST)
        && query.is_some_and(|query| {
            query.split('&').any(|pair| {
                pair.strip_prefix("signature=")
                    .is_some_and(|v| !v.is_empty())
            })
        })
}

/// What a signature is made over, but for the token.
#[derive(Debug)]
pub(crate) struct Signed {
    signature: Vec<u8>,
    expiration: Option<Vec<u8>>,
    /// `path:operation:user:`.
    before: Vec<u8>,
}

impl Signed {
    /// Reads a signed URL.
    pub(crate) fn read(method: &Method, query: &str) -> Self {
        let (mut path, mut user, mut signature, mut expiration) = (None, None, None, None);
        for pair in query.split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let field = match decode(key, Plus::IsSpace).as_slice() {
                b"path" => &mut path,
                b"username" => &mut user,
                b"signature" => &mut signature,
                b"signature_expiration" => &mut expiration,
                _ => continue,
            };
            // The first of a name counts, as for the agent.
            field.get_or_insert_with(|| decode(value, Plus::IsSpace));
        }
        let operation: &[u8] = if method == Method::GET {
            b"read"
        } else {
            b"write"
        };
        let (path, user) = (path.unwrap_or_default(), user.unwrap_or_default());
        Self {
            signature: signature.unwrap_or_default(),
            expiration,
            before: [&path, operation, &user, b""].join(&b':'),
        }
    }

    /// Whether the time it is valid for is over, or cannot be read.
    pub(crate) fn is_expired(&self, wall_micros: i64) -> bool {
        let Some(text) = &self.expiration else {
            return false;
        };
        let at = std::str::from_utf8(text)
            .ok()
            .and_then(|t| t.parse::<i64>().ok());
        at.is_none_or(|at| at < wall_micros.div_euclid(1_000_000))
    }

    /// Whether it was made with the token of this route, which its gate knows the hash of. Takes
    /// the same time whatever the answer.
    pub(crate) fn is_of(&self, seal: &Seal, id: &SandboxId, route: &Route) -> bool {
        let Gate::Token(wanted) = route.agent else {
            return false;
        };
        let token = seal.agent_token(id);
        let mut hash = Sha256::new();
        hash.update(&self.before);
        hash.update(token.reveal());
        if let Some(expiration) = &self.expiration {
            hash.update(":");
            hash.update(expiration);
        }
        let expected = format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()));
        let fits = bool::from(expected.as_bytes().ct_eq(&self.signature));
        let known = TokenHash(Sha256::digest(token.reveal()).into()).matches(&wanted);
        fits & known
    }
}

/// Whether the agent's token of a route is the one that is derived here.
pub(crate) fn is_known(seal: &Seal, id: &SandboxId, route: &Route) -> bool {
    match &route.agent {
        Gate::Token(wanted) => {
            let token = seal.agent_token(id);
            TokenHash(Sha256::digest(token.reveal()).into()).matches(wanted)
        }
        Gate::Open | Gate::Closed => false,
    }
}

/// What a `+` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plus {
    /// In a query: a space.
    IsSpace,
    /// In a path: itself.
    Stays,
}

/// Undoes percent-encoding. A `%` that begins no code stays.
pub(crate) fn decode(text: &str, plus: Plus) -> Vec<u8> {
    let bytes = text.as_bytes();
    let hex = |at: usize| {
        let digit = bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
        digit.and_then(|d| u8::try_from(d).ok())
    };
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push(high * 16 + low);
                at += 3;
                continue;
            }
            (b'+', ..) if plus == Plus::IsSpace => out.push(b' '),
            _ => out.push(*byte),
        }
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*};

    use super::*;

    #[test]
    fn only_files_with_a_signature_look_signed() {
        let signed = |method: &Method, path, query| is_signed(method, path, Some(query));
        assert!(signed(&Method::GET, "/files", "path=a&signature=v1_x"));
        assert!(signed(&Method::POST, "/files", "signature=v1_x"));
        assert!(!signed(&Method::GET, "/files", "path=a&signature="));
        assert!(!signed(&Method::GET, "/files", "path=signature=x"));
        assert!(!signed(&Method::GET, "/files/compose", "signature=v1_x"));
        assert!(!signed(&Method::DELETE, "/files", "signature=v1_x"));
        assert!(!is_signed(&Method::GET, "/files", None));
    }

    #[test]
    fn an_expiration_that_cannot_be_read_is_over() {
        let read = |query| Signed::read(&Method::GET, query);
        assert!(!read("signature=x").is_expired(5_000_000));
        assert!(!read("signature_expiration=5").is_expired(5_999_999));
        assert!(read("signature_expiration=4").is_expired(5_000_000));
        assert!(read("signature_expiration=soon").is_expired(0));
    }

    proptest! {
        #[test]
        fn noise_in_a_query_is_read_and_never_grows(query in ".{0,200}") {
            let signed = Signed::read(&Method::GET, &query);
            prop_assert!(signed.signature.len() + signed.before.len() <= query.len() + 8);
            let _ = signed.is_expired(0);
            let _ = is_signed(&Method::GET, "/files", Some(&query));
        }

        #[test]
        fn what_was_encoded_is_decoded(bytes in vec(any::<u8>(), 0..60)) {
            let text: String = bytes.iter().map(|byte| format!("%{byte:02X}")).collect();
            prop_assert_eq!(decode(&text, Plus::Stays), bytes);
        }

        #[test]
        fn a_path_of_the_platforms_stays_one_however_it_is_encoded(
            at in 0usize..7, mask in any::<u64>(), before in "(/|/\\.|/x/\\.\\.){0,3}",
        ) {
            let names = ["init", "freeze", "unfreeze", "collapse", "fsfreeze", "fsthaw", "upgrade"];
            let name: String = names[at]
                .bytes()
                .enumerate()
                .map(|(n, byte)| match (mask >> (2 * n)) & 3 {
                    0 => format!("%{byte:02x}"),
                    1 => format!("%{byte:02X}"),
                    2 => char::from(byte).to_ascii_uppercase().to_string(),
                    _ => char::from(byte).to_string(),
                })
                .collect();
            let path = format!("{before}/{name}");
            prop_assert!(crate::gate::is_internal(&path), "{}", path);
        }
    }
}
