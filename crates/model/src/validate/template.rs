//! Rules for templates.

use super::{Cause, Problems, Rules, sandbox, text};
use crate::{meta::Object, template::TemplateSpec};

const MAX_ARGUMENTS: usize = 256;
const MAX_COMMAND_BYTES: usize = 64 << 10;
const MAX_TEAMS: usize = 1000;

impl Rules for TemplateSpec {
    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        text::image("spec.image", &spec.image, problems);
        text::env("spec.env", &spec.env, problems);
        command("spec.startCommand", &spec.start_command, problems);
        command("spec.readyCommand", &spec.ready_command, problems);
        if let Some(resources) = &spec.resources {
            sandbox::resources("spec.resources", resources, problems);
        }
        if let Some(policy) = &spec.pause_policy {
            sandbox::pause_policy("spec.pausePolicy", policy, problems);
        }
        let word = |b: u8| b.is_ascii_alphanumeric() || b"_.:-".contains(&b);
        if let Some(user) = &spec.user
            && (user.is_empty() || user.len() > 64 || !user.bytes().all(word))
        {
            problems.add(
                "spec.user",
                Cause::Invalid,
                format!("{user:?} does not name a user"),
                "write it as user, uid or uid:gid",
            );
        }
        if let Some(workdir) = &spec.workdir
            && (!workdir.starts_with('/') || workdir.len() > 4096 || workdir.contains('\0'))
        {
            problems.add(
                "spec.workdir",
                Cause::Invalid,
                "it is not an absolute path",
                "start it with '/' and use at most 4096 bytes",
            );
        }
        problems.at_most("spec.teams", spec.teams.len(), MAX_TEAMS);
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

fn command(field: &str, arguments: &[Box<str>], problems: &mut Problems) {
    problems.at_most(field, arguments.len(), MAX_ARGUMENTS);
    let total: usize = arguments.iter().map(|a| a.len()).sum();
    if total > MAX_COMMAND_BYTES {
        problems.add(
            field,
            Cause::TooLong,
            format!("{total} bytes in all"),
            format!("use at most {MAX_COMMAND_BYTES}, or put a script into the image"),
        );
    }
    if arguments.first().is_some_and(|program| program.is_empty()) {
        problems.add(
            format!("{field}[0]"),
            Cause::Required,
            "it is empty",
            "name the program",
        );
    }
    for (i, _) in arguments
        .iter()
        .enumerate()
        .filter(|(_, a)| a.contains('\0'))
    {
        problems.add(
            format!("{field}[{i}]"),
            Cause::Invalid,
            "it contains a NUL",
            "remove it",
        );
    }
}
