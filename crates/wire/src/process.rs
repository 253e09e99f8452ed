//! `process.Process`: programs inside a sandbox.

use std::collections::BTreeMap;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::{
    connect::{Code, Error},
    json::{self, Named, is_default, null_default},
};

/// The service's name in its paths.
pub const SERVICE: &str = "process.Process";

/// Size of a terminal.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct PtySize {
    /// Columns.
    #[prost(uint32, tag = "1")]
    #[serde(with = "num", skip_serializing_if = "is_default")]
    pub cols: u32,
    /// Rows.
    #[prost(uint32, tag = "2")]
    #[serde(with = "num", skip_serializing_if = "is_default")]
    pub rows: u32,
}

/// A terminal for a process.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Pty {
    /// Its size.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<PtySize>,
}

/// What to run.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessConfig {
    /// The program.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub cmd: String,
    /// Its arguments, without its own name.
    #[prost(string, repeated, tag = "2")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub args: Vec<String>,
    /// Its environment, over that of the sandbox.
    #[prost(btree_map = "string, string", tag = "3")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub envs: BTreeMap<String, String>,
    /// Where it starts.
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cwd: Option<String>,
}

/// Which process is meant.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessSelector {
    /// By its number inside the sandbox.
    #[prost(uint32, optional, tag = "1")]
    #[serde(
        deserialize_with = "json::opt_number::deserialize",
        skip_serializing_if = "Option::is_none"
    )]
    pub pid: Option<u32>,
    /// By the name its starter gave it.
    #[prost(string, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// A selector that names one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selected {
    /// By number.
    Pid(u32),
    /// By tag.
    Tag(String),
}

impl ProcessSelector {
    /// The one way in which this names a process.
    ///
    /// # Errors
    /// If it names none, or in both ways.
    pub fn one(self) -> Result<Selected, Error> {
        match (self.pid, self.tag) {
            (Some(pid), None) => Ok(Selected::Pid(pid)),
            (None, Some(tag)) => Ok(Selected::Tag(tag)),
            (None, None) => Err(Error::new(
                Code::InvalidArgument,
                "process selector is empty: give pid or tag",
            )),
            (Some(_), Some(_)) => Err(Error::new(
                Code::InvalidArgument,
                "process selector has both pid and tag: give one",
            )),
        }
    }
}

/// Asks for the running processes.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
pub struct ListRequest {}

/// A running process.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessInfo {
    /// What was asked for.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config: Option<ProcessConfig>,
    /// Its number inside the sandbox.
    #[prost(uint32, tag = "2")]
    #[serde(with = "num", skip_serializing_if = "is_default")]
    pub pid: u32,
    /// The name its starter gave it.
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
}

/// The running processes.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ListResponse {
    /// In the order of their numbers.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub processes: Vec<ProcessInfo>,
}

/// Starts a process.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct StartRequest {
    /// What to run.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessConfig>,
    /// In a terminal.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
    /// A name to find it by.
    #[prost(string, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Whether input can be sent; absent means yes.
    #[prost(bool, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stdin: Option<bool>,
}

/// Changes the size of a process's terminal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdateRequest {
    /// Which process.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
    /// The terminal as it should be.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pty: Option<Pty>,
}

/// A process runs.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct StartEvent {
    /// Its number inside the sandbox.
    #[prost(uint32, tag = "1")]
    #[serde(with = "num", skip_serializing_if = "is_default")]
    pub pid: u32,
}

/// Output of a process; one of the three.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct DataEvent {
    /// From its standard output.
    #[prost(bytes = "bytes", optional, tag = "1")]
    #[serde(with = "json::opt_bytes", skip_serializing_if = "Option::is_none")]
    pub stdout: Option<Bytes>,
    /// From its standard error.
    #[prost(bytes = "bytes", optional, tag = "2")]
    #[serde(with = "json::opt_bytes", skip_serializing_if = "Option::is_none")]
    pub stderr: Option<Bytes>,
    /// From its terminal.
    #[prost(bytes = "bytes", optional, tag = "3")]
    #[serde(with = "json::opt_bytes", skip_serializing_if = "Option::is_none")]
    pub pty: Option<Bytes>,
}

/// A process has ended.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct EndEvent {
    /// Its exit code, or -1 if a signal ended it.
    #[prost(sint32, tag = "1")]
    #[serde(with = "num", skip_serializing_if = "is_default")]
    pub exit_code: i32,
    /// Whether it ended by itself.
    #[prost(bool, tag = "2")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub exited: bool,
    /// `exit status 1`, `signal: killed`.
    #[prost(string, tag = "3")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub status: String,
    /// The same, unless it ended well.
    #[prost(string, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// Nothing happened; the connection is alive.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
pub struct KeepAlive {}

/// What happens to a process; one of the four.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessEvent {
    /// It runs.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StartEvent>,
    /// It wrote something.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<DataEvent>,
    /// It has ended.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end: Option<EndEvent>,
    /// Nothing happened.
    #[prost(message, optional, tag = "4")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<KeepAlive>,
}

/// One message of `Start` and of `Connect`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct EventResponse {
    /// What happened.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub event: Option<ProcessEvent>,
}

/// Input for a process; one of the two.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessInput {
    /// For its standard input.
    #[prost(bytes = "bytes", optional, tag = "1")]
    #[serde(with = "json::opt_bytes", skip_serializing_if = "Option::is_none")]
    pub stdin: Option<Bytes>,
    /// For its terminal.
    #[prost(bytes = "bytes", optional, tag = "2")]
    #[serde(with = "json::opt_bytes", skip_serializing_if = "Option::is_none")]
    pub pty: Option<Bytes>,
}

/// Sends input.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct SendInputRequest {
    /// To which process.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
    /// The input.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<ProcessInput>,
}

/// Names the process that a stream of input is for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamInputStart {
    /// Which process.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
}

/// A piece of a stream of input.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamInputData {
    /// The input.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input: Option<ProcessInput>,
}

/// One message of a stream of input; one of the three, and `start` first.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct StreamInputRequest {
    /// Names the process.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<StreamInputStart>,
    /// Input.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<StreamInputData>,
    /// Nothing.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<KeepAlive>,
}

/// Names a process: `Connect` and `CloseStdin`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessRequest {
    /// Which process.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
}

/// Sends a signal.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct SendSignalRequest {
    /// To which process.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub process: Option<ProcessSelector>,
    /// Which one.
    #[prost(enumeration = "Signal", tag = "2")]
    #[serde(with = "signal", skip_serializing_if = "is_default")]
    pub signal: i32,
}

/// The signals that can be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum Signal {
    /// None.
    Unspecified = 0,
    /// Ends it at once.
    Kill = 9,
    /// Asks it to end.
    Term = 15,
}

impl Named for Signal {
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::Unspecified, "SIGNAL_UNSPECIFIED"),
        (Self::Kill, "SIGNAL_SIGKILL"),
        (Self::Term, "SIGNAL_SIGTERM"),
    ];
}

/// An answer that says only that it was done.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
pub struct Empty {}

mod num {
    pub(super) use crate::json::number::deserialize;

    pub(super) fn serialize<S: serde::Serializer, T: serde::Serialize>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }
}

mod signal {
    use crate::json::enumeration;

    pub(super) fn serialize<S: serde::Serializer>(value: &i32, to: S) -> Result<S::Ok, S::Error> {
        enumeration::serialize::<S, super::Signal>(*value, to)
    }

    pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(from: D) -> Result<i32, D::Error> {
        enumeration::deserialize::<D, super::Signal>(from)
    }
}
