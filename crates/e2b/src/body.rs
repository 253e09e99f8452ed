//! Request bodies: JSON within a limit, whole or in chunks, with the field named that is wrong.

use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use crate::{object::Object, refusal::Refusal};

/// How much of a body that is too long is read and thrown away, and for how long: most clients
/// look for an answer only once they have sent everything.
const MAX_DISCARDED: usize = 16 << 20;
const DISCARD_TIMEOUT: Duration = Duration::from_secs(5);

/// Collects a body.
pub(crate) async fn collect(
    headers: &HeaderMap,
    mut body: Body,
    limit: usize,
    patience: Duration,
) -> Result<Bytes, Refusal> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING) {
        let encoding = encoding.to_str().unwrap_or("unreadable");
        if !encoding.eq_ignore_ascii_case("identity") {
            return Err(Refusal::encoded_body(encoding));
        }
    }
    // From the first byte to the last, so that one byte now and then keeps nothing alive.
    match timeout(patience, Limited::new(&mut body, limit).collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(e)) if e.downcast_ref::<LengthLimitError>().is_some() => {
            let _ = timeout(DISCARD_TIMEOUT, discard(&mut body)).await;
            Err(Refusal::body_too_large(limit))
        }
        Ok(Err(_)) => Err(Refusal::bad_request("the request body ended early")),
        Err(_) => Err(Refusal::body_too_slow(patience)),
    }
}

async fn discard(body: &mut Body) {
    let mut left = MAX_DISCARDED;
    while let Some(Ok(frame)) = body.frame().await {
        let length = frame.data_ref().map_or(0, Bytes::len);
        match left.checked_sub(length) {
            Some(rest) => left = rest,
            None => return,
        }
    }
}

/// Reads a body that has to be there.
pub(crate) fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Refusal> {
    let mut json = serde_json::Deserializer::from_slice(bytes);
    let Object(value) = serde_path_to_error::deserialize(&mut json).map_err(|e| {
        let path = e.path().to_string();
        let what = e.into_inner();
        match path.as_str() {
            "." => Refusal::bad_request(format!("the request body cannot be read: {what}")),
            field => Refusal::bad_field(field, what.to_string()),
        }
    })?;
    json.end()
        .map_err(|e| Refusal::bad_request(format!("the request body cannot be read: {e}")))?;
    Ok(value)
}

/// Reads a body that may be left out.
pub(crate) fn parse_or_default<T: DeserializeOwned + Default>(bytes: &[u8]) -> Result<T, Refusal> {
    match (bytes, bytes.trim_ascii()) {
        (b"", _) | (_, b"null") => Ok(T::default()),
        // Blanks alone are no JSON.
        (_, some) => parse(some),
    }
}
