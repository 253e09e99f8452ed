//! The chart in the repository is the one that the code describes, and so are the promises of the
//! security page.
#![expect(clippy::unwrap_used, reason = "tests: what is missing fails them")]
#![expect(
    clippy::disallowed_methods,
    reason = "what it writes is for people to look at"
)]

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use install_kube::{Options, chart, manifests};
use serde_json::Value;

fn chart_directory() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/dormouse")
}

fn read(directory: &Path, prefix: &str, files: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).unwrap() {
        let entry = entry.unwrap();
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        if entry.file_type().unwrap().is_dir() {
            read(&entry.path(), &format!("{name}/"), files);
        } else {
            files.insert(name, fs::read_to_string(entry.path()).unwrap());
        }
    }
}

#[test]
fn the_chart_is_what_the_code_describes() {
    let wanted = chart::files().unwrap();
    let directory = chart_directory();
    if std::env::var_os("UPDATE_CHART").is_some() {
        let _ = fs::remove_dir_all(&directory);
        for (path, text) in &wanted {
            let path = directory.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
    }
    let mut found = BTreeMap::new();
    read(&directory, "", &mut found);
    for (path, text) in &wanted {
        assert!(
            found.get(path) == Some(text),
            "charts/dormouse/{path} is not what the code describes: run \
             `UPDATE_CHART=1 cargo test -p dormouse-install-kube` and look at the difference"
        );
    }
    let more: Vec<&String> = found.keys().filter(|p| !wanted.contains_key(*p)).collect();
    assert!(more.is_empty(), "nothing describes {more:?}");
}

fn objects() -> Vec<Value> {
    let options = Options {
        service_monitor: true,
        ..Options::default()
    };
    manifests(&options).into_iter().map(|m| m.object).collect()
}

fn named<'o>(objects: &'o [Value], kind: &str, name: &str) -> &'o Value {
    let mut found = objects
        .iter()
        .filter(|o| o["kind"] == kind && o["metadata"]["name"] == name);
    let object = found.next();
    assert!(found.next().is_none(), "{kind} {name} is there twice");
    object.unwrap_or_else(|| panic!("there is no {kind} {name}"))
}

fn pods(objects: &[Value]) -> Vec<(&str, &Value)> {
    let of = |o: &'_ Value| o.pointer("/spec/template/spec").is_some();
    objects
        .iter()
        .filter(|o| of(o))
        .map(|o| {
            let name = o["metadata"]["name"].as_str().unwrap();
            (name, o.pointer("/spec/template/spec").unwrap())
        })
        .collect()
}

#[test]
fn no_process_has_a_capability_or_can_gain_one() {
    let objects = objects();
    let pods = pods(&objects);
    assert_eq!(pods.len(), 5);
    for (name, pod) in pods {
        for container in pod["containers"].as_array().unwrap() {
            let context = &container["securityContext"];
            assert_eq!(context["allowPrivilegeEscalation"], false, "{name}");
            assert_eq!(context["readOnlyRootFilesystem"], true, "{name}");
            assert_eq!(context["capabilities"]["drop"][0], "ALL", "{name}");
            assert_eq!(context["privileged"], Value::Null, "{name}");
        }
        let root = name == "dormouse-node";
        assert_eq!(
            pod["securityContext"]["runAsNonRoot"] != true,
            root,
            "{name}"
        );
        assert_eq!(
            pod["securityContext"]["seccompProfile"]["type"], "RuntimeDefault",
            "{name}"
        );
    }
}

#[test]
fn the_daemon_of_a_node_cannot_speak_to_the_api_server_and_has_only_containerds_sockets() {
    let objects = objects();
    let node = named(&objects, "DaemonSet", "dormouse-node");
    let pod = node.pointer("/spec/template/spec").unwrap();
    assert_eq!(pod["automountServiceAccountToken"], false);
    let paths: Vec<&Value> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|v| v.pointer("/hostPath/type"))
        .collect();
    assert_eq!(paths, ["Directory"]);
    let secrets: Vec<&Value> = pod["volumes"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|v| v.pointer("/secret/secretName"))
        .collect();
    // Not the peer key, with which it could speak for any process.
    assert_eq!(secrets, ["dormouse-node-identity"]);
    let bound = objects.iter().filter(|o| {
        let subjects = o["subjects"].as_array().into_iter().flatten();
        subjects.into_iter().any(|s| s["name"] == "dormouse-node")
    });
    assert_eq!(bound.count(), 0);
}

#[test]
fn a_gateway_may_change_sandboxes_and_nothing_else_and_see_no_secret() {
    let objects = objects();
    let gateway = named(&objects, "ClusterRole", "dormouse-gateway");
    for rule in gateway["rules"].as_array().unwrap() {
        let verbs = rule["verbs"].as_array().unwrap();
        let changes = verbs
            .iter()
            .any(|v| !["get", "list", "watch"].contains(&v.as_str().unwrap()));
        if changes {
            assert_eq!(rule["resources"], serde_json::json!(["sandboxes"]));
            assert!(!verbs.contains(&"create".into()) && !verbs.contains(&"delete".into()));
        }
    }
    for role in objects.iter().filter(|o| o["kind"] == "ClusterRole") {
        assert!(!role["rules"].to_string().contains("secrets"), "{role}");
        assert!(!role["rules"].to_string().contains('*'), "{role}");
    }
}

#[test]
fn no_secret_is_in_what_is_printed() {
    for object in objects() {
        assert_ne!(object["kind"], "Secret");
    }
}

#[test]
fn what_is_switched_off_is_not_there() {
    let off = Options {
        node_daemon: false,
        network_policies: false,
        ..Options::default()
    };
    let all = manifests(&off);
    for kind in ["DaemonSet", "NetworkPolicy", "PodMonitor"] {
        assert!(all.iter().all(|m| m.object["kind"] != kind), "{kind}");
    }
    let control = all
        .iter()
        .find(|m| {
            m.object["kind"] == "Deployment" && m.object["metadata"]["name"] == "dormouse-control"
        })
        .unwrap();
    assert!(
        control
            .object
            .to_string()
            .contains(r#"{"name":"DORMOUSE_KUBERNETES_NODE_DAEMON","value":"off"}"#)
    );
}

/// The one container of a Deployment, and its Pod.
fn process<'o>(objects: &'o [Value], component: &str) -> (&'o Value, &'o Value) {
    let deployment = named(objects, "Deployment", &format!("dormouse-{component}"));
    let pod = deployment.pointer("/spec/template/spec").unwrap();
    (&pod["containers"][0], pod)
}

#[test]
fn a_pod_that_stops_outlives_the_requests_that_it_lets_end() {
    let options = Options {
        drain_timeout: Duration::from_secs(600),
        ..Options::default()
    };
    let longer: Vec<Value> = manifests(&options).into_iter().map(|m| m.object).collect();
    for (objects, drain, grace) in [(&objects(), "60s", 75), (&longer, "600s", 615)] {
        for component in ["api", "gateway"] {
            let (container, pod) = process(objects, component);
            let given = serde_json::json!({"name": "DORMOUSE_DRAIN_TIMEOUT", "value": drain});
            assert!(container["env"].as_array().unwrap().contains(&given));
            assert_eq!(pod["terminationGracePeriodSeconds"], grace);
        }
        // It gives the Lease up as soon as before.
        assert_eq!(
            process(objects, "control").1["terminationGracePeriodSeconds"],
            30
        );
    }
}

#[test]
fn each_role_may_take_what_it_is_given_and_asks_for_little() {
    let options = Options {
        control_memory: "16Gi".parse().unwrap(),
        api_memory: "1536Mi".parse().unwrap(),
        gateway_memory: "2Gi".parse().unwrap(),
        ..Options::default()
    };
    let given: Vec<Value> = manifests(&options).into_iter().map(|m| m.object).collect();
    for (component, by_default, limit) in [
        ("control", "8Gi", "16Gi"),
        ("api", "8Gi", "1536Mi"),
        ("gateway", "4Gi", "2Gi"),
    ] {
        for (objects, limit) in [(&objects(), by_default), (&given, limit)] {
            let resources = &process(objects, component).0["resources"];
            assert_eq!(resources["limits"]["memory"], limit, "{component}");
            assert_eq!(resources["requests"]["memory"], "256Mi", "{component}");
        }
    }
}
