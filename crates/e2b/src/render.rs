//! Records as clients read them.

use std::time::Duration;

use model::{
    Key, Name, Sandbox, SandboxTemplate, Spec as _, Timestamp,
    lifecycle::{Traffic, traffic},
    sandbox::{NetworkPolicy, OnTimeout, Resources},
    template::{Built, TemplateSpec},
};

use crate::{
    service::E2b,
    state::{State, state_of},
    wire,
};

/// Clients of old joined it to the sandbox's id.
const CLIENT_ID: &str = "dormouse";
/// The end of what never ends: the field must be there, and clients compute with it.
const NEVER: Duration = Duration::from_secs(100 * 366 * 24 * 3600);

/// Limits as they are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    pub(crate) cpu_count: u32,
    pub(crate) memory_mib: u32,
    pub(crate) disk_mib: u32,
}

impl E2b {
    pub(crate) fn sizes(
        &self,
        own: Option<Resources>,
        template: Option<&SandboxTemplate>,
    ) -> Sizes {
        let limits = own.or_else(|| template.and_then(|t| t.spec.resources));
        let options = &self.options;
        Sizes {
            cpu_count: limits
                .and_then(|l| l.cpu_millis)
                .map_or(options.cpu_count, |millis| millis.div_ceil(1000).max(1)),
            memory_mib: limits
                .and_then(|l| l.memory_mib)
                .unwrap_or(options.memory_mib),
            disk_mib: limits.and_then(|l| l.disk_mib).unwrap_or(options.disk_mib),
        }
    }

    /// A sandbox, to whoever made it or connects to it.
    pub(crate) fn render(&self, sandbox: &Sandbox) -> wire::Sandbox {
        let closed = sandbox
            .spec
            .network
            .as_ref()
            .is_some_and(|n| n.allow_public_traffic == Some(false));
        let traffic_access_token = sandbox
            .spec
            .sandbox_id
            .as_ref()
            .filter(|_| closed)
            .map(|id| self.seal.traffic_token(id).reveal().to_owned());
        wire::Sandbox {
            template_id: self.template_of(sandbox),
            sandbox_id: id_of(sandbox),
            client_id: CLIENT_ID,
            envd_version: self.options.envd_version.clone(),
            alias: self.origin_of(sandbox),
            envd_access_token: self.agent_token(sandbox),
            traffic_access_token,
            domain: self.options.domain.clone(),
        }
    }

    fn agent_token(&self, sandbox: &Sandbox) -> Option<String> {
        let secured = sandbox
            .spec
            .access
            .as_ref()
            .is_some_and(|access| access.agent_token.is_some());
        let id = sandbox.spec.sandbox_id.as_ref().filter(|_| secured)?;
        Some(self.seal.agent_token(id).reveal().to_owned())
    }

    /// A sandbox in a list.
    pub(crate) fn render_listed(&self, sandbox: &Sandbox) -> wire::ListedSandbox {
        let spec = &sandbox.spec;
        let started_at = sandbox
            .status
            .started_at
            .or(spec.claimed_at)
            .unwrap_or(Timestamp::from_micros(0));
        let state = state_of(sandbox);
        let end_at = match (state, sandbox.status.paused_at) {
            // The clock stands while it sleeps: what is reported is when it fell asleep.
            (State::Paused, Some(paused)) => paused,
            (_, _) => spec.timeouts.end_at.unwrap_or(started_at.plus(NEVER)),
        };
        let template = spec
            .template
            .as_ref()
            .zip(sandbox.metadata.namespace.as_ref())
            .and_then(|(name, team)| self.template(team, name));
        let sizes = self.sizes(spec.resources, template.as_deref());
        let pairs = spec.metadata.iter();
        wire::ListedSandbox {
            template_id: self.template_of(sandbox),
            sandbox_id: id_of(sandbox),
            client_id: CLIENT_ID,
            alias: self.origin_of(sandbox),
            started_at,
            end_at,
            cpu_count: sizes.cpu_count,
            memory_mb: sizes.memory_mib,
            disk_size_mb: sizes.disk_mib,
            state: state.as_str(),
            envd_version: self.options.envd_version.clone(),
            metadata: pairs.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
        }
    }

    /// Everything about a sandbox.
    pub(crate) fn render_detail(&self, sandbox: &Sandbox) -> wire::SandboxDetail {
        let spec = &sandbox.spec;
        let asleep = state_of(sandbox) == State::Paused;
        let pause_mode = match (traffic(sandbox), &sandbox.status.snapshot) {
            (Traffic::Paused | Traffic::Resuming, Some(_)) => Some("filesystem"),
            (Traffic::Paused | Traffic::Resuming, None) => Some("full"),
            (_, _) => None,
        };
        wire::SandboxDetail {
            listed: self.render_listed(sandbox),
            envd_access_token: self.agent_token(sandbox),
            allow_internet_access: spec.network.as_ref().and_then(|n| n.internet_access),
            domain: self.options.domain.clone().filter(|_| !asleep),
            network: spec.network.as_deref().map(network),
            lifecycle: wire::Lifecycle {
                on_timeout: match spec.timeouts.on_timeout {
                    OnTimeout::Kill => "kill",
                    OnTimeout::Pause => "pause",
                },
                auto_resume: spec.wake_on_traffic,
            },
            pause_mode,
        }
    }
}

impl E2b {
    /// The template it is made from, by the id that its builds share; a sandbox of bare images has
    /// none.
    pub(crate) fn template_of(&self, sandbox: &Sandbox) -> String {
        let Some(record) = &sandbox.spec.template else {
            return "image".to_owned();
        };
        let build = self.build_of(record);
        build.map_or_else(|| record.to_string(), |build| build.template.to_string())
    }

    /// The pool or the snapshot it came from, or else its template.
    pub(crate) fn origin_of(&self, sandbox: &Sandbox) -> String {
        let spec = &sandbox.spec;
        if let Some(from) = spec.pool.as_ref().or(spec.snapshot.as_ref()) {
            return from.to_string();
        }
        let build = spec.template.as_ref().and_then(|name| self.build_of(name));
        build.map_or_else(|| self.template_of(sandbox), |build| build.name.into())
    }

    /// The build behind a template's record.
    fn build_of(&self, record: &Name) -> Option<Built> {
        let key = Key {
            kind: TemplateSpec::KIND,
            namespace: None,
            name: record.clone(),
        };
        let found = self.caches.templates.find(&key)?;
        found.spec.build.as_deref().cloned()
    }
}

fn network(policy: &NetworkPolicy) -> wire::NetworkShown {
    let texts = |entries: &[Box<str>]| entries.iter().map(ToString::to_string).collect();
    wire::NetworkShown {
        allow_public_traffic: policy.allow_public_traffic != Some(false),
        allow_out: texts(&policy.allow_out),
        deny_out: texts(&policy.deny_out),
        mask_request_host: policy.mask_request_host.as_deref().map(Into::into),
    }
}

fn id_of(sandbox: &Sandbox) -> String {
    let id = sandbox.spec.sandbox_id.as_ref();
    id.map(ToString::to_string).unwrap_or_default()
}
