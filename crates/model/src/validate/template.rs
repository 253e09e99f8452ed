//! Rules for templates.

use super::{Cause, Problems, Rules, hook, sandbox, snapshot, text};
use crate::{limits, meta::Object, template::TemplateSpec};

impl Rules for TemplateSpec {
    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        text::image("spec.image", &spec.image, problems);
        text::env("spec.env", &spec.env, problems);
        command("spec.startCommand", &spec.start_command, problems);
        command("spec.readyCommand", &spec.ready_command, problems);
        hook::hooks("spec.hooks", &spec.hooks, problems);
        if let Some(resources) = &spec.resources {
            sandbox::resources("spec.resources", resources, problems);
        }
        if let Some(policy) = &spec.pause_policy {
            sandbox::pause_policy("spec.pausePolicy", policy, problems);
        }
        user("spec.user", spec.user.as_deref(), problems);
        workdir("spec.workdir", spec.workdir.as_deref(), problems);
        snapshot::aliases("spec.aliases", &spec.aliases, problems);
        if let Some(build) = &spec.build {
            let tags: Vec<Box<str>> = build
                .tags
                .iter()
                .map(|tag| format!("{}:{}", build.name, tag.tag).into())
                .collect();
            snapshot::aliases("spec.build.tags", &tags, problems);
        }
        problems.at_most("spec.teams", spec.teams.len(), limits::TEAMS);
        for (i, team) in spec.teams.iter().enumerate() {
            if spec.teams[..i].contains(team) {
                problems.add(
                    format!("spec.teams[{i}]"),
                    Cause::Duplicate,
                    format!("{:?}", team.as_str()),
                    "name each once",
                );
            }
        }
    }
}

/// Who runs a command.
pub(super) fn user(field: &str, user: Option<&str>, problems: &mut Problems) {
    let word = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
    if let Some(user) = user
        && (user.is_empty() || user.len() > limits::USER || !user.bytes().all(word))
    {
        problems.add(
            field,
            Cause::Invalid,
            format!("{user:?} does not name a user"),
            "write it as user, uid or uid:gid",
        );
    }
}

/// Where a command runs.
pub(super) fn workdir(field: &str, workdir: Option<&str>, problems: &mut Problems) {
    if let Some(workdir) = workdir
        && (!workdir.starts_with('/') || workdir.len() > limits::PATH || workdir.contains('\0'))
    {
        problems.add(
            field,
            Cause::Invalid,
            "it is not an absolute path",
            "start it with '/' and use at most 4096 bytes",
        );
    }
}

/// A program and its arguments; none means no command.
pub(super) fn command(field: &str, words: &[Box<str>], problems: &mut Problems) {
    problems.at_most(field, words.len(), limits::WORDS);
    if words.first().is_some_and(|program| program.is_empty()) {
        problems.add(
            format!("{field}[0]"),
            Cause::Invalid,
            "it names no program",
            "name a program, or [\"/bin/bash\", \"-lc\", \"…\"] for a line of a shell",
        );
    }
    for (i, word) in words.iter().enumerate() {
        if word.len() > limits::WORD || word.contains('\0') {
            problems.add(
                format!("{field}[{i}]"),
                Cause::Invalid,
                "no program can be given it",
                "use at most 64 KiB without NUL",
            );
        }
    }
}
