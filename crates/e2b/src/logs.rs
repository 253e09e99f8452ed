//! What happened to a sandbox: its life from stored events, and what a source brings besides.

use cache::EventIndex;
use http::StatusCode;
use model::{Event, Level, Sandbox, Timestamp, event::Severity};
use serde_json::json as value;

use crate::{
    ports::LogLine,
    refusal::Refusal,
    route::{Answer, Call, Param, json},
    service::E2b,
    wire::{SandboxLog, SandboxLogEntry, SandboxLogs, SandboxLogsV2},
};

const MAX_LINES: i64 = 1000;

pub(crate) const FIRST_QUERY: &[Param] = &[
    Param::new("start", "From this millisecond since 1970 on"),
    Param::new("limit", "1 to 1000; 1000 if absent"),
];
pub(crate) const SECOND_QUERY: &[Param] = &[
    Param::new("cursor", "From (or back from) this millisecond since 1970"),
    Param::new("limit", "1 to 1000; 1000 if absent"),
    Param::new("direction", "forward or backward; forward if absent"),
    Param::new("level", "At least debug, info, warn or error"),
    Param::new("search", "Only lines that contain this"),
];

/// `GET /sandboxes/{id}/logs`.
pub(crate) async fn first(call: Call) -> Answer {
    let start = millisecond(&call, "start")?;
    let limit = limit(&call)?;
    let sandbox = call.api.find_live(&call.caller.team, call.subject())?;
    let mut lines = call.api.lines(&sandbox).await;
    lines.retain(|line| start.is_none_or(|start| line.at >= start));
    lines.truncate(limit);
    let logs = lines.iter().map(|line| SandboxLog {
        timestamp: line.at,
        line: value!({
            "level": line.level.as_str(),
            "message": line.message,
            "logger": line.logger,
        })
        .to_string(),
    });
    let logs = SandboxLogs {
        logs: logs.collect(),
        log_entries: lines.iter().map(render).collect(),
    };
    json(StatusCode::OK, &logs)
}

/// `GET /v2/sandboxes/{id}/logs`.
pub(crate) async fn second(call: Call) -> Answer {
    let cursor = millisecond(&call, "cursor")?;
    let limit = limit(&call)?;
    let backward = match call.query.get("direction") {
        None | Some("forward") => false,
        Some("backward") => true,
        Some(_) => return Err(Refusal::bad_field("direction", "use forward or backward")),
    };
    let level = call.query.get("level").map(|name| {
        Level::read(name)
            .ok_or_else(|| Refusal::bad_field("level", "use debug, info, warn or error"))
    });
    let level = level.transpose()?.unwrap_or(Level::Debug);
    let search = call.query.get("search");
    let sandbox = call.api.find_live(&call.caller.team, call.subject())?;
    let mut lines = call.api.lines(&sandbox).await;
    lines.retain(|line| {
        let in_reach = cursor.is_none_or(|cursor| {
            if backward {
                line.at <= cursor
            } else {
                line.at >= cursor
            }
        });
        in_reach && line.level >= level && search.is_none_or(|text| line.message.contains(text))
    });
    if backward {
        lines.reverse();
    }
    lines.truncate(limit);
    let logs = lines.iter().map(render).collect();
    json(StatusCode::OK, &SandboxLogsV2 { logs })
}

fn millisecond(call: &Call, name: &str) -> Result<Option<Timestamp>, Refusal> {
    let millis = call.query.number(name, 0, i64::MAX / 1000)?;
    Ok(millis.map(|millis| Timestamp::from_micros(millis * 1000)))
}

fn limit(call: &Call) -> Result<usize, Refusal> {
    let limit = call.query.number("limit", 1, MAX_LINES)?;
    Ok(usize::try_from(limit.unwrap_or(MAX_LINES)).unwrap_or(1))
}

fn render(line: &LogLine) -> SandboxLogEntry {
    let logger = ("logger".to_owned(), line.logger.to_string());
    let fields = line.fields.iter();
    SandboxLogEntry {
        timestamp: line.at,
        message: line.message.to_string(),
        level: line.level.as_str(),
        fields: fields
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .chain([logger])
            .collect(),
    }
}

impl E2b {
    /// Everything known of a delivery, oldest first. A pool member's record outlives its owners:
    /// what happened before this one's time is not theirs to read.
    async fn lines(&self, sandbox: &Sandbox) -> Vec<LogLine> {
        let uid = sandbox.uid().to_string();
        let since = sandbox.spec.claimed_at;
        let events = self.caches.events.find_by(EventIndex::About, uid.as_str());
        let mut lines: Vec<_> = events
            .iter()
            .filter(|event| Some(event.spec.last_seen) >= since)
            .map(|event| of_life(event, since))
            .collect();
        lines.extend(self.logs.lines(sandbox).await);
        lines.sort_by_key(|line| line.at);
        lines
    }
}

fn of_life(event: &Event, since: Option<Timestamp>) -> LogLine {
    let spec = &event.spec;
    let mut fields: Vec<(Box<str>, Box<str>)> = vec![("reason".into(), spec.reason.clone())];
    if spec.count > 1 && Some(spec.first_seen) >= since {
        fields.push(("count".into(), spec.count.to_string().into()));
    }
    LogLine {
        at: spec.last_seen,
        level: match spec.severity {
            Severity::Normal => Level::Info,
            Severity::Warning => Level::Warn,
        },
        logger: "lifecycle".into(),
        message: format!("{}: {}", spec.reason, spec.message).into(),
        fields,
    }
}
