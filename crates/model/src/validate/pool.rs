//! Rules for pools.

use super::{Cause, CelRule, Problems, Rules, hook, sandbox, text};
use crate::{
    autoscale::{Autoscale, ScheduleError},
    limits,
    meta::Object,
    pool::PoolSpec,
    sandbox::IdleAction,
};

const MAX_MEMBERS: u64 = 100_000;
const MAX_WAITING: u64 = 100_000;
const MAX_WEIGHTS: usize = 1024;
const MAX_WEIGHT: u64 = 1000;
const HOUR: u64 = 3600;
const WEEK: u64 = 7 * 24 * HOUR;

impl Rules for PoolSpec {
    const CEL: &'static [CelRule] = &[
        CelRule::new(
            ".minIdle",
            "self.minIdle <= self.maxIdle",
            "it is more than maxIdle: lower minIdle or raise maxIdle",
        ),
        CelRule::new(
            ".maxIdle",
            "self.maxIdle <= self.max",
            "it is more than max: lower maxIdle or raise max",
        ),
    ];

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
        if let Some(autoscale) = &spec.autoscale {
            demand(autoscale, spec.max_idle, problems);
        }
        text::images("spec.idleImages", &spec.idle_images, problems);
        hook::hooks("spec.hooks", &spec.hooks, problems);
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
        problems.at_most("spec.ignoreTemplateKeys", ignored.len(), limits::LABEL_KEYS);
        for (i, key) in ignored.iter().enumerate().take(limits::LABEL_KEYS) {
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

fn demand(autoscale: &Autoscale, max_idle: u32, problems: &mut Problems) {
    let rate = autoscale.claim_rate;
    for (field, seconds, least, most) in [
        ("claimRate.windowSeconds", rate.window_seconds, 1, HOUR),
        ("claimRate.coverSeconds", rate.cover_seconds, 0, HOUR),
        ("upCooldownSeconds", autoscale.up_cooldown_seconds, 1, HOUR),
        (
            "downCooldownSeconds",
            autoscale.down_cooldown_seconds,
            1,
            24 * HOUR,
        ),
    ] {
        problems.bounds(
            format!("spec.autoscale.{field}"),
            seconds.into(),
            least,
            most,
        );
    }
    let schedules = &autoscale.schedules;
    problems.at_most(
        "spec.autoscale.schedules",
        schedules.len(),
        limits::SCHEDULES,
    );
    for (i, schedule) in schedules.iter().enumerate().take(limits::SCHEDULES) {
        let field = |name: &str| format!("spec.autoscale.schedules[{i}].{name}");
        let zone = schedule.time_zone.as_deref().unwrap_or_default();
        let texts = [
            ("cron", schedule.cron.len(), limits::CRON),
            ("timeZone", zone.len(), limits::TIME_ZONE),
        ];
        let too_long = texts.into_iter().find(|(_, length, most)| length > most);
        if let Some((name, length, most)) = too_long {
            let (reason, remedy) = (format!("{length} bytes"), format!("use at most {most}"));
            problems.add(field(name), Cause::TooLong, reason, remedy);
            continue;
        }
        match schedule.read() {
            Ok(_) => {}
            Err(error @ ScheduleError::Cron(_)) => problems.add(
                field("cron"),
                Cause::Invalid,
                format!("{:?} is not a crontab: {error}", clip(&schedule.cron)),
                "write minute, hour, day, month and weekday, as in \"0 8 * * 1-5\"",
            ),
            Err(error @ ScheduleError::TimeZone(_)) => problems.add(
                field("timeZone"),
                Cause::Invalid,
                clip(&error.to_string()),
                "name one of the time zone database, as Europe/Berlin",
            ),
        }
        problems.bounds(
            field("durationSeconds"),
            schedule.duration_seconds.into(),
            60,
            WEEK,
        );
        if schedule.min_idle > max_idle {
            problems.add(
                field("minIdle"),
                Cause::Invalid,
                format!(
                    "{} is more than maxIdle, which is {max_idle}",
                    schedule.min_idle
                ),
                "lower it, or raise spec.maxIdle",
            );
        }
    }
}

/// What a client sent is repeated to it, but not all of it.
fn clip(text: &str) -> String {
    text.chars().take(100).collect()
}
