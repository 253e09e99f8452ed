//! `filesystem.Filesystem`: files and directories inside a sandbox.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::{
    json::{self, Named, is_default, null_default},
    time::Timestamp,
};

/// The service's name in its paths.
pub const SERVICE: &str = "filesystem.Filesystem";

/// Names a path: `Stat`, `MakeDir` and `Remove`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct PathRequest {
    /// The path.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub path: String,
}

/// One entry: the answer of `Stat`, `MakeDir` and `Move`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct EntryResponse {
    /// The entry.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// Moves an entry.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct MoveRequest {
    /// From here.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub source: String,
    /// To here.
    #[prost(string, tag = "2")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub destination: String,
}

/// Lists a directory.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ListDirRequest {
    /// The directory.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub path: String,
    /// How many levels; 0 means 1.
    #[prost(uint32, tag = "2")]
    #[serde(with = "num", skip_serializing_if = "is_default")]
    pub depth: u32,
}

/// The entries of a directory.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct ListDirResponse {
    /// Depth first, by name.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub entries: Vec<EntryInfo>,
}

/// Watches a directory: `WatchDir` and `CreateWatcher`.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct WatchRequest {
    /// The directory.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub path: String,
    /// And what is below it.
    #[prost(bool, tag = "2")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub recursive: bool,
    /// Events carry the entry they are about.
    #[prost(bool, tag = "3")]
    #[serde(
        alias = "include_entry",
        deserialize_with = "null_default",
        skip_serializing_if = "is_default"
    )]
    pub include_entry: bool,
    /// Even where changes made elsewhere are not seen.
    #[prost(bool, tag = "4")]
    #[serde(
        alias = "allow_network_mounts",
        deserialize_with = "null_default",
        skip_serializing_if = "is_default"
    )]
    pub allow_network_mounts: bool,
}

/// The watch is in place, or nothing happened.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
pub struct Nothing {}

/// One message of `WatchDir`; one of the three.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct WatchDirResponse {
    /// The watch is in place.
    #[prost(message, optional, tag = "1")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start: Option<Nothing>,
    /// Something changed.
    #[prost(message, optional, tag = "2")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filesystem: Option<FilesystemEvent>,
    /// Nothing happened; the connection is alive.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub keepalive: Option<Nothing>,
}

/// Names a watcher: the answer of `CreateWatcher`, and what `GetWatcherEvents` and `RemoveWatcher`
/// ask for.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct Watcher {
    /// Its id.
    #[prost(string, tag = "1")]
    #[serde(
        alias = "watcher_id",
        deserialize_with = "null_default",
        skip_serializing_if = "is_default"
    )]
    pub watcher_id: String,
}

/// What a watcher has seen since it was last asked.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct WatcherEventsResponse {
    /// In the order in which they happened.
    #[prost(message, repeated, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub events: Vec<FilesystemEvent>,
}

/// A change.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct FilesystemEvent {
    /// Of what, relative to the watched directory.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub name: String,
    /// Of which kind.
    #[prost(enumeration = "EventType", tag = "2")]
    #[serde(
        rename = "type",
        with = "event_type",
        skip_serializing_if = "is_default"
    )]
    pub kind: i32,
    /// The entry after it, if that was asked for and there is one.
    #[prost(message, optional, tag = "3")]
    #[serde(skip_serializing_if = "Option::is_none")]
    pub entry: Option<EntryInfo>,
}

/// A file, a directory or a link.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize, prost::Message)]
#[serde(rename_all = "camelCase", default)]
pub struct EntryInfo {
    /// The last part of the path.
    #[prost(string, tag = "1")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub name: String,
    /// What it is; of a link, what it leads to.
    #[prost(enumeration = "FileType", tag = "2")]
    #[serde(
        rename = "type",
        with = "file_type",
        skip_serializing_if = "is_default"
    )]
    pub kind: i32,
    /// Where it is.
    #[prost(string, tag = "3")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub path: String,
    /// Its size in bytes.
    #[prost(int64, tag = "4")]
    #[serde(with = "json::int64", skip_serializing_if = "is_default")]
    pub size: i64,
    /// The permission bits; of a link, those of what it leads to.
    #[prost(uint32, tag = "5")]
    #[serde(with = "num", skip_serializing_if = "is_default")]
    pub mode: u32,
    /// Like `-rw-r--r--`, in the way of Go.
    #[prost(string, tag = "6")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub permissions: String,
    /// Whose it is: a name, else a number.
    #[prost(string, tag = "7")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub owner: String,
    /// Its group: a name, else a number.
    #[prost(string, tag = "8")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub group: String,
    /// When its content last changed.
    #[prost(message, optional, tag = "9")]
    #[serde(alias = "modified_time", skip_serializing_if = "Option::is_none")]
    pub modified_time: Option<Timestamp>,
    /// Where a link leads in the end.
    #[prost(string, optional, tag = "10")]
    #[serde(alias = "symlink_target", skip_serializing_if = "Option::is_none")]
    pub symlink_target: Option<String>,
    /// What was said about it at its upload.
    #[prost(btree_map = "string, string", tag = "11")]
    #[serde(deserialize_with = "null_default", skip_serializing_if = "is_default")]
    pub metadata: BTreeMap<String, String>,
    /// Whether it is a link.
    #[prost(bool, tag = "12")]
    #[serde(
        alias = "is_symlink",
        deserialize_with = "null_default",
        skip_serializing_if = "is_default"
    )]
    pub is_symlink: bool,
}

/// What an entry is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum FileType {
    /// Something else, or a link that leads nowhere.
    Unspecified = 0,
    /// A file.
    File = 1,
    /// A directory.
    Directory = 2,
    /// A link.
    Symlink = 3,
}

impl Named for FileType {
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::Unspecified, "FILE_TYPE_UNSPECIFIED"),
        (Self::File, "FILE_TYPE_FILE"),
        (Self::Directory, "FILE_TYPE_DIRECTORY"),
        (Self::Symlink, "FILE_TYPE_SYMLINK"),
    ];
}

/// What happened to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum EventType {
    /// Nothing known.
    Unspecified = 0,
    /// It came to be here.
    Create = 1,
    /// Its content changed.
    Write = 2,
    /// It is gone.
    Remove = 3,
    /// It went elsewhere.
    Rename = 4,
    /// Its owner, its permissions or the like changed.
    Chmod = 5,
}

impl Named for EventType {
    const NAMES: &'static [(Self, &'static str)] = &[
        (Self::Unspecified, "EVENT_TYPE_UNSPECIFIED"),
        (Self::Create, "EVENT_TYPE_CREATE"),
        (Self::Write, "EVENT_TYPE_WRITE"),
        (Self::Remove, "EVENT_TYPE_REMOVE"),
        (Self::Rename, "EVENT_TYPE_RENAME"),
        (Self::Chmod, "EVENT_TYPE_CHMOD"),
    ];
}

mod num {
    pub(super) use crate::json::number::deserialize;

    pub(super) fn serialize<S: serde::Serializer, T: serde::Serialize>(
        value: &T,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        value.serialize(to)
    }
}

macro_rules! by_name {
    ($module:ident, $name:ty) => {
        mod $module {
            use crate::json::enumeration;

            pub(super) fn serialize<S: serde::Serializer>(
                value: &i32,
                to: S,
            ) -> Result<S::Ok, S::Error> {
                enumeration::serialize::<S, $name>(*value, to)
            }

            pub(super) fn deserialize<'de, D: serde::Deserializer<'de>>(
                from: D,
            ) -> Result<i32, D::Error> {
                enumeration::deserialize::<D, $name>(from)
            }
        }
    };
}
by_name!(file_type, super::FileType);
by_name!(event_type, super::EventType);
