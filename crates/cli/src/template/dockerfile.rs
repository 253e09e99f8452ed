//! The part of a Dockerfile that a template is made of: one stage, with FROM, RUN, COPY and ADD of
//! files, ENV, ARG, WORKDIR, USER, CMD and ENTRYPOINT. What only concerns containers is left out and
//! said; anything else is refused by its line.

use anyhow::{Context as _, bail};

/// Who runs steps in an image, and where, if nobody says otherwise.
const IMAGE: [(&str, &str); 2] = [("USER", "root"), ("WORKDIR", "/")];
/// Who runs commands in a sandbox, and where.
const SANDBOX: [(&str, &str); 2] = [("USER", "user"), ("WORKDIR", "/home/user")];

/// What a Dockerfile asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) from: Option<String>,
    pub(super) steps: Vec<Step>,
    pub(super) start: Option<String>,
    /// What was left out.
    pub(super) notes: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    Copy(Copy),
    Other { kind: String, words: Vec<String> },
}

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Copy {
    pub(super) source: String,
    pub(super) target: String,
    owner: String,
    mode: String,
}

impl Copy {
    /// As the server wants it.
    pub(super) fn words(&self) -> [&str; 4] {
        [&self.source, &self.target, &self.owner, &self.mode]
    }
}

impl Plan {
    /// Reads one. `given` are the values of ARGs.
    pub(super) fn read(text: &str, given: &[(String, String)]) -> anyhow::Result<Self> {
        let mut plan = Self::default();
        let (mut entrypoint, mut command) = (None, None);
        let mut said = Vec::new();
        for (number, line) in lines(text) {
            let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((&line, ""));
            let rest = rest.trim();
            let kind = word.to_ascii_uppercase();
            let read = || -> anyhow::Result<Vec<Step>> {
                Ok(match kind.as_str() {
                    "RUN" => vec![other("RUN", vec![shell(rest)?])],
                    "COPY" | "ADD" => copies(rest)?,
                    "ENV" => vec![other("ENV", pairs(rest)?)],
                    "ARG" => match argument(rest, given) {
                        Some(pair) => vec![other("ARG", pair)],
                        None => bail!("{rest} has no value: give it with --build-arg"),
                    },
                    "WORKDIR" | "USER" => vec![other(&kind, vec![rest.to_owned()])],
                    _ => Vec::new(),
                })
            };
            let steps = read().with_context(|| format!("line {number}"))?;
            plan.steps.extend(steps);
            match kind.as_str() {
                "FROM" if plan.from.is_some() => {
                    bail!("line {number}: only one stage can be built: leave out the other FROM")
                }
                "FROM" => {
                    let image = rest.split_whitespace().find(|word| !word.starts_with("--"));
                    plan.from = image.map(Into::into);
                    plan.steps
                        .extend(IMAGE.map(|(kind, word)| other(kind, vec![word.into()])));
                }
                "CMD" => {
                    let line = shell(rest).with_context(|| format!("line {number}"))?;
                    command = Some((number, rest.starts_with('['), line));
                }
                "ENTRYPOINT" => {
                    let line = shell(rest).with_context(|| format!("line {number}"))?;
                    entrypoint = Some((rest.starts_with('['), line));
                }
                "WORKDIR" | "USER" => said.push(kind),
                "RUN" | "COPY" | "ADD" | "ENV" | "ARG" => {}
                "EXPOSE" | "LABEL" | "MAINTAINER" | "STOPSIGNAL" => {
                    plan.notes
                        .push(format!("line {number}: {kind} means nothing to a sandbox"));
                }
                _ => bail!(
                    "line {number}: {kind} is not supported: use FROM, RUN, COPY, ENV, ARG, WORKDIR, \
                     USER, CMD and ENTRYPOINT"
                ),
            }
        }
        plan.start = match (entrypoint, command) {
            (Some((true, entrypoint)), Some((_, true, command))) => {
                Some(format!("{entrypoint} {command}"))
            }
            // Docker gives it a shell and its line as two more words, which nobody means.
            (Some((true, _)), Some((number, false, _))) => {
                bail!("line {number}: write CMD as a list of words: it is given to ENTRYPOINT")
            }
            (Some((false, entrypoint)), Some((number, ..))) => {
                let note = "CMD means nothing beside an ENTRYPOINT that is a line of a shell";
                plan.notes.push(format!("line {number}: {note}"));
                Some(entrypoint)
            }
            (Some((_, entrypoint)), None) => Some(entrypoint),
            (None, command) => command.map(|(_, _, line)| line),
        };
        // A template that is built upon says itself who runs commands, and where.
        if plan.from.is_some() {
            for (kind, word) in SANDBOX {
                if !said.iter().any(|said| said == kind) {
                    plan.steps.push(other(kind, vec![word.into()]));
                }
            }
        }
        Ok(plan)
    }
}

fn other(kind: &str, words: Vec<String>) -> Step {
    Step::Other {
        kind: kind.into(),
        words,
    }
}

/// The instructions, each with the number of its first line.
fn lines(text: &str) -> Vec<(usize, String)> {
    let mut all = Vec::new();
    let mut open: Option<(usize, String)> = None;
    for (at, line) in text.lines().enumerate() {
        let trimmed = line.trim();
        // Comments and empty lines may also stand within an instruction.
        if trimmed.is_empty() || trimmed.starts_with('#') {
            continue;
        }
        let (number, mut so_far) = open.take().unwrap_or((at + 1, String::new()));
        // What follows a backslash goes on where it stands, blanks and all.
        let whole = match so_far.is_empty() {
            true => trimmed,
            false => line.trim_end(),
        };
        match whole.strip_suffix('\\') {
            Some(part) => {
                so_far.push_str(part);
                open = Some((number, so_far));
            }
            None => {
                so_far.push_str(whole);
                all.push((number, so_far));
            }
        }
    }
    all.extend(open);
    all
}

/// A line of a shell: as it is, or from a list of words.
fn shell(rest: &str) -> anyhow::Result<String> {
    if rest.starts_with("--") {
        bail!("options as {rest:?} are not supported");
    }
    if rest.starts_with("<<") {
        bail!("documents within the file are not supported: write the commands with &&");
    }
    if !rest.starts_with('[') {
        return Ok(rest.to_owned());
    }
    let words: Vec<String> = serde_json::from_str(rest).context("a list of words in JSON")?;
    let quoted = words.iter().map(|word| quote(word));
    Ok(quoted.collect::<Vec<_>>().join(" "))
}

fn quote(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./=:,@%+".contains(&b);
    match !word.is_empty() && word.bytes().all(plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn copies(rest: &str) -> anyhow::Result<Vec<Step>> {
    let (mut owner, mut mode) = (String::from("root"), String::new());
    let mut words = if rest.starts_with('[') {
        serde_json::from_str(rest).context("a list of paths in JSON")?
    } else {
        split(rest)?
    };
    while let Some(option) = words.first().filter(|word| word.starts_with("--")).cloned() {
        words.remove(0);
        match option.split_once('=') {
            Some(("--chown", value)) => owner = value.to_owned(),
            Some(("--chmod", value)) => mode = value.to_owned(),
            _ => bail!("{option} is not supported"),
        }
    }
    let Some(target) = words.pop().filter(|_| !words.is_empty()) else {
        bail!("it needs a source and a destination");
    };
    if let Some(url) = words.iter().find(|word| word.contains("://")) {
        bail!("{url}: only files can be copied: fetch it with RUN");
    }
    // Several go into a directory.
    let target = match words.len() > 1 && !target.ends_with('/') {
        true => format!("{target}/"),
        false => target,
    };
    let copy = |source| {
        Step::Copy(Copy {
            source,
            target: target.clone(),
            owner: owner.clone(),
            mode: mode.clone(),
        })
    };
    Ok(words.into_iter().map(copy).collect())
}

/// Names and values in turn: `A=b C="d e"`, or the old `A b c`.
fn pairs(rest: &str) -> anyhow::Result<Vec<String>> {
    let first = rest.split_whitespace().next().unwrap_or_default();
    if !first.contains('=') {
        let (name, value) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        return Ok(vec![name.to_owned(), value.trim().to_owned()]);
    }
    let mut all = Vec::new();
    for word in split(rest)? {
        let (name, value) = word.split_once('=').context("write each as NAME=VALUE")?;
        all.extend([name.to_owned(), value.to_owned()]);
    }
    Ok(all)
}

fn argument(rest: &str, given: &[(String, String)]) -> Option<Vec<String>> {
    let (name, otherwise) = match rest.split_once('=') {
        Some((name, value)) => (name, Some(value.trim_matches(['"', '\'']).to_owned())),
        None => (rest, None),
    };
    let found = given.iter().rev().find(|(known, _)| known == name);
    let value = found.map(|(_, value)| value.clone()).or(otherwise)?;
    Some(vec![name.to_owned(), value])
}

/// Words with quotes taken away; a dollar within single quotes is one.
fn split(text: &str) -> anyhow::Result<Vec<String>> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (letter, quote) {
            (mark, Some(open)) if mark == open => quote = None,
            ('$', Some('\'')) => word.get_or_insert_default().push_str("\\$"),
            ('"' | '\'', None) => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            ('\\', None | Some('"')) => match letters.next() {
                Some('$') => word.get_or_insert_default().push_str("\\$"),
                Some(next) => word.get_or_insert_default().push(next),
                None => bail!("it ends with a backslash"),
            },
            (blank, None) if blank.is_whitespace() => words.extend(word.take()),
            (letter, _) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        bail!("a quote is not closed");
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(kind: &str, words: &[&str]) -> Step {
        other(kind, words.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn a_dockerfile_becomes_steps() {
        let text = r#"
# a comment
FROM --platform=linux/amd64 debian:12 AS build
ARG VERSION=1
ENV A=b C="d e" E='$x'
RUN apt-get update && \
    # still the same
    apt-get install -y curl
COPY --chown=user:user --chmod=755 a.txt b/ /srv
RUN ["echo", "it's"]
EXPOSE 80
CMD ["python3", "-m", "http.server"]
"#;
        let given = [("VERSION".to_owned(), "2".to_owned())];
        let plan = Plan::read(text, &given).unwrap();
        assert_eq!(plan.from.as_deref(), Some("debian:12"));
        assert_eq!(plan.start.as_deref(), Some("python3 -m http.server"));
        assert_eq!(plan.notes.len(), 1);
        let copy = |source: &str| {
            Step::Copy(Copy {
                source: source.into(),
                target: "/srv/".into(),
                owner: "user:user".into(),
                mode: "755".into(),
            })
        };
        let expected = [
            step("USER", &["root"]),
            step("WORKDIR", &["/"]),
            step("ARG", &["VERSION", "2"]),
            step("ENV", &["A", "b", "C", "d e", "E", r"\$x"]),
            step("RUN", &["apt-get update &&     apt-get install -y curl"]),
            copy("a.txt"),
            copy("b/"),
            step("RUN", &[r"echo 'it'\''s'"]),
            step("USER", &["user"]),
            step("WORKDIR", &["/home/user"]),
        ];
        assert_eq!(plan.steps, expected);
    }

    #[test]
    fn a_line_goes_on_exactly_where_it_was_broken() {
        let plan = Plan::read("RUN echo a\\\nb \\\n  c", &[]).unwrap();
        assert_eq!(plan.steps, [step("RUN", &["echo ab   c"])]);
    }

    #[test]
    fn who_runs_commands_is_said_by_the_file_or_what_it_starts_from() {
        let plan = Plan::read("USER app\nRUN true", &[]).unwrap();
        assert_eq!(plan.steps, [step("USER", &["app"]), step("RUN", &["true"])]);
        let plan = Plan::read("FROM a\nUSER app", &[]).unwrap();
        let last = step("WORKDIR", &["/home/user"]);
        assert_eq!(plan.steps[2..], [step("USER", &["app"]), last]);
    }

    #[test]
    fn a_command_is_for_an_entrypoint_of_words() {
        let start = |text: &str| Plan::read(text, &[]).map(|plan| plan.start);
        let words = "ENTRYPOINT [\"a\"]\nCMD [\"b c\"]";
        assert_eq!(start(words).unwrap().as_deref(), Some("a 'b c'"));
        let line = "ENTRYPOINT a x\nCMD [\"b\"]";
        assert_eq!(start(line).unwrap().as_deref(), Some("a x"));
        let refused = start("ENTRYPOINT [\"a\"]\nCMD b").unwrap_err();
        assert!(
            refused.to_string().contains("line 2: write CMD"),
            "{refused}"
        );
    }

    #[test]
    fn what_cannot_be_built_is_refused_by_its_line() {
        for (text, said) in [
            ("FROM a\nFROM b", "line 2: only one stage"),
            ("FROM a\nHEALTHCHECK x", "line 2: HEALTHCHECK"),
            ("FROM a\nCOPY --from=b c d", "line 2: --from=b"),
            ("FROM a\nADD https://x/y z", "line 2: https://x/y"),
            ("FROM a\nCOPY b", "line 2: it needs"),
            ("FROM a\nARG X", "line 2: X has no value"),
            ("FROM a\nRUN --mount=x y", "line 2: options"),
            ("FROM a\nENV A='b", "line 2: a quote"),
        ] {
            let refused = Plan::read(text, &[]).unwrap_err();
            assert!(format!("{refused:#}").contains(said), "{refused:#}");
        }
    }
}
