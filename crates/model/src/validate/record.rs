//! Rules for records of what was.

use super::{Cause, Problems, Rules};
use crate::{meta::Object, record::RecordSpec};

impl Rules for RecordSpec {
    fn check(object: &Object<Self>, problems: &mut Problems) {
        if Some(&object.spec.owner.team) != object.metadata.namespace.as_ref() {
            problems.add(
                "spec.owner.team",
                Cause::Invalid,
                "it is not the namespace of this record",
                "write it to the namespace of the team",
            );
        }
    }

    fn check_change(old: &Object<Self>, new: &Object<Self>, problems: &mut Problems) {
        const AS_IT_WAS: &str = "leave it as it is, or delete the record";
        problems.immutable("spec", &old.spec, &new.spec, AS_IT_WAS);
    }
}
