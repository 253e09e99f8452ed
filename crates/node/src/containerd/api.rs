//! Messages of containerd's API, as far as they are used: fields that nobody here looks at are left
//! out, which protobuf allows.

use std::collections::HashMap;

/// `containers.Get`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetContainer {
    #[prost(string, tag = "1")]
    pub(super) id: String,
}

/// Its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GotContainer {
    #[prost(message, optional, tag = "1")]
    pub(super) container: Option<Container>,
}

/// `containers.List`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListContainers {
    #[prost(string, repeated, tag = "1")]
    pub(super) filters: Vec<String>,
}

/// Its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListedContainers {
    #[prost(message, repeated, tag = "1")]
    pub(super) containers: Vec<Container>,
}

/// A container as containerd keeps it.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Container {
    /// Its name.
    #[prost(string, tag = "1")]
    pub id: String,
    /// What others have noted about it.
    #[prost(map = "string, string", tag = "2")]
    pub labels: HashMap<String, String>,
    /// The name of its image.
    #[prost(string, tag = "3")]
    pub image: String,
    /// What keeps its files.
    #[prost(string, tag = "6")]
    pub snapshotter: String,
    /// Under which name.
    #[prost(string, tag = "7")]
    pub snapshot_key: String,
}

/// `containers.Update`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct UpdateContainer {
    #[prost(message, optional, tag = "1")]
    pub(super) container: Option<Container>,
    #[prost(message, optional, tag = "2")]
    pub(super) mask: Option<Mask>,
}

/// What of it is changed.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Mask {
    #[prost(string, repeated, tag = "1")]
    pub(super) paths: Vec<String>,
}

/// `tasks.Get`, `tasks.Pause` and `tasks.Resume`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct OfContainer {
    #[prost(string, tag = "1")]
    pub(super) container_id: String,
}

/// The answer of `tasks.Get`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GotTask {
    #[prost(message, optional, tag = "1")]
    pub(super) process: Option<Process>,
}

/// The first process of a container.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Process {
    #[prost(enumeration = "Status", tag = "4")]
    pub(super) status: i32,
}

/// What a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Status {
    Unknown = 0,
    Created = 1,
    Running = 2,
    Stopped = 3,
    Paused = 4,
    Pausing = 5,
}

/// An answer without content.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Nothing {}

/// `snapshots.Mounts`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct MountsOf {
    #[prost(string, tag = "1")]
    pub(super) snapshotter: String,
    #[prost(string, tag = "2")]
    pub(super) key: String,
}

/// Its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Mounts {
    #[prost(message, repeated, tag = "1")]
    pub(super) mounts: Vec<Mount>,
}

/// How files are mounted.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Mount {
    /// The file system.
    #[prost(string, tag = "1")]
    pub r#type: String,
    /// What is mounted.
    #[prost(string, tag = "2")]
    pub source: String,
    /// With these options.
    #[prost(string, repeated, tag = "4")]
    pub options: Vec<String>,
}

/// `images.Get`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GetImage {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

/// Its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct GotImage {
    #[prost(message, optional, tag = "1")]
    pub(super) image: Option<Image>,
}

/// A name and what it leads to.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Image {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "3")]
    pub(super) target: Option<Descriptor>,
}

/// `images.List`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListImages {
    #[prost(string, repeated, tag = "1")]
    pub(super) filters: Vec<String>,
}

/// Its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ListedImages {
    #[prost(message, repeated, tag = "1")]
    pub(super) images: Vec<Image>,
}

/// A thing by its digest.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Descriptor {
    #[prost(string, tag = "2")]
    pub(super) digest: String,
}

/// `content.Read`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct ReadContent {
    #[prost(string, tag = "1")]
    pub(super) digest: String,
}

/// A part of its answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Part {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) data: bytes::Bytes,
}

/// The answer of `version.Version`.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Version {
    #[prost(string, tag = "1")]
    pub(super) version: String,
}
