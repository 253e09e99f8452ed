//! Rules for hooks, wherever they stand.

use super::{Cause, Problems, template, text};
use crate::{
    hook::{ExecHook, Hook, HttpHook},
    limits,
};

const MAX_HOOKS: usize = 16;
const MAX_SECONDS: u64 = 600;
const MAX_RETRIES: u64 = 10;
const MAX_HEADERS: usize = 32;

pub(super) fn hooks(field: &str, hooks: &[Hook], problems: &mut Problems) {
    problems.at_most(field, hooks.len(), MAX_HOOKS);
    for (i, hook) in hooks.iter().enumerate().take(MAX_HOOKS) {
        let at = format!("{field}[{i}]");
        if let Err(error) = crate::Name::new(&*hook.name) {
            let remedy = "name it as seed-data";
            problems.add(
                format!("{at}.name"),
                Cause::Invalid,
                error.to_string(),
                remedy,
            );
        }
        if hooks[..i].iter().any(|other| other.name == hook.name) {
            let reason = format!("{:?}", hook.name);
            problems.add(
                format!("{at}.name"),
                Cause::Duplicate,
                reason,
                "name each once",
            );
        }
        match (&hook.exec, &hook.http) {
            (Some(exec), None) => self::exec(&format!("{at}.exec"), exec, problems),
            (None, Some(http)) => self::http(&format!("{at}.http"), http, problems),
            (None, None) => problems.add(
                at.as_str(),
                Cause::Required,
                "it does not say what to do",
                "give it one of exec and http",
            ),
            (Some(_), Some(_)) => problems.add(
                at.as_str(),
                Cause::Invalid,
                "it says two things to do",
                "leave out one of exec and http",
            ),
        }
        let seconds = hook.timeout_seconds.into();
        problems.bounds(format!("{at}.timeoutSeconds"), seconds, 1, MAX_SECONDS);
        problems.bounds(format!("{at}.retries"), hook.retries.into(), 0, MAX_RETRIES);
    }
}

fn exec(field: &str, exec: &ExecHook, problems: &mut Problems) {
    if exec.command.is_empty() {
        problems.add(
            format!("{field}.command"),
            Cause::Required,
            "it names no program",
            "name a program, or [\"/bin/bash\", \"-lc\", \"…\"] for a line of a shell",
        );
    }
    template::command(&format!("{field}.command"), &exec.command, problems);
    template::user(&format!("{field}.user"), exec.user.as_deref(), problems);
    template::workdir(
        &format!("{field}.workdir"),
        exec.workdir.as_deref(),
        problems,
    );
    text::env(&format!("{field}.env"), &exec.env, problems);
}

fn http(field: &str, http: &HttpHook, problems: &mut Problems) {
    problems.bounds(format!("{field}.port"), http.port.into(), 1, 65_535);
    let printable = |text: &str| text.bytes().all(|b| b.is_ascii_graphic());
    if !http.path.starts_with('/') || http.path.len() > limits::PATH || !printable(&http.path) {
        problems.add(
            format!("{field}.path"),
            Cause::Invalid,
            format!("{:?} is not a path", http.path),
            "start it with '/', and encode what is not printable ASCII",
        );
    }
    problems.at_most(format!("{field}.headers"), http.headers.len(), MAX_HEADERS);
    for (name, value) in http.headers.iter().take(MAX_HEADERS) {
        let token = |b: u8| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b);
        let sayable = |b: u8| b == b' ' || b.is_ascii_graphic();
        if name.is_empty() || name.len() > 256 || !name.bytes().all(token) {
            problems.add(
                format!("{field}.headers.{name}"),
                Cause::Invalid,
                format!("{name:?} is not the name of a header"),
                "use letters, digits and '-'",
            );
        }
        if value.len() > limits::HEADER || !value.bytes().all(sayable) {
            // The value may be a secret, so it is not shown.
            problems.add(
                format!("{field}.headers.{name}"),
                Cause::Invalid,
                "its value cannot be sent",
                "use at most 8 KiB of printable ASCII",
            );
        }
    }
    if http
        .body
        .as_ref()
        .is_some_and(|body| body.len() > limits::BODY)
    {
        problems.add(
            format!("{field}.body"),
            Cause::TooLong,
            "it is longer than 64 KiB",
            "have the program inside fetch what is large",
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(hook: &str) -> Vec<String> {
        let hook: Hook = serde_json::from_str(hook).unwrap();
        let mut problems = Problems::default();
        hooks(
            "spec.hooks",
            &[Hook::exec("first", &["true"]), hook],
            &mut problems,
        );
        let all = problems.into_vec().into_iter();
        all.map(|problem| problem.field).collect()
    }

    #[test]
    fn good_hooks_are_taken() {
        for hook in [
            r#"{"name": "seed", "exec": {"command": ["/bin/seed", "-q"], "user": "root"}}"#,
            r#"{"name": "ping", "http": {"port": 80, "path": "/a?b=c", "method": "POST",
                "headers": {"X-Key": "a b"}, "body": "{}"}, "required": true, "retries": 0}"#,
        ] {
            assert!(fields(hook).is_empty(), "{hook}");
        }
    }

    #[test]
    fn what_is_wrong_is_named_by_its_field() {
        for (hook, field) in [
            (r#"{"name": "a"}"#, ""),
            (
                r#"{"name": "a", "exec": {"command": ["b"]}, "http": {"port": 1}}"#,
                "",
            ),
            (r#"{"name": "A b", "exec": {"command": ["b"]}}"#, ".name"),
            (r#"{"name": "first", "exec": {"command": ["b"]}}"#, ".name"),
            (r#"{"name": "a", "exec": {"command": []}}"#, ".exec.command"),
            (
                r#"{"name": "a", "exec": {"command": [""]}}"#,
                ".exec.command[0]",
            ),
            (
                r#"{"name": "a", "exec": {"command": ["b"], "user": "no such"}}"#,
                ".exec.user",
            ),
            (
                r#"{"name": "a", "exec": {"command": ["b"], "workdir": "tmp"}}"#,
                ".exec.workdir",
            ),
            (r#"{"name": "a", "http": {"port": 0}}"#, ".http.port"),
            (
                r#"{"name": "a", "http": {"port": 1, "path": "b"}}"#,
                ".http.path",
            ),
            (
                r#"{"name": "a", "http": {"port": 1, "headers": {"b c": "d"}}}"#,
                ".http.headers.b c",
            ),
            (
                r#"{"name": "a", "http": {"port": 1, "headers": {"b": "c\nd"}}}"#,
                ".http.headers.b",
            ),
            (
                r#"{"name": "a", "exec": {"command": ["b"]}, "timeoutSeconds": 0}"#,
                ".timeoutSeconds",
            ),
            (
                r#"{"name": "a", "exec": {"command": ["b"]}, "retries": 11}"#,
                ".retries",
            ),
        ] {
            assert_eq!(fields(hook), [format!("spec.hooks[1]{field}")], "{hook}");
        }
    }
}
