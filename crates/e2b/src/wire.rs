//! The bodies of requests and answers, exactly as clients send and read them.
//!
//! A request's body names every field it may have; another one is refused by name. What may be
//! `null` may also be left out.

use std::collections::BTreeMap;

use model::Timestamp;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::object;

/// A request for a sandbox, of both versions.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct NewSandbox {
    /// Template or pool, by name or alias; absent means `base`.
    #[serde(rename = "templateID")]
    pub(crate) template_id: Option<String>,
    /// Seconds until it ends or sleeps.
    pub(crate) timeout: Option<i64>,
    /// Whether it sleeps at its timeout, rather than end.
    pub(crate) auto_pause: Option<bool>,
    /// Whether it keeps its memory when it falls asleep by itself.
    pub(crate) auto_pause_memory: Option<bool>,
    /// Whether traffic wakes it.
    #[serde(deserialize_with = "object::optional")]
    pub(crate) auto_resume: Option<AutoResume>,
    /// Whether its agent demands a token; the second version always does.
    pub(crate) secure: Option<bool>,
    /// Whether it may reach anything outside.
    #[serde(rename = "allow_internet_access")]
    pub(crate) allow_internet_access: Option<bool>,
    /// What it may reach, and who may reach it.
    #[serde(deserialize_with = "object::optional")]
    pub(crate) network: Option<NetworkConfig>,
    /// Free pairs.
    pub(crate) metadata: Option<BTreeMap<String, String>>,
    /// Environment of every process.
    pub(crate) env_vars: Option<BTreeMap<String, String>>,
    /// Settings of an MCP gateway, which the client itself starts inside.
    pub(crate) mcp: Option<BTreeMap<String, Value>>,
    /// Workload tokens: not supported unless empty.
    pub(crate) iam: Option<BTreeMap<String, Value>>,
    /// Volumes: not supported unless empty.
    pub(crate) volume_mounts: Option<Vec<Value>>,
}

/// Whether traffic wakes a sandbox.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct AutoResume {
    pub(crate) enabled: bool,
}

/// What a sandbox may reach, and who may reach it.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct NetworkConfig {
    /// Whether its ports answer without a traffic token.
    pub(crate) allow_public_traffic: Option<bool>,
    /// Addresses, blocks and domains that may be reached.
    pub(crate) allow_out: Option<Vec<String>>,
    /// Addresses and blocks that may not.
    pub(crate) deny_out: Option<Vec<String>>,
    /// The `Host` that requests to its ports are given.
    pub(crate) mask_request_host: Option<String>,
    /// Not supported unless empty.
    pub(crate) dns_servers: Option<Vec<Value>>,
    /// Not supported unless empty.
    pub(crate) egress_proxy: Option<BTreeMap<String, Value>>,
    /// Not supported unless empty.
    pub(crate) https_ports: Option<Vec<Value>>,
    /// Not supported unless empty.
    pub(crate) rules: Option<BTreeMap<String, Value>>,
}

/// What replaces what a sandbox may reach.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct NetworkUpdate {
    /// Addresses, blocks and domains that may be reached.
    pub(crate) allow_out: Option<Vec<String>>,
    /// Addresses and blocks that may not.
    pub(crate) deny_out: Option<Vec<String>>,
    /// Whether it may reach anything outside.
    #[serde(rename = "allow_internet_access")]
    pub(crate) allow_internet_access: Option<bool>,
    /// Not supported unless empty.
    pub(crate) dns_servers: Option<Vec<Value>>,
    /// Not supported unless empty.
    pub(crate) egress_proxy: Option<BTreeMap<String, Value>>,
    /// Not supported unless empty.
    pub(crate) rules: Option<BTreeMap<String, Value>>,
}

/// Connecting to a sandbox, waking it if it sleeps.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Connect {
    /// Seconds it has from now on, at least.
    pub(crate) timeout: Option<i64>,
    /// `false` to boot from its files where it sleeps.
    pub(crate) memory: Option<bool>,
}

/// Waking a sandbox.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Resume {
    /// Seconds it has from now on.
    pub(crate) timeout: Option<i64>,
    /// Whether it sleeps at its timeout, rather than end.
    pub(crate) auto_pause: Option<bool>,
    /// `false` to boot from its files.
    pub(crate) memory: Option<bool>,
}

/// Putting a sandbox to sleep.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Pause {
    /// `false` to keep its files only.
    pub(crate) memory: Option<bool>,
    /// Not supported unless `false`.
    pub(crate) require_healthy_guest: Option<bool>,
}

/// Moving a deadline.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SetTimeout {
    /// Seconds from now; 0 ends it now.
    pub(crate) timeout: i64,
}

/// Extending a deadline.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Refresh {
    /// Seconds from now, 0 to 3600.
    pub(crate) duration: Option<i64>,
}

/// A new API key, or a new name of one.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct KeyName {
    /// What it is called.
    pub(crate) name: String,
}

/// A sandbox, to whoever made it or connects to it.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Sandbox {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    #[serde(rename = "sandboxID")]
    pub(crate) sandbox_id: String,
    #[serde(rename = "clientID")]
    pub(crate) client_id: &'static str,
    pub(crate) envd_version: String,
    pub(crate) alias: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) envd_access_token: Option<String>,
    pub(crate) traffic_access_token: Option<String>,
    pub(crate) domain: Option<String>,
}

/// A request for a snapshot.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct NewSnapshot {
    /// What it is called, as `name` or `name:tag`; an earlier one of that name gives the name up.
    pub(crate) name: Option<String>,
    /// Whether memory is kept too: not supported if true.
    pub(crate) memory: Option<bool>,
}

/// A snapshot.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SnapshotInfo {
    /// What it is created from by.
    #[serde(rename = "snapshotID")]
    pub(crate) snapshot_id: String,
    /// What it is called.
    pub(crate) names: Vec<String>,
}

/// A request for copies of a sandbox.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(crate) struct Fork {
    /// Seconds until each ends or sleeps; 15 if absent.
    pub(crate) timeout: Option<i64>,
    /// How many, up to 100; one if absent.
    pub(crate) count: Option<i64>,
}

/// How one copy went: one of both fields is there.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ForkResult {
    /// The sandbox.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) sandbox: Option<Sandbox>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<ForkError>,
}

/// Why a copy could not be made.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ForkError {
    /// As the status of a refused request.
    pub(crate) code: u16,
    /// A sentence.
    pub(crate) message: String,
}

/// A sandbox in a list.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ListedSandbox {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    #[serde(rename = "sandboxID")]
    pub(crate) sandbox_id: String,
    #[serde(rename = "clientID")]
    pub(crate) client_id: &'static str,
    pub(crate) alias: String,
    pub(crate) started_at: Timestamp,
    pub(crate) end_at: Timestamp,
    pub(crate) cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    pub(crate) disk_size_mb: u32,
    pub(crate) state: &'static str,
    pub(crate) envd_version: String,
    pub(crate) metadata: BTreeMap<String, String>,
}

/// Everything about a sandbox.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxDetail {
    #[serde(flatten)]
    pub(crate) listed: ListedSandbox,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) envd_access_token: Option<String>,
    pub(crate) allow_internet_access: Option<bool>,
    pub(crate) domain: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) network: Option<NetworkShown>,
    pub(crate) lifecycle: Lifecycle,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) pause_mode: Option<&'static str>,
}

/// What a sandbox may reach, and who may reach it, as it is shown.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NetworkShown {
    pub(crate) allow_public_traffic: bool,
    pub(crate) allow_out: Vec<String>,
    pub(crate) deny_out: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mask_request_host: Option<String>,
}

/// What happens to a sandbox by itself.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Lifecycle {
    pub(crate) on_timeout: &'static str,
    pub(crate) auto_resume: bool,
}

/// What a sandbox used at one moment.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxMetric {
    pub(crate) timestamp: Timestamp,
    pub(crate) timestamp_unix: i64,
    pub(crate) cpu_count: u32,
    pub(crate) cpu_used_pct: f32,
    pub(crate) mem_used: u64,
    pub(crate) mem_total: u64,
    pub(crate) mem_cache: u64,
    pub(crate) disk_used: u64,
    pub(crate) disk_total: u64,
}

/// What several sandboxes used last.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxesMetrics {
    pub(crate) sandboxes: BTreeMap<String, SandboxMetric>,
}

/// A line of a log.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxLogEntry {
    pub(crate) timestamp: Timestamp,
    pub(crate) message: String,
    pub(crate) level: &'static str,
    pub(crate) fields: BTreeMap<String, String>,
}

/// A line of a log, as text.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxLog {
    pub(crate) timestamp: Timestamp,
    /// JSON with at least `level` and `message`.
    pub(crate) line: String,
}

/// A log, of the first version.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct SandboxLogs {
    pub(crate) logs: Vec<SandboxLog>,
    pub(crate) log_entries: Vec<SandboxLogEntry>,
}

/// A log, of the second version.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct SandboxLogsV2 {
    pub(crate) logs: Vec<SandboxLogEntry>,
}

/// What sandboxes are made from.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Template {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    #[serde(rename = "buildID")]
    pub(crate) build_id: String,
    pub(crate) cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    pub(crate) disk_size_mb: u32,
    pub(crate) public: bool,
    pub(crate) aliases: Vec<String>,
    pub(crate) names: Vec<String>,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    /// Not known.
    pub(crate) created_by: Option<Value>,
    /// Not known.
    pub(crate) last_spawned_at: Option<Timestamp>,
    /// Not counted.
    pub(crate) spawn_count: u64,
    pub(crate) build_count: u32,
    pub(crate) envd_version: String,
    pub(crate) build_status: &'static str,
    pub(crate) is_default: bool,
}

/// A template with its builds.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateWithBuilds {
    #[serde(flatten)]
    pub(crate) template: Template,
    pub(crate) builds: Vec<TemplateBuild>,
}

/// One build of a template.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateBuild {
    #[serde(rename = "buildID")]
    pub(crate) build_id: String,
    pub(crate) status: &'static str,
    pub(crate) created_at: Timestamp,
    pub(crate) updated_at: Timestamp,
    pub(crate) finished_at: Timestamp,
    pub(crate) cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub(crate) memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    pub(crate) disk_size_mb: u32,
    pub(crate) envd_version: String,
}

/// A tag of a template.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TemplateTag {
    pub(crate) tag: String,
    #[serde(rename = "buildID")]
    pub(crate) build_id: String,
    pub(crate) created_at: Timestamp,
}

/// What an alias stands for.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct TemplateAlias {
    #[serde(rename = "templateID")]
    pub(crate) template_id: String,
    pub(crate) public: bool,
}

/// A team.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Team {
    #[serde(rename = "teamID")]
    pub(crate) team_id: String,
    pub(crate) name: String,
    /// The key that the caller presented.
    pub(crate) api_key: String,
    pub(crate) is_default: bool,
}

/// How a key looks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct KeyMask {
    pub(crate) prefix: String,
    pub(crate) value_length: usize,
    pub(crate) masked_value_prefix: String,
    pub(crate) masked_value_suffix: String,
}

/// What is known of an API key.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ApiKey {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) mask: KeyMask,
    pub(crate) created_at: Timestamp,
    /// Not known.
    pub(crate) created_by: Option<Value>,
    pub(crate) last_used: Option<Timestamp>,
}

/// An API key that was just made.
#[derive(Clone, Serialize, JsonSchema)]
pub(crate) struct CreatedApiKey {
    #[serde(flatten)]
    pub(crate) info: ApiKey,
    /// The only time that it can be read.
    pub(crate) key: String,
}

/// A refusal.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Error {
    /// The same as the status.
    pub(crate) code: u16,
    pub(crate) message: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error_code: Option<String>,
}

/// Some sandboxes that live, or have ended.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct HistoryPage {
    /// Of each team from the newest to the oldest.
    pub(crate) records: Vec<model::record::RecordSpec>,
    /// What continues this list as `after`; null at the end.
    pub(crate) next: Option<String>,
}

/// Some entries of the audit log.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct AuditPage {
    /// Oldest first. There can be none although more follow.
    pub(crate) entries: Vec<AuditEntry>,
    /// What continues this list as `after`; null at the end.
    pub(crate) next: Option<String>,
    /// Lines that could not be read.
    pub(crate) damaged: u64,
}

/// An entry of the audit log.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct AuditEntry {
    /// Counts entries from 1, of all teams.
    pub(crate) seq: u64,
    pub(crate) time: Timestamp,
    pub(crate) team: Option<String>,
    /// The key, by its id; null if an administrator did it.
    pub(crate) key: Option<String>,
    /// The person who uses the key.
    pub(crate) user: Option<String>,
    /// As `sandbox.create`.
    pub(crate) action: String,
    #[serde(rename = "sandboxID")]
    pub(crate) sandbox_id: Option<String>,
    /// What else was changed, as `kind/namespace/name`.
    pub(crate) object: Option<String>,
    /// `done`, `refused` or `failed`.
    pub(crate) outcome: &'static str,
    /// Why not.
    pub(crate) reason: Option<String>,
    /// What the request was called in `X-Request-Id`.
    #[serde(rename = "requestID")]
    pub(crate) request_id: Option<String>,
}
