//! Hooks: what is done inside a sandbox once its owner's settings are in place, before its owner
//! hears of it.
//!
//! They run one after the other, once for each delivery: when a sandbox is made for its owner, and
//! when a member of a pool becomes its owner's, whether its image was swapped for that or not.
//! Waking runs none of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{StringMap, limits, meta::is_default};

/// One hook: a command, or a request. Exactly one of `exec` and `http` is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Hook {
    /// What it is called in errors and events. Of two with the same name that of the sandbox or its
    /// pool counts, not that of the template.
    #[schemars(length(max = limits::NAME))]
    pub name: Box<str>,
    /// A command that is run inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exec: Option<ExecHook>,
    /// A request that is sent to a port inside.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http: Option<HttpHook>,
    /// Whether the sandbox is not handed out when this fails. Otherwise it is, with a warning.
    #[serde(default, skip_serializing_if = "is_default")]
    pub required: bool,
    /// Seconds that one try may take.
    #[serde(default = "half_a_minute")]
    pub timeout_seconds: u32,
    /// How often it is tried again after a failure, later each time.
    #[serde(default = "twice")]
    pub retries: u32,
}

const fn half_a_minute() -> u32 {
    30
}

const fn twice() -> u32 {
    2
}

impl Hook {
    /// A command, with everything else as it is unless said otherwise.
    #[must_use]
    pub fn exec(name: &str, command: &[&str]) -> Self {
        Self {
            name: name.into(),
            exec: Some(ExecHook {
                command: command.iter().map(|word| (*word).into()).collect(),
                ..ExecHook::default()
            }),
            http: None,
            required: false,
            timeout_seconds: half_a_minute(),
            retries: twice(),
        }
    }
}

/// A command that is run inside. It succeeds by ending with zero.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ExecHook {
    /// A program and its arguments.
    #[schemars(length(max = limits::WORDS), inner(length(max = limits::WORD)))]
    pub command: Vec<Box<str>>,
    /// Who runs it; absent means who runs the sandbox's other commands.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::USER))]
    pub user: Option<Box<str>>,
    /// Where it runs; absent means where other commands do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::PATH))]
    pub workdir: Option<Box<str>>,
    /// Its environment, besides the sandbox's.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::VARIABLE }>)]
    pub env: StringMap,
}

/// A request that is sent to a port inside, on its loopback. It succeeds with an answer of the
/// class 2xx.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct HttpHook {
    /// The port.
    pub port: u16,
    /// The path, with a query if there is one.
    #[serde(default = "root")]
    #[schemars(length(max = limits::PATH))]
    pub path: Box<str>,
    /// The method.
    #[serde(default, skip_serializing_if = "is_default")]
    pub method: HookMethod,
    /// Headers.
    #[serde(default, skip_serializing_if = "StringMap::is_empty")]
    #[schemars(transform = limits::values::<{ limits::HEADER }>)]
    pub headers: StringMap,
    /// The body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = limits::BODY))]
    pub body: Option<Box<str>>,
}

fn root() -> Box<str> {
    "/".into()
}

/// The method of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum HookMethod {
    /// `GET`.
    #[default]
    Get,
    /// `POST`.
    Post,
    /// `PUT`.
    Put,
}

/// Hooks of a template, with those of a sandbox or its pool in place of the same name, and the rest
/// of those after them.
#[must_use]
pub fn merged(template: &[Hook], own: &[Hook]) -> Vec<Hook> {
    let mut all = template.to_vec();
    for hook in own {
        match all.iter_mut().find(|there| there.name == hook.name) {
            Some(there) => *there = hook.clone(),
            None => all.push(hook.clone()),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hook_of_the_same_name_takes_the_place_of_the_templates() {
        let template = [Hook::exec("seed", &["a"]), Hook::exec("warm", &["b"])];
        let own = [Hook::exec("late", &["d"]), Hook::exec("seed", &["c"])];
        let words: Vec<_> = merged(&template, &own)
            .into_iter()
            .map(|hook| (hook.name, hook.exec.unwrap().command.remove(0)))
            .collect();
        let expected = [("seed", "c"), ("warm", "b"), ("late", "d")];
        assert_eq!(words, expected.map(|(n, c)| (n.into(), c.into())));
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let hook: Hook =
            serde_json::from_str(r#"{"name": "ping", "http": {"port": 8080}}"#).unwrap();
        let http = hook.http.unwrap();
        assert_eq!((&*http.path, http.method), ("/", HookMethod::Get));
        assert_eq!((hook.timeout_seconds, hook.retries), (30, 2));
        assert!(!hook.required);
    }
}
