//! What real sandboxes use, as the API and `dormouse top` show it.

use std::{
    process::{Command, Stdio},
    thread,
    time::Duration,
};

use serde_json::Value;

use crate::{
    sandboxes::{json, start, until},
    server::{Server, run},
};

/// What the API measured of a sandbox.
fn measured(server: &Server, id: &str) -> Vec<Value> {
    let url = format!("{}/sandboxes/{id}/metrics", server.exported("E2B_API_URL"));
    let key = format!("X-API-KEY: {}", server.exported("E2B_API_KEY"));
    let mut curl = Command::new("curl");
    let text = run(
        curl.args(["--silent", "--fail", "--header", &key, &url]),
        "",
    )
    .ok();
    json(&text).as_array().unwrap().clone()
}

/// When it was looked at last.
fn newest(server: &Server, id: &str) -> Option<String> {
    let times = measured(server, id).into_iter();
    times
        .map(|sample| sample["timestamp"].as_str().unwrap().to_owned())
        .max()
}

#[test]
fn a_busy_sandbox_is_seen_as_busy_and_one_asleep_is_not_looked_at() {
    let server = start();
    let id = server.sandbox();
    let work = "head -c 5000000 /dev/zero >file; while :; do :; done";
    let mut busy = server
        .program(&["sandbox", "exec", &id, "sh", "-c", work])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let sample = until("a busy sandbox", || {
        let busy = |sample: &Value| sample["cpuUsedPct"].as_f64().unwrap() > 50.0;
        measured(&server, &id).into_iter().find(busy)
    });
    let bytes = |name: &str| sample[name].as_u64().unwrap();
    assert!(bytes("memUsed") > 0 && bytes("memUsed") < bytes("memTotal"));
    assert!(bytes("diskTotal") > 0, "{sample}");

    let top = json(&server.run("top --json").ok());
    assert_eq!(top[0]["sandboxID"], id);
    assert!(top[0]["metrics"]["cpuUsedPct"].is_number(), "{top}");
    assert!(server.run("top").ok().contains(&id));

    server.run(&format!("sandbox pause {id}")).ok();
    // A look that was under way may still land, and is the last.
    let is_left_alone = (0..3).any(|_| {
        let then = newest(&server, &id);
        thread::sleep(Duration::from_secs(3));
        newest(&server, &id) == then
    });
    assert!(is_left_alone, "it is looked at while it sleeps");
    server.run(&format!("sandbox kill {id}")).ok();
    busy.wait().unwrap();
    server.stop();
}
