//! The few calls of containerd's API that are needed, over its Unix socket.
//!
//! A client of our own: prost is here for the agent's protocol, and hyper speaks HTTP/2. Why not a
//! ready-made one is in `docs/decisions/node.md`.

mod api;
mod grpc;

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use model::Digest;
use prost::Message;
use tokio::io::AsyncWriteExt as _;

pub use api::{Container, Mount};

use crate::error::{NodeError, Result};
use api::{
    GetContainer, GetImage, GotContainer, GotImage, GotTask, ListContainers, ListImages,
    ListedContainers, ListedImages, Mask, Mounts, MountsOf, Nothing, OfContainer, Part,
    ReadContent, Status, UpdateContainer, Version,
};
use grpc::{Answer, Call};

/// Where containerd listens, as it is installed.
pub const SOCKET: &str = "/run/containerd/containerd.sock";
/// Where a kubelet's containers are in containerd.
pub const NAMESPACE: &str = "k8s.io";

/// containerd of this node.
#[derive(Clone, Debug)]
pub struct Containerd {
    socket: PathBuf,
    namespace: String,
}

/// What a container's processes do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// They run.
    Running,
    /// They are stopped where they are.
    Frozen,
    /// There are none: not yet, or not any more.
    Ended,
    /// containerd does not know: it may have lost sight of them for a while.
    Unknown,
}

/// Why a call was refused, in the words of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// There is no such thing.
    NotFound,
    /// It is in no state for this.
    FailedPrecondition,
    /// Not now.
    Unavailable,
    /// Anything else.
    Other(u32),
}

impl Code {
    const fn from_number(code: u32) -> Self {
        match code {
            5 => Self::NotFound,
            9 => Self::FailedPrecondition,
            14 => Self::Unavailable,
            other => Self::Other(other),
        }
    }

    /// Whether it may be otherwise in a moment: cancelled, late, aborted, internal, unavailable, or
    /// unknown, which is what containerd says when a program that it runs has failed.
    pub(crate) const fn is_passing(self) -> bool {
        match self {
            Self::Unavailable => true,
            Self::Other(code) => matches!(code, 1 | 2 | 4 | 8 | 10 | 13),
            Self::NotFound | Self::FailedPrecondition => false,
        }
    }
}

macro_rules! call {
    ($service:literal, $method:literal) => {
        Call {
            path: concat!("/containerd.services.", $service, ".v1.", $method),
            name: $method,
        }
    };
}

impl Containerd {
    /// containerd at a socket, and its containers of one namespace.
    #[must_use]
    pub fn new(socket: impl Into<PathBuf>, namespace: impl Into<String>) -> Self {
        Self {
            socket: socket.into(),
            namespace: namespace.into(),
        }
    }

    async fn ask(&self, call: Call, message: &impl Message) -> Result<Answer> {
        grpc::call(&self.socket, &self.namespace, call, message).await
    }

    async fn only<M: Message + Default>(&self, call: Call, message: &impl Message) -> Result<M> {
        self.ask(call, message).await?.only().await
    }

    /// Its version: whether it answers.
    ///
    /// # Errors
    /// If it does not.
    pub async fn version(&self) -> Result<String> {
        let call = call!("version", "Version/Version");
        Ok(self.only::<Version>(call, &Nothing {}).await?.version)
    }

    /// A container.
    ///
    /// # Errors
    /// If there is none, or containerd does not answer.
    pub async fn container(&self, id: &str) -> Result<Container> {
        let message = GetContainer { id: id.into() };
        let call = call!("containers", "Containers/Get");
        let got = self.only::<GotContainer>(call, &message).await;
        let got = got.map_err(|error| absent(error, id))?;
        got.container.ok_or_else(|| NodeError::Absent(id.into()))
    }

    /// Notes labels on a container, and touches no others. An empty one is taken away.
    ///
    /// # Errors
    /// If there is no such container, or containerd does not answer.
    pub async fn label(&self, id: &str, labels: HashMap<String, String>) -> Result<()> {
        let paths = labels.keys().map(|name| format!("labels.{name}")).collect();
        let message = UpdateContainer {
            container: Some(Container {
                id: id.into(),
                labels,
                ..Container::default()
            }),
            mask: Some(Mask { paths }),
        };
        let call = call!("containers", "Containers/Update");
        let updated = self.only::<GotContainer>(call, &message).await;
        updated.map_err(|error| absent(error, id))?;
        Ok(())
    }

    /// Containers that have all of these labels.
    ///
    /// # Errors
    /// If containerd does not answer.
    pub async fn labelled(&self, labels: &[(&str, &str)]) -> Result<Vec<Container>> {
        let quoted = |text: &str| text.replace('\\', "\\\\").replace('"', "\\\"");
        let terms = labels
            .iter()
            .map(|(name, value)| format!("labels.\"{}\"==\"{}\"", quoted(name), quoted(value)));
        let message = ListContainers {
            filters: vec![terms.collect::<Vec<_>>().join(",")],
        };
        let call = call!("containers", "Containers/List");
        let listed = self.only::<ListedContainers>(call, &message).await?;
        Ok(listed.containers)
    }

    /// What a container's processes do.
    ///
    /// # Errors
    /// If containerd does not answer.
    pub async fn state(&self, id: &str) -> Result<State> {
        let call = call!("tasks", "Tasks/Get");
        let got = match self.only::<GotTask>(call, &of(id)).await {
            Ok(got) => got,
            Err(NodeError::Refused {
                code: Code::NotFound,
                ..
            }) => return Ok(State::Ended),
            Err(error) => return Err(error),
        };
        let status = got.process.map_or(Status::Unknown, |p| p.status());
        Ok(match status {
            Status::Running => State::Running,
            Status::Paused | Status::Pausing => State::Frozen,
            Status::Created | Status::Stopped => State::Ended,
            Status::Unknown => State::Unknown,
        })
    }

    /// Stops a container's processes where they are. Answers whether they ran until now.
    ///
    /// # Errors
    /// If there are none, or containerd fails.
    pub async fn pause(&self, id: &str) -> Result<bool> {
        self.bring(id, State::Frozen, call!("tasks", "Tasks/Pause"))
            .await
    }

    /// Lets them go on. Answers whether they stood still until now.
    ///
    /// # Errors
    /// If there are none, or containerd fails.
    pub async fn resume(&self, id: &str) -> Result<bool> {
        self.bring(id, State::Running, call!("tasks", "Tasks/Resume"))
            .await
    }

    async fn bring(&self, id: &str, wanted: State, call: Call) -> Result<bool> {
        match self.state(id).await? {
            State::Ended => return Err(NodeError::Ended(id.into())),
            State::Unknown => return Err(NodeError::Unclear(id.into())),
            state if state == wanted => return Ok(false),
            State::Running | State::Frozen => {}
        }
        let done = self.only::<Nothing>(call, &of(id)).await;
        match done {
            Ok(Nothing {}) => Ok(true),
            // Somebody else may have done it, or they may have ended.
            Err(error) => match self.state(id).await? {
                State::Ended => Err(NodeError::Ended(id.into())),
                state if state == wanted => Ok(true),
                State::Running | State::Frozen | State::Unknown => Err(error),
            },
        }
    }

    /// How a container's files are mounted.
    ///
    /// # Errors
    /// If containerd does not know, or does not answer.
    pub async fn mounts(&self, container: &Container) -> Result<Vec<Mount>> {
        let message = MountsOf {
            snapshotter: container.snapshotter.clone(),
            key: container.snapshot_key.clone(),
        };
        let call = call!("snapshots", "Snapshots/Mounts");
        let got = self.only::<Mounts>(call, &message).await;
        Ok(got.map_err(|error| absent(error, &container.id))?.mounts)
    }

    /// The digest of the manifest or index that the name of an image leads to; none if it leads
    /// nowhere.
    ///
    /// # Errors
    /// If containerd does not answer, or says what is no digest.
    pub async fn image(&self, name: &str) -> Result<Option<Digest>> {
        let call = call!("images", "Images/Get");
        let message = GetImage { name: name.into() };
        let got = match self.only::<GotImage>(call, &message).await {
            Ok(got) => got,
            Err(NodeError::Refused {
                code: Code::NotFound,
                ..
            }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let target = got.image.and_then(|image| image.target);
        let digest = target.map(|target| Digest::new(target.digest)).transpose();
        digest.map_err(|error| NodeError::Nonsense {
            call: "Images/Get",
            why: error.to_string(),
        })
    }

    /// The names that lead to an image.
    ///
    /// # Errors
    /// If containerd does not answer.
    pub async fn names(&self, image: &Digest) -> Result<Vec<String>> {
        let call = call!("images", "Images/List");
        let filters = vec![format!("target.digest=={image}")];
        let listed = self
            .only::<ListedImages>(call, &ListImages { filters })
            .await?;
        Ok(listed.images.into_iter().map(|image| image.name).collect())
    }

    /// Writes content into a new file. Answers whether there is such content.
    ///
    /// # Errors
    /// If containerd does not answer to the end, or the disk fails.
    pub async fn copy(&self, digest: &Digest, to: &Path) -> Result<bool> {
        let message = ReadContent {
            digest: digest.as_str().into(),
        };
        let disk = |source| NodeError::Disk {
            doing: "copy an image's content",
            source,
        };
        let asked = self.ask(call!("content", "Content/Read"), &message).await;
        let not_found = |error: &NodeError| {
            let code = Code::NotFound;
            matches!(error, NodeError::Refused { code: c, .. } if *c == code)
        };
        let mut answer = match asked {
            Ok(answer) => answer,
            Err(error) if not_found(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        let mut part = match answer.next::<Part>().await {
            Ok(part) => part,
            Err(error) if not_found(&error) => return Ok(false),
            Err(error) => return Err(error),
        };
        let file = tokio::fs::File::create_new(to).await.map_err(disk)?;
        let mut file = tokio::io::BufWriter::new(file);
        while let Some(Part { data }) = part {
            file.write_all(&data).await.map_err(disk)?;
            part = answer.next().await?;
        }
        file.flush().await.map_err(disk)?;
        Ok(true)
    }
}

fn of(id: &str) -> OfContainer {
    OfContainer {
        container_id: id.into(),
    }
}

fn absent(error: NodeError, id: &str) -> NodeError {
    match error {
        NodeError::Refused {
            code: Code::NotFound,
            ..
        } => NodeError::Absent(id.into()),
        other => other,
    }
}
