//! Lists: filters, order, and pages while sandboxes come and go.

use std::{collections::BTreeSet, time::Duration};

use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::support::{Client, World};

fn ids(page: &Value) -> Vec<String> {
    let items = page.as_array().unwrap().iter();
    items
        .map(|s| s["sandboxID"].as_str().unwrap().to_owned())
        .collect()
}

/// As the SDKs encode a filter: each part, then the form, then the query.
fn encoded(pairs: &[(&str, &str)]) -> String {
    let quote = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let form: Vec<_> = pairs
        .iter()
        .map(|(k, v)| format!("{}={}", quote(&quote(k)), quote(&quote(v))))
        .collect();
    quote(&form.join("&"))
}

#[tokio::test(start_paused = true)]
async fn lists_filter_by_state_metadata_template_and_start() {
    let world = World::new().await;
    let client = world.client("a").await;
    let mut made = Vec::new();
    for n in 0..4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let metadata = json!({"n": n.to_string(), "odd": (n % 2).to_string(), "ü &=": "%20"});
        made.push(client.create(json!({"metadata": metadata})).await);
    }
    client.pause(&made[1]).await;
    client.pause(&made[2]).await;
    let list = async |query: &str| {
        let reply = client.get(&format!("/v2/sandboxes{query}")).await;
        assert_eq!(reply.status, 200, "{query}: {}", reply.text);
        assert_eq!(reply.header("x-total-running"), Some("2"));
        ids(&reply.body)
    };
    let pick = |at: &[usize]| -> Vec<String> { at.iter().map(|n| made[*n].clone()).collect() };
    assert_eq!(list("").await, pick(&[3, 2, 1, 0]));
    assert_eq!(list("?order=asc").await, pick(&[0, 1, 2, 3]));
    assert_eq!(list("?state=running").await, pick(&[3, 0]));
    assert_eq!(list("?state=paused&order=asc").await, pick(&[1, 2]));
    assert_eq!(list("?state=running,paused").await.len(), 4);
    assert_eq!(list("?state=running&state=paused").await.len(), 4);
    let odd = encoded(&[("odd", "1"), ("ü &=", "%20")]);
    assert_eq!(list(&format!("?metadata={odd}")).await, pick(&[3, 1]));
    let none = encoded(&[("odd", "1"), ("n", "0")]);
    assert!(list(&format!("?metadata={none}")).await.is_empty());
    assert_eq!(list("?template=base").await.len(), 4);
    assert!(list("?template=other").await.is_empty());
    let started = client.detail(&made[2]).await["startedAt"]
        .as_str()
        .unwrap()
        .to_owned();
    // To the microsecond, the moment itself included.
    assert_eq!(
        list(&format!("?startedAfter={started}")).await,
        pick(&[3, 2])
    );
    let nanos = started.replace('Z', "999Z");
    assert_eq!(list(&format!("?startedAfter={nanos}")).await, pick(&[3, 2]));
    let first = client.get(&format!("/sandboxes?metadata={odd}")).await;
    assert_eq!(
        ids(&first.body),
        pick(&[3]),
        "the first version lists what runs"
    );
    for bad in [
        "?state=asleep",
        "?order=up",
        "?limit=0",
        "?limit=101",
        "?limit=x",
        "?startedAfter=yesterday",
        "?template=base:v1",
        "?nextToken=x",
        "?surprise=1",
        "?limit=1&limit=2",
        "?metadata=%2525ff%3D1",
    ] {
        let reply = client.get(&format!("/v2/sandboxes{bad}")).await;
        assert_eq!(reply.status, 400, "{bad}");
        let field = bad[1..].split('=').next().unwrap();
        assert!(reply.message().contains(field), "{bad}: {}", reply.text);
    }
}

/// All pages, and what happens in between.
async fn pages(client: &Client, order: &str, mut between: impl AsyncFnMut(usize)) -> Vec<String> {
    let mut all = Vec::new();
    let mut token = None::<String>;
    for page in 0.. {
        let next = token.map(|t| format!("&nextToken={t}")).unwrap_or_default();
        let path = format!("/v2/sandboxes?limit=3&order={order}{next}");
        let reply = client.get(&path).await;
        assert_eq!(reply.status, 200, "{}", reply.text);
        all.extend(ids(&reply.body));
        token = reply.header("x-next-token").map(ToOwned::to_owned);
        if token.is_none() {
            break;
        }
        between(page).await;
    }
    all
}

#[tokio::test(start_paused = true)]
async fn pages_neither_skip_nor_repeat_what_is_there_all_the_time() {
    for seed in 0..8 {
        let world = World::new().await;
        let client = world.client("a").await;
        let entropy = kit::Entropy::seeded(seed);
        let mut stay = BTreeSet::new();
        let mut go = Vec::new();
        for n in 0..20 {
            // Many at the same moment: only their ids tell them apart.
            if entropy.chance(0.5) {
                tokio::time::sleep(Duration::from_micros(1)).await;
            }
            let id = client.create(json!({})).await;
            if n % 3 == 0 {
                go.push(id);
            } else {
                stay.insert(id);
            }
        }
        let mut changing: Vec<String> = stay.iter().cloned().collect();
        for order in ["asc", "desc"] {
            let seen = pages(&client, order, async |_| {
                match entropy.below(4) {
                    0 => {
                        if let Some(id) = go.pop() {
                            client.delete(&format!("/sandboxes/{id}")).await;
                        }
                    }
                    1 => {
                        client.create(json!({})).await;
                    }
                    2 => {
                        // Its state changes, not its place.
                        if let Some(id) = changing.pop() {
                            client.pause(&id).await;
                        }
                    }
                    _ => {
                        let connect = |id| format!("/v2/sandboxes/{id}/connect");
                        if let Some(id) = stay.first() {
                            client.post(&connect(id), json!({})).await;
                        }
                    }
                }
            })
            .await;
            let once: BTreeSet<_> = seen.iter().cloned().collect();
            assert_eq!(
                once.len(),
                seen.len(),
                "seed {seed}, {order}: one was there twice"
            );
            assert!(
                stay.is_subset(&once),
                "seed {seed}, {order}: one was skipped"
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_token_of_one_order_is_refused_in_the_other() {
    let world = World::new().await;
    let client = world.client("a").await;
    for _ in 0..3 {
        client.create(json!({})).await;
    }
    let reply = client.get("/v2/sandboxes?limit=1").await;
    let token = reply.header("x-next-token").unwrap();
    let path = format!("/v2/sandboxes?order=asc&nextToken={token}");
    assert_eq!(client.get(&path).await.status, 400);
}
