//! Rules for sandboxes, and for the parts other kinds share with them.

use super::{Cause, CelRule, Problems, Rules, hook, text};
use crate::{
    Epoch,
    kinds::Minting,
    limits,
    meta::Object,
    sandbox::{
        Access, IdleAction, NetworkPolicy, OnTimeout, Owner, PausePolicy, Resources, SandboxSpec,
        SnapshotType, Timeouts,
    },
};

/// A year: longer waits are better said as never.
pub(super) const MAX_SECONDS: u64 = 365 * 24 * 3600;
const MAX_CPU_MILLIS: u64 = 1_024_000;
const MAX_MEMORY_MIB: u64 = 64 << 20;
const MAX_DISK_MIB: u64 = 1 << 30;

impl Rules for SandboxSpec {
    const UNIQUE: &'static [&'static str] = &["spec.sandboxId"];
    const CEL: &'static [CelRule] = &[
        CelRule::new(
            ".snapshot",
            "!(has(self.snapshot) && has(self.pool))",
            "members of a pool are all made from its template: leave out one of spec.snapshot and spec.pool",
        ),
        CelRule::new(
            ".wakeOnTraffic",
            "!has(self.wakeOnTraffic) || !self.wakeOnTraffic || (has(self.timeouts) && has(self.timeouts.onTimeout) && self.timeouts.onTimeout == 'Pause')",
            "a sandbox that ends at its timeout cannot be woken: set spec.timeouts.onTimeout to Pause, or leave wakeOnTraffic out",
        ),
        CelRule::new(
            ".pool",
            "has(self.pool) == has(oldSelf.pool) && (!has(self.pool) || self.pool == oldSelf.pool)",
            "it cannot be changed: create another sandbox",
        ),
        CelRule::new(
            ".snapshot",
            "has(self.snapshot) == has(oldSelf.snapshot) && (!has(self.snapshot) || self.snapshot == oldSelf.snapshot)",
            "it cannot be changed: create another sandbox",
        ),
        CelRule::new(
            ".epoch",
            "!has(oldSelf.epoch) || (has(self.epoch) && self.epoch >= oldSelf.epoch)",
            "deliveries are counted up: use a SandboxClaim to claim a member",
        ),
    ];

    fn complete(object: &mut Object<Self>, minting: &Minting) {
        let spec = &mut object.spec;
        // A pool member without an owner waits to be claimed; the claim gives it all this.
        if spec.pool.is_some() && spec.owner.is_none() {
            return;
        }
        if spec.owner.is_none() {
            spec.owner = object.metadata.namespace.clone().map(|team| Owner {
                team,
                user: None,
                key: None,
            });
        }
        spec.sandbox_id
            .get_or_insert_with(|| minting.sandbox_id.clone());
        if spec.epoch == Epoch(0) {
            spec.epoch = Epoch(1);
        }
        spec.claimed_at.get_or_insert(minting.now);
    }

    fn keep(old: &Object<Self>, new: &mut Object<Self>) {
        let (old, new) = (&old.spec, &mut new.spec);
        // What belongs to a delivery stays with it, whether or not the file says so.
        if new.epoch == Epoch(0) {
            new.epoch = old.epoch;
        }
        new.owner = new.owner.take().or_else(|| old.owner.clone());
        new.sandbox_id = new.sandbox_id.take().or_else(|| old.sandbox_id.clone());
        new.claimed_at = new.claimed_at.or(old.claimed_at);
        if new.idle_images.is_empty() {
            new.idle_images = old.idle_images.clone();
        }
        new.lease = new.lease.take().or_else(|| old.lease.clone());
        new.given_back = new.given_back.take().or_else(|| old.given_back.clone());
    }

    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        text::images("spec.images", &spec.images, problems);
        text::images("spec.idleImages", &spec.idle_images, problems);
        hook::hooks("spec.hooks", &spec.hooks, problems);
        text::env("spec.env", &spec.env, problems);
        text::pairs("spec.metadata", &spec.metadata, problems);
        if let Some(resources) = &spec.resources {
            self::resources("spec.resources", resources, problems);
        }
        if let Some(policy) = &spec.pause_policy {
            pause_policy("spec.pausePolicy", policy, problems);
        }
        if spec.snapshot.is_some() && spec.pool.is_some() {
            problems.add(
                "spec.snapshot",
                Cause::Invalid,
                "members of a pool are all made from its template",
                "leave out one of spec.snapshot and spec.pool",
            );
        }
        if spec.snapshot.is_some() && !spec.images.is_empty() {
            problems.add(
                "spec.images",
                Cause::Invalid,
                "its files lie on the images of its snapshot",
                "leave out one of spec.images and spec.snapshot",
            );
        }
        timeouts("spec.timeouts", &spec.timeouts, problems);
        if spec.timeouts.idle_action == IdleAction::Release && spec.pool.is_none() {
            problems.add(
                "spec.timeouts.idleAction",
                Cause::Invalid,
                "only a member of a pool can be released to it",
                "use Pause or Kill",
            );
        }
        if spec.wake_on_traffic && spec.timeouts.on_timeout != OnTimeout::Pause {
            problems.add(
                "spec.wakeOnTraffic",
                Cause::Invalid,
                "a sandbox that ends at its timeout cannot be woken",
                "set spec.timeouts.onTimeout to Pause, or leave wakeOnTraffic out",
            );
        }
        if let Some(policy) = &spec.network {
            network("spec.network", policy, problems);
        }
        if let Some(access) = &spec.access {
            self::access("spec.access", access, problems);
        }
        if let Some(owner) = &spec.owner {
            if Some(&owner.team) != object.metadata.namespace.as_ref() {
                problems.add(
                    "spec.owner.team",
                    Cause::Invalid,
                    format!(
                        "{:?} is not the namespace of this sandbox",
                        owner.team.as_str()
                    ),
                    "leave it out, or create the sandbox in that team's namespace",
                );
            }
            if let Some(user) = &owner.user {
                self::user("spec.owner.user", user, problems);
            }
        }
    }

    fn check_change(old: &Object<Self>, new: &Object<Self>, problems: &mut Problems) {
        let (old, new) = (&old.spec, &new.spec);
        const ANOTHER: &str = "create another sandbox";
        problems.immutable("spec.template", &old.template, &new.template, ANOTHER);
        problems.immutable("spec.snapshot", &old.snapshot, &new.snapshot, ANOTHER);
        problems.immutable("spec.pool", &old.pool, &new.pool, ANOTHER);
        // A member goes back to them when it is recycled: they are its pool's to say.
        let remedy = "change the idleImages of its pool";
        let (before, after) = (&old.idle_images, &new.idle_images);
        problems.immutable("spec.idleImages", before, after, remedy);
        // A delivery is made by a claim, never by an edit: its id, owner and count go together.
        let remedy = "use a SandboxClaim to claim a member, and delete a sandbox to end it";
        problems.immutable("spec.epoch", &old.epoch, &new.epoch, remedy);
        problems.immutable("spec.owner", &old.owner, &new.owner, remedy);
        problems.immutable("spec.sandboxId", &old.sandbox_id, &new.sandbox_id, remedy);
        problems.immutable("spec.lease", &old.lease, &new.lease, remedy);
        problems.immutable("spec.givenBack", &old.given_back, &new.given_back, remedy);
    }
}

pub(super) fn user(field: &str, user: &str, problems: &mut Problems) {
    if user.is_empty() || user.len() > limits::PERSON || user.chars().any(char::is_control) {
        problems.add(
            field,
            Cause::Invalid,
            "it is empty, too long, or has control characters",
            format!("use 1 to {} bytes, or leave it out", limits::PERSON),
        );
    }
}

pub(super) fn timeouts(field: &str, timeouts: &Timeouts, problems: &mut Problems) {
    for (name, value) in [
        ("seconds", timeouts.seconds),
        ("idleSeconds", timeouts.idle_seconds),
        ("pausedRetentionSeconds", timeouts.paused_retention_seconds),
        ("startupSeconds", timeouts.startup_seconds),
    ] {
        if let Some(seconds) = value {
            problems.bounds(format!("{field}.{name}"), seconds.into(), 1, MAX_SECONDS);
        }
    }
}

pub(super) fn resources(field: &str, resources: &Resources, problems: &mut Problems) {
    for (name, value, max) in [
        ("cpuMillis", resources.cpu_millis, MAX_CPU_MILLIS),
        ("memoryMiB", resources.memory_mib, MAX_MEMORY_MIB),
        ("diskMiB", resources.disk_mib, MAX_DISK_MIB),
    ] {
        if let Some(value) = value {
            problems.bounds(format!("{field}.{name}"), value.into(), 1, max);
        }
    }
}

pub(super) fn pause_policy(field: &str, policy: &PausePolicy, problems: &mut Problems) {
    if let Some(registry) = &policy.snapshot_registry {
        text::registry(&format!("{field}.snapshotRegistry"), registry, problems);
    }
    if let Some(seconds) = policy.descend_after {
        problems.bounds(
            format!("{field}.descendAfter"),
            seconds.into(),
            1,
            MAX_SECONDS,
        );
        if policy.snapshot_type != SnapshotType::Freeze {
            problems.add(
                format!("{field}.descendAfter"),
                Cause::Invalid,
                "only a frozen sandbox can descend",
                "set snapshotType to Freeze, or leave descendAfter out",
            );
        }
    }
}

fn access(field: &str, access: &Access, problems: &mut Problems) {
    for (name, hash) in [
        ("agentToken", &access.agent_token),
        ("trafficToken", &access.traffic_token),
    ] {
        if let Some(hash) = hash
            && !text::is_sha256(hash)
        {
            problems.add(
                format!("{field}.{name}"),
                Cause::Invalid,
                "it is not a SHA-256",
                "write it as 64 lower-case hexadecimal digits, or leave it out",
            );
        }
    }
}

pub(super) fn network(field: &str, policy: &NetworkPolicy, problems: &mut Problems) {
    problems.at_most(
        format!("{field}.allowOut"),
        policy.allow_out.len(),
        limits::NETWORK_ENTRIES,
    );
    problems.at_most(
        format!("{field}.denyOut"),
        policy.deny_out.len(),
        limits::NETWORK_ENTRIES,
    );
    if let Some(host) = &policy.mask_request_host {
        let plain = |b: u8| b.is_ascii_alphanumeric() || b"-._:[]".contains(&b);
        let text = host.replace("${PORT}", "0");
        if host.len() > limits::HOST {
            problems.add(
                format!("{field}.maskRequestHost"),
                Cause::TooLong,
                format!("{} bytes", host.len()),
                format!("use at most {}", limits::HOST),
            );
        } else if text.is_empty() || !text.bytes().all(plain) {
            problems.add(
                format!("{field}.maskRequestHost"),
                Cause::Invalid,
                format!("{host:?} is not a host"),
                "write it as localhost or localhost:${PORT}",
            );
        }
    }
    for (i, entry) in policy.allow_out.iter().enumerate() {
        if !text::is_address_or_block(entry) && !text::is_domain_pattern(entry) {
            problems.add(
                format!("{field}.allowOut[{i}]"),
                Cause::Invalid,
                format!("{entry:?} is not an address, a block or a domain"),
                "write it as 10.1.2.3, 10.0.0.0/8, example.com or *.example.com",
            );
        }
    }
    for (i, entry) in policy.deny_out.iter().enumerate() {
        if !text::is_address_or_block(entry) {
            problems.add(
                format!("{field}.denyOut[{i}]"),
                Cause::Invalid,
                format!("{entry:?} is not an address or a block"),
                "write it as 10.1.2.3 or 10.0.0.0/8; domains cannot be denied",
            );
        }
    }
}
