//! Rules for teams and keys.

use super::{Cause, Problems, Rules, sandbox, text};
use crate::{
    api_key::{ApiKeySpec, SHOWN_FIRST, SHOWN_LAST},
    meta::Object,
    team::{Quotas, TeamSpec},
};

const MAX_SANDBOXES: u64 = 10_000_000;
const MAX_CPU_MILLIS: u64 = 1 << 40;
const MAX_MEMORY_MIB: u64 = 1 << 40;
const MAX_NAME: usize = 128;

impl Rules for TeamSpec {
    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        if let Some(name) = &spec.display_name {
            title("spec.displayName", name, problems);
        }
        quotas("spec.quotas", &spec.quotas, problems);
        if let Some(seconds) = spec.limits.max_timeout_seconds {
            let field = "spec.limits.maxTimeoutSeconds";
            problems.bounds(field, seconds.into(), 1, sandbox::MAX_SECONDS);
        }
    }
}

impl Rules for ApiKeySpec {
    const UNIQUE: &'static [&'static str] = &["spec.hash"];

    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        title("spec.displayName", &spec.display_name, problems);
        quotas("spec.quotas", &spec.quotas, problems);
        if !text::is_sha256(spec.hash.as_str()) {
            problems.add(
                "spec.hash",
                Cause::Invalid,
                "it is not a SHA-256",
                "write it as 64 lower-case hexadecimal digits, and never write the key itself",
            );
        }
        // More of them would give the key away to whoever can read the record.
        for (field, shown, most) in [
            ("spec.mask.first", &spec.mask.first, SHOWN_FIRST),
            ("spec.mask.last", &spec.mask.last, SHOWN_LAST),
        ] {
            if shown.len() > most || !shown.bytes().all(text::is_hex_digit) {
                problems.add(
                    field,
                    Cause::Invalid,
                    "it is not a part of a key that may be shown",
                    format!("use at most {most} lower-case hexadecimal digits"),
                );
            }
        }
        if let Some(user) = &spec.user {
            sandbox::user("spec.user", user, problems);
        }
    }

    fn check_change(old: &Object<Self>, new: &Object<Self>, problems: &mut Problems) {
        let (old, new) = (&old.spec, &new.spec);
        const ANOTHER: &str = "create another key, and delete this one";
        problems.immutable("spec.hash", &old.hash, &new.hash, ANOTHER);
        problems.immutable("spec.mask", &old.mask, &new.mask, ANOTHER);
        problems.immutable("spec.user", &old.user, &new.user, ANOTHER);
    }
}

fn quotas(field: &str, quotas: &Quotas, problems: &mut Problems) {
    for (name, value, max) in [
        ("sandboxes", quotas.sandboxes.map(u64::from), MAX_SANDBOXES),
        (
            "runningSandboxes",
            quotas.running_sandboxes.map(u64::from),
            MAX_SANDBOXES,
        ),
        ("cpuMillis", quotas.cpu_millis, MAX_CPU_MILLIS),
        ("memoryMiB", quotas.memory_mib, MAX_MEMORY_MIB),
    ] {
        if let Some(value) = value {
            problems.bounds(format!("{field}.{name}"), value, 0, max);
        }
    }
}

/// A name for people: it is printed in tables and logs, so it has no control characters.
fn title(field: &str, name: &str, problems: &mut Problems) {
    let count = name.chars().count();
    if name.trim().is_empty() || count > MAX_NAME || name.chars().any(char::is_control) {
        problems.add(
            field,
            Cause::Invalid,
            "it is not a name",
            format!("use 1 to {MAX_NAME} characters, none of them a control character"),
        );
    }
}
