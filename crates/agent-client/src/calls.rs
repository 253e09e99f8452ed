//! Calls of one message: health, init, and both services.

use bytes::Bytes;
use http::{Method, Request, header};
use wire::{
    connect::{Code, Codec, Message},
    envd::{
        AGENT_PROTOCOL, AGENT_PROTOCOL_HEADER, Delivery, ENVD_VERSION_HEADER, InitRequest, Metrics,
        OLDEST_PROTOCOL, STALE_HEADER,
    },
    filesystem,
    process::{
        self, Empty, ListRequest, ListResponse, ProcessInfo, ProcessInput, ProcessRequest,
        ProcessSelector, Pty, PtySize, SendInputRequest, SendSignalRequest, Signal, UpdateRequest,
    },
};

use crate::{
    connection::{Client, full},
    error::{Error, Result},
};

/// What every call between us speaks; JSON is for those who read along.
pub(crate) const CODEC: Codec = Codec::Proto;

/// What an agent says of itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The version of envd that it behaves as.
    pub envd_version: Option<String>,
    /// What it and its server agree on beyond envd.
    pub protocol: u32,
}

impl Client {
    /// Whether the agent answers.
    ///
    /// # Errors
    /// If it does not.
    pub async fn health(&self) -> Result<()> {
        let answer = self
            .send(plain(Method::GET, "/health", Bytes::new())?)
            .await?;
        answer.successful().await?.whole().await?;
        Ok(())
    }

    /// Tells the agent the settings of the sandbox. They are in force when this returns.
    ///
    /// # Errors
    /// `Aborted` if newer settings are in force. Also if the agent speaks a version that is not known here: what it was told is in force
    /// then, but nothing else should be asked of it.
    pub async fn init(&self, settings: &InitRequest) -> Result<Hello> {
        let body = serde_json::to_vec(settings)
            .map_err(|why| Error::Protocol(format!("write /init: {why}")))?;
        let mut request = plain(Method::POST, "/init", body)?;
        request.headers_mut().insert(
            header::CONTENT_TYPE,
            http::HeaderValue::from_static("application/json"),
        );
        let answer = self.send(request).await?.successful().await?;
        let (parts, _) = answer.whole().await?;
        let said = |name| {
            parts
                .headers
                .get(name)
                .and_then(|value| value.to_str().ok())
        };
        if said(STALE_HEADER).is_some() {
            return Err(Error::Refused {
                code: Code::Aborted,
                message: "newer settings are in force".to_owned(),
            });
        }
        let protocol = said(AGENT_PROTOCOL_HEADER).and_then(|number| number.parse().ok());
        match protocol {
            Some(protocol) if (OLDEST_PROTOCOL..=AGENT_PROTOCOL).contains(&protocol) => Ok(Hello {
                envd_version: said(ENVD_VERSION_HEADER).map(str::to_owned),
                protocol,
            }),
            Some(other) => Err(Error::Protocol(format!(
                "it speaks version {other}, and {OLDEST_PROTOCOL} to {AGENT_PROTOCOL} are known here"
            ))),
            None => Err(Error::Protocol(
                "it does not say which version it speaks".to_owned(),
            )),
        }
    }

    /// The delivery that the agent is armed for, where it keeps that itself: zero before the first.
    ///
    /// # Errors
    /// If there is no answer, or this is not who may know.
    pub async fn delivery(&self) -> Result<Delivery> {
        let answer = self
            .send(plain(Method::GET, "/init", Bytes::new())?)
            .await?;
        let (_, body) = answer.successful().await?.whole().await?;
        serde_json::from_slice(&body).map_err(|why| Error::Protocol(format!("read /init: {why}")))
    }

    /// What the sandbox uses.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn metrics(&self) -> Result<Metrics> {
        let answer = self
            .send(plain(Method::GET, "/metrics", Bytes::new())?)
            .await?;
        let (_, body) = answer.successful().await?.whole().await?;
        serde_json::from_slice(&body)
            .map_err(|why| Error::Protocol(format!("read /metrics: {why}")))
    }

    /// The processes that the agent has started and that run.
    ///
    /// # Errors
    /// If there is no answer.
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>> {
        let answer: ListResponse = self
            .unary(process::SERVICE, "List", &ListRequest {})
            .await?;
        Ok(answer.processes)
    }

    /// Sends input to a process; returns when the process's pipe or terminal has taken it.
    ///
    /// # Errors
    /// `NotFound` if it does not run; `Internal` if it takes no input of that kind.
    pub async fn send_input(&self, process: ProcessSelector, input: ProcessInput) -> Result<()> {
        let request = SendInputRequest {
            process: Some(process),
            input: Some(input),
        };
        let Empty {} = self.unary(process::SERVICE, "SendInput", &request).await?;
        Ok(())
    }

    /// Ends a process's input.
    ///
    /// # Errors
    /// `NotFound` if it does not run; `FailedPrecondition` if it has a terminal.
    pub async fn close_stdin(&self, process: ProcessSelector) -> Result<()> {
        let request = ProcessRequest {
            process: Some(process),
        };
        let Empty {} = self.unary(process::SERVICE, "CloseStdin", &request).await?;
        Ok(())
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    /// `NotFound` if it does not run; `Internal` if it has no terminal.
    pub async fn resize(&self, process: ProcessSelector, size: PtySize) -> Result<()> {
        let request = UpdateRequest {
            process: Some(process),
            pty: Some(Pty { size: Some(size) }),
        };
        let Empty {} = self.unary(process::SERVICE, "Update", &request).await?;
        Ok(())
    }

    /// Sends a signal to a process.
    ///
    /// # Errors
    /// `NotFound` if it does not run.
    pub async fn signal(&self, process: ProcessSelector, signal: Signal) -> Result<()> {
        let request = SendSignalRequest {
            process: Some(process),
            signal: signal.into(),
        };
        let Empty {} = self.unary(process::SERVICE, "SendSignal", &request).await?;
        Ok(())
    }

    /// What is at a path.
    ///
    /// # Errors
    /// `NotFound` if nothing is.
    pub async fn stat(&self, path: &str) -> Result<filesystem::EntryInfo> {
        let request = filesystem::PathRequest {
            path: path.to_owned(),
        };
        let answer: filesystem::EntryResponse =
            self.unary(filesystem::SERVICE, "Stat", &request).await?;
        answer
            .entry
            .ok_or_else(|| Error::Protocol("an answer to Stat without an entry".to_owned()))
    }

    /// What is in a directory, without what is below that.
    ///
    /// # Errors
    /// `NotFound` if there is none, `InvalidArgument` if it is no directory.
    pub async fn list_dir(&self, path: &str) -> Result<Vec<filesystem::EntryInfo>> {
        let request = filesystem::ListDirRequest {
            path: path.to_owned(),
            depth: 1,
        };
        let answer: filesystem::ListDirResponse =
            self.unary(filesystem::SERVICE, "ListDir", &request).await?;
        Ok(answer.entries)
    }

    /// Makes a directory, and those above it.
    ///
    /// # Errors
    /// `AlreadyExists` if it is there, `InvalidArgument` if something else is.
    pub async fn make_dir(&self, path: &str) -> Result<()> {
        let request = filesystem::PathRequest {
            path: path.to_owned(),
        };
        let _: filesystem::EntryResponse =
            self.unary(filesystem::SERVICE, "MakeDir", &request).await?;
        Ok(())
    }

    /// Any call of one message to one of the services.
    ///
    /// # Errors
    /// See [`Error`].
    pub async fn unary<Q: Message, A: Message>(
        &self,
        service: &str,
        method: &str,
        message: &Q,
    ) -> Result<A> {
        let mut request = plain(
            Method::POST,
            &format!("/{service}/{method}"),
            CODEC.encode(message),
        )?;
        let headers = request.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            http::HeaderValue::from_static(CODEC.unary_type()),
        );
        headers.insert(
            "connect-protocol-version",
            http::HeaderValue::from_static("1"),
        );
        if let Some(user) = self.authorization() {
            headers.insert(header::AUTHORIZATION, user);
        }
        let (_, body) = self
            .send(request)
            .await?
            .successful()
            .await?
            .whole()
            .await?;
        CODEC
            .decode(&body)
            .map_err(|why| Error::Protocol(why.message))
    }
}

pub(crate) fn plain(
    method: Method,
    path: &str,
    body: impl Into<Bytes>,
) -> Result<Request<crate::connection::Body>> {
    Request::builder()
        .method(method)
        .uri(path)
        .body(full(body))
        .map_err(|why| Error::Protocol(why.to_string()))
}
