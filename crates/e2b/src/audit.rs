//! Who did what to which sandbox, as far as the caller may know: a team what its own did,
//! administrators everything.

use auth::audit::{AuditError, Filter, MAX_LIMIT, Order, Outcome, Recorded};
use http::StatusCode;
use model::{Namespace, SandboxId};

use crate::{
    refusal::Refusal,
    route::{Answer, Call, Param, json},
    wire::{AuditEntry, AuditPage},
};

const TIME: &str = "use a time as 2026-01-31T12:00:00.000000Z";

pub(crate) const QUERY: &[Param] = &[
    Param::new("team", "Of this team; what is another's is not there"),
    Param::new("sandbox", "About this sandbox"),
    Param::new("actor", "By this key or this person"),
    Param::new("action", "Of this kind, as sandbox.create"),
    Param::new("from", "At this moment or later"),
    Param::new("until", "Before this moment"),
    Param::new("after", "Continue after the page whose `next` this is"),
    Param::new(
        "order",
        "asc for the oldest first, desc for the newest; asc if absent",
    ),
    Param::new("limit", "1 to 1000; 1000 if absent"),
];

/// `GET /dormouse/audit`.
pub(crate) async fn list(call: Call) -> Answer {
    let query = &call.query;
    let most = i64::try_from(MAX_LIMIT).unwrap_or(i64::MAX);
    let asked: Option<Namespace> = query.parsed("team", "use the name of a team")?;
    let limit = query.number("limit", 1, most)?;
    let filter = Filter {
        team: match call.is_admin {
            true => asked.clone(),
            false => Some(call.caller.team.clone()),
        },
        sandbox: query.parsed::<SandboxId>("sandbox", "use the id of a sandbox")?,
        actor: query.get("actor").map(Into::into),
        action: query.get("action").map(Into::into),
        from: query.parsed("from", TIME)?,
        until: query.parsed("until", TIME)?,
        after: query.parsed("after", "use the `next` of a page")?,
        order: match query.get("order") {
            None | Some("asc") => Order::OldestFirst,
            Some("desc") => Order::NewestFirst,
            Some(_) => return Err(Refusal::bad_field("order", "use asc or desc")),
        },
        limit: usize::try_from(limit.unwrap_or(most)).unwrap_or(MAX_LIMIT),
    };
    let Some(audit) = &call.api.audit else {
        return Err(Refusal::not_built("audit logs"));
    };
    let foreign = asked.is_some() && asked != filter.team;
    if foreign {
        let page = AuditPage {
            entries: Vec::new(),
            next: None,
            damaged: 0,
        };
        return json(StatusCode::OK, &page);
    }
    let page = audit.query(filter).await.map_err(|error| match error {
        AuditError::Cursor(_) => Refusal::bad_field("after", "use the `next` of a page"),
        AuditError::Io { .. } | AuditError::Closed => {
            tracing::error!(%error, "the audit log cannot be read");
            Refusal::unavailable("the audit log cannot be read now: see the server's log")
        }
    })?;
    let page = AuditPage {
        entries: page.entries.into_iter().map(render).collect(),
        next: page.next.map(|cursor| cursor.to_string()),
        damaged: page.damaged,
    };
    json(StatusCode::OK, &page)
}

fn render(recorded: Recorded) -> AuditEntry {
    let entry = recorded.entry;
    AuditEntry {
        seq: recorded.seq,
        time: entry.time,
        team: entry.actor.team.map(|team| team.to_string()),
        key: entry.actor.key.map(|key| key.to_string()),
        user: entry.actor.user.map(Into::into),
        action: entry.action.as_str().to_owned(),
        sandbox_id: entry.sandbox.map(|id| id.to_string()),
        object: entry.object.map(Into::into),
        outcome: match entry.outcome {
            Outcome::Done => "done",
            Outcome::Refused => "refused",
            Outcome::Failed => "failed",
        },
        reason: entry.reason.map(Into::into),
        request_id: entry.request.map(Into::into),
    }
}
