//! Members of pools that run another image for whoever has them, and go back to the one they idle on.

use serde_json::{Value, json};

use crate::{
    kept::{import, small},
    run::agent,
    sandboxes::{json as parsed, until},
    server::{Server, dormouse, run},
    servers::Registry,
};

const IDLE: &str = "light:1";
const FULL: &str = "full:1";

/// Ends every pool and sandbox of a server, and waits until they are gone: their processes would
/// outlive it.
pub(crate) fn clear(server: &Server) {
    for kind in ["sandboxpools", "sandboxes"] {
        let all = parsed(&server.run(&format!("get {kind} -o json")).ok());
        for one in all["items"].as_array().unwrap() {
            let name = one["metadata"]["name"].as_str().unwrap();
            // One that has gone meanwhile need not be ended.
            server.run(&format!("delete {kind} {name}"));
        }
    }
    until("nothing is left", || {
        let all = parsed(&server.run("get sandboxes -o json").ok());
        all["items"].as_array().unwrap().is_empty().then_some(())
    });
}

struct Swaps {
    registry: Registry,
    server: Server,
}

impl Swaps {
    /// A server with a pool that idles on a light image, and a registry with another one.
    fn start() -> Self {
        agent();
        let registry = Registry::start();
        let elsewhere = tempfile::tempdir().unwrap();
        import(elsewhere.path(), &small(b"other"), "other:1");
        let pushed = format!("{}/other:1", registry.address);
        let mut push = dormouse(elsewhere.path());
        push.args(["image", "push", "other:1", &pushed, "--data-dir", "data"]);
        run(&mut push, "").ok();
        let home = tempfile::tempdir().unwrap();
        import(home.path(), &small(b"light"), IDLE);
        import(home.path(), &small(b"full"), FULL);
        let allowed = format!("{}/", registry.address);
        let flags = ["--runtime", "local", "--e2b-images", &allowed];
        let server = Server::start_with(home, &flags);
        let swaps = Self { registry, server };
        swaps.apply(
            "SandboxTemplate",
            "full",
            &json!({"image": FULL, "user": "user"}),
        );
        swaps.apply(
            "SandboxPool",
            "swapped",
            &json!({
                "template": "full", "minIdle": 1, "maxIdle": 1, "max": 1,
                "idleImages": {"main": IDLE}, "recyclePolicy": "Recycle", "whenEmpty": "Queue",
            }),
        );
        swaps
    }

    fn apply(&self, kind: &str, name: &str, spec: &Value) {
        let text = json!({
            "apiVersion": "dormouse.dev/v1alpha1", "kind": kind,
            "metadata": {"name": name}, "spec": spec,
        });
        self.server.run_with("apply -f -", &text.to_string()).ok();
    }

    /// The only member, once it is idle and was given back so often.
    fn idle(&self, after: u64) -> Value {
        until("the member is idle", || {
            let all = parsed(&self.server.run("get sandboxes -o json").ok());
            let all = all["items"].as_array().unwrap();
            let member = all.first().filter(|_| all.len() == 1)?;
            let status = &member["status"];
            let recycled = status["recycledEpoch"].as_u64().unwrap_or(0);
            (status["phase"] == "Idle" && recycled == after).then(|| member.clone())
        })
    }

    fn content(&self, id: &str) -> String {
        let words = format!("sandbox exec {id} cat /etc/content");
        self.server.run(&words).ok()
    }

    fn kill(&self, id: &str) {
        self.server.run(&format!("sandbox kill {id}")).ok();
    }

    fn with_image(&self, image: &str) -> String {
        format!("sandbox create swapped --metadata dormouse.dev/image={image}")
    }
}

#[test]
fn a_member_runs_what_its_owner_asks_for_and_goes_back_to_the_image_it_idles_on() {
    let swaps = Swaps::start();
    let (server, address) = (&swaps.server, &swaps.registry.address);
    let uid = swaps.idle(0)["metadata"]["uid"].clone();

    // Its template's image, then one that only the registry has, then one by its digest.
    let id = server.run("sandbox create swapped").ok().trim().to_owned();
    assert_eq!(swaps.content(&id), "full");
    swaps.kill(&id);
    assert_eq!(swaps.idle(1)["metadata"]["uid"], uid, "the same member");
    let other = format!("{address}/other:1");
    let id = server.run(&swaps.with_image(&other)).ok().trim().to_owned();
    assert_eq!(swaps.content(&id), "other");
    let records = parsed(&server.run("get sandboxes -o json").ok());
    let spec = &records["items"][0]["spec"];
    let pinned = spec["images"]["main"].as_str().unwrap();
    assert!(
        pinned.starts_with(&format!("{address}/other@sha256:")),
        "{pinned}"
    );
    swaps.kill(&id);
    assert_eq!(swaps.idle(2)["metadata"]["uid"], uid, "the same member");
    let id = server.run(&swaps.with_image(pinned)).ok().trim().to_owned();
    assert_eq!(swaps.content(&id), "other");
    swaps.kill(&id);
    let member = swaps.idle(3);
    assert_eq!(member["metadata"]["uid"], uid, "the same member");
    assert_eq!(
        member["spec"]["images"],
        Value::Null,
        "nothing of its owner's"
    );

    // What is not there, or not theirs to choose, costs nobody anything.
    let missing = format!("{address}/missing:1");
    server.run(&swaps.with_image(&missing)).failed_saying(&[
        "metadata.dormouse.dev/image",
        "has no image",
        "missing:1",
    ]);
    let foreign = swaps.with_image("a.example/private:1");
    server
        .run(&foreign)
        .failed_saying(&["e2b.images", "a.example/private:1"]);
    assert_eq!(swaps.idle(3)["metadata"]["uid"], uid, "the same member");
    let id = server.run("sandbox create swapped").ok().trim().to_owned();
    assert_eq!(swaps.content(&id), "full", "the pool goes on serving");
    swaps.kill(&id);
    clear(&swaps.server);
    swaps.server.stop();
}

#[test]
fn a_declarative_claim_names_its_image_too_and_one_that_is_not_there_takes_nobody() {
    let swaps = Swaps::start();
    let address = &swaps.registry.address;
    swaps.idle(0);
    let missing = format!("{address}/missing:1");
    swaps.apply(
        "SandboxClaim",
        "hopeless",
        &json!({"pool": "swapped", "images": {"main": missing}}),
    );
    let ended = until("the claim ends", || {
        let claim = parsed(&swaps.server.run("get sandboxclaim hopeless -o json").ok());
        (claim["status"]["phase"] == "Completed").then_some(claim)
    });
    let why = ended["status"]["reason"].as_str().unwrap();
    assert!(
        why.contains("spec.images.main") && why.contains("missing:1"),
        "{why}"
    );
    assert_eq!(ended["status"]["bound"], Value::Null);
    swaps.idle(0);
    let other = format!("{address}/other:1");
    swaps.apply(
        "SandboxClaim",
        "other",
        &json!({"pool": "swapped", "images": {"main": other}}),
    );
    let (id, runs) = until("the member is its owner's", || {
        let all = parsed(&swaps.server.run("get sandboxes -o json").ok());
        let member = &all["items"][0];
        let id = member["spec"]["sandboxId"].as_str()?.to_owned();
        let runs = member["status"]["images"]["main"].clone();
        (member["status"]["phase"] == "Running").then_some((id, runs))
    });
    let pinned = format!("{address}/other@sha256:");
    assert!(runs.as_str().unwrap().starts_with(&pinned), "{runs}");
    swaps.kill(&id);
    swaps.idle(1);
    clear(&swaps.server);
    swaps.server.stop();
}
