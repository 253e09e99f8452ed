//! The same installation as a Helm chart: `charts/dormouse` in the repository is what this writes, and
//! a test holds it to that.

use std::collections::BTreeMap;

use crate::{
    Expression, Manifest, Part, Switch, Values, body, definitions,
    yaml::{self, YamlError},
};

/// What a chart can be given, with what each is for.
const VALUES: &str = include_str!("chart/values.yaml");
/// What Helm refuses of it.
const SCHEMA: &str = include_str!("chart/values.schema.json");
/// How peers of a policy are made of what it is given.
const USERS: &str = include_str!("chart/_users.tpl");
/// What Helm prints after an installation.
const NOTES: &str = include_str!("chart/NOTES.txt");

/// The files of the chart, by their path in it.
///
/// # Errors
/// If an object cannot be written.
pub fn files() -> Result<BTreeMap<String, String>, YamlError> {
    let mut files = BTreeMap::from([
        ("Chart.yaml".to_owned(), description()),
        ("values.yaml".to_owned(), VALUES.to_owned()),
        ("values.schema.json".to_owned(), SCHEMA.to_owned()),
        ("templates/NOTES.txt".to_owned(), NOTES.to_owned()),
        ("templates/_users.tpl".to_owned(), USERS.to_owned()),
    ]);
    for definition in definitions() {
        let name = definition.object["metadata"]["name"].as_str();
        let name = name.and_then(|name| name.split('.').next());
        let path = format!("crds/{}.yaml", name.unwrap_or_default());
        files.insert(path, yaml::document(&definition.object)?);
    }
    for manifest in body(&Values::of_chart()) {
        let file = files.entry(format!("templates/{}.yaml", file(manifest.part)));
        file.or_default().push_str(&template(&manifest)?);
    }
    Ok(files)
}

fn description() -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        "apiVersion: v2\nname: dormouse\ndescription: Sandboxes for AI agents that are ready in milliseconds, \
         sleep when idle and wake on traffic\ntype: application\nversion: {version}\n\
         appVersion: \"{version}\"\nkubeVersion: \">=1.32.0-0\"\n"
    )
}

const fn file(part: Part) -> &'static str {
    match part {
        Part::Namespace => "namespace",
        Part::Definitions => "definitions",
        Part::Keys => "keys",
        Part::Control => "control",
        Part::Api => "api",
        Part::Gateway => "gateway",
        Part::Peers => "peers",
        Part::Node => "node",
        Part::Policies => "policies",
        Part::Monitoring => "monitoring",
    }
}

const fn condition(switch: Switch) -> &'static str {
    match switch {
        Switch::NodeDaemon => ".Values.node.enabled",
        Switch::ServiceMonitor => ".Values.podMonitor.enabled",
        Switch::NetworkPolicies => ".Values.networkPolicies.enabled",
    }
}

fn template(manifest: &Manifest) -> Result<String, YamlError> {
    let text = unpack(&yaml::document(&manifest.object)?);
    Ok(match manifest.when {
        None => format!("---\n{text}"),
        Some(switch) => format!(
            "---\n{{{{- if {} }}}}\n{text}{{{{- end }}}}\n",
            condition(switch)
        ),
    })
}

/// Turns the texts that hold expressions into the expressions.
fn unpack(yaml: &str) -> String {
    let mut text = String::with_capacity(yaml.len());
    for line in yaml.lines() {
        match expression(line) {
            Some((before, expression)) => {
                text.push_str(before);
                text.push_str("{{ ");
                text.push_str(&expression);
                text.push_str(" }}");
            }
            None => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

/// What is before the expression that a line ends with, and the expression.
fn expression(line: &str) -> Option<(&str, String)> {
    let open = line.find(Expression::OPEN)?;
    let close = line.rfind(Expression::CLOSE)?;
    let inner = &line[open + Expression::OPEN.len()..close];
    let (before, quote) = match line[..open].strip_suffix('\'') {
        Some(before) => (before, Some("''")),
        None => match line[..open].strip_suffix('"') {
            Some(before) => (before, Some("\\\"")),
            None => (&line[..open], None),
        },
    };
    let inner = match quote {
        Some("''") => inner.replace("''", "'"),
        Some(quote) => inner.replace(quote, "\""),
        None => inner.to_owned(),
    };
    Some((before, inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_take_the_place_of_the_texts_that_hold_them() {
        let yaml = "a: '@{.Values.x | quote}@'\nb: \"@{printf \\\"%s\\\" .y}@\"\nc: plain\n";
        let text = "a: {{ .Values.x | quote }}\nb: {{ printf \"%s\" .y }}\nc: plain\n";
        assert_eq!(unpack(yaml), text);
    }

    #[test]
    fn every_value_that_a_template_asks_for_is_there_and_said() {
        let values: serde_json::Value = serde_saphyr::from_str(VALUES).expect("values");
        let mut asked = 0;
        for (path, text) in files().expect("files") {
            assert!(!text.contains(Expression::OPEN), "{path} holds a mark");
            for part in text.split(".Values.").skip(1) {
                let end = part.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
                let pointer = part[..end.unwrap_or(part.len())].replace('.', "/");
                let found = values.pointer(&format!("/{pointer}"));
                assert!(found.is_some(), "{path} asks for {pointer}");
                asked += 1;
            }
        }
        assert!(asked > 20, "only {asked} values were asked for");
    }
}
