//! Kinds by any of their names, and where the server keeps their objects.

use anyhow::{Context as _, bail};
use model::{
    kinds::{self, KindInfo, Scope},
    meta::GROUP,
    meta::GROUP_VERSION,
};

/// A kind, and some of its objects.
#[derive(Debug)]
pub(crate) struct Selection {
    /// The kind.
    pub(crate) kind: &'static KindInfo,
    /// The names; none for all of them.
    pub(crate) names: Vec<String>,
}

/// Reads `KIND`, `KIND NAME…` or `KIND/NAME…`.
pub(crate) fn select(words: &[String]) -> anyhow::Result<Selection> {
    let (first, rest) = words.split_first().context("name a kind, as sandboxes")?;
    if let Some((word, name)) = first.split_once('/') {
        let kind = find(word)?;
        let mut names = vec![name.to_owned()];
        for word in rest {
            match word.split_once('/') {
                Some((other, name)) if find(other)?.kind == kind.kind => {
                    names.push(name.to_owned());
                }
                Some(_) => {
                    bail!("{word} is of another kind than {first}: ask for one kind at a time")
                }
                None => bail!("{word} has no kind: write it as {}/{word}", kind.singular),
            }
        }
        return named(kind, names);
    }
    if let Some(word) = rest.iter().find(|word| word.contains('/')) {
        bail!("{word} names a kind again: write `{first} NAME`, or KIND/NAME each time");
    }
    named(find(first)?, rest.to_vec())
}

fn named(kind: &'static KindInfo, names: Vec<String>) -> anyhow::Result<Selection> {
    // What goes into a path must not be able to lead elsewhere; whether it is a proper name is for
    // the server to say.
    let escapes = |name: &&String| {
        name.is_empty() || name.contains(['/', '?', '#', '%', ' ']) || *name == "." || *name == ".."
    };
    if let Some(bad) = names.iter().find(escapes) {
        bail!("`{bad}` cannot be a name");
    }
    Ok(Selection { kind, names })
}

fn find(word: &str) -> anyhow::Result<&'static KindInfo> {
    let bare = word.strip_suffix(&format!(".{GROUP}")).unwrap_or(word);
    kinds::find_word(bare).with_context(|| {
        let known: Vec<String> = kinds::ALL
            .iter()
            .map(|kind| format!("{} ({})", kind.plural, kind.short_names.join(", ")))
            .collect();
        format!("`{word}` is not a kind; there are {}", known.join(", "))
    })
}

/// The path of all objects of a kind, in a namespace where they have one.
pub(crate) fn collection(kind: &KindInfo, namespace: Option<&str>) -> String {
    let plural = kind.plural;
    match (kind.scope, namespace) {
        (Scope::Namespaced, Some(namespace)) => {
            format!(
                "/apis/{GROUP_VERSION}/namespaces/{}/{plural}",
                escape(namespace)
            )
        }
        (Scope::Namespaced, None) | (Scope::Cluster, _) => {
            format!("/apis/{GROUP_VERSION}/{plural}")
        }
    }
}

/// The path of one object.
pub(crate) fn object(kind: &KindInfo, namespace: &str, name: &str) -> String {
    format!("{}/{}", collection(kind, Some(namespace)), escape(name))
}

/// What an object is called in messages, as kubectl does.
pub(crate) fn title(kind: &KindInfo, name: &str) -> String {
    format!("{}.{GROUP}/{name}", kind.singular)
}

/// A path with a query.
pub(crate) fn with_query(path: &str, pairs: &[(&str, &str)]) -> String {
    let query: Vec<String> = pairs
        .iter()
        .map(|(name, value)| format!("{name}={}", escape(value)))
        .collect();
    if query.is_empty() {
        path.to_owned()
    } else {
        format!("{path}?{}", query.join("&"))
    }
}

/// Text as a part of a URL.
fn escape(text: &str) -> String {
    text.bytes().fold(String::new(), |mut escaped, byte| {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
        escaped
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    fn selected(text: &str) -> Result<String, String> {
        select(&words(text))
            .map(|s| format!("{} {}", s.kind.plural, s.names.join(",")))
            .map_err(|e| e.to_string())
    }

    #[test]
    fn a_kind_answers_to_all_its_names() {
        for word in [
            "sandboxes",
            "sandbox",
            "sbx",
            "Sandbox",
            "sandboxes.dormouse.dev",
        ] {
            assert_eq!(selected(word).as_deref(), Ok("sandboxes "));
        }
        assert!(selected("pods").unwrap_err().contains("sandboxes (sbx)"));
    }

    #[test]
    fn names_follow_the_kind_or_carry_it() {
        assert_eq!(selected("sbx a b").as_deref(), Ok("sandboxes a,b"));
        assert_eq!(selected("sbx/a sandbox/b").as_deref(), Ok("sandboxes a,b"));
        for bad in [
            "sbx/a b",
            "sbx/a sbp/b",
            "sbx a/b",
            "sbx ..",
            "sbx/",
            "sbx a?x",
        ] {
            assert!(selected(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn paths_follow_the_scope_of_the_kind() {
        let kind = |word: &str| kinds::find_word(word).unwrap();
        assert_eq!(
            object(kind("sbx"), "default", "a"),
            "/apis/dormouse.dev/v1alpha1/namespaces/default/sandboxes/a"
        );
        assert_eq!(
            object(kind("sbt"), "default", "a"),
            "/apis/dormouse.dev/v1alpha1/sandboxtemplates/a"
        );
        assert_eq!(
            with_query("/x", &[("labelSelector", "a=b,c!=d")]),
            "/x?labelSelector=a%3Db%2Cc%21%3Dd"
        );
    }
}
