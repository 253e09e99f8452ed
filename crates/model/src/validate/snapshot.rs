//! Rules for snapshots.

use std::collections::BTreeSet;

use super::{Cause, CelRule, Problems, Rules, sandbox::MAX_SECONDS, text};
use crate::{
    kinds::Minting,
    limits,
    meta::Object,
    snapshot::{DEFAULT_TAG, SnapshotSpec},
};

const ALIAS: &str = "write it once, as name or name:tag, of lower-case letters, digits, - and _; a \
                     tag may have dots";

impl Rules for SnapshotSpec {
    const CEL: &'static [CelRule] = &[
        CelRule::new(
            ".sandbox",
            "self.sandbox == oldSelf.sandbox",
            "it cannot be changed: create another snapshot",
        ),
        CelRule::new(
            ".expireAfterSeconds",
            "!has(self.expireAfterSeconds) || (self.expireAfterSeconds >= 1 && self.expireAfterSeconds <= 31536000)",
            "use 1 to 31536000",
        ),
    ];

    fn complete(object: &mut Object<Self>, _: &Minting) {
        if let Some(alias) = &mut object.spec.alias
            && !alias.contains(':')
        {
            *alias = format!("{alias}:{DEFAULT_TAG}").into();
        }
    }

    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        if let Some(registry) = &spec.registry {
            text::registry("spec.registry", registry, problems);
        }
        if let Some(alias) = spec.alias.as_deref().filter(|alias| !is_alias(alias)) {
            problems.add(
                "spec.alias",
                Cause::Invalid,
                format!("{alias:?} is not an alias"),
                ALIAS,
            );
        }
        if let Some(seconds) = spec.expire_after_seconds {
            problems.bounds("spec.expireAfterSeconds", seconds.into(), 1, MAX_SECONDS);
        }
    }

    fn check_change(old: &Object<Self>, new: &Object<Self>, problems: &mut Problems) {
        const ANOTHER: &str = "create another snapshot";
        let (old, new) = (&old.spec, &new.spec);
        problems.immutable("spec.sandbox", &old.sandbox, &new.sandbox, ANOTHER);
        problems.immutable("spec.sandboxId", &old.sandbox_id, &new.sandbox_id, ANOTHER);
        problems.immutable("spec.alias", &old.alias, &new.alias, ANOTHER);
        problems.immutable("spec.registry", &old.registry, &new.registry, ANOTHER);
    }
}

/// Names and tags, each once; a name without a tag has the default one.
pub(super) fn aliases(field: &str, all: &[Box<str>], problems: &mut Problems) {
    problems.at_most(field, all.len(), limits::ALIASES);
    let mut known = BTreeSet::new();
    for (i, alias) in all.iter().enumerate() {
        let split = alias.split_once(':').unwrap_or((alias, DEFAULT_TAG));
        let cause = match (is_alias(alias), known.insert(split)) {
            (true, true) => continue,
            (true, false) => Cause::Duplicate,
            (false, _) => Cause::Invalid,
        };
        problems.add(
            format!("{field}[{i}]"),
            cause,
            format!("{alias:?} is not an alias, or was named before"),
            ALIAS,
        );
    }
}

/// Whether a text is `name` or `name:tag`.
#[must_use]
pub fn is_alias(text: &str) -> bool {
    let (name, tag) = text.split_once(':').unwrap_or((text, DEFAULT_TAG));
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-_".contains(&b);
    text.len() <= limits::ALIAS
        && !name.is_empty()
        && !tag.is_empty()
        && name.bytes().all(plain)
        && tag.bytes().all(|b| plain(b) || b == b'.')
}
