//! The page that Prometheus reads: what is counted elsewhere, as text.
//!
//! It has a listener of its own, off unless one is configured: numbers of all teams are on it, and
//! whoever scrapes has no token to show.

use std::{fmt::Write as _, sync::Arc, time::Duration};

use axum::{Router, extract::State, routing::get};
use cache::{SandboxCache, SandboxIndex};
use e2b::{BOUNDS, Ending};
use gateway::metrics::{Outcome, Waited};
use http::header::CONTENT_TYPE;
use kit::buckets;
use model::lifecycle::Phase;
use wake::stats::{Rung, Whom};

/// Where the numbers come from.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    pub(crate) sandboxes: SandboxCache,
    pub(crate) gateway: gateway::Metrics,
    pub(crate) ext_proc: Option<::ext_proc::Metrics>,
    pub(crate) api: Arc<e2b::E2b>,
    pub(crate) flights: wake::Flights,
    pub(crate) routes: Arc<routes::Table>,
}

/// The page at `/metrics`.
pub(crate) fn router(sources: Sources) -> Router {
    Router::new()
        .route("/metrics", get(page))
        .with_state(sources)
}

async fn page(State(sources): State<Sources>) -> impl axum::response::IntoResponse {
    let text = render(&sources);
    ([(CONTENT_TYPE, "text/plain; version=0.0.4")], text)
}

fn render(sources: &Sources) -> String {
    let mut page = Page::default();
    sandbox_lines(&mut page, &sources.sandboxes);
    wake_lines(&mut page, &sources.flights);
    gateway_lines(&mut page, &sources.gateway.snapshot());
    route_lines(&mut page, &sources.routes.stats());
    if let Some(seen) = &sources.ext_proc {
        crate::ext_proc::lines(&mut page, seen);
    }
    api_lines(&mut page, &sources.api.stats());
    page.0
}

/// How many sandboxes there are.
pub(crate) fn sandbox_lines(page: &mut Page, sandboxes: &SandboxCache) {
    page.family("dormouse_sandboxes", "gauge", "Sandboxes by phase");
    for phase in Phase::ALL {
        let count = sandboxes.count_by(SandboxIndex::Phase, phase.as_str());
        page.line("dormouse_sandboxes", &[("phase", phase.as_str())], count);
    }
    let name = "dormouse_sandboxes_unreadable";
    page.family(
        name,
        "gauge",
        "Records of sandboxes that do not fit their type, and are not acted on",
    );
    page.line(name, &[], sandboxes.stats().undecodable.len());
}

/// How sandboxes woke for traffic.
pub(crate) fn wake_lines(page: &mut Page, flights: &wake::Flights) {
    let name = "dormouse_wake_parked_requests";
    page.family(name, "gauge", "Requests that wait for a sandbox to wake");
    page.line(name, &[], flights.parked());
    let seen = flights.stats();
    let name = "dormouse_wake_flights_total";
    page.family(name, "counter", "Attempts to wake a sandbox for traffic");
    page.line(name, &[], seen.flights());
    let name = "dormouse_wake_requests_total";
    page.family(
        name,
        "counter",
        "Requests that came to a sleeping sandbox by how their wait ended",
    );
    for ending in wake::stats::Ending::ALL {
        page.line(name, &[("ending", ending.label())], seen.ended(ending));
    }
    let name = "dormouse_wake_wait_seconds";
    let help =
        "How long sandboxes took to wake for traffic, by the rung they slept on and for whom";
    page.family(name, "histogram", help);
    for rung in Rung::ALL {
        for whom in Whom::ALL {
            let times = seen.waited(rung, whom);
            let buckets = bounded(times.buckets);
            let labels = [("rung", rung.label()), ("for", whom.label())];
            page.histogram(name, &labels, buckets, Duration::from_micros(times.micros));
        }
    }
}

/// What is counted in each bucket, with its bound.
fn bounded<const N: usize>(counts: [u64; N]) -> impl Iterator<Item = (Option<Duration>, u64)> {
    buckets::bounds::<N>().into_iter().zip(counts)
}

/// What went through a gateway.
pub(crate) fn gateway_lines(page: &mut Page, seen: &gateway::metrics::Snapshot) {
    let name = "dormouse_gateway_requests_total";
    page.family(name, "counter", "Requests to sandboxes by how they ended");
    for outcome in Outcome::ALL {
        page.line(name, &[("outcome", outcome.label())], seen.ended(outcome));
    }
    let name = "dormouse_gateway_wait_seconds";
    page.family(name, "histogram", "How long requests waited, and for whom");
    for whom in Waited::ALL {
        let waits = seen.waited(whom);
        let buckets = bounded(waits.buckets);
        let total = Duration::from_micros(waits.micros);
        page.histogram(name, &[("for", whom.label())], buckets, total);
    }
    for (name, kind, help, value) in [
        (
            "dormouse_gateway_connections",
            "gauge",
            "Connections of clients that are open",
            seen.open,
        ),
        (
            "dormouse_gateway_connections_total",
            "counter",
            "Connections taken from clients",
            seen.accepted,
        ),
        (
            "dormouse_gateway_dials_total",
            "counter",
            "Connections made to sandboxes",
            seen.dials,
        ),
        (
            "dormouse_gateway_reuses_total",
            "counter",
            "Requests that found a kept connection",
            seen.reuses,
        ),
    ] {
        page.family(name, kind, help);
        page.line(name, &[], value);
    }
}

/// What a table of routes holds, and what became of what it was told.
pub(crate) fn route_lines(page: &mut Page, seen: &routes::Stats) {
    for (name, help, value) in [
        (
            "dormouse_routes",
            "Sandboxes that the table of routes knows",
            seen.routes,
        ),
        (
            "dormouse_routes_tombstones",
            "Sandboxes that it knows to be gone",
            seen.tombstones,
        ),
        (
            "dormouse_routes_contested_ids",
            "Ids that more than one sandbox has: a fault",
            seen.contested_ids,
        ),
    ] {
        page.family(name, "gauge", help);
        page.line(name, &[], value);
    }
    let counts = &seen.counts;
    let name = "dormouse_routes_messages_total";
    let help = "What the table was told of sandboxes, by the own watch and by other processes, by what became \
                of it. passed: another process told of a version that the own watch has passed without \
                bringing that";
    page.family(name, "counter", help);
    for (became, count) in [
        ("applied", counts.applied),
        ("older", counts.older),
        ("duplicate", counts.duplicate),
        ("covered", counts.covered),
        ("below_floor", counts.below_floor),
        ("passed", counts.passed),
        ("too_many_tombstones", counts.too_many_tombstones),
        ("no_version", counts.no_version),
        ("no_state", counts.no_state),
        ("incomplete", counts.incomplete),
    ] {
        page.line(name, &[("became", became)], count);
    }
    let name = "dormouse_routes_refuted_total";
    let help = "Routes and deletions that another process told of and the own watch did not bring, so that they \
                were dropped and the store listed again: a fault of that process, or a store that was restored";
    page.family(name, "counter", help);
    page.line(name, &[("what", "route")], counts.refuted);
    page.line(name, &[("what", "deletion")], counts.refuted_deletes);
    for (name, help, count) in [
        (
            "dormouse_routes_conflicts_total",
            "Times that the table was told two things of one version: a fault",
            counts.conflicts,
        ),
        (
            "dormouse_routes_snapshots_total",
            "Times that the table took everything, by an own list or from another process",
            counts.snapshots,
        ),
    ] {
        page.family(name, "counter", help);
        page.line(name, &[], count);
    }
}

/// What was asked of the E2B API.
pub(crate) fn api_lines(page: &mut Page, routes: &[e2b::RouteStats]) {
    let asked = || routes.iter().filter(|r| r.endings.iter().any(|n| *n > 0));
    let name = "dormouse_api_requests_total";
    page.family(name, "counter", "Requests to the E2B API by how they ended");
    for route in asked() {
        for (ending, count) in Ending::ALL.into_iter().zip(route.endings) {
            let labels = [
                ("method", route.method),
                ("path", route.path),
                ("ending", ending.as_str()),
            ];
            page.line(name, &labels, count);
        }
    }
    let name = "dormouse_api_request_seconds";
    page.family(name, "histogram", "How long the E2B API took to answer");
    for route in asked() {
        let labels = [("method", route.method), ("path", route.path)];
        let bounds = BOUNDS
            .iter()
            .map(|micros| Some(Duration::from_micros(*micros)));
        let buckets = bounds.chain([None]).zip(route.took);
        page.histogram(name, &labels, buckets, route.total);
    }
}

/// The page so far.
#[derive(Debug, Default)]
pub(crate) struct Page(String);

impl Page {
    /// As it is sent.
    pub(crate) fn text(self) -> String {
        self.0
    }

    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    pub(crate) fn line(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl std::fmt::Display,
    ) {
        self.0.push_str(name);
        // Labels are words of ours and paths of routes: there is nothing to escape.
        for (at, (label, text)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            let _ = write!(self.0, "{before}{label}=\"{text}\"");
        }
        let after = if labels.is_empty() { "" } else { "}" };
        let _ = writeln!(self.0, "{after} {value}");
    }

    /// Buckets come with their upper bounds, the last without one, each with its own count.
    fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<Duration>, u64)>,
        total: Duration,
    ) {
        let mut below = 0;
        for (bound, count) in buckets {
            below += count;
            let bound = bound.map_or_else(|| "+Inf".to_owned(), |b| b.as_secs_f64().to_string());
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            self.line(&format!("{name}_bucket"), &labels, below);
        }
        self.line(&format!("{name}_sum"), labels, total.as_secs_f64());
        self.line(&format!("{name}_count"), labels, below);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_cumulative_and_end_with_all() {
        let mut page = Page::default();
        let bounds = [
            Some(Duration::from_millis(1)),
            Some(Duration::from_secs(1)),
            None,
        ];
        let buckets = bounds.into_iter().zip([2, 3, 5]);
        page.histogram("t", &[("a", "b")], buckets, Duration::from_millis(1500));
        assert_eq!(
            page.0,
            "t_bucket{a=\"b\",le=\"0.001\"} 2\n\
             t_bucket{a=\"b\",le=\"1\"} 5\n\
             t_bucket{a=\"b\",le=\"+Inf\"} 10\n\
             t_sum{a=\"b\"} 1.5\n\
             t_count{a=\"b\"} 10\n"
        );
    }

    #[test]
    fn what_a_peer_said_falsely_is_on_the_page() {
        let (table, now) = (routes::Table::default(), Duration::ZERO);
        table.replace_all(routes::Snapshot::default(), now);
        let gone = |version| {
            routes::Message::Delete(routes::Deletion {
                namespace: model::Namespace::new("team").unwrap(),
                name: model::Name::new("box").unwrap(),
                version: model::Version::from_u64(version),
            })
        };
        table.apply(routes::Writer::Peer, gone(5), now);
        table.watch_passed(model::Version::from_u64(5), now);
        table.apply(routes::Writer::Peer, gone(4), now);
        table.apply(routes::Writer::Watch, gone(6), now);
        let mut page = Page::default();
        route_lines(&mut page, &table.stats());
        let text = page.text();
        for line in [
            "# TYPE dormouse_routes gauge",
            "dormouse_routes 0",
            "dormouse_routes_tombstones 1",
            "# TYPE dormouse_routes_refuted_total counter",
            "dormouse_routes_refuted_total{what=\"route\"} 0",
            "dormouse_routes_refuted_total{what=\"deletion\"} 1",
            "dormouse_routes_messages_total{became=\"applied\"} 2",
            "dormouse_routes_messages_total{became=\"passed\"} 1",
            "dormouse_routes_snapshots_total 1",
        ] {
            assert!(text.lines().any(|shown| shown == line), "no {line}: {text}");
        }
    }
}
