//! Getting one sandbox, and lists of them, in pages.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use http::{HeaderName, HeaderValue, StatusCode};
use model::{Sandbox, Timestamp};
use percent_encoding::percent_decode_str;

use crate::{
    query::Query,
    refusal::Refusal,
    roster::{Mark, Order, Wanted, mark_of},
    route::{Answer, Call, Param, json},
};

/// The most sandboxes of one page, and how many there are if nobody says.
pub(crate) const MAX_PAGE: i64 = 100;
pub(crate) const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");
const TOTAL_RUNNING: HeaderName = HeaderName::from_static("x-total-running");

pub(crate) const FIRST_QUERY: &[Param] = &[Param::new(
    "metadata",
    "Pairs that all have to match, as a form, encoded twice",
)];
pub(crate) const SECOND_QUERY: &[Param] = &[
    Param::new(
        "metadata",
        "Pairs that all have to match, as a form, encoded twice",
    ),
    Param::list(
        "state",
        "running, paused, or both with a comma; both if absent",
    ),
    Param::new("order", "asc or desc by start; desc if absent"),
    Param::new("startedAfter", "Not before this moment, to the microsecond"),
    Param::new("template", "Made from this template or pool"),
    Param::new("nextToken", "Continue after the page that gave this"),
    Param::new("limit", "1 to 100; 100 if absent"),
];

/// `GET /sandboxes/{id}`.
pub(crate) async fn get(call: Call) -> Answer {
    let sandbox = call.api.find_live(&call.caller.team, call.subject())?;
    json(StatusCode::OK, &call.api.render_detail(&sandbox))
}

/// `GET /sandboxes`: all that run.
pub(crate) async fn first(call: Call) -> Answer {
    let pairs = metadata(&call.query)?;
    let wanted = Wanted {
        team: &call.caller.team,
        running: true,
        paused: false,
        order: Order::Descending,
        started_after: None,
        after: None,
        limit: usize::MAX,
    };
    let (page, _) = call.api.roster.page(&wanted, |s| matches(s, &pairs));
    let page: Vec<_> = page.iter().map(|s| call.api.render_listed(s)).collect();
    json(StatusCode::OK, &page)
}

/// `GET /v2/sandboxes`: a page.
pub(crate) async fn second(call: Call) -> Answer {
    let query = &call.query;
    let pairs = metadata(query)?;
    let (running, paused) = states(query)?;
    let order = order(query)?;
    let after = query
        .get("nextToken")
        .map(|token| read_token(token, order))
        .transpose()?;
    let started_after: Option<Timestamp> =
        query.parsed("startedAfter", "use a time as 2026-01-31T12:00:00.000000Z")?;
    let limit = query.number("limit", 1, MAX_PAGE)?.unwrap_or(MAX_PAGE);
    let template = query.get("template");
    if template.is_some_and(|name| name.contains(':')) {
        return Err(Refusal::bad_field("template", "name it without a tag"));
    }
    // An alias stands for a template; a name that stands for nothing any more may have made some.
    let meant = template.and_then(|name| call.api.meant(&call.caller.team, name).ok());
    let meant = meant.filter(|meant| meant.pool.is_none());
    let of_template = |s: &Sandbox| {
        template.is_none_or(|name| {
            call.api.template_of(s) == name
                || call.api.origin_of(s) == name
                || meant
                    .as_ref()
                    .is_some_and(|meant| s.spec.template.as_ref() == Some(&meant.template))
        })
    };
    let wanted = Wanted {
        team: &call.caller.team,
        running,
        paused,
        order,
        started_after,
        after,
        limit: usize::try_from(limit).unwrap_or(1),
    };
    let roster = &call.api.roster;
    let (page, more) = roster.page(&wanted, |s| of_template(s) && matches(s, &pairs));
    let next = page.last().filter(|_| more).and_then(|s| mark_of(s));
    let rendered: Vec<_> = page.iter().map(|s| call.api.render_listed(s)).collect();
    let mut response = json(StatusCode::OK, &rendered)?;
    let headers = response.headers_mut();
    headers.insert(
        TOTAL_RUNNING,
        HeaderValue::from(roster.running(&call.caller.team)),
    );
    if let Some(token) = next.and_then(|mark| write_token(&mark, order)) {
        headers.insert(NEXT_TOKEN, token);
    }
    Ok(response)
}

fn states(query: &Query) -> Result<(bool, bool), Refusal> {
    let (mut running, mut paused) = (false, false);
    for state in query.list("state") {
        match state {
            "running" => running = true,
            "paused" => paused = true,
            _ => return Err(Refusal::bad_field("state", "use running and paused")),
        }
    }
    Ok(match (running, paused) {
        (false, false) => (true, true),
        some => some,
    })
}

fn order(query: &Query) -> Result<Order, Refusal> {
    match query.get("order") {
        None | Some("desc") => Ok(Order::Descending),
        Some("asc") => Ok(Order::Ascending),
        Some(_) => Err(Refusal::bad_field("order", "use asc or desc")),
    }
}

type Pairs = Vec<(String, String)>;

/// The pairs of the filter. Clients encode each part, then the pairs as a form, then the query;
/// the query was decoded before.
fn metadata(query: &Query) -> Result<Pairs, Refusal> {
    let Some(text) = query.get("metadata") else {
        return Ok(Vec::new());
    };
    let part = |text: &str| {
        let decoded = percent_decode_str(text).decode_utf8();
        decoded
            .map(String::from)
            .map_err(|_| Refusal::bad_field("metadata", "it is not valid UTF-8 when it is decoded"))
    };
    form_urlencoded::parse(text.as_bytes())
        .map(|(name, value)| Ok((part(&name)?, part(&value)?)))
        .collect()
}

fn matches(sandbox: &Sandbox, pairs: &Pairs) -> bool {
    let has = |(name, value): &(String, String)| sandbox.spec.metadata.get(name) == Some(value);
    pairs.iter().all(has)
}

const ASCENDING: &str = "__asc";

fn write_token(mark: &Mark, order: Order) -> Option<HeaderValue> {
    let way = match order {
        Order::Ascending => ASCENDING,
        Order::Descending => "",
    };
    let text = format!("{}__{}{way}", mark.started, mark.id);
    HeaderValue::from_str(&BASE64_URL_SAFE_NO_PAD.encode(text)).ok()
}

fn read_token(token: &str, order: Order) -> Result<Mark, Refusal> {
    let bad = || Refusal::bad_field("nextToken", "it is not one that a list gave");
    let bytes = BASE64_URL_SAFE_NO_PAD
        .decode(token.trim_end_matches('='))
        .map_err(|_| bad())?;
    let text = String::from_utf8(bytes).map_err(|_| bad())?;
    let (text, way) = match text.strip_suffix(ASCENDING) {
        Some(text) => (text, Order::Ascending),
        None => (text.as_str(), Order::Descending),
    };
    if way != order {
        let why = "it belongs to a list in the other order: keep the order, or begin anew";
        return Err(Refusal::bad_field("nextToken", why));
    }
    let (started, id) = text.split_once("__").ok_or_else(bad)?;
    let started = started.parse().map_err(|_| bad())?;
    let id = model::SandboxId::new(id).map_err(|_| bad())?;
    Ok(Mark {
        started,
        id: id.as_str().into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_names_a_place_and_a_direction() {
        let mark = Mark {
            started: "2026-11-15T04:37:55.000123Z".parse().unwrap(),
            id: "i1".into(),
        };
        for (order, other) in [
            (Order::Ascending, Order::Descending),
            (Order::Descending, Order::Ascending),
        ] {
            let token = write_token(&mark, order).unwrap();
            let token = token.to_str().unwrap();
            assert_eq!(read_token(token, order).unwrap(), mark);
            assert!(read_token(token, other).is_err());
        }
        for bad in ["", "x", "____", "MjAyNg", "é"] {
            assert!(read_token(bad, Order::Descending).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_filter_is_decoded_as_often_as_clients_encode_it() {
        let read = |text: &str| {
            let query = Query::read(Some(text), SECOND_QUERY).unwrap();
            metadata(&query).unwrap()
        };
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        // {"a b": "c&d=é%"}: each part, then the form, then the query.
        let thrice = "metadata=a%252520b%3Dc%252526d%25253D%2525C3%2525A9%252525";
        assert_eq!(read(thrice), [pair("a b", "c&d=é%")]);
        assert_eq!(
            read("metadata=user%3Dabc%26app%3Dprod"),
            [pair("user", "abc"), pair("app", "prod")]
        );
    }
}
