//! `/files`: content, up and down.

mod compose;
mod download;
mod upload;

use std::path::PathBuf;

use ::http::{Method, StatusCode, Uri};
use base64::{Engine as _, engine::general_purpose::STANDARD_NO_PAD};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use wire::connect::{Code, Error};

use crate::{
    http::Refusal,
    paths,
    server::Agent,
    settings::{Access, Shown},
    users::User,
};

pub(crate) use compose::compose;
pub(crate) use download::download;
pub(crate) use upload::upload;

/// Bytes read or written at once.
const CHUNK: usize = 256 * 1024;

/// What the query of a `/files` request says. Values are bytes: a path need not be UTF-8.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Query {
    path: Option<Vec<u8>>,
    username: Option<Vec<u8>>,
    signature: Option<Vec<u8>>,
    expiration: Option<Vec<u8>>,
}

impl Query {
    fn parse(uri: &Uri) -> Self {
        let mut query = Self::default();
        for pair in uri.query().unwrap_or_default().split('&') {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            let field = match decode(key).as_slice() {
                b"path" => &mut query.path,
                b"username" => &mut query.username,
                b"signature" => &mut query.signature,
                b"signature_expiration" => &mut query.expiration,
                _ => continue,
            };
            // The first of a name counts.
            field.get_or_insert_with(|| decode(value));
        }
        query
    }

    /// Refuses who neither knows the token nor has a signature made with it.
    fn authorize(&self, agent: &Agent, method: &Method, shown: Shown<'_>) -> Result<(), Refusal> {
        let refuse = |message: &str| Err(Refusal::new(StatusCode::UNAUTHORIZED, message));
        match agent.settings.access(shown) {
            Access::Allowed => return Ok(()),
            Access::Sealed => return Err(Refusal::sealed()),
            Access::Denied if shown.token.is_some() => {
                return refuse("access token present in header but does not match");
            }
            Access::Denied => {}
        }
        // Without a token there is nothing to sign with, and anybody could.
        let Some(token) = agent.settings.token() else {
            return refuse("this sandbox is reached by its gateway only");
        };
        let Some(signature) = &self.signature else {
            return refuse("missing signature query parameter");
        };
        let operation = if *method == Method::GET {
            "read"
        } else {
            "write"
        };
        let expected = self.sign(operation, token.reveal());
        if !bool::from(expected.as_bytes().ct_eq(signature)) {
            return refuse("invalid signature");
        }
        if let Some(expiration) = &self.expiration {
            let at = std::str::from_utf8(expiration)
                .ok()
                .and_then(|text| text.parse::<i64>().ok());
            let now = agent.clock.wall_micros().div_euclid(1_000_000);
            if at.is_none_or(|at| at < now) {
                return refuse("signature is already expired");
            }
        }
        Ok(())
    }

    fn sign(&self, operation: &str, token: &str) -> String {
        let mut hash = Sha256::new();
        hash.update(self.path.as_deref().unwrap_or_default());
        hash.update(":");
        hash.update(operation);
        hash.update(":");
        hash.update(self.username.as_deref().unwrap_or_default());
        hash.update(":");
        hash.update(token);
        if let Some(expiration) = &self.expiration {
            hash.update(":");
            hash.update(expiration);
        }
        format!("v1_{}", STANDARD_NO_PAD.encode(hash.finalize()))
    }

    fn user(&self, agent: &Agent) -> Result<User, Refusal> {
        let name = self.username.as_deref().filter(|name| !name.is_empty());
        let name = name.map(String::from_utf8_lossy);
        agent.user(name.as_deref()).map_err(|why| refusal(&why))
    }
}

fn resolve(agent: &Agent, path: &[u8], user: &User) -> Result<PathBuf, Refusal> {
    paths::resolve(path, user, &agent.settings.default_workdir()).map_err(|why| refusal(&why))
}

/// An error of the services, as plain HTTP says it.
fn refusal(why: &Error) -> Refusal {
    let status = match why.code {
        Code::ResourceExhausted => 507,
        code => code.http_status(),
    };
    Refusal::new(
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
        why.message.clone(),
    )
}

/// Undoes the encoding of a query: `+` is a space, `%41` is an A. A `%` that is neither stays.
fn decode(text: &str) -> Vec<u8> {
    let bytes = text.as_bytes();
    let hex = |at: usize| bytes.get(at).and_then(|b| char::from(*b).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, hex(at + 1), hex(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.extend(u8::try_from(high * 16 + low));
                at += 3;
                continue;
            }
            (b'+', ..) => out.push(b' '),
            _ => out.push(*byte),
        }
        at += 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(text: &str) -> Query {
        Query::parse(&format!("/files?{text}").parse().unwrap())
    }

    #[test]
    fn queries_are_read_as_both_sdks_write_them() {
        assert_eq!(query("path=a+b").path.unwrap(), b"a b");
        assert_eq!(query("path=a%20b%2Bc").path.unwrap(), b"a b+c");
        assert_eq!(query("path=%ff&path=x").path.unwrap(), b"\xff");
        assert_eq!(query("path=100%&username=").path.unwrap(), b"100%");
        assert_eq!(query("username=").username.unwrap(), b"");
        assert_eq!(query("").path, None);
    }

    #[test]
    fn a_signature_is_what_the_sdk_computes() {
        // sha256("/a:read:user:t") and sha256("/a:write::t:5"), by another implementation.
        assert_eq!(
            query("path=/a&username=user").sign("read", "t"),
            "v1_O9lDkqs41pWNGGWAlwD5wdq11mG78tUg3oWrv5BVvZk"
        );
        assert_eq!(
            query("path=/a&signature_expiration=5").sign("write", "t"),
            "v1_P4eGufUdEy+kzhGMTw2LqimJuPx+Broz9rgayJGr6qo"
        );
    }
}
