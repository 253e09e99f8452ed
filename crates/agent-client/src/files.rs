//! Content of files, up and down.

use std::io;

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _};
use http::{HeaderValue, Method, header};
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::{Frame, Incoming};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use wire::envd::WrittenFile;

use crate::{
    calls::plain,
    connection::{Client, Lease},
    error::{Error, Result},
};

/// The content of a file, as it arrives.
pub struct Download {
    length: Option<u64>,
    body: Incoming,
    lease: Option<Lease>,
}

impl std::fmt::Debug for Download {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Download")
            .field("length", &self.length)
            .finish_non_exhaustive()
    }
}

impl Download {
    /// How many bytes there are, where the agent knows.
    #[must_use]
    pub const fn length(&self) -> Option<u64> {
        self.length
    }

    /// The next piece; none after the last.
    ///
    /// # Errors
    /// [`Error::EndedEarly`] if the rest will not come.
    pub async fn next(&mut self) -> Result<Option<Bytes>> {
        while let Some(frame) = self.body.frame().await {
            if let Ok(data) = frame?.into_data() {
                return Ok(Some(data));
            }
        }
        if let Some(lease) = self.lease.take() {
            lease.give_back();
        }
        Ok(None)
    }
}

impl Client {
    /// Writes a file: its directories are made, what was there is replaced.
    ///
    /// # Errors
    /// `InvalidArgument` if it is a directory, `ResourceExhausted` if the disk is full.
    pub async fn upload(
        &self,
        path: &str,
        content: impl Stream<Item = io::Result<Bytes>> + Send + 'static,
    ) -> Result<WrittenFile> {
        let mut request = plain(Method::POST, &self.files(path), Bytes::new())?;
        *request.body_mut() = StreamBody::new(content.map_ok(Frame::data)).boxed_unsync();
        request.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/octet-stream"),
        );
        let (_, body) = self
            .send(request)
            .await?
            .successful()
            .await?
            .whole()
            .await?;
        let written: Vec<WrittenFile> = serde_json::from_slice(&body)
            .map_err(|why| Error::Protocol(format!("read what was written: {why}")))?;
        let first = written.into_iter().next();
        first.ok_or_else(|| Error::Protocol("it says that it wrote nothing".to_owned()))
    }

    /// Reads a file.
    ///
    /// # Errors
    /// `NotFound` if there is none, `InvalidArgument` if it is a directory.
    pub async fn download(&self, path: &str) -> Result<Download> {
        let request = plain(Method::GET, &self.files(path), Bytes::new())?;
        let answer = self.send(request).await?.successful().await?;
        let (parts, body) = answer.response.into_parts();
        let length = parts.headers.get(header::CONTENT_LENGTH);
        Ok(Download {
            length: length.and_then(|value| value.to_str().ok()?.parse().ok()),
            body,
            lease: Some(answer.lease),
        })
    }

    fn files(&self, path: &str) -> String {
        let path = utf8_percent_encode(path, NON_ALPHANUMERIC);
        match self.user() {
            None => format!("/files?path={path}"),
            Some(user) => {
                let user = utf8_percent_encode(user, NON_ALPHANUMERIC);
                format!("/files?path={path}&username={user}")
            }
        }
    }
}
