//! Rules for snapshots.

use super::{Problems, Rules, text};
use crate::{meta::Object, snapshot::SnapshotSpec};

impl Rules for SnapshotSpec {
    fn check(object: &Object<Self>, problems: &mut Problems) {
        if let Some(registry) = &object.spec.registry {
            text::registry("spec.registry", registry, problems);
        }
    }

    fn check_change(old: &Object<Self>, new: &Object<Self>, problems: &mut Problems) {
        const ANOTHER: &str = "create another snapshot";
        problems.immutable(
            "spec.sandbox",
            &old.spec.sandbox,
            &new.spec.sandbox,
            ANOTHER,
        );
        problems.immutable(
            "spec.registry",
            &old.spec.registry,
            &new.spec.registry,
            ANOTHER,
        );
    }
}
