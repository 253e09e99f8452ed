//! What sandboxes were, and are: those that live and those that have ended, in one shape. A team
//! sees its own, administrators those of all.

use std::{cmp::Reverse, fmt};

use http::StatusCode;
use model::{
    Metadata, Name, Namespace, Spec as _, Timestamp, lifecycle::Phase, record::RecordSpec,
};
use store::{Query as Listed, StoreExt as _};

use crate::{
    refusal::Refusal,
    route::{Answer, Call, Param, json},
    service::E2b,
    wire::HistoryPage,
};

const TIME: &str = "use a time as 2026-01-31T12:00:00.000000Z";
const CURSOR: &str = "use the `next` of a page";
const MOST: usize = 1000;
/// Records that are read at once.
const BATCH: usize = 500;

pub(crate) const QUERY: &[Param] = &[
    Param::new("team", "Of this team; what is another's is not there"),
    Param::new("user", "Made for this person"),
    Param::new("pool", "From this pool"),
    Param::new("template", "Made from this template"),
    Param::new(
        "from",
        "Ended at this moment or later; claimed, of those that live",
    ),
    Param::new(
        "until",
        "Ended before this moment; claimed, of those that live",
    ),
    Param::new("state", "ended, or live; ended if absent"),
    Param::new("after", "Continue after the page whose `next` this is"),
    Param::new("limit", "1 to 1000; 100 if absent"),
];

/// What is asked for.
struct Filter {
    team: Option<Namespace>,
    user: Option<String>,
    pool: Option<Name>,
    template: Option<Name>,
    from: Option<Timestamp>,
    until: Option<Timestamp>,
    limit: usize,
}

impl Filter {
    fn admits(&self, record: &RecordSpec, at: Option<Timestamp>) -> bool {
        let is = |asked: &Option<Name>, is: &Option<Name>| asked.is_none() || asked == is;
        self.team
            .as_ref()
            .is_none_or(|team| *team == record.owner.team)
            && self
                .user
                .as_deref()
                .is_none_or(|user| record.owner.user.as_deref() == Some(user))
            && is(&self.pool, &record.pool)
            && is(&self.template, &record.template)
            && self.from.is_none_or(|from| at.is_some_and(|at| at >= from))
            && self
                .until
                .is_none_or(|until| at.is_some_and(|at| at < until))
    }
}

/// `GET /dormouse/history`.
pub(crate) async fn list(call: Call) -> Answer {
    let query = &call.query;
    let asked: Option<Namespace> = query.parsed("team", "use the name of a team")?;
    let own = &call.caller.team;
    if !call.is_admin && asked.as_ref().is_some_and(|asked| asked != own) {
        return json(StatusCode::OK, &HistoryPage::default());
    }
    let limit = query.number("limit", 1, MOST as i64)?;
    let filter = Filter {
        team: match call.is_admin {
            true => asked,
            false => Some(own.clone()),
        },
        user: query.get("user").map(str::to_owned),
        pool: query.parsed("pool", "use the name of a pool")?,
        template: query.parsed("template", "use the name of a template")?,
        from: query.parsed("from", TIME)?,
        until: query.parsed("until", TIME)?,
        limit: usize::try_from(limit.unwrap_or(100)).unwrap_or(MOST),
    };
    let page = match query.get("state") {
        None | Some("ended") => {
            let after = query.get("after").map(ended_cursor).transpose()?;
            ended(&call.api, filter, after).await?
        }
        Some("live") => {
            let after = query.get("after").map(Place::read).transpose()?;
            live(&call.api, &filter, after.as_ref())
        }
        Some(_) => return Err(Refusal::bad_field("state", "use ended or live")),
    };
    json(StatusCode::OK, &page)
}

fn bad_cursor() -> Refusal {
    Refusal::bad_field("after", CURSOR)
}

fn ended_cursor(text: &str) -> Result<(Namespace, Name), Refusal> {
    let bad = bad_cursor;
    let (team, name) = text.split_once('.').ok_or_else(bad)?;
    let team = Namespace::new(team).map_err(|_| bad())?;
    Ok((team, Name::new(name).map_err(|_| bad())?))
}

/// Those that have ended: of each team from the newest to the oldest.
async fn ended(
    api: &E2b,
    filter: Filter,
    after: Option<(Namespace, Name)>,
) -> Result<HistoryPage, Refusal> {
    let mut listed = Listed {
        namespace: filter.team.clone(),
        limit: Some(BATCH),
        ..Listed::kind(RecordSpec::KIND)
    };
    let fields = [
        ("spec.owner.user", filter.user.as_deref()),
        ("spec.pool", filter.pool.as_ref().map(Name::as_str)),
        ("spec.template", filter.template.as_ref().map(Name::as_str)),
    ];
    for (path, value) in fields.into_iter().filter_map(|(p, v)| Some((p, v?))) {
        listed = listed.field(path, value);
    }
    // Names are in the order of time: what ended later is before this one.
    let begin = filter.team.clone().zip(filter.until);
    let begin = begin.and_then(|(team, until)| {
        let name = Name::new(RecordSpec::first_name(until)).ok()?;
        Some((team, name))
    });
    listed.after = after.max(begin).map(|(team, name)| (Some(team), name));
    let mut page = HistoryPage::default();
    loop {
        let (batch, _) = api.store.list_objects::<RecordSpec>(&listed).await?;
        let whole = batch.len() == BATCH;
        for record in batch {
            let Some(team) = record.metadata.namespace.clone() else {
                continue;
            };
            let at = record.spec.ended.as_ref().map(|ended| ended.at);
            let over = filter
                .from
                .is_some_and(|from| at.is_some_and(|at| at < from));
            if over && filter.team.is_some() {
                // All that follow ended earlier.
                return Ok(page);
            }
            listed.after = Some((Some(team.clone()), record.metadata.name.clone()));
            if !filter.admits(&record.spec, at) || is_of_a_build(&record.metadata) {
                continue;
            }
            page.records.push(record.spec);
            if page.records.len() == filter.limit {
                page.next = Some(format!("{team}.{}", record.metadata.name));
                return Ok(page);
            }
        }
        if !whole {
            return Ok(page);
        }
    }
}

/// Where one that lives stands among those that do: the one of its team that was claimed last first.
/// A page goes on after a place, whether who stood there still lives or not.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    team: Namespace,
    claimed_at: Reverse<Option<Timestamp>>,
    name: Name,
}

impl Place {
    fn read(text: &str) -> Result<Self, Refusal> {
        let mut parts = text.splitn(3, '.');
        let mut next = || parts.next().ok_or_else(bad_cursor);
        let (team, micros, name) = (next()?, next()?, next()?);
        let claimed_at = match micros {
            "" => None,
            micros => {
                let micros = micros.parse().map_err(|_| bad_cursor())?;
                Some(Timestamp::from_micros(micros))
            }
        };
        Ok(Self {
            team: Namespace::new(team).map_err(|_| bad_cursor())?,
            claimed_at: Reverse(claimed_at),
            name: Name::new(name).map_err(|_| bad_cursor())?,
        })
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.claimed_at.0.map(|at| at.as_micros().to_string());
        let micros = micros.unwrap_or_default();
        write!(f, "{}.{micros}.{}", self.team, self.name)
    }
}

/// What was made for a build is nobody's to see.
fn is_of_a_build(meta: &Metadata) -> bool {
    meta.annotations.contains_key(build::ANNOTATION)
}

/// Those that live: the one that was claimed last first.
fn live(api: &E2b, filter: &Filter, after: Option<&Place>) -> HistoryPage {
    let sandboxes = &api.caches.sandboxes;
    let all = match &filter.team {
        Some(team) => sandboxes.find_by(cache::SandboxIndex::Owner, team.as_str()),
        None => sandboxes.find_all(),
    };
    let mut found: Vec<_> = all
        .iter()
        .filter(|s| !matches!(s.status.phase, Phase::Stopped | Phase::Failed))
        .filter(|s| !s.metadata.is_deleting() && !is_of_a_build(&s.metadata))
        .filter_map(|s| {
            let template = s.spec.template.as_ref();
            let limits = template.and_then(|t| api.template(s.metadata.namespace.as_ref()?, t));
            let limits = limits.and_then(|t| t.spec.resources);
            let record = plan::history::live(s, limits)?;
            let place = Place {
                team: record.owner.team.clone(),
                claimed_at: Reverse(record.claimed_at),
                name: s.metadata.name.clone(),
            };
            Some((place, record))
        })
        .filter(|(_, record)| filter.admits(record, record.claimed_at))
        .filter(|(place, _)| after.is_none_or(|after| place > after))
        .collect();
    found.sort_by(|(one, _), (other, _)| one.cmp(other));
    let mut page = HistoryPage::default();
    for (place, record) in found.into_iter().take(filter.limit) {
        page.next = Some(place.to_string());
        page.records.push(record);
    }
    if page.records.len() < filter.limit {
        page.next = None;
    }
    page
}
