//! What sandboxes use.

use http::StatusCode;
use model::Timestamp;

use crate::{
    ports::Sample,
    refusal::Refusal,
    route::{Answer, Call, Param, json},
    wire::{SandboxMetric, SandboxesMetrics},
};

/// The most sandboxes that one request asks about.
const MAX_IDS: usize = 100;
/// The last second that a time can be written for.
const MAX_SECOND: i64 = 253_402_300_799;

pub(crate) const ONE_QUERY: &[Param] = &[
    Param::new("start", "From this second since 1970 on"),
    Param::new("end", "Until this second since 1970"),
];
pub(crate) const MANY_QUERY: &[Param] = &[Param::list(
    "sandbox_ids",
    "At most 100 ids, with commas; those that are not there are left out",
)];

/// `GET /sandboxes/{id}/metrics`.
pub(crate) async fn one(call: Call) -> Answer {
    let at = |name| {
        let second = call.query.number(name, 0, MAX_SECOND)?;
        Ok::<_, Refusal>(second)
    };
    let (start, end) = (at("start")?, at("end")?);
    if start.zip(end).is_some_and(|(start, end)| start > end) {
        return Err(Refusal::bad_field("start", "it is after end"));
    }
    let sandbox = call.api.find_live(&call.caller.team, call.subject())?;
    let micros = |second: i64| Timestamp::from_micros(second.saturating_mul(1_000_000));
    let start = start.map_or(Timestamp::from_micros(0), micros);
    // The whole of the last second.
    let end = end.map_or(Timestamp::from_micros(i64::MAX), |end| {
        Timestamp::from_micros(micros(end).as_micros().saturating_add(999_999))
    });
    let samples = match &sandbox.spec.sandbox_id {
        Some(id) => call.api.metrics.range(id, start, end),
        None => Vec::new(),
    };
    let samples: Vec<_> = samples.iter().map(render).collect();
    json(StatusCode::OK, &samples)
}

/// `GET /sandboxes/metrics`.
pub(crate) async fn many(call: Call) -> Answer {
    let ids = call.query.list("sandbox_ids");
    if ids.is_empty() || ids.len() > MAX_IDS {
        return Err(Refusal::bad_field(
            "sandbox_ids",
            format!("name 1 to {MAX_IDS} sandboxes"),
        ));
    }
    let latest = |id: &&str| {
        let sandbox = call.api.find_live(&call.caller.team, id).ok()?;
        let delivery = sandbox.spec.sandbox_id.as_ref()?;
        let sample = call.api.metrics.latest(delivery)?;
        Some((delivery.to_string(), render(&sample)))
    };
    let sandboxes = ids.iter().filter_map(latest).collect();
    json(StatusCode::OK, &SandboxesMetrics { sandboxes })
}

fn render(sample: &Sample) -> SandboxMetric {
    SandboxMetric {
        timestamp: sample.at,
        timestamp_unix: sample.at.as_micros().div_euclid(1_000_000),
        cpu_count: sample.cpu_count,
        cpu_used_pct: sample.cpu_used_percent,
        mem_used: sample.memory_used,
        mem_total: sample.memory_total,
        mem_cache: sample.memory_cache,
        disk_used: sample.disk_used,
        disk_total: sample.disk_total,
    }
}
