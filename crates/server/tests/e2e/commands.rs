//! Our own commands, round trip.

use serde_json::Value;

use crate::server::{FIVE, Server, sandbox};

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

#[test]
fn all_five_kinds_go_in_and_come_out_in_every_form() {
    let server = Server::start();
    let applied = server.run_with("apply -f -", FIVE).ok();
    let lines: Vec<&str> = applied.lines().collect();
    assert_eq!(
        lines,
        [
            "sandboxtemplate.dormouse.dev/base created",
            "sandboxpool.dormouse.dev/warm created",
            "sandbox.dormouse.dev/one created",
            "sandboxclaim.dormouse.dev/mine created",
            "sandboxsnapshot.dormouse.dev/kept created",
        ]
    );
    for (words, name) in [
        (["sandboxes", "sandbox", "sbx"], "one"),
        (["sandboxpools", "sandboxpool", "sbp"], "warm"),
        (["sandboxclaims", "sandboxclaim", "sbc"], "mine"),
        (["sandboxsnapshots", "sandboxsnapshot", "sbs"], "kept"),
        (["sandboxtemplates", "sandboxtemplate", "sbt"], "base"),
    ] {
        for word in words {
            let table = server.run(&format!("get {word}")).ok();
            assert!(
                table.starts_with("NAME ") && table.contains(name),
                "{table}"
            );
        }
        let word = words[0];
        let wide = server.run(&format!("get {word} -o wide")).ok();
        assert!(wide.len() >= server.run(&format!("get {word}")).ok().len());
        let yaml = server.run(&format!("get {word} {name} -o yaml")).ok();
        assert!(
            yaml.contains("apiVersion: dormouse.dev/v1alpha1\n"),
            "{yaml}"
        );
        // What comes out can go in again.
        let again = server.run_with("apply -f -", &yaml).ok();
        assert!(
            again.ends_with(" configured\n") || again.ends_with(" unchanged\n"),
            "{again}"
        );
        let one = json(&server.run(&format!("get {word} {name} -o json")).ok());
        assert_eq!(one["metadata"]["name"], name);
        let list = json(&server.run(&format!("get {word} -o json")).ok());
        assert_eq!(list["items"].as_array().unwrap().len(), 1);
        let described = server.run(&format!("describe {word} {name}")).ok();
        for part in ["Name:", name, "Spec:", "Status:", "Conditions:", "Events:"] {
            assert!(described.contains(part), "no {part} in {described}");
        }
    }
    assert_eq!(
        json(&server.run("get sbx one -o json").ok())["spec"]["env"]["GREETING"],
        "yes"
    );
    server.stop();
}

#[test]
fn apply_creates_changes_removes_and_leaves_alone() {
    let server = Server::start();
    let first = format!("{}  env: {{A: \"1\", B: \"2\"}}\n", sandbox("one"));
    let second = format!(
        "{}  env: {{A: \"9\"}}\n  desiredState: Paused\n",
        sandbox("one")
    );
    let apply = |text: &str| server.run_with("apply -f -", text).ok();
    let spec = || json(&server.run("get sbx one -o json").ok())["spec"].clone();

    let dry = server.run_with("apply -f - --dry-run", &first).ok();
    assert_eq!(dry, "sandbox.dormouse.dev/one created (dry run)\n");
    server
        .run("get sbx one")
        .failed_saying(&["\"one\" not found"]);

    assert_eq!(apply(&first), "sandbox.dormouse.dev/one created\n");
    assert_eq!(apply(&first), "sandbox.dormouse.dev/one unchanged\n");
    // Somebody else sets a field, which the file never mentions.
    server
        .kubectl("patch sbx one --type=merge -p {\"spec\":{\"metadata\":{\"who\":\"else\"}}}")
        .ok();
    assert_eq!(apply(&first), "sandbox.dormouse.dev/one unchanged\n");
    let dry = server.run_with("apply -f - --dry-run", &second).ok();
    assert_eq!(dry, "sandbox.dormouse.dev/one configured (dry run)\n");
    assert_eq!(spec()["env"]["A"], "1");

    assert_eq!(apply(&second), "sandbox.dormouse.dev/one configured\n");
    let after = spec();
    assert_eq!(
        after["env"],
        serde_json::json!({"A": "9"}),
        "B was ours and is gone"
    );
    assert_eq!(after["desiredState"], "Paused");
    assert_eq!(after["metadata"]["who"], "else");

    // kubectl sees its own kind of apply, and the other way round.
    server.write("second.yaml", &second);
    let by_kubectl = server.kubectl("apply -f second.yaml").ok();
    assert_eq!(by_kubectl, "sandbox.dormouse.dev/one unchanged\n");
    server.write("first.yaml", &first);
    server.kubectl("apply -f first.yaml").ok();
    assert_eq!(apply(&first), "sandbox.dormouse.dev/one unchanged\n");
    server.stop();
}

#[test]
fn files_directories_and_namespaces() {
    let server = Server::start();
    std::fs::create_dir(server.home.path().join("dir")).unwrap();
    server.write("dir/b.yaml", &sandbox("b"));
    server.write(
        "dir/a.yml",
        &format!("{}---\n{}", sandbox("a1"), sandbox("a2")),
    );
    server.write(
        "dir/c.json",
        r#"{"apiVersion":"dormouse.dev/v1alpha1","kind":"Sandbox","metadata":{"name":"c"},"spec":{"template":"base"}}"#,
    );
    server.write("dir/readme.txt", "not one");
    let applied = server.run("apply -f dir -n team-blue").ok();
    let names: Vec<&str> = applied
        .lines()
        .map(|l| l.split(' ').next().unwrap())
        .collect();
    let full = |name: &str| format!("sandbox.dormouse.dev/{name}");
    assert_eq!(names, ["a1", "a2", "b", "c"].map(full));
    let nothing = server.run("get sandboxes");
    assert_eq!((nothing.code, nothing.stdout.as_str()), (Some(0), ""));
    assert!(
        nothing
            .stderr
            .contains("No sandboxes found in namespace default")
    );
    let all = server.run("get sandboxes -A").ok();
    assert!(
        all.starts_with("NAMESPACE ") && all.contains("team-blue   a1"),
        "{all}"
    );
    assert_eq!(
        server
            .run("get sbx -n team-blue -o name")
            .ok()
            .lines()
            .count(),
        4
    );
    assert_eq!(
        server
            .run("get sbx/a1 sbx/b -n team-blue")
            .ok()
            .lines()
            .count(),
        3
    );

    let deleted = server.run("delete -f dir -n team-blue").ok();
    assert_eq!(deleted.lines().count(), 4);
    server
        .run("delete -f dir -n team-blue")
        .failed_saying(&["\"a1\" not found", "4 objects failed"]);
    server
        .run("delete -f dir -n team-blue --ignore-not-found")
        .ok();
}

#[test]
fn selectors_narrow_by_label_and_field() {
    let server = Server::start();
    server.run_with("apply -f -", FIVE).ok();
    server.run_with("apply -f -", &sandbox("two")).ok();
    let names = |flags: &str| server.run(&format!("get sandboxes -o name {flags}")).ok();
    assert_eq!(names("-l team=blue"), "sandbox.dormouse.dev/one\n");
    assert_eq!(names("-l team!=blue"), "sandbox.dormouse.dev/two\n");
    assert_eq!(
        names("--field-selector metadata.name=two"),
        "sandbox.dormouse.dev/two\n"
    );
    assert_eq!(
        names("--field-selector status.phase=Pending")
            .lines()
            .count(),
        2
    );
    server
        .run("get sandboxes --field-selector spec.nonsense=1")
        .failed_saying(&["spec.nonsense"]);
}

#[test]
fn refusals_show_fields_and_remedies_not_json() {
    let server = Server::start();
    let text = format!("{}  nonsense: 1\n", sandbox("one"));
    let error = server.run_with("apply -f -", &text).failed();
    assert!(
        error.contains("spec.nonsense") && !error.contains('{'),
        "{error}"
    );
    let error = server
        .run_with("apply -f -", &sandbox("Not_A_Name"))
        .failed();
    assert!(
        error.contains("metadata.name") && !error.contains("\"kind\""),
        "{error}"
    );
    server
        .run_with("apply -f -", "a: [")
        .failed_saying(&["read stdin", "line"]);
    server
        .run("apply -f nowhere.yaml")
        .failed_saying(&["nowhere.yaml"]);
    server
        .run("get pods")
        .failed_saying(&["`pods` is not a kind", "sandboxes (sbx)"]);
    assert_eq!(server.run("get").code, Some(2));
    assert_eq!(server.run("get sandboxes -o xml").code, Some(2));
    // One bad document does not keep the others back.
    let mixed = format!("{text}---\n{}", sandbox("two"));
    let ran = server.run_with("apply -f -", &mixed);
    assert_eq!(ran.code, Some(1));
    assert_eq!(ran.stdout, "sandbox.dormouse.dev/two created\n");
}

#[test]
fn delete_waits_for_finalizers_and_says_so() {
    let server = Server::start();
    let held = sandbox("held").replace(
        "name: held",
        "name: held\n  finalizers: [example.test/hold]",
    );
    server.run_with("apply -f -", &held).ok();
    let begun = server.run("delete sbx held --timeout 1");
    begun.failed_saying(&["still being deleted after 1 s", "example.test/hold"]);
    server.run("delete sbx held --wait=false").ok();
    let described = server.run("describe sbx held").ok();
    assert!(described.contains("Deleting:"), "{described}");
    server
        .kubectl("patch sbx held --type=merge -p {\"metadata\":{\"finalizers\":null}}")
        .ok();
    server.run("get sbx held").failed_saying(&["not found"]);
    server
        .run("delete sandbox")
        .failed_saying(&["name what to delete"]);
}

#[test]
fn a_reader_that_leaves_is_no_failure() {
    let server = Server::start();
    server.run_with("apply -f -", FIVE).ok();
    let data = server.data();
    let binary = env!("CARGO_BIN_EXE_dormouse");
    let script = format!(
        "set -o pipefail; {binary} crds | head -n 1; {binary} get sbx -o yaml --data-dir {} | head -n 1",
        data.display()
    );
    let mut bash = crate::server::command("bash", server.home.path());
    let ran = crate::server::run(bash.args(["-c", &script]), "");
    assert_eq!(
        (ran.code, ran.stderr.as_str()),
        (Some(0), ""),
        "{}",
        ran.stdout
    );
}

#[test]
fn crds_are_printed_for_a_cluster() {
    let home = tempfile::tempdir().unwrap();
    let text = crate::server::run(crate::server::dormouse(home.path()).arg("crds"), "").ok();
    let kinds = &model::kinds::ALL;
    let count = text.matches("kind: CustomResourceDefinition\n").count();
    assert_eq!(count, kinds.len());
    for kind in kinds {
        let name = format!("name: {}.dormouse.dev\n", kind.plural);
        assert!(text.contains(&name), "{name}");
    }
}
