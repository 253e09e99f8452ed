//! Tables, as `kubectl get` shows them.

use std::time::Duration;

use model::{Timestamp, kinds::ColumnType};
use serde_json::{Value, json};
use store::Record;

use crate::{refusal::Refusal, served::Served};

/// How much of its object a row carries along.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IncludeObject {
    None,
    Metadata,
    Object,
}

/// A table of records. Later events of a watch leave the headings out.
pub(crate) fn table<'r>(
    served: Served,
    records: impl IntoIterator<Item = &'r Record>,
    meta: &Value,
    include: IncludeObject,
    now: Timestamp,
    headings: bool,
) -> Result<Value, Refusal> {
    let mut rows = Vec::new();
    for record in records {
        let object = served.to_value(record)?;
        let cells = cells(served, &object, now);
        let object = match include {
            IncludeObject::None => Value::Null,
            IncludeObject::Metadata => json!({
                "kind": "PartialObjectMetadata",
                "apiVersion": "meta.k8s.io/v1",
                "metadata": object["metadata"],
            }),
            IncludeObject::Object => object,
        };
        rows.push(json!({"cells": cells, "object": object}));
    }
    let columns = if headings {
        self::headings(served)
    } else {
        Vec::new()
    };
    Ok(json!({
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": meta,
        "columnDefinitions": columns,
        "rows": rows,
    }))
}

/// The headings of a table.
pub(crate) fn headings(served: Served) -> Vec<Value> {
    let name = json!({
        "name": "Name",
        "type": "string",
        "format": "name",
        "description": "Unique within kind and namespace.",
        "priority": 0,
    });
    let columns = served.columns().iter().map(|column| {
        json!({
            "name": column.name,
            "type": column.kind.as_str(),
            "format": "",
            "description": column.description,
            "priority": i32::from(column.wide),
        })
    });
    let name = served.has_name_column().then_some(name);
    name.into_iter().chain(columns).collect()
}

fn cells(served: Served, object: &Value, now: Timestamp) -> Vec<Value> {
    let name = served
        .has_name_column()
        .then(|| object["metadata"]["name"].clone());
    let columns = served.columns().iter().map(|column| {
        if let (Served::Events, "Object") = (served, column.name) {
            let about = &object["involvedObject"];
            let part = |name: &str| about[name].as_str().unwrap_or_default().to_owned();
            return format!("{}/{}", part("kind").to_lowercase(), part("name")).into();
        }
        let Some(value) = column.find(object) else {
            return Value::Null;
        };
        match (column.kind, value) {
            (ColumnType::Date, Value::String(text)) => text
                .parse::<Timestamp>()
                .map_or("<unknown>".into(), |then| age(now, then).into()),
            (_, value) => value.clone(),
        }
    });
    name.into_iter().chain(columns).collect()
}

/// How long ago something was, as kubectl says it.
pub(crate) fn age(now: Timestamp, then: Timestamp) -> String {
    // Clocks differ a little between machines; that is not worth alarming anybody.
    if then.since(now) >= Duration::from_secs(2) {
        return "<invalid>".into();
    }
    let seconds = now.since(then).as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |a: u64, a_unit: char, b: u64, b_unit: char| match b {
        0 => format!("{a}{a_unit}"),
        b => format!("{a}{a_unit}{b}{b_unit}"),
    };
    match (seconds, minutes, hours) {
        (0..120, _, _) => format!("{seconds}s"),
        (_, 0..10, _) => two(minutes, 'm', seconds % 60, 's'),
        (_, 0..180, _) => format!("{minutes}m"),
        (_, _, 0..8) => two(hours, 'h', minutes % 60, 'm'),
        (_, _, 0..48) => format!("{hours}h"),
        (_, _, 0..192) => two(days, 'd', hours % 24, 'h'),
        (_, _, 0..17_520) => format!("{days}d"),
        (_, _, 0..70_080) => two(days / 365, 'y', days % 365, 'd'),
        (_, _, _) => format!("{}y", days / 365),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_in_kubectl() {
        let now = Timestamp::from_micros(4_000_000_000_000_000);
        let table = [
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (600, "10m"),
            (3 * 3600 - 1, "179m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 60, "3h1m"),
            (8 * 3600, "8h"),
            (48 * 3600, "2d"),
            (50 * 3600, "2d2h"),
            (9 * 86_400, "9d"),
            (800 * 86_400, "2y70d"),
            (10 * 365 * 86_400, "10y"),
        ];
        for (seconds, expected) in table {
            assert_eq!(
                age(now, now.minus(Duration::from_secs(seconds))),
                expected,
                "{seconds}"
            );
        }
        assert_eq!(age(now, now.plus(Duration::from_secs(1))), "0s");
        assert_eq!(age(now, now.plus(Duration::from_secs(2))), "<invalid>");
    }
}
