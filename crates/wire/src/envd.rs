//! What the agent serves beside the two services: `/init`, `/metrics`, `/files`, and the headers.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{secret::Secret, time::Timestamp};

/// Where the agent listens.
pub const PORT: u16 = 49983;
/// Where the agent's own program is inside. With the word `sftp` it serves the files of whoever
/// runs it.
pub const PROGRAM: &str = "/run/dormouse/init";
/// The version of envd whose behaviour this is; the SDKs switch features on by it.
pub const ENVD_VERSION: &str = "0.6.13";
/// The version of what server and agent agree on beyond envd. The server refuses an agent whose
/// number it does not know.
pub const AGENT_PROTOCOL: u32 = 1;
/// The oldest number that a server still understands: a frozen agent cannot be replaced.
pub const OLDEST_PROTOCOL: u32 = 1;

/// Carries the access token.
pub const ACCESS_TOKEN_HEADER: &str = "x-access-token";
/// Carries [`ENVD_VERSION`] in answers to `/init`.
pub const ENVD_VERSION_HEADER: &str = "x-envd-version";
/// Carries [`AGENT_PROTOCOL`] in answers to `/init`.
pub const AGENT_PROTOCOL_HEADER: &str = "x-dormouse-agent-protocol";
/// Says in an answer to `/init` that something newer is in force, and this was not taken.
pub const STALE_HEADER: &str = "x-dormouse-init-stale";
/// Carries the key by which the control plane is known, where an agent can be reached by others than
/// its own host. It goes before any token.
pub const INIT_KEY_HEADER: &str = "x-dormouse-init-key";
/// Carries the key of a delivery in a request for one of its ports: see [`FORWARD_PATH`].
pub const DOOR_KEY_HEADER: &str = "x-dormouse-door-key";
/// With a port after it: becomes a stream of bytes to that port inside, if it is asked to become
/// [`FORWARD_PROTOCOL`] with the door key of the delivery that the agent is armed for. 401 means that
/// it is another's, 502 that nothing listens.
pub const FORWARD_PATH: &str = "/forward/";
/// See [`FORWARD_PATH`].
pub const FORWARD_PROTOCOL: &str = "tcp";
/// Says of a `Start` that it is the sandbox's start command: an agent starts one in its life, and
/// keeps what it says.
pub const BOOT_HEADER: &str = "x-dormouse-boot";
/// Where the output of the start command is kept inside: the last of it, and what was before that.
pub const KEPT_OUTPUT: &str = "/var/log/dormouse/start.log";
/// See [`KEPT_OUTPUT`].
pub const KEPT_OUTPUT_BEFORE: &str = "/var/log/dormouse/start.log.1";
/// How much of it is kept, both files together.
pub const KEPT_OUTPUT_BYTES: u64 = 1 << 20;
/// Longer lines of it are kept as several.
pub const KEPT_LINE: usize = 4096;
/// Asks for a sign of life after this many seconds of silence.
pub const KEEPALIVE_HEADER: &str = "keepalive-ping-interval";
/// The time a call may take.
pub const TIMEOUT_HEADER: &str = "connect-timeout-ms";
/// Prefix of the headers that carry metadata of an upload.
pub const METADATA_HEADER_PREFIX: &str = "x-metadata-";
/// Prefix of the extended attributes that keep it.
pub const METADATA_XATTR_PREFIX: &str = "user.e2b.";

/// What the control plane tells an agent. Absent means unchanged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct InitRequest {
    /// The environment of every process: replaces what was given before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub env_vars: Option<BTreeMap<String, String>>,
    /// What every call must carry from now on; empty means nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub access_token: Option<Secret>,
    /// When this was said: what is older than what was already heard is not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timestamp: Option<Timestamp>,
    /// Who runs processes when a call names nobody.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_user: Option<String>,
    /// Where processes start when a call names no directory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub default_workdir: Option<String>,
    /// The address of the event collector.
    #[serde(rename = "hyperloopIP", skip_serializing_if = "Option::is_none")]
    pub hyperloop_ip: Option<String>,
    /// Which life of the sandbox this is.
    #[serde(rename = "lifecycleID", skip_serializing_if = "Option::is_none")]
    pub lifecycle_id: Option<String>,
    /// Volumes to mount.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub volume_mounts: Option<Vec<serde_json::Value>>,
    /// Certificates to trust.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ca_bundle: Option<String>,
    /// The delivery these are the settings of, for an agent that keeps that itself. What an older
    /// operation says is not applied.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
    /// Opens its ports to who shows it; absent closes them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub door_key: Option<Secret>,
}

/// Which delivery an agent is armed for, and by which operation. That is what it answers to `GET
/// /init`, too.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Delivery {
    /// The generation of the record that was served.
    pub generation: u64,
    /// The operation under that.
    pub operation: u64,
    /// Which delivery; zero means that it is nobody's yet, and only the control plane is served.
    pub epoch: u32,
}

impl Delivery {
    /// What orders operations.
    #[must_use]
    pub const fn rank(self) -> (u64, u64) {
        (self.generation, self.operation)
    }
}

/// What the sandbox uses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Metrics {
    /// Seconds since 1970.
    pub ts: i64,
    /// Processors it may use.
    pub cpu_count: u32,
    /// Percent of them since the last call.
    pub cpu_used_pct: f64,
    /// Bytes of memory it may use.
    pub mem_total: u64,
    /// Bytes it uses, without the cache.
    pub mem_used: u64,
    /// Bytes of cache.
    pub mem_cache: u64,
    /// The same in MiB.
    pub mem_total_mib: u64,
    /// The same in MiB.
    pub mem_used_mib: u64,
    /// Bytes used on the root filesystem.
    pub disk_used: u64,
    /// Bytes of the root filesystem.
    pub disk_total: u64,
}

/// A file that was written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WrittenFile {
    /// Where it is.
    pub path: String,
    /// The last part of that.
    pub name: String,
    /// `file`.
    #[serde(rename = "type")]
    pub kind: String,
    /// What was said about it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, String>,
}

/// An error of anything but the two services.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpError {
    /// The HTTP status.
    pub code: u16,
    /// In words.
    pub message: String,
}
