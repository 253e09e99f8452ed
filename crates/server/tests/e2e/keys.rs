//! Keys as their owners meet them: made once, never shown again, gone when revoked.

use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::server::Server;

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

fn is_key(text: &str) -> bool {
    text.strip_prefix("e2b_").is_some_and(|digits| {
        digits.len() == 40
            && digits
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    })
}

#[test]
fn a_key_is_printed_once_and_the_server_has_only_its_hash() {
    let server = Server::start();
    let made = server.run("key create ci -n blue --user ada --max-running 3 --new-team");
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let key = made.stdout.trim_end();
    assert!(is_key(key), "{key}");
    assert_eq!(made.stdout, format!("{key}\n"), "a shell can take it");
    assert!(made.stderr.contains("shown this once"), "{}", made.stderr);
    assert!(!made.stderr.contains(key), "{}", made.stderr);

    let record = json(&server.run("get apikeys -n blue -o json").ok());
    let spec = &record["items"][0]["spec"];
    let hash: String = Sha256::digest(key)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(spec["hash"], hash);
    assert_eq!(spec["user"], "ada");
    assert_eq!(spec["quotas"]["runningSandboxes"], 3);

    let list = server.run("key ls -n blue").ok();
    let mask = format!("e2b_{}…{}", &key[4..6], &key[40..]);
    for part in ["blue", "ci", "ada", &mask] {
        assert!(list.contains(part), "no {part} in {list}");
    }
    for form in [
        "get apikeys -A",
        "get ak -n blue -o wide",
        "key ls -A",
        "key ls -A --json",
    ] {
        let shown = server.run(form).ok();
        assert!(shown.contains("ci"), "{shown}");
        assert!(!shown.contains(&key[4..]), "{shown}");
        assert!(!shown.contains(&hash), "{shown}");
    }
    let by_kubectl = server.kubectl("get apikeys,teams -n blue").ok();
    assert!(by_kubectl.contains("DISPLAY-NAME"), "{by_kubectl}");
    assert!(!by_kubectl.contains(&hash), "{by_kubectl}");

    server.run("key revoke ci -n blue").ok();
    let none = server.run("key ls -n blue");
    assert_eq!(none.stdout, "");
    assert!(none.stderr.contains("No keys found in team blue"));
    assert!(!server.log().contains(&key[4..]));
    server.stop();
}

#[test]
fn json_has_the_shape_of_the_api() {
    let server = Server::start();
    server.run("key create one -n blue --new-team").ok();
    let made = json(&server.run("key create two -n blue --json").ok());
    assert!(is_key(made["key"].as_str().unwrap()));
    assert_eq!(made["team"], "blue");
    assert_eq!(made["name"], "two");
    assert_eq!(made["mask"]["valueLength"], 40);
    let listed = json(&server.run("key ls -n blue --json").ok());
    let listed = listed.as_array().unwrap();
    assert_eq!(listed.len(), 2);
    let found = listed.iter().find(|key| key["id"] == made["id"]).unwrap();
    assert_eq!(found["mask"], made["mask"]);
    assert_eq!(found["createdAt"], made["createdAt"]);
    assert_eq!(found["key"], Value::Null);
    let id = made["id"].as_str().unwrap();
    let revoked = json(&server.run(&format!("key revoke {id} -n blue --json")).ok());
    assert_eq!(revoked[0]["id"], id);
    server.stop();
}

#[test]
fn what_cannot_be_done_is_said_with_a_remedy() {
    let server = Server::start();
    server
        .run("key create ci -n blue")
        .failed_saying(&["there is no team blue", "--new-team"]);
    server
        .run("key revoke ci -n blue")
        .failed_saying(&["team blue has no key \"ci\"", "dormouse key ls -n blue"]);
    server
        .run("key create ci -n Not_A_Team")
        .failed_saying(&["is not a valid name"]);
    server.run("key create ci -n blue --new-team").ok();
    server.run("key create ci -n blue --new-team").ok();
    // Two of one name: nothing is revoked before all are told apart.
    server
        .run("key revoke ci -n blue")
        .failed_saying(&["2 keys are called \"ci\""]);
    let long = "x".repeat(200);
    server
        .run(&format!("key create {long} -n blue"))
        .failed_saying(&["make a key", "spec.displayName"]);
    assert_eq!(server.run("get ak -n blue -o name").ok().lines().count(), 2);
    server.stop();
}
