//! Reading: get and list.

use std::sync::Arc;

use axum::{extract::State, response::Response};
use http::StatusCode;
use model::Version;
use store::{Listing, Query, Record, Scope};

use crate::{
    negotiate::Accept,
    page::Page,
    params::Params,
    place::Place,
    refusal::Refusal,
    render::{ListMeta, Renderer},
    resource_api::Api,
    selector::Selector,
    warnings, watch,
};

/// How many records are read at a time where a selector needs a look at each.
const CHUNK: usize = 512;

pub(crate) async fn get(
    State(api): State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
) -> Result<Response, Refusal> {
    let renderer = Renderer::new(place.served, accept, &params, api.now())?;
    let key = place.key()?;
    if let Some(wanted) = params.version()? {
        ensure_reached(&api, place.served.kind(), wanted).await?;
    }
    match api.store.get(&key).await? {
        Some(record) => {
            let record = warnings::attached(&api, record).await?;
            renderer.object(&record, StatusCode::OK)
        }
        None => Err(Refusal::not_found(place.served.about(key.name.as_str()))),
    }
}

pub(crate) async fn list_or_watch(
    State(api): State<Api>,
    place: Place,
    params: Params,
    accept: Accept,
) -> Result<Response, Refusal> {
    let renderer = Renderer::new(place.served, accept, &params, api.now())?;
    let selector = Selector::new(place.served, place.namespace.clone(), &params)?;
    if params.is_on("watch")? {
        return watch::open(api, place, selector, renderer, &params).await;
    }
    // Of no use to a list, and yet what they must be.
    params.is_on("allowWatchBookmarks")?;
    params.number("timeoutSeconds")?;
    if params.get("sendInitialEvents").is_some() {
        return Err(Refusal::invalid_option(
            "sendInitialEvents",
            "Forbidden: sendInitialEvents is forbidden for list",
        ));
    }
    list(&api, &place, &selector, &renderer, &params).await
}

async fn list(
    api: &Api,
    place: &Place,
    selector: &Selector,
    renderer: &Renderer,
    params: &Params,
) -> Result<Response, Refusal> {
    let limit = params.number("limit")?.filter(|n| *n > 0);
    let limit = limit.map(|n| usize::try_from(n).unwrap_or(usize::MAX));
    let wanted = params.version()?;
    let page = match params.get("continue") {
        Some(token) => {
            if wanted.is_some_and(|v| v != Version::ZERO) {
                return Err(Refusal::bad_field(
                    "resourceVersion",
                    "specifying resource version is not allowed when using continue: leave it out",
                ));
            }
            Some(Page::parse(token, place, params)?)
        }
        None => None,
    };
    let exact = match (params.get("resourceVersionMatch"), wanted, &page) {
        (None, _, _) => false,
        (Some(_), _, Some(_)) => {
            return Err(Refusal::invalid_option(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden for continue",
            ));
        }
        (Some(_), None, None) => {
            return Err(Refusal::invalid_option(
                "resourceVersionMatch",
                "Forbidden: resourceVersionMatch is forbidden unless resourceVersion is provided",
            ));
        }
        (Some("NotOlderThan"), Some(_), None) => false,
        (Some("Exact"), Some(Version::ZERO), None) => {
            return Err(Refusal::invalid_option(
                "resourceVersionMatch",
                "Forbidden: Exact is forbidden for resourceVersion \"0\"",
            ));
        }
        (Some("Exact"), Some(_), None) => true,
        (Some(other), Some(_), None) => {
            return Err(Refusal::invalid_option(
                "resourceVersionMatch",
                format!("{other:?} is not supported: use Exact or NotOlderThan"),
            ));
        }
    };
    if let (Some(page), Some(_)) = (&page, &api.catalogue) {
        // In Kubernetes a list goes on only as long as its version can be watched from.
        let scope = Scope {
            kind: place.served.kind(),
            namespace: place.namespace.clone(),
        };
        drop(api.store.watch(scope, page.version).await?);
    }
    // A list is in memory as records and as text: only so many at a time. Never closed.
    let _turn = api.list_permits.acquire().await.ok();
    let found = find(api, selector, limit, page.as_ref()).await?;
    match wanted {
        Some(wanted) if wanted > found.version => {
            return Err(Refusal::too_new(wanted, found.version));
        }
        // Only the present is kept; any other moment has expired.
        Some(wanted) if exact && wanted != found.version => {
            return Err(Refusal::expired(format!(
                "The resource at version {wanted} is no longer available: list without resourceVersionMatch=Exact"
            )));
        }
        Some(_) | None => {}
    }
    // Every page says the version of the first. Later pages may show later changes already, and a
    // watch from there repeats them; from a later version it would miss those of earlier pages.
    let version = page.as_ref().map_or(found.version, |p| p.version);
    if version.incarnation() != found.version.incarnation() {
        return Err(Page::refuse("the store was restored since the list began"));
    }
    let next = match found.records.last() {
        Some(last) if found.more => Some(Page::after(last, version).to_token(place, params)),
        Some(_) | None => None,
    };
    let meta = ListMeta {
        version: version.to_string(),
        next,
    };
    renderer.list(found.records.iter().map(|r| &**r), &meta)
}

/// The records a selector wants, at most `limit`, after a page. The version is that of the first
/// look, so that a watch from it misses nothing that later looks were too early for.
pub(crate) async fn find(
    api: &Api,
    selector: &Selector,
    limit: Option<usize>,
    page: Option<&Page>,
) -> Result<Listing, Refusal> {
    let mut query = selector.to_query();
    if let (Some(key), None) = (selector.only_key(), page) {
        // As `kubectl wait` asks: one look instead of a scan.
        query.limit = Some(1);
        let version = api.store.list(&query).await?.version;
        let record = api
            .store
            .get(&key)
            .await?
            .filter(|record| selector.matches(record));
        return Ok(Listing {
            records: record.into_iter().collect(),
            version,
            more: false,
        });
    }
    if let Some(page) = page {
        query = Selector::after(query, page.namespace.clone(), page.name.clone());
    }
    let mut found: Vec<Arc<Record>> = Vec::new();
    let mut version = None;
    loop {
        query.limit = limit.map(|limit| {
            let missing = limit - found.len();
            // One more than is missing tells whether there is a next page.
            if selector.is_everything() {
                missing.saturating_add(1)
            } else {
                CHUNK.max(missing.saturating_add(1))
            }
        });
        let listing = api.store.list(&query).await?;
        let version = *version.get_or_insert(listing.version);
        let last = listing.records.last().cloned();
        for record in listing.records {
            if !selector.matches(&record) {
                continue;
            }
            if limit == Some(found.len()) {
                return Ok(Listing {
                    records: found,
                    version,
                    more: true,
                });
            }
            found.push(record);
        }
        match last {
            Some(last) if listing.more => {
                query = Selector::after(query, last.meta.namespace.clone(), last.meta.name.clone());
            }
            Some(_) | None => {
                return Ok(Listing {
                    records: found,
                    version,
                    more: false,
                });
            }
        }
    }
}

/// Refuses to answer from before a version the client has seen.
async fn ensure_reached(api: &Api, kind: model::KindName, wanted: Version) -> Result<(), Refusal> {
    let current = current_version(api, kind).await?;
    if wanted > current {
        Err(Refusal::too_new(wanted, current))
    } else {
        Ok(())
    }
}

/// Where the store is now.
pub(crate) async fn current_version(api: &Api, kind: model::KindName) -> Result<Version, Refusal> {
    let mut query = Query::kind(kind);
    query.limit = Some(1);
    Ok(api.store.list(&query).await?.version)
}
