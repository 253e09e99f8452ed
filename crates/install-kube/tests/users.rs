//! Who may reach the API and the gateways is what an installation says.
#![expect(clippy::unwrap_used, reason = "tests: what is missing fails them")]

use install_kube::{Options, Users, chart, manifests};
use serde_json::{Value, json};

fn ingress(users: Users) -> Value {
    let options = Options {
        users,
        ..Options::default()
    };
    let all = manifests(&options);
    let mut named = all
        .iter()
        .map(|m| &m.object)
        .filter(|o| o["kind"] == "NetworkPolicy" && o["metadata"]["name"] == "dormouse-users");
    named.next().unwrap()["spec"]["ingress"].clone()
}

#[test]
fn unless_it_is_said_everybody_may_come_in() {
    let everybody = json!([{"ports": [{"port": 3000, "protocol": "TCP"}]}]);
    assert_eq!(ingress(Users::default()), everybody);
}

#[test]
fn who_may_come_in_is_named_by_blocks_and_by_labels_of_namespaces() {
    let users = Users {
        blocks: vec!["10.0.0.0/8".parse().unwrap()],
        namespaces: vec!["app=web,tier=edge".parse().unwrap()],
    };
    let named = json!([
        {"ipBlock": {"cidr": "10.0.0.0/8"}},
        {"namespaceSelector": {"matchLabels": {"app": "web", "tier": "edge"}}},
    ]);
    assert_eq!(ingress(users)[0]["from"], named);
}

#[test]
fn the_chart_asks_for_the_same_and_bounds_what_it_takes() {
    let files = chart::files().unwrap();
    let policies = &files["templates/policies.yaml"];
    assert!(
        policies.contains(r#"from: {{ include "dormouse.users" . }}"#),
        "{policies}"
    );
    let schema: Value = serde_json::from_str(&files["values.schema.json"]).unwrap();
    let users = schema.pointer("/properties/networkPolicies/properties/users/properties");
    let fields = users.and_then(Value::as_object).unwrap();
    assert_eq!(fields.keys().collect::<Vec<_>>(), ["cidrs", "namespaces"]);
    assert!(fields.values().all(|field| field["type"] == "array"));
}
