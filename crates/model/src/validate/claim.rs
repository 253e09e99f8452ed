//! Rules for claims.

use super::{CelRule, Problems, Rules, sandbox, text};
use crate::{claim::ClaimSpec, meta::Object};

const MAX_COUNT: u64 = 1000;
const MAX_WAIT_SECONDS: u64 = 24 * 3600;

impl Rules for ClaimSpec {
    const CEL: &'static [CelRule] = &[
        CelRule::new(
            ".count",
            "!has(self.count) || (self.count >= 1 && self.count <= 1000)",
            "use 1 to 1000",
        ),
        CelRule::new(
            ".count",
            "has(self.count) == has(oldSelf.count) && (!has(self.count) || self.count == oldSelf.count)",
            "it cannot be changed: create another claim",
        ),
        CelRule::new(
            ".pool",
            "self.pool == oldSelf.pool",
            "it cannot be changed: create another claim",
        ),
    ];

    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        problems.bounds("spec.count", spec.count.into(), 1, MAX_COUNT);
        problems.bounds(
            "spec.timeoutSeconds",
            spec.timeout_seconds.into(),
            1,
            MAX_WAIT_SECONDS,
        );
        if let Some(seconds) = spec.keep_seconds {
            problems.bounds("spec.keepSeconds", seconds.into(), 0, sandbox::MAX_SECONDS);
        }
        text::env("spec.env", &spec.env, problems);
        text::images("spec.images", &spec.images, problems);
        text::pairs("spec.metadata", &spec.metadata, problems);
        if let Some(policy) = &spec.network {
            sandbox::network("spec.network", policy, problems);
        }
        if let Some(timeouts) = &spec.timeouts {
            sandbox::timeouts("spec.timeouts", timeouts, problems);
        }
    }

    fn check_change(old: &Object<Self>, new: &Object<Self>, problems: &mut Problems) {
        const ANOTHER: &str = "create another claim";
        problems.immutable("spec.pool", &old.spec.pool, &new.spec.pool, ANOTHER);
        problems.immutable("spec.count", &old.spec.count, &new.spec.count, ANOTHER);
    }
}
