//! Whatever is sent, the answer is a refusal in one shape, never a failure of ours.

use axum::body::Body;
use bytes::Bytes;
use http::Request;
use serde_json::json;

use crate::support::{Client, World};

#[tokio::test(start_paused = true)]
async fn unknown_paths_and_methods_have_the_same_shape() {
    let world = World::new().await;
    let client = world.client("a").await;
    for path in [
        "/",
        "/nothing",
        "/v3/sandboxes",
        "/sandboxes/a/b/c",
        "/v2/sandboxes/",
    ] {
        assert_eq!(client.get(path).await.status, 404, "{path}");
    }
    let reply = client
        .send(client.request("PATCH", "/sandboxes", None))
        .await;
    assert_eq!(reply.status, 405);
    let allow = reply.header("allow").unwrap();
    assert!(allow.contains("GET") && allow.contains("POST"), "{allow}");
    let request = client.request("GET", "/nothing", None);
    let (mut parts, body) = request.into_parts();
    parts
        .headers
        .insert("x-request-id", "mine-1".parse().unwrap());
    let reply = client.send(Request::from_parts(parts, body)).await;
    assert_eq!(reply.header("x-request-id"), Some("mine-1"));
}

#[tokio::test(start_paused = true)]
async fn bodies_may_come_in_chunks_but_not_too_large_or_packed() {
    let world = World::new().await;
    let client = world.client("a").await;
    let chunks = ["{\"time", "out\": 60", "}"];
    let stream = futures_util::stream::iter(chunks.map(Ok::<_, std::io::Error>));
    let request = |body: Body| {
        Request::post("/v2/sandboxes")
            .header("x-api-key", &client.key)
            .body(body)
            .unwrap()
    };
    let reply = client.send(request(Body::from_stream(stream))).await;
    assert_eq!(reply.status, 201, "{}", reply.text);
    let large = vec![b' '; (1 << 20) + 1];
    let reply = client.send(request(Body::from(large))).await;
    assert_eq!(reply.status, 413);
    for (encoding, status) in [("identity", 201), ("gzip", 415)] {
        let mut packed = request(Body::from("{}"));
        let encoding = encoding.parse().unwrap();
        packed.headers_mut().insert("content-encoding", encoding);
        assert_eq!(client.send(packed).await.status, status);
    }
    let reply = client
        .get(&format!("/sandboxes/{}", "x".repeat(20_000)))
        .await;
    assert_eq!(reply.status, 414);
    let mut two = request(Body::from("{}"));
    two.headers_mut()
        .append("x-api-key", "other".parse().unwrap());
    assert_eq!(client.send(two).await.status, 401);
}

/// Documents that are wrong somewhere, made from one that is right.
fn broken(entropy: &kit::Entropy) -> Vec<u8> {
    let right = json!({
        "templateID": "base", "timeout": 60, "autoPause": true, "autoResume": {"enabled": true},
        "network": {"allowOut": ["1.1.1.1"], "denyOut": ["0.0.0.0/0"]},
        "metadata": {"a": "b"}, "envVars": {"C": "d"}, "memory": true, "duration": 5, "name": "x",
    });
    let mut text = right.to_string().into_bytes();
    for _ in 0..=entropy.below(4) {
        let at = entropy.below(text.len());
        match entropy.below(6) {
            0 => text.truncate(at),
            1 => text.insert(at, b"{}[]\",:0-\\nt\xff\0"[entropy.below(14)]),
            2 => {
                text.remove(at);
            }
            3 => text[at] = u8::try_from(entropy.below(256)).unwrap(),
            4 => {
                let number = [
                    &b"1e999"[..],
                    b"-0",
                    b"99999999999999999999",
                    b"null",
                    b"[]",
                ];
                text.splice(at..at, number[entropy.below(5)].iter().copied());
            }
            _ => {
                let part: Vec<u8> = text[at..].to_vec();
                text.extend(part);
            }
        }
        if text.is_empty() {
            text.push(b'{');
        }
    }
    text
}

async fn throw(client: &Client, method: &str, path: &str, body: Vec<u8>) {
    let request = Request::builder()
        .method(method)
        .uri(path)
        .header("x-api-key", &client.key)
        .body(Body::from(Bytes::from(body)))
        .unwrap();
    let reply = client.send(request).await;
    assert!(
        reply.status < 500 || reply.status == 501,
        "{method} {path}: {}",
        reply.text
    );
}

#[tokio::test(start_paused = true)]
async fn no_input_makes_the_server_fail() {
    let world = World::new().await;
    let client = world.client("a").await;
    let document = e2b::openapi();
    let entropy = kit::Entropy::seeded(3);
    let id = client.create(json!({})).await;
    let subjects = [
        &*id,
        "x",
        "%2F",
        "%00",
        "%c3%28",
        "a%2Fb%3Ac",
        "i-i-i",
        "..",
        "%F0%9F%92%A9",
    ];
    let queries = [
        "",
        "?",
        "?limit=-1",
        "?start=99999999999999999999",
        "?start=9223372036854775807",
        "?cursor=9223372036854775",
        "?end=253402300799",
        "?sandbox_ids=,,",
        "?metadata=%",
        "?metadata=%3D%3D",
        "?nextToken=%00",
        "?startedAfter=0001-01-01T00:00:00Z",
        "?startedAfter=9999-12-31T23:59:59.999999999Z",
        "?=",
        "?%ff=1",
        "?level=x",
        "?search=%00",
        "?direction=x",
        "?teamID=a",
        "?limit=1&nextToken=AAAA",
    ];
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let method = method.to_uppercase();
            for round in 0..40 {
                let subject = subjects[entropy.below(subjects.len())];
                let mut path = path.clone();
                while let (Some(from), Some(to)) = (path.find('{'), path.find('}')) {
                    path.replace_range(from..=to, subject);
                }
                let query = queries[entropy.below(queries.len())];
                let body = match round % 3 {
                    0 => broken(&entropy),
                    1 => Vec::new(),
                    _ => b"{\"timeout\": 5}".to_vec(),
                };
                throw(&client, &method, &format!("{path}{query}"), body).await;
            }
        }
    }
}
