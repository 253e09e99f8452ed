//! The bodies of the routes for builds, exactly as clients send and read them.

use std::collections::BTreeMap;

use model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::object;

/// A request for a build, of the second and the third version.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct NewBuild {
    /// `name` or `name:tag`.
    pub(crate) name: Option<String>,
    /// What the second version calls the name.
    pub(crate) alias: Option<String>,
    /// More tags.
    pub(crate) tags: Option<Vec<String>>,
    /// The caller's own team.
    #[serde(rename = "teamID")]
    pub(crate) team_id: Option<String>,
    /// Processors of its sandboxes.
    pub(crate) cpu_count: Option<u32>,
    /// Memory of its sandboxes, in MiB.
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: Option<u32>,
    /// Without effect: sandboxes have the disk of their host, unless their template limits it.
    pub(crate) min_free_disk_mb: Option<u32>,
}

/// A build that was given its id.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct RequestedBuild {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    #[serde(rename = "buildID")]
    pub(crate) build_id: String,
    pub(crate) public: bool,
    pub(crate) names: Vec<String>,
    pub(crate) tags: Vec<String>,
    pub(crate) aliases: Vec<String>,
}

/// What is to be built.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct StartBuild {
    /// The image it starts from.
    pub(crate) from_image: Option<String>,
    /// Or the template.
    pub(crate) from_template: Option<String>,
    /// Who the caller is to the image's registry.
    #[serde(deserialize_with = "object::optional")]
    pub(crate) from_image_registry: Option<ImageRegistry>,
    /// Whether everything is done anew.
    pub(crate) force: Option<bool>,
    /// What is done.
    pub(crate) steps: Option<Vec<BuildStep>>,
    /// Line of a shell that is started with every sandbox.
    pub(crate) start_cmd: Option<String>,
    /// Line of a shell that succeeds once a sandbox is ready.
    pub(crate) ready_cmd: Option<String>,
}

/// Who somebody is to a registry.
#[derive(Clone, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct ImageRegistry {
    /// `registry` or `gcp`; `aws` is not supported.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) username: Option<String>,
    pub(crate) password: Option<String>,
    pub(crate) service_account_json: Option<String>,
    pub(crate) aws_access_key_id: Option<String>,
    pub(crate) aws_secret_access_key: Option<String>,
    pub(crate) aws_region: Option<String>,
}

impl std::fmt::Debug for ImageRegistry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ImageRegistry(…)")
    }
}

/// One step.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct BuildStep {
    /// COPY, RUN, ENV, ARG, WORKDIR or USER.
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) args: Option<Vec<String>>,
    /// What its files were uploaded as.
    pub(crate) files_hash: Option<String>,
    /// Whether it and what follows is done anew.
    pub(crate) force: Option<bool>,
    /// For the client only.
    pub(crate) force_upload: Option<bool>,
}

/// A line of what a build said.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct BuildLogEntry {
    pub(crate) timestamp: Timestamp,
    pub(crate) message: String,
    pub(crate) level: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<String>,
}

/// Why a build is in its state.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BuildReason {
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) step: Option<String>,
    pub(crate) log_entries: Vec<BuildLogEntry>,
}

/// How far a build is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct BuildInfo {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    #[serde(rename = "buildID")]
    pub(crate) build_id: String,
    pub(crate) status: &'static str,
    /// Always empty: see `logEntries`.
    pub(crate) logs: Vec<String>,
    pub(crate) log_entries: Vec<BuildLogEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) reason: Option<BuildReason>,
}

/// What a build said.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct BuildLogs {
    pub(crate) logs: Vec<BuildLogEntry>,
}

/// Where files are uploaded to.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct FileUpload {
    /// Whether they are there already.
    pub(crate) present: bool,
    pub(crate) url: String,
    pub(crate) headers: BTreeMap<String, String>,
}

/// What is changed of a template.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct TemplateUpdate {
    /// Only `false`: what a team builds is its own.
    pub(crate) public: Option<bool>,
}

/// What a template is called.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TemplateNames {
    pub(crate) names: Vec<String>,
}

/// Tags that are put on a build.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AssignTags {
    /// `name` or `name:tag`.
    pub(crate) target: String,
    pub(crate) tags: Vec<String>,
}

/// Tags that were put on a build.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct AssignedTags {
    pub(crate) tags: Vec<String>,
    #[serde(rename = "buildID")]
    pub(crate) build_id: String,
}

/// Tags that are taken away.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RemoveTags {
    pub(crate) name: String,
    pub(crate) tags: Vec<String>,
}

/// Whether a tag is there.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TagExists {
    pub(crate) exists: bool,
}

/// How many tags there are.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TagCount {
    pub(crate) total: usize,
}
