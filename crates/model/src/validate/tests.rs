//! Tables over the rules.

use serde_json::{Value, json};

use crate::{
    Metadata, Name, Namespace, SandboxId, Timestamp,
    kinds::{self, Checked, Minting, Omission, Stored},
};

fn minting() -> Minting {
    Minting {
        now: Timestamp::from_micros(1_000_000),
        sandbox_id: SandboxId::from_random(7),
    }
}

fn metadata(kind: &str) -> Metadata {
    let namespaced = kinds::find(kind).unwrap().scope == kinds::Scope::Namespaced;
    let team = namespaced.then(|| Namespace::new("team").unwrap());
    Metadata::new(team, Name::new("it").unwrap())
}

fn new(kind: &str, spec: &Value) -> Checked {
    kinds::find(kind)
        .unwrap()
        .check_new(metadata(kind), &spec.to_string(), &minting())
        .unwrap()
}

fn change(kind: &str, old: &Checked, spec: &Value, omission: Omission) -> Checked {
    let stored = Stored {
        metadata: &old.metadata,
        spec: &old.spec,
        status: &old.status,
    };
    kinds::find(kind)
        .unwrap()
        .check_replacement(stored, old.metadata.clone(), &spec.to_string(), omission)
        .unwrap()
}

fn fields(checked: &Checked) -> Vec<&str> {
    checked.problems.iter().map(|p| p.field.as_str()).collect()
}

#[test]
fn each_rule_names_its_field() {
    let pool = |min: u32, max_idle: u32, max: u32| json!({"template": "t", "minIdle": min, "maxIdle": max_idle, "max": max});
    let follows = |autoscale: Value| json!({"template": "t", "minIdle": 1, "maxIdle": 2, "max": 5, "autoscale": autoscale});
    let scheduled = |cron: &str, zone: &str, seconds: u32, min_idle: u32| {
        follows(
            json!({"schedules": [{"cron": cron, "timeZone": zone, "durationSeconds": seconds, "minIdle": min_idle}]}),
        )
    };
    let key = |hash: &str, mask: Value| json!({"displayName": "ci", "hash": hash, "mask": mask});
    let hash = "0123456789abcdef".repeat(4);
    let long = "x".repeat(300 << 10);
    let table = [
        (
            "Sandbox",
            json!({"wakeOnTraffic": true}),
            "spec.wakeOnTraffic",
        ),
        (
            "Sandbox",
            json!({"timeouts": {"idleSeconds": 0}}),
            "spec.timeouts.idleSeconds",
        ),
        (
            "Sandbox",
            json!({"timeouts": {"idleSeconds": 4_000_000_000u32}}),
            "spec.timeouts.idleSeconds",
        ),
        (
            "Sandbox",
            json!({"timeouts": {"idleAction": "Release"}}),
            "spec.timeouts.idleAction",
        ),
        (
            "Sandbox",
            json!({"resources": {"cpuMillis": 0}}),
            "spec.resources.cpuMillis",
        ),
        (
            "Sandbox",
            json!({"resources": {"memoryMiB": 4_000_000_000u32}}),
            "spec.resources.memoryMiB",
        ),
        (
            "Sandbox",
            json!({"images": {"main": "Not An Image"}}),
            "spec.images.main",
        ),
        (
            "Sandbox",
            json!({"images": {"Main": "alpine"}}),
            "spec.images.Main",
        ),
        ("Sandbox", json!({"env": {"A=B": "1"}}), "spec.env.A=B"),
        ("Sandbox", json!({"env": {"": "1"}}), "spec.env."),
        ("Sandbox", json!({"env": {"A": long}}), "spec.env.A"),
        ("Sandbox", json!({"metadata": {"a": long}}), "spec.metadata"),
        (
            "Sandbox",
            json!({"owner": {"team": "other"}}),
            "spec.owner.team",
        ),
        (
            "Sandbox",
            json!({"network": {"allowOut": ["10.0.0.0/8", "no such"]}}),
            "spec.network.allowOut[1]",
        ),
        (
            "Sandbox",
            json!({"network": {"denyOut": ["example.com"]}}),
            "spec.network.denyOut[0]",
        ),
        (
            "Sandbox",
            json!({"network": {"maskRequestHost": "local host"}}),
            "spec.network.maskRequestHost",
        ),
        (
            "Sandbox",
            json!({"network": {"maskRequestHost": "${PORT}".repeat(100)}}),
            "spec.network.maskRequestHost",
        ),
        (
            "SandboxPool",
            scheduled(
                &format!("0 {} * * *", "8,".repeat(200) + "9"),
                "UTC",
                3600,
                1,
            ),
            "spec.autoscale.schedules[0].cron",
        ),
        (
            "Sandbox",
            json!({"pausePolicy": {"snapshotType": "Rootfs", "descendAfter": 5}}),
            "spec.pausePolicy.descendAfter",
        ),
        (
            "Sandbox",
            json!({"pausePolicy": {"snapshotRegistry": "https://x"}}),
            "spec.pausePolicy.snapshotRegistry",
        ),
        (
            "Sandbox",
            json!({"timeouts": {"pausedRetentionSeconds": 0}}),
            "spec.timeouts.pausedRetentionSeconds",
        ),
        (
            "SandboxTemplate",
            json!({"image": "base", "aliases": ["node", "Node"]}),
            "spec.aliases[1]",
        ),
        (
            "SandboxTemplate",
            json!({"image": "base", "aliases": ["node", "node:default"]}),
            "spec.aliases[1]",
        ),
        ("SandboxPool", pool(3, 2, 5), "spec.minIdle"),
        ("SandboxPool", pool(1, 6, 5), "spec.maxIdle"),
        ("SandboxPool", pool(0, 0, 1_000_000), "spec.max"),
        (
            "SandboxPool",
            follows(json!({"upCooldownSeconds": 0})),
            "spec.autoscale.upCooldownSeconds",
        ),
        (
            "SandboxPool",
            follows(json!({"claimRate": {"windowSeconds": 0}})),
            "spec.autoscale.claimRate.windowSeconds",
        ),
        (
            "SandboxPool",
            scheduled("every day", "UTC", 3600, 1),
            "spec.autoscale.schedules[0].cron",
        ),
        (
            "SandboxPool",
            scheduled("0 8 * * *", "Nowhere", 3600, 1),
            "spec.autoscale.schedules[0].timeZone",
        ),
        (
            "SandboxPool",
            scheduled("0 8 * * *", "UTC", 1, 1),
            "spec.autoscale.schedules[0].durationSeconds",
        ),
        (
            "SandboxPool",
            scheduled("0 8 * * *", "UTC", 3600, 3),
            "spec.autoscale.schedules[0].minIdle",
        ),
        (
            "SandboxClaim",
            json!({"pool": "p", "count": 0}),
            "spec.count",
        ),
        (
            "SandboxClaim",
            json!({"pool": "p", "count": 1001}),
            "spec.count",
        ),
        (
            "SandboxClaim",
            json!({"pool": "p", "timeoutSeconds": 0}),
            "spec.timeoutSeconds",
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "s", "registry": ""}),
            "spec.registry",
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "s", "alias": "My App"}),
            "spec.alias",
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "s", "alias": "a:"}),
            "spec.alias",
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "s", "expireAfterSeconds": 0}),
            "spec.expireAfterSeconds",
        ),
        (
            "Sandbox",
            json!({"snapshot": "s", "pool": "p"}),
            "spec.snapshot",
        ),
        (
            "Sandbox",
            json!({"snapshot": "s", "images": {"main": "a:1"}}),
            "spec.images",
        ),
        ("SandboxTemplate", json!({"image": ""}), "spec.image"),
        (
            "SandboxTemplate",
            json!({"image": "a", "workdir": "relative"}),
            "spec.workdir",
        ),
        (
            "SandboxTemplate",
            json!({"image": "a", "user": "a b"}),
            "spec.user",
        ),
        (
            "SandboxTemplate",
            json!({"image": "a", "startCommand": ["", "x"]}),
            "spec.startCommand[0]",
        ),
        (
            "SandboxTemplate",
            json!({"image": "a", "readyCommand": ["true", "a\0b"]}),
            "spec.readyCommand[1]",
        ),
        (
            "SandboxTemplate",
            json!({"image": "a", "teams": ["a", "a"]}),
            "spec.teams[1]",
        ),
        ("Team", json!({"displayName": " "}), "spec.displayName"),
        ("Team", json!({"displayName": "a\nb"}), "spec.displayName"),
        (
            "Team",
            json!({"quotas": {"sandboxes": 4_000_000_000u32}}),
            "spec.quotas.sandboxes",
        ),
        (
            "Team",
            json!({"quotas": {"memoryMiB": u64::MAX}}),
            "spec.quotas.memoryMiB",
        ),
        (
            "Team",
            json!({"limits": {"maxTimeoutSeconds": 0}}),
            "spec.limits.maxTimeoutSeconds",
        ),
        (
            "ApiKey",
            json!({"displayName": "", "hash": hash}),
            "spec.displayName",
        ),
        (
            "ApiKey",
            json!({"displayName": "ci", "hash": hash, "user": ""}),
            "spec.user",
        ),
        ("ApiKey", key("", json!({})), "spec.hash"),
        ("ApiKey", key(&hash.to_uppercase(), json!({})), "spec.hash"),
        // The key itself in place of its hash.
        (
            "ApiKey",
            key(&format!("e2b_{}", &hash[..40]), json!({})),
            "spec.hash",
        ),
        (
            "ApiKey",
            key(&hash, json!({"first": "012"})),
            "spec.mask.first",
        ),
        (
            "ApiKey",
            key(&hash, json!({"last": "01234"})),
            "spec.mask.last",
        ),
        (
            "ApiKey",
            key(&hash, json!({"last": "xyz"})),
            "spec.mask.last",
        ),
    ];
    for (kind, spec, field) in table {
        let checked = new(kind, &spec);
        assert!(
            fields(&checked).contains(&field),
            "{kind} {field}: {:?}",
            checked.problems
        );
        for problem in &checked.problems {
            assert!(
                !problem.reason.is_empty() && !problem.remedy.is_empty(),
                "{problem}"
            );
        }
    }
}

#[test]
fn the_smallest_and_the_usual_objects_pass() {
    let table = [
        ("Sandbox", json!({})),
        (
            "Sandbox",
            json!({"pool": "p", "timeouts": {"idleAction": "Release", "idleSeconds": 60}}),
        ),
        (
            "Sandbox",
            json!({"wakeOnTraffic": true, "timeouts": {"onTimeout": "Pause"}, "network": {"allowOut": ["*.example.com", "::1"]}}),
        ),
        (
            "SandboxPool",
            json!({"template": "t", "minIdle": 1, "maxIdle": 1, "max": 1}),
        ),
        (
            "SandboxPool",
            json!({"template": "t", "minIdle": 1, "maxIdle": 9, "max": 9, "autoscale": {"schedules": [
                {"cron": "*/30 8-18 * * 1-5", "timeZone": "Europe/Berlin", "durationSeconds": 1800, "minIdle": 9},
            ]}}),
        ),
        ("SandboxClaim", json!({"pool": "p"})),
        (
            "SandboxSnapshot",
            json!({"sandbox": "s", "registry": "localhost:5000/snapshots"}),
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "s", "sandboxId": "i1", "alias": "my_app-1:v1.2", "expireAfterSeconds": 60}),
        ),
        ("Sandbox", json!({"snapshot": "s"})),
        (
            "SandboxTemplate",
            json!({"image": "ghcr.io/a/b:1", "user": "1000:1000", "workdir": "/home/user"}),
        ),
        ("Team", json!({})),
        (
            "Team",
            json!({"displayName": "Blue", "quotas": {"sandboxes": 0, "memoryMiB": 1024}, "limits": {"maxTimeoutSeconds": 3600}}),
        ),
        (
            "ApiKey",
            json!({"displayName": "ci", "hash": "a".repeat(64), "mask": {"first": "ab", "last": "cdef"}, "user": "ada"}),
        ),
    ];
    for (kind, spec) in table {
        let checked = new(kind, &spec);
        assert_eq!(checked.problems, [], "{kind}");
        assert_eq!(checked.unknown, [""; 0], "{kind}");
    }
}

#[test]
fn a_sandbox_of_its_own_gets_an_id_and_an_owner_but_a_pool_member_waits_for_its_claim() {
    let own: Value = serde_json::from_str(&new("Sandbox", &json!({})).spec).unwrap();
    assert_eq!(own["sandboxId"], SandboxId::from_random(7).as_str());
    assert_eq!(own["owner"]["team"], "team");
    assert_eq!(own["epoch"], 1);
    assert_eq!(own["claimedAt"], "1970-01-01T00:00:01.000000Z");
    assert_eq!(
        new("Sandbox", &json!({"pool": "p"})).spec,
        r#"{"pool":"p"}"#
    );
}

#[test]
fn what_is_for_life_cannot_be_changed() {
    let id =
        |id: &str, epoch: u32| json!({"sandboxId": id, "epoch": epoch, "owner": {"team": "team"}});
    let key = |name: &str, digit: &str| json!({"displayName": name, "hash": digit.repeat(64)});
    let table = [
        (
            "Sandbox",
            json!({"template": "a"}),
            json!({"template": "b"}),
            Some("spec.template"),
        ),
        (
            "Sandbox",
            json!({"pool": "a"}),
            json!({}),
            Some("spec.pool"),
        ),
        (
            "Sandbox",
            json!({"pool": "a", "idleImages": {"main": "a"}}),
            json!({"pool": "a", "idleImages": {"main": "b"}}),
            Some("spec.idleImages"),
        ),
        (
            "Sandbox",
            json!({"pool": "a"}),
            json!({"pool": "a", "idleImages": {"main": "b"}}),
            Some("spec.idleImages"),
        ),
        (
            "Sandbox",
            json!({"pool": "a", "idleImages": {"main": "a"}}),
            json!({"pool": "a"}),
            None,
        ),
        ("Sandbox", id("a", 2), id("b", 2), Some("spec.sandboxId")),
        ("Sandbox", id("a", 2), id("a", 3), Some("spec.epoch")),
        ("Sandbox", id("a", 2), id("a", 1), Some("spec.epoch")),
        (
            "SandboxClaim",
            json!({"pool": "a"}),
            json!({"pool": "b"}),
            Some("spec.pool"),
        ),
        (
            "SandboxClaim",
            json!({"pool": "a"}),
            json!({"pool": "a", "count": 2}),
            Some("spec.count"),
        ),
        (
            "SandboxClaim",
            json!({"pool": "a"}),
            json!({"pool": "a", "keepSeconds": 2}),
            None,
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "a"}),
            json!({"sandbox": "b"}),
            Some("spec.sandbox"),
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "a", "alias": "x"}),
            json!({"sandbox": "a", "alias": "y:default"}),
            Some("spec.alias"),
        ),
        (
            "SandboxSnapshot",
            json!({"sandbox": "a", "alias": "x"}),
            json!({"sandbox": "a", "alias": "x:default"}),
            None,
        ),
        (
            "Sandbox",
            json!({"snapshot": "a"}),
            json!({"snapshot": "b"}),
            Some("spec.snapshot"),
        ),
        (
            "SandboxTemplate",
            json!({"image": "a"}),
            json!({"image": "b"}),
            None,
        ),
        ("ApiKey", key("a", "0"), key("b", "0"), None),
        ("ApiKey", key("a", "0"), key("a", "1"), Some("spec.hash")),
    ];
    for (kind, old, next, field) in table {
        let old = new(kind, &old);
        let changed = change(kind, &old, &next, Omission::Keep);
        assert_eq!(fields(&changed), Vec::from_iter(field), "{kind} {next}");
    }
}

#[test]
fn a_manifest_that_does_not_mention_what_the_server_minted_leaves_it_alone() {
    let old = new("Sandbox", &json!({"env": {"A": "1"}}));
    let replaced = change("Sandbox", &old, &json!({"env": {"A": "2"}}), Omission::Keep);
    assert_eq!(replaced.problems, []);
    assert_eq!(replaced.spec, old.spec.replace("\"1\"", "\"2\""));
    // A patch that takes them away means it.
    let patched = change(
        "Sandbox",
        &old,
        &json!({"env": {"A": "2"}, "epoch": 1}),
        Omission::Remove,
    );
    assert_eq!(fields(&patched), ["spec.owner", "spec.sandboxId"]);
}

#[test]
fn the_servers_own_metadata_is_carried_and_cannot_be_changed() {
    let info = kinds::find("Sandbox").unwrap();
    let mut old = new("Sandbox", &json!({}));
    old.metadata.labels.insert("dormouse.dev/pool", "p");
    old.metadata.finalizers.push("dormouse.dev/workload".into());
    let stored = Stored {
        metadata: &old.metadata,
        spec: &old.spec,
        status: &old.status,
    };
    let replace = |metadata: Metadata, omission| {
        info.check_replacement(stored, metadata, &old.spec, omission)
            .unwrap()
    };

    let kept = replace(metadata("Sandbox"), Omission::Keep);
    assert_eq!(kept.problems, []);
    assert_eq!(kept.metadata.labels, old.metadata.labels);
    assert_eq!(kept.metadata.finalizers, old.metadata.finalizers);

    let removed = replace(metadata("Sandbox"), Omission::Remove);
    assert_eq!(
        fields(&removed),
        ["metadata.labels.dormouse.dev/pool", "metadata.finalizers"]
    );

    let mut other = old.metadata.clone();
    other.labels.insert("dormouse.dev/pool", "q");
    other.annotations.insert("dormouse.dev/x", "y");
    other.finalizers.push("dormouse.dev/y".into());
    other.finalizers.push("nodomain".into());
    other.finalizers.push("example.com/a".into());
    other.finalizers.push("example.com/a".into());
    assert_eq!(
        fields(&replace(other, Omission::Keep)),
        [
            "metadata.labels.dormouse.dev/pool",
            "metadata.annotations.dormouse.dev/x",
            "metadata.finalizers[1]",
            "metadata.finalizers[2]",
            "metadata.finalizers[4]",
        ]
    );
}

#[test]
fn unknown_fields_are_named_and_left_out_unless_a_newer_version_stored_them() {
    let info = kinds::find("Sandbox").unwrap();
    let fresh = new(
        "Sandbox",
        &json!({"colour": "red", "timeouts": {"soon": 1}, "pool": "p"}),
    );
    assert_eq!(fresh.unknown, ["spec.colour", "spec.timeouts.soon"]);
    assert_eq!(fresh.spec, r#"{"pool":"p"}"#);

    let metadata = metadata("Sandbox");
    let stored = Stored {
        metadata: &metadata,
        spec: r#"{"colour":"red","pool":"p"}"#,
        status: "{}",
    };
    let sent = r#"{"colour":"blue","pool":"p","taste":"sweet"}"#;
    let changed = info
        .check_replacement(stored, metadata.clone(), sent, Omission::Remove)
        .unwrap();
    assert_eq!(changed.unknown, ["spec.taste"]);
    assert_eq!(changed.spec, r#"{"colour":"blue","pool":"p"}"#);
}

#[test]
fn an_old_sin_does_not_stand_in_the_way_of_an_unrelated_change() {
    let info = kinds::find("Sandbox").unwrap();
    let metadata = metadata("Sandbox");
    let stored = Stored {
        metadata: &metadata,
        spec: r#"{"pool":"p","wakeOnTraffic":true}"#,
        status: "{}",
    };
    let change = |spec: &str| {
        let checked = info.check_replacement(stored, metadata.clone(), spec, Omission::Remove);
        checked.unwrap().problems
    };
    assert_eq!(
        change(r#"{"pool":"p","wakeOnTraffic":true,"env":{"A":"1"}}"#),
        []
    );
    assert_eq!(
        change(r#"{"pool":"p","wakeOnTraffic":true,"env":{"":"1"}}"#).len(),
        1
    );
}

#[test]
fn whose_json_does_not_fit_is_told_apart() {
    let info = kinds::find("Sandbox").unwrap();
    let metadata = metadata("Sandbox");
    let good = Stored {
        metadata: &metadata,
        spec: "{}",
        status: "{}",
    };
    let bad = Stored {
        spec: r#"{"env":1}"#,
        ..good
    };
    let change =
        |stored, spec| info.check_replacement(stored, metadata.clone(), spec, Omission::Keep);
    assert!(matches!(
        change(good, r#"{"env":1}"#),
        Err(kinds::Misfit::Sent(_))
    ));
    assert!(matches!(change(bad, "{}"), Err(kinds::Misfit::Stored(_))));
    assert!(matches!(
        info.check_status(bad, "{}"),
        Err(kinds::Misfit::Stored(_))
    ));
    assert!(matches!(
        info.check_status(good, r#"{"phase":1}"#),
        Err(kinds::Misfit::Sent(_))
    ));
}
