//! Rules for teams and keys.

use std::collections::BTreeSet;

use super::{Cause, CelRule, Problems, Rules, sandbox, text};
use crate::{
    api_key::{ApiKeySpec, SHOWN_FIRST, SHOWN_LAST},
    limits,
    meta::Object,
    team::{Quotas, SshKey, TeamSpec},
};

const MAX_SANDBOXES: u64 = 10_000_000;
const MAX_CPU_MILLIS: u64 = 1 << 40;
const MAX_MEMORY_MIB: u64 = 1 << 40;

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
        ssh_keys("spec.sshKeys", &spec.ssh_keys, problems);
    }
}

impl Rules for ApiKeySpec {
    const UNIQUE: &'static [&'static str] = &["spec.hash"];
    const CEL: &'static [CelRule] = &[CelRule::new(
        ".hash",
        "self.hash == oldSelf.hash",
        "it cannot be changed: create another key, and delete this one",
    )];

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

fn ssh_keys(field: &str, keys: &[SshKey], problems: &mut Problems) {
    problems.at_most(field, keys.len(), limits::SSH_KEYS);
    let (mut names, mut seen) = (BTreeSet::new(), BTreeSet::new());
    for (at, key) in keys.iter().enumerate() {
        title(&format!("{field}[{at}].name"), &key.name, problems);
        if !names.insert(&key.name) {
            problems.add(
                format!("{field}[{at}].name"),
                Cause::Invalid,
                "another key has this name",
                "choose a name that no other key of the team has",
            );
        }
        if !is_ssh_key(&key.key) {
            problems.add(
                format!("{field}[{at}].key"),
                Cause::Invalid,
                "it is not a public key that is taken",
                format!(
                    "write the first two words of a file `.pub`, of one of these algorithms: {}",
                    SshKey::ALGORITHMS.join(", ")
                ),
            );
        }
        if !seen.insert(&key.key) {
            problems.add(
                format!("{field}[{at}].key"),
                Cause::Invalid,
                "the key is there already",
                "leave it out",
            );
        }
    }
}

/// Whether this is the algorithm and the bytes of a public key. The bytes begin with the algorithm
/// too; what is behind that, only who checks signatures can tell.
fn is_ssh_key(text: &str) -> bool {
    let Some((algorithm, bytes)) = text.split_once(' ') else {
        return false;
    };
    let digits = bytes.trim_end_matches('=');
    let length = u32::try_from(algorithm.len()).unwrap_or(u32::MAX);
    let head = [&length.to_be_bytes()[..], algorithm.as_bytes()].concat();
    SshKey::ALGORITHMS.contains(&algorithm)
        && text.len() <= limits::SSH_KEY
        && bytes.len().is_multiple_of(4)
        && bytes.len() - digits.len() <= 2
        && digits.bytes().all(|b| text::BASE64.contains(&b))
        && digits.starts_with(&text::whole_base64(&head))
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
    if name.trim().is_empty() || count > limits::TITLE || name.chars().any(char::is_control) {
        problems.add(
            field,
            Cause::Invalid,
            "it is not a name",
            format!(
                "use 1 to {} characters, none of them a control character",
                limits::TITLE
            ),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Metadata, Name, Team};

    const KEY: &str =
        "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOTOXyJWkxH1Rt7dayofr6Jh2Hjh6dXdFKZSr8G+1ZFc";

    fn problems(keys: &[(&str, &str)]) -> Vec<String> {
        let keys = keys.iter().map(|(name, key)| SshKey {
            name: (*name).into(),
            key: (*key).into(),
        });
        let spec = TeamSpec {
            ssh_keys: keys.collect(),
            ..TeamSpec::default()
        };
        let team: Team = Object::new(Metadata::new(None, Name::new("blue").unwrap()), spec);
        let mut problems = Problems::default();
        TeamSpec::check(&team, &mut problems);
        let found = problems.0.into_iter();
        found.map(|problem| problem.field).collect()
    }

    #[test]
    fn a_public_key_is_two_words_that_agree_on_the_algorithm() {
        let ecdsa = "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBHUh+Q3UObs4lcOGG+ZjL4+wYKDhkPW4rVUWp9tvfgq8U09lZbDy7ACjcHggBzdwZP1DVfrMmDCQLPzlEDtgfPU=";
        assert_eq!(problems(&[("a", KEY), ("b", ecdsa)]), [""; 0]);
        let renamed = KEY.replace("ssh-ed25519", "ecdsa-sha2-nistp256");
        let commented = format!("{KEY} ada@laptop");
        for bad in [
            "",
            "ssh-ed25519",
            "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQ==",
            "-----BEGIN OPENSSH PRIVATE KEY-----",
            &KEY[..KEY.len() - 1],
            &renamed,
            &commented,
            &KEY.replace('+', "-"),
        ] {
            assert_eq!(problems(&[("a", bad)]), ["spec.sshKeys[0].key"], "{bad}");
        }
    }

    #[test]
    fn names_and_keys_are_there_once() {
        let other = KEY.replace("1ZFc", "1ZFd");
        assert_eq!(
            problems(&[("a", KEY), ("a", &other)]),
            ["spec.sshKeys[1].name"]
        );
        assert_eq!(problems(&[("a", KEY), ("b", KEY)]), ["spec.sshKeys[1].key"]);
        assert_eq!(problems(&[("", KEY)]), ["spec.sshKeys[0].name"]);
    }
}
