//! Rules for claims.

use super::{Problems, Rules, sandbox, text};
use crate::{claim::ClaimSpec, meta::Object};

const MAX_COUNT: u64 = 1000;
const MAX_WAIT_SECONDS: u64 = 24 * 3600;

impl Rules for ClaimSpec {
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
