//! The affairs of a whole server, for commands that also work without one: they know which data
//! directory they mean, and the server that has it wrote there how it is reached.

use std::{fs::File, io, path::Path};

use anyhow::{Context as _, anyhow, bail};
use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::Method;
use http_body_util::{BodyExt as _, StreamBody};
use hyper::body::Frame;
use serde_json::Value;
use tokio::io::AsyncReadExt as _;

use crate::{
    client::{Client, JSON, Sent, whole},
    connect::Connection,
};

const CHUNK: usize = 1 << 17;

/// A server, as its administrator.
#[derive(Debug)]
pub struct Admin(Client);

impl Admin {
    /// The server that has this data directory. Nothing is sent yet.
    ///
    /// # Errors
    /// If it has not written how it is reached.
    pub fn of(data_dir: &Path) -> anyhow::Result<Self> {
        let connection = Connection::in_directory(data_dir);
        Ok(Self(connection.client(false)?))
    }

    /// Asks for something that is answered at once.
    ///
    /// # Errors
    /// What the server refuses with.
    pub async fn ask(&self, method: Method, path: &str) -> anyhow::Result<Value> {
        self.0.call(method, path, JSON, None).await
    }

    /// Asks for something that takes a while. `tell` hears how far it is, and the answer is what it
    /// ends with.
    ///
    /// # Errors
    /// What the server refuses with, at once or in the end.
    pub async fn follow(&self, path: &str, tell: impl FnMut(&Value)) -> anyhow::Result<Value> {
        self.last(path, whole(Bytes::new()), tell).await
    }

    /// The same, with a file. `sent` hears how much of it is on its way.
    ///
    /// # Errors
    /// If the file cannot be read, or what the server refuses with.
    pub async fn send(
        &self,
        path: &str,
        file: File,
        sent: impl FnMut(u64) + Send + 'static,
        tell: impl FnMut(&Value),
    ) -> anyhow::Result<Value> {
        self.last(path, as_it_comes(file, sent), tell).await
    }

    async fn last(
        &self,
        path: &str,
        body: Sent,
        mut tell: impl FnMut(&Value),
    ) -> anyhow::Result<Value> {
        let mut lines = self.0.exchange(Method::POST, path, body).await?;
        while let Some(mut line) = lines.next().await? {
            if let Some(error) = line.get("error").and_then(Value::as_str) {
                bail!("{error}");
            }
            if let Some(done) = line.get_mut("done") {
                return Ok(done.take());
            }
            tell(&line);
        }
        Err(anyhow!("the server ended before it was done: ask again"))
    }

    /// Fetches something as it is.
    ///
    /// # Errors
    /// What the server refuses with, or if it cannot be written.
    pub async fn fetch(&self, path: &str, to: &mut dyn io::Write) -> anyhow::Result<()> {
        let body = whole(Bytes::new());
        let mut answer = self.0.exchange(Method::GET, path, body).await?;
        while let Some(bytes) = answer.bytes().await? {
            to.write_all(&bytes).context("write what was fetched")?;
        }
        Ok(())
    }
}

fn as_it_comes(file: File, sent: impl FnMut(u64) + Send + 'static) -> Sent {
    let file = tokio::fs::File::from_std(file);
    let stream = stream::try_unfold((file, sent, 0), |(mut file, mut sent, so_far)| async move {
        let mut buffer = BytesMut::with_capacity(CHUNK);
        let read = file.read_buf(&mut buffer).await?;
        if read == 0 {
            return Ok::<_, io::Error>(None);
        }
        let so_far = so_far + read as u64;
        sent(so_far);
        Ok(Some((Frame::data(buffer.freeze()), (file, sent, so_far))))
    });
    StreamBody::new(stream).boxed_unsync()
}
