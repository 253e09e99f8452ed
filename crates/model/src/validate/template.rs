//! Rules for templates.

use super::{Cause, Problems, Rules, sandbox, snapshot, text};
use crate::{meta::Object, template::TemplateSpec};

const MAX_TEAMS: usize = 1000;

impl Rules for TemplateSpec {
    fn check(object: &Object<Self>, problems: &mut Problems) {
        let spec = &object.spec;
        text::image("spec.image", &spec.image, problems);
        text::env("spec.env", &spec.env, problems);
        not_run("spec.startCommand", &spec.start_command, problems);
        not_run("spec.readyCommand", &spec.ready_command, problems);
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
        snapshot::aliases("spec.aliases", &spec.aliases, problems);
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

/// A command that nothing would run is not accepted in silence.
fn not_run(field: &str, arguments: &[Box<str>], problems: &mut Problems) {
    if !arguments.is_empty() {
        problems.add(
            field,
            Cause::Forbidden,
            "commands of templates are not run yet",
            "leave it out, and start the program through the sandbox's agent",
        );
    }
}
