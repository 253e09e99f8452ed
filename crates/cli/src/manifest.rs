//! Objects from files: YAML with any number of documents, JSON, directories of both, stdin.

use std::{
    io::Read as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, bail};
use model::{
    kinds::{self, KindInfo, Scope},
    meta::GROUP_VERSION,
};
use serde_json::Value;

/// An object that a file describes.
#[derive(Debug)]
pub(crate) struct Manifest {
    /// Its kind.
    pub(crate) kind: &'static KindInfo,
    /// Its namespace; meaningless where the kind has none.
    pub(crate) namespace: String,
    /// Its name.
    pub(crate) name: String,
    /// All of it, with the namespace filled in.
    pub(crate) object: Value,
}

/// Reads every object of the files. `namespace` is what the caller insists on, `default` where an
/// object goes that does not say.
pub(crate) fn read(
    files: &[PathBuf],
    namespace: Option<&str>,
    default: &str,
) -> anyhow::Result<Vec<Manifest>> {
    let mut manifests = Vec::new();
    for path in files {
        for (source, text) in texts(path)? {
            let values = parse(&text).with_context(|| format!("read {source}"))?;
            for (at, value) in values.into_iter().enumerate() {
                let place = || format!("{source}, document {}", at + 1);
                manifests.push(manifest(value, namespace, default).with_context(place)?);
            }
        }
    }
    if manifests.is_empty() {
        bail!("no object in what -f names");
    }
    Ok(manifests)
}

/// What a path holds, and what to call it: stdin, a file, or the files of a directory in order.
fn texts(path: &Path) -> anyhow::Result<Vec<(String, String)>> {
    if path == Path::new("-") {
        let mut text = String::new();
        std::io::stdin()
            .read_to_string(&mut text)
            .context("read stdin")?;
        return Ok(vec![("stdin".to_owned(), text)]);
    }
    let mut files = vec![path.to_owned()];
    if path.is_dir() {
        files = std::fs::read_dir(path)
            .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
            .with_context(|| format!("list {}", path.display()))?;
        files.retain(|file| {
            file.extension()
                .and_then(|extension| extension.to_str())
                .is_some_and(|extension| ["yaml", "yml", "json"].contains(&extension))
        });
        files.sort();
        if files.is_empty() {
            bail!("{} holds no .yaml, .yml or .json file", path.display());
        }
    }
    let read = |file: PathBuf| {
        let shown = file.display().to_string();
        let text = std::fs::read_to_string(&file).with_context(|| format!("read {shown}"))?;
        Ok((shown, text))
    };
    files.into_iter().map(read).collect()
}

/// The objects of a text: lists are taken apart, empty documents left out.
fn parse(text: &str) -> anyhow::Result<Vec<Value>> {
    let documents: Vec<Value> = if text.trim_start().starts_with('{') {
        serde_json::Deserializer::from_str(text)
            .into_iter()
            .collect::<Result<_, _>>()?
    } else {
        // Only `true` and `false` are truth values: a namespace `n` or a value `on` is text.
        // Without a limit on depth, a damaged file overflows the stack instead of being refused.
        let options = serde_saphyr::options! {
            budget: serde_saphyr::budget! { max_depth: 32 },
            strict_booleans: true,
        };
        serde_saphyr::from_multiple_with_options(text, options)?
    };
    let mut values = Vec::new();
    for document in documents {
        match document {
            Value::Null => {}
            Value::Object(mut list)
                if list
                    .get("kind")
                    .and_then(Value::as_str)
                    .is_some_and(|k| k.ends_with("List")) =>
            {
                match list.remove("items") {
                    Some(Value::Array(items)) => values.extend(items),
                    Some(_) | None => bail!("a list without items"),
                }
            }
            other => values.push(other),
        }
    }
    Ok(values)
}

fn manifest(mut object: Value, namespace: Option<&str>, default: &str) -> anyhow::Result<Manifest> {
    if !object.is_object() {
        bail!("is not an object");
    }
    let api_version = object["apiVersion"].as_str().context("has no apiVersion")?;
    if api_version != GROUP_VERSION {
        bail!("apiVersion is {api_version}; this server has {GROUP_VERSION}");
    }
    let kind = object["kind"].as_str().context("has no kind")?;
    let kind = kinds::find(kind).with_context(|| {
        let known: Vec<&str> = kinds::ALL.iter().map(|info| info.kind.0).collect();
        format!("kind {kind} is not one of {}", known.join(", "))
    })?;
    let text = |name: &str| match &object["metadata"][name] {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone())),
        other => bail!("metadata.{name} is {other}, not text: put it in quotes"),
    };
    let name = text("name")?.context("has no metadata.name")?;
    let own = text("namespace")?;
    let mut place = default.to_owned();
    if kind.scope == Scope::Namespaced {
        match (own, namespace) {
            (Some(own), Some(wanted)) if own != wanted => {
                bail!("{name} says namespace {own}, the command says {wanted}");
            }
            (Some(own), _) => place = own,
            (None, Some(wanted)) => wanted.clone_into(&mut place),
            (None, None) => {}
        }
        object["metadata"]["namespace"] = place.as_str().into();
    }
    Ok(Manifest {
        kind,
        namespace: place,
        name,
        object,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str, namespace: Option<&str>) -> Result<Vec<String>, String> {
        parse(text)
            .and_then(|values| {
                let manifests = values
                    .into_iter()
                    .map(|v| manifest(v, namespace, "default"));
                let name = |m: Manifest| format!("{}/{}/{}", m.kind.singular, m.namespace, m.name);
                manifests.map(|m| m.map(name)).collect()
            })
            .map_err(|e: anyhow::Error| format!("{e:#}"))
    }

    const ONE: &str = "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata: {name: a}\n";

    #[test]
    fn documents_lists_and_json_all_give_objects() {
        let two = format!(
            "---\n{ONE}---\n# nothing\n---\n{}",
            ONE.replace("{name: a}", "{name: b, namespace: n}")
        );
        assert_eq!(
            names(&two, None).unwrap(),
            ["sandbox/default/a", "sandbox/n/b"]
        );
        let json = r#"{"kind":"List","items":[{"apiVersion":"dormouse.dev/v1alpha1","kind":"SandboxTemplate","metadata":{"name":"t"}}]}"#;
        assert_eq!(names(json, None).unwrap(), ["sandboxtemplate/default/t"]);
        assert_eq!(names(&format!("{json}\n{json}"), None).unwrap().len(), 2);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let deep = "- ".repeat(5000);
        for (text, expected) in [
            (deep.as_str(), "Depth"),
            ("a: [1", "expected"),
            ("- 1\n", "is not an object"),
            ("kind: Sandbox\n", "has no apiVersion"),
            (
                "apiVersion: v1\nkind: Pod\n",
                "this server has dormouse.dev/v1alpha1",
            ),
            (
                "apiVersion: dormouse.dev/v1alpha1\nkind: Pod\n",
                "kind Pod is not one of Sandbox",
            ),
            (
                "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\n",
                "has no metadata.name",
            ),
            (
                "apiVersion: dormouse.dev/v1alpha1\nkind: Sandbox\nmetadata: {name: 7}\n",
                "is 7, not text",
            ),
            ("a: 1\na: 2\n", "duplicate"),
        ] {
            let error = names(text, None).unwrap_err();
            let is_syntax = expected == "expected";
            assert!(is_syntax || error.contains(expected), "{text:?}: {error}");
        }
        let named = ONE.replace("{name: a}", "{name: a, namespace: n}");
        assert!(
            names(&named, Some("other"))
                .unwrap_err()
                .contains("says namespace n")
        );
        assert_eq!(names(ONE, Some("other")).unwrap(), ["sandbox/other/a"]);
    }
}
