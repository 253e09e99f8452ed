//! How far a client has come: a token that it may carry from one server to another.
//!
//! An answer that wrote says in [`VERSION`] at which version. Who sends that back, to any server of
//! the API or any gateway, is answered by what is at least as new, or is told to come again: also where
//! that server has heard of nothing. Who sends none is served as well as that server knows.

use http::{HeaderMap, HeaderName, HeaderValue, Response};
use model::Version;

use crate::{refusal::Refusal, service::E2b};

/// Carries the token, both ways.
pub(crate) const VERSION: HeaderName = HeaderName::from_static("dormouse-version");

/// Says of an answer at which version its request wrote.
pub(crate) fn stamped<B>(mut response: Response<B>, version: Version) -> Response<B> {
    response
        .headers_mut()
        .insert(VERSION, HeaderValue::from(version.to_u64()));
    response
}

/// How far the client has come.
fn read(headers: &HeaderMap) -> Result<Option<Version>, Refusal> {
    let mut given = headers.get_all(&VERSION).iter();
    let (Some(only), None) = (given.next(), given.next()) else {
        return match headers.contains_key(&VERSION) {
            true => Err(Refusal::bad_version()),
            false => Ok(None),
        };
    };
    let version = only.to_str().ok().and_then(|text| text.parse().ok());
    version.map(Some).ok_or_else(Refusal::bad_version)
}

impl E2b {
    /// Waits until what the client has seen is seen here, too.
    ///
    /// # Errors
    /// If the token is none, or what it stands for is not seen in time.
    pub(crate) async fn seen_by_client(&self, headers: &HeaderMap) -> Result<(), Refusal> {
        match read(headers)? {
            Some(version) if !self.comes_to(version).await => Err(Refusal::behind()),
            Some(_) | None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_what_was_given_and_nothing_else_is_one() {
        let answer = stamped(Response::new(()), Version::from_u64(u64::MAX));
        let headers = answer.headers();
        assert_eq!(read(headers).unwrap(), Some(Version::from_u64(u64::MAX)));
        assert_eq!(read(&HeaderMap::new()).unwrap(), None);
        for bad in ["", "x", "-1", "1.5", "18446744073709551616", "é"] {
            let mut headers = HeaderMap::new();
            headers.insert(VERSION, HeaderValue::from_bytes(bad.as_bytes()).unwrap());
            let refusal = read(&headers).unwrap_err();
            assert_eq!(refusal.status(), 400, "{bad}");
            assert!(refusal.message().contains("Dormouse-Version"));
        }
        let mut twice = answer.headers().clone();
        twice.append(VERSION, HeaderValue::from(1));
        assert!(read(&twice).is_err());
    }
}
