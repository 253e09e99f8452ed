//! `dormouse describe`: an object for people to read, with the events about it.

use std::fmt::Write as _;

use clap::Args;
use kit::{Clock as _, SystemClock};
use model::{Timestamp, trouble::TROUBLED};
use serde_json::Value;

use crate::{
    client::JSON,
    connect::{Connection, Scope},
    merge::LAST_APPLIED,
    output::{table, yaml},
    print, resource,
};

/// What to describe.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Kind and names: `sandbox NAME…`, `sandbox/NAME…`, or `sandboxes` for all
    #[arg(required = true, value_name = "KIND NAME")]
    what: Vec<String>,
    #[command(flatten)]
    scope: Scope,
    #[command(flatten)]
    connection: Connection,
}

impl Arguments {
    /// Kind and names, as another command knows them.
    pub(crate) fn of(what: Vec<String>, scope: Scope, connection: Connection) -> Self {
        Self {
            what,
            scope,
            connection,
        }
    }
}

/// Runs the command.
pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let selection = resource::select(&arguments.what)?;
    let client = arguments.connection.client(is_root)?;
    let namespace = arguments.scope.namespace.as_deref();
    let namespace = namespace.unwrap_or(client.default_namespace());
    let mut objects = Vec::new();
    if selection.names.is_empty() {
        let path = resource::collection(selection.kind, Some(namespace));
        let mut list = client.get(&path, JSON).await?;
        if let Value::Array(items) = list["items"].take() {
            objects = items;
        }
    }
    for name in &selection.names {
        let path = resource::object(selection.kind, namespace, name);
        objects.push(client.get(&path, JSON).await?);
    }
    let now = SystemClock::default().wall_micros();
    let mut texts = Vec::new();
    for object in &objects {
        let uid = object["metadata"]["uid"].as_str().unwrap_or_default();
        let place = object["metadata"]["namespace"]
            .as_str()
            .unwrap_or("default");
        let path = format!("/api/v1/namespaces/{place}/events");
        let selector = format!("involvedObject.uid={uid}");
        let path = resource::with_query(&path, &[("fieldSelector", &selector)]);
        let events = client.get(&path, JSON).await?;
        texts.push(describe(selection.kind.kind.0, object, &events, now)?);
    }
    print(&texts.join("\n\n"))
}

fn describe(kind: &str, object: &Value, events: &Value, now: i64) -> anyhow::Result<String> {
    let metadata = &object["metadata"];
    let mut text = String::new();
    let mut field = |name: &str, value: &str| {
        let _ = writeln!(text, "{:<17}{value}", format!("{name}:"));
    };
    let string = |value: &Value| value.as_str().unwrap_or("<none>").to_owned();
    field("Name", &string(&metadata["name"]));
    if metadata["namespace"].is_string() {
        field("Namespace", &string(&metadata["namespace"]));
    }
    field("Kind", kind);
    field("UID", &string(&metadata["uid"]));
    let created = &metadata["creationTimestamp"];
    field(
        "Created",
        &format!("{} ({} ago)", string(created), age(created, now)),
    );
    if metadata["deletionTimestamp"].is_string() {
        let deleted = &metadata["deletionTimestamp"];
        field("Deleting", &format!("since {}", age(deleted, now)));
    }
    pairs(&mut text, "Labels", &metadata["labels"]);
    pairs(&mut text, "Annotations", &metadata["annotations"]);
    let words = |value: &Value, part: &str| -> Vec<String> {
        let entries = value.as_array().into_iter().flatten();
        entries
            .map(|e| {
                e.as_str()
                    .or_else(|| e[part].as_str())
                    .unwrap_or_default()
                    .to_owned()
            })
            .collect()
    };
    for (name, value) in [
        ("Finalizers", &metadata["finalizers"]),
        ("Owners", &metadata["ownerReferences"]),
    ] {
        if value.is_array() {
            let _ = writeln!(
                text,
                "{:<17}{}",
                format!("{name}:"),
                words(value, "name").join(", ")
            );
        }
    }
    let mut status = object["status"].clone();
    if let Some((word, message)) = trouble(&status) {
        let _ = writeln!(text, "{:<17}{word}: {message}", "Trouble:");
    }
    half(&mut text, "Spec", &object["spec"])?;

    let mut take = |name: &str| status.get_mut(name).map(Value::take).unwrap_or_default();
    let operation = take("lastOperation");
    let conditions = take("conditions");
    // They are among the events.
    take("recentWarnings");
    if let Value::Object(fields) = &mut status {
        fields.retain(|_, value| !value.is_null());
    }
    half(&mut text, "Status", &status)?;
    if operation.is_object() {
        let attempts = operation["attempts"].as_u64().unwrap_or_default();
        let attempts = if attempts > 1 {
            format!(", {attempts} attempts")
        } else {
            String::new()
        };
        let error = operation["error"]
            .as_str()
            .map(|e| format!(": {e}"))
            .unwrap_or_default();
        let _ = writeln!(
            text,
            "Last operation:  {} {}, began {} ago{attempts}{error}",
            string(&operation["kind"]),
            string(&operation["state"]),
            age(&operation["startedAt"], now),
        );
    }
    rows(
        &mut text,
        "Conditions",
        &["TYPE", "STATUS", "AGE", "REASON", "MESSAGE"],
        conditions.as_array().map_or(&[], Vec::as_slice),
        |c| {
            vec![
                string(&c["type"]),
                string(&c["status"]),
                age(&c["lastTransitionTime"], now),
                string(&c["reason"]),
                string(&c["message"]),
            ]
        },
    );
    rows(
        &mut text,
        "Events",
        &["TYPE", "REASON", "AGE", "COUNT", "MESSAGE"],
        events["items"].as_array().map_or(&[], Vec::as_slice),
        |e| {
            vec![
                string(&e["type"]),
                string(&e["reason"]),
                age(&e["lastTimestamp"], now),
                e["count"].to_string(),
                string(&e["message"]),
            ]
        },
    );
    Ok(text)
}

/// What is wrong with it, in one word and a sentence.
fn trouble(status: &Value) -> Option<(&str, &str)> {
    let conditions = status["conditions"].as_array()?;
    let said = conditions
        .iter()
        .find(|c| c["type"] == TROUBLED && c["status"] == "True")?;
    Some((said["reason"].as_str()?, said["message"].as_str()?))
}

fn pairs(text: &mut String, title: &str, map: &Value) {
    let entries = map.as_object().into_iter().flatten();
    let lines: Vec<String> = entries
        // It repeats the rest, in a form for programs.
        .filter(|(name, _)| *name != LAST_APPLIED)
        .map(|(name, value)| format!("{name}={}", value.as_str().unwrap_or_default()))
        .collect();
    let shown = if lines.is_empty() {
        "<none>".to_owned()
    } else {
        lines.join("\n                 ")
    };
    let _ = writeln!(text, "{:<17}{shown}", format!("{title}:"));
}

fn half(text: &mut String, title: &str, value: &Value) -> anyhow::Result<()> {
    if value.as_object().is_none_or(serde_json::Map::is_empty) {
        let _ = writeln!(text, "{:<17}<none>", format!("{title}:"));
        return Ok(());
    }
    let _ = writeln!(text, "{title}:");
    for line in yaml(value)?.lines() {
        let _ = writeln!(text, "  {line}");
    }
    Ok(())
}

fn rows(
    text: &mut String,
    title: &str,
    header: &[&str],
    entries: &[Value],
    cells: impl Fn(&Value) -> Vec<String>,
) {
    if entries.is_empty() {
        let _ = writeln!(text, "{:<17}<none>", format!("{title}:"));
        return;
    }
    let header: Vec<String> = header.iter().map(|&name| name.to_owned()).collect();
    let cells: Vec<_> = entries.iter().map(cells).collect();
    let _ = writeln!(text, "{title}:");
    for line in table(&header, &cells).lines() {
        let _ = writeln!(text, "  {line}");
    }
}

/// How long ago, in the one unit that matters.
fn age(time: &Value, now: i64) -> String {
    let Some(then) = time
        .as_str()
        .and_then(|text| text.parse::<Timestamp>().ok())
    else {
        return "<unknown>".to_owned();
    };
    let seconds = (now - then.as_micros()).max(0) / 1_000_000;
    match seconds {
        0..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn people_see_why_at_a_glance() {
        let object = json!({
            "metadata": {"name": "a", "namespace": "n", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z",
                "annotations": {LAST_APPLIED: "{}", "x": "y"}},
            "spec": {"template": "base"},
            "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "False", "reason": "PauseFailed", "message": "disk full"}, {"type": "Troubled", "status": "True", "reason": "RuntimeFailed", "message": "no room"}], "recentWarnings": [{"reason": "PauseFailed"}],
                "lastOperation": {"kind": "Pause", "state": "Failed", "attempts": 3, "error": "disk full", "startedAt": "2026-01-01T00:00:30Z"}},
        });
        let events = json!({"items": [{"type": "Warning", "reason": "PauseFailed", "count": 3, "message": "disk full", "lastTimestamp": "2026-01-01T00:01:00Z"}]});
        let text = describe(
            "Sandbox",
            &object,
            &events,
            1_767_225_600_000_000 + 300_000_000,
        )
        .unwrap();
        assert_eq!(
            text,
            "\
Name:            a
Namespace:       n
Kind:            Sandbox
UID:             u
Created:         2026-01-01T00:00:00Z (5m ago)
Labels:          <none>
Annotations:     x=y
Trouble:         RuntimeFailed: no room
Spec:
  template: base
Status:
  phase: Running
Last operation:  Pause Failed, began 4m ago, 3 attempts: disk full
Conditions:
  TYPE       STATUS   AGE         REASON          MESSAGE
  Ready      False    <unknown>   PauseFailed     disk full
  Troubled   True     <unknown>   RuntimeFailed   no room
Events:
  TYPE      REASON        AGE   COUNT   MESSAGE
  Warning   PauseFailed   4m    3       disk full
"
        );
    }
}
