//! Rules for pools.

use super::{Cause, Problems, Rules, sandbox, text};
use crate::{meta::Object, pool::PoolSpec, sandbox::IdleAction};

const MAX_MEMBERS: u64 = 100_000;
const MAX_WAITING: u64 = 100_000;
const MAX_WEIGHTS: usize = 1024;
const MAX_WEIGHT: u64 = 1000;
const MAX_IGNORED: usize = 64;

impl Rules for PoolSpec {
    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        if spec.min_idle > spec.max_idle {
            problems.add(
                "spec.minIdle",
                Cause::Invalid,
                format!(
                    "{} is more than maxIdle, which is {}",
                    spec.min_idle, spec.max_idle
                ),
                "lower minIdle or raise maxIdle",
            );
        }
        if spec.max_idle > spec.max {
            problems.add(
                "spec.maxIdle",
                Cause::Invalid,
                format!("{} is more than max, which is {}", spec.max_idle, spec.max),
                "lower maxIdle or raise max",
            );
        }
        problems.bounds("spec.max", spec.max.into(), 0, MAX_MEMBERS);
        let percent = spec.update_strategy.max_unavailable_percent;
        problems.bounds(
            "spec.updateStrategy.maxUnavailablePercent",
            percent.into(),
            1,
            100,
        );
        text::images("spec.idleImages", &spec.idle_images, problems);
        if let Some(resources) = &spec.resources {
            sandbox::resources("spec.resources", resources, problems);
        }
        sandbox::timeouts("spec.defaultTimeouts", &spec.default_timeouts, problems);
        if spec.default_timeouts.end_at.is_some() {
            problems.add(
                "spec.defaultTimeouts.endAt",
                Cause::Forbidden,
                "one moment cannot be the end of every claim",
                "leave it out; claims bring their own",
            );
        }
        problems.bounds("spec.queue.limit", spec.queue.limit.into(), 1, MAX_WAITING);
        problems.at_most("spec.queue.weights", spec.queue.weights.len(), MAX_WEIGHTS);
        for (of, weight) in spec.queue.weights.iter().take(MAX_WEIGHTS) {
            sandbox::user("spec.queue.weights", of, problems);
            let field = format!("spec.queue.weights.{of}");
            problems.bounds(field, (*weight).into(), 1, MAX_WEIGHT);
        }
        let ignored = &spec.ignore_template_keys;
        problems.at_most("spec.ignoreTemplateKeys", ignored.len(), MAX_IGNORED);
        for (i, key) in ignored.iter().enumerate().take(MAX_IGNORED) {
            if !text::is_label_key(key) {
                problems.add(
                    format!("spec.ignoreTemplateKeys[{i}]"),
                    Cause::Invalid,
                    format!("{key:?} is not the key of a label or an annotation"),
                    "write it as it is in the template, as example.com/owner",
                );
            }
        }
        // Listed so that a new action is thought about here: members can do all of them.
        match spec.default_timeouts.idle_action {
            IdleAction::Pause | IdleAction::Kill | IdleAction::Release => {}
        }
    }
}
