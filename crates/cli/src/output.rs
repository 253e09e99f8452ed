//! What commands print: tables as the server lays them out, YAML, JSON, names.

use std::fmt::Write as _;

use clap::ValueEnum;
use model::kinds::KindInfo;
use serde_json::Value;

use crate::{client, resource};

/// How objects are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// The columns that matter.
    #[default]
    Table,
    /// All columns.
    Wide,
    /// Whole objects.
    Yaml,
    /// Whole objects.
    Json,
    /// Only what they are called.
    Name,
}

impl Output {
    /// What to ask the server for.
    pub(crate) const fn accept(self) -> &'static str {
        match self {
            Self::Table | Self::Wide => client::TABLE,
            Self::Yaml | Self::Json | Self::Name => client::JSON,
        }
    }
}

/// Columns and rows as the server sent them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    names: Vec<String>,
    // Which cells of a row are shown.
    shown: Vec<usize>,
    with_namespace: bool,
}

impl Columns {
    /// The columns of a `Table`, as this output shows them.
    pub(crate) fn of(table: &Value, output: Output, with_namespace: bool) -> Self {
        let definitions = table["columnDefinitions"].as_array().into_iter().flatten();
        let (shown, names) = definitions
            .enumerate()
            .filter(|(_, column)| {
                output == Output::Wide || column["priority"].as_i64().unwrap_or(0) == 0
            })
            .map(|(at, column)| {
                (
                    at,
                    column["name"].as_str().unwrap_or_default().to_uppercase(),
                )
            })
            .unzip();
        Self {
            names,
            shown,
            with_namespace,
        }
    }

    /// Whether the server has not named them yet.
    pub(crate) const fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The header.
    pub(crate) fn header(&self) -> Vec<String> {
        let namespace = self.with_namespace.then(|| "NAMESPACE".to_owned());
        namespace
            .into_iter()
            .chain(self.names.iter().cloned())
            .collect()
    }

    /// The cells of a row.
    pub(crate) fn cells(&self, row: &Value) -> Vec<String> {
        let namespace = self
            .with_namespace
            .then(|| text(&row["object"]["metadata"]["namespace"]));
        let cells = self.shown.iter().map(|at| text(&row["cells"][*at]));
        namespace.into_iter().chain(cells).collect()
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::Null => "<none>".to_owned(),
        Value::String(text) if text.is_empty() => "<none>".to_owned(),
        // A cell is a line.
        Value::String(text) => text.replace(['\n', '\t'], " "),
        other => other.to_string(),
    }
}

/// Lines up cells under a header.
#[must_use]
pub fn table(header: &[String], rows: &[Vec<String>]) -> String {
    let mut layout = Layout::default();
    layout.widen(header);
    for row in rows {
        layout.widen(row);
    }
    let mut text = layout.line(header);
    for row in rows {
        text.push_str(&layout.line(row));
    }
    text
}

/// Widths that only grow, so that lines printed as they arrive mostly line up.
#[derive(Debug, Default)]
pub(crate) struct Layout(Vec<usize>);

impl Layout {
    /// Makes room for a row.
    pub(crate) fn widen(&mut self, row: &[String]) {
        self.0.resize(self.0.len().max(row.len()), 0);
        for (width, cell) in self.0.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }

    /// The row as a line.
    pub(crate) fn line(&self, row: &[String]) -> String {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&self.0) {
            let _ = write!(line, "{cell:<width$}   ");
        }
        let mut line = line.trim_end().to_owned();
        line.push('\n');
        line
    }
}

/// An object as YAML, without a document marker.
pub(crate) fn yaml(value: &Value) -> anyhow::Result<String> {
    Ok(serde_saphyr::to_string(value)?)
}

/// Several YAML documents.
pub(crate) fn documents(values: impl Iterator<Item = Value>) -> anyhow::Result<String> {
    let texts: Vec<String> = values
        .map(|value| yaml(&value))
        .collect::<anyhow::Result<_>>()?;
    Ok(texts.join("---\n"))
}

/// An object, or a list of them, as text.
pub(crate) fn show(kind: &KindInfo, value: &Value, output: Output) -> anyhow::Result<String> {
    match output {
        Output::Yaml => yaml(value),
        Output::Json => Ok(format!("{value:#}\n")),
        Output::Name => {
            let objects = value["items"]
                .as_array()
                .map_or(std::slice::from_ref(value), Vec::as_slice);
            Ok(objects.iter().fold(String::new(), |mut text, object| {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let _ = writeln!(text, "{}", resource::title(kind, name));
                text
            }))
        }
        Output::Table | Output::Wide => {
            let columns = Columns::of(value, output, false);
            let rows = value["rows"].as_array().into_iter().flatten();
            let rows: Vec<_> = rows.map(|row| columns.cells(row)).collect();
            Ok(table(&columns.header(), &rows))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn wide_shows_what_table_leaves_out_and_nothing_looks_empty() {
        let value = json!({
            "columnDefinitions": [
                {"name": "Name", "priority": 0},
                {"name": "Image", "priority": 1},
                {"name": "Age", "priority": 0},
            ],
            "rows": [{"cells": ["a", null, "5s"]}, {"cells": ["long-name", "x\ny", ""]}],
        });
        let kind = &model::kinds::ALL[0];
        assert_eq!(
            show(kind, &value, Output::Table).unwrap(),
            "NAME        AGE\na           5s\nlong-name   <none>\n"
        );
        assert_eq!(
            show(kind, &value, Output::Wide).unwrap(),
            "NAME        IMAGE    AGE\na           <none>   5s\nlong-name   x y      <none>\n"
        );
    }

    #[test]
    fn yaml_keeps_strings_strings_for_readers_of_old_yaml_too() {
        let value = json!({"a": ["yes", "1", "null", "2024-01-01", "on"], "b": true});
        let text = yaml(&value).unwrap();
        assert!(
            text.contains("- \"yes\"\n") && text.contains("- \"on\"\n"),
            "{text}"
        );
        let back: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(back, value);
    }
}
