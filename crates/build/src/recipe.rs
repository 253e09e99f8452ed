//! What is to be built: read from what a client sends, and checked before anything is done.

use std::fmt;

use model::workload::Secret;

use crate::error::{Refused, Result};

const MAX_STEPS: usize = 1000;
/// The longest word of a step.
const MAX_WORD: usize = 64 << 10;

/// What a client asks for.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The image it starts from.
    pub from_image: Option<String>,
    /// Or the template.
    pub from_template: Option<String>,
    /// Who the client is to the image's registry.
    pub login: Option<Login>,
    /// Whether the client may have the image as whom the installation is to registries.
    pub trusted: bool,
    /// Whether nothing that was kept may be used.
    pub force: bool,
    /// What is done, in order.
    pub steps: Vec<AskedStep>,
    /// Line of a shell that is started with every sandbox.
    pub start: Option<String>,
    /// Line of a shell that succeeds once a sandbox is ready.
    pub ready: Option<String>,
}

/// A step as a client writes it.
#[derive(Clone, Debug, Default)]
pub struct AskedStep {
    /// Which instruction.
    pub kind: String,
    /// Its words.
    pub args: Vec<String>,
    /// The files it needs.
    pub files_hash: Option<String>,
    /// Whether it and what follows is done anew.
    pub force: bool,
}

/// Who somebody is to a registry.
#[derive(Clone)]
pub struct Login {
    /// The user.
    pub user: String,
    /// The password.
    pub password: Secret,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Login(…)")
    }
}

/// As whom an image is pulled.
#[derive(Clone, Debug)]
pub enum Identity {
    /// As nobody: what the registry gives to everybody.
    Nobody,
    /// As whom the installation is configured to be.
    Installation,
    /// As whom the client says.
    Given(Login),
}

/// What a build starts from.
#[derive(Clone, Debug)]
pub enum Base {
    /// An image of a registry.
    Image {
        /// Its name.
        name: String,
        /// As whom it is pulled.
        identity: Identity,
        /// Whether clients may have it anyway, wherever it is.
        trusted: bool,
    },
    /// A template.
    Template(String),
}

/// A checked recipe.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What it starts from.
    pub base: Base,
    /// Whether nothing that was kept may be used.
    pub force: bool,
    /// What is done.
    pub steps: Vec<Step>,
    /// Line of a shell; none to keep that of the base.
    pub start: Option<String>,
    /// Line of a shell; none to keep that of the base.
    pub ready: Option<String>,
}

/// One step.
#[derive(Clone, Debug)]
pub struct Step {
    /// What it does.
    pub does: Instruction,
    /// Whether it and what follows is done anew.
    pub force: bool,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Instruction {
    /// Runs a line of a shell.
    Run {
        /// The line.
        command: String,
        /// Who runs it; none for the user of the moment.
        user: Option<String>,
    },
    /// Copies uploaded files.
    Copy(Copy),
    /// Sets variables.
    Env(Vec<(String, String)>),
    /// Changes where the next steps run.
    Workdir(String),
    /// Changes who runs the next steps.
    User(String),
}

/// Which files go where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Within the context; may have wildcards.
    pub source: String,
    /// Inside; a directory if it ends in `/`.
    pub target: String,
    /// `user` or `user:group`; none for the user of the moment.
    pub owner: Option<String>,
    /// Permissions; none to keep them.
    pub mode: Option<u32>,
    /// What the files were uploaded as.
    pub files: String,
}

impl Instruction {
    /// As people write it.
    #[must_use]
    pub fn shown(&self) -> String {
        match self {
            Self::Run { command, .. } => format!("RUN {command}"),
            Self::Copy(copy) => format!("COPY {} {}", copy.source, copy.target),
            // Values may be secrets.
            Self::Env(pairs) => {
                let names: Vec<&str> = pairs.iter().map(|(name, _)| name.as_str()).collect();
                format!("ENV {}", names.join(" "))
            }
            Self::Workdir(path) => format!("WORKDIR {path}"),
            Self::User(user) => format!("USER {user}"),
        }
    }

    /// Whether it changes files, so that its outcome is kept.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        match self {
            Self::Run { .. } | Self::Copy(_) => true,
            Self::Env(_) | Self::Workdir(_) | Self::User(_) => false,
        }
    }
}

/// The image that official clients call the base one is the template `base` here.
const BASE_IMAGES: [&str; 3] = ["e2bdev/base", "e2bdev/base:latest", "docker.io/e2bdev/base"];

impl Recipe {
    /// Checks what a client asks for.
    ///
    /// # Errors
    /// With the field that is wrong.
    pub fn read(asked: Asked) -> Result<Self> {
        let base = match (asked.from_image, asked.from_template) {
            (Some(image), None) if BASE_IMAGES.contains(&image.as_str()) => {
                Base::Template("base".into())
            }
            (Some(name), None) if !name.is_empty() => Base::Image {
                name,
                trusted: asked.trusted,
                identity: match (asked.login, asked.trusted) {
                    (Some(login), _) => Identity::Given(login),
                    (None, true) => Identity::Installation,
                    (None, false) => Identity::Nobody,
                },
            },
            (None, Some(name)) if !name.is_empty() => {
                if asked.login.is_some() {
                    let why = "a template needs no registry: leave it out";
                    return Err(Refused::bad("fromImageRegistry", why));
                }
                Base::Template(name)
            }
            (Some(_), Some(_)) => {
                let why = "name an image or a template, not both";
                return Err(Refused::bad("fromImage", why));
            }
            (None | Some(_), None) | (None, Some(_)) => {
                let why = "name the image or the template that it starts from";
                return Err(Refused::bad("fromImage", why));
            }
        };
        if asked.steps.len() > MAX_STEPS {
            let why = format!("{} of them: use at most {MAX_STEPS}", asked.steps.len());
            return Err(Refused::bad("steps", why));
        }
        let steps = asked.steps.into_iter().enumerate();
        let steps = steps.map(|(at, step)| read_step(at, step));
        let line = |field: &str, line: Option<String>| match line {
            Some(line) if line.len() > MAX_WORD || line.contains('\0') => {
                let why = "use at most 64 KiB without NUL";
                Err(Refused::bad(field, why))
            }
            other => Ok(other.filter(|line| !line.trim().is_empty())),
        };
        Ok(Self {
            base,
            force: asked.force,
            steps: steps.collect::<Result<_>>()?,
            start: line("startCmd", asked.start)?,
            ready: line("readyCmd", asked.ready)?,
        })
    }
}

fn read_step(at: usize, step: AskedStep) -> Result<Step> {
    let field = format!("steps[{at}]");
    let kind = step.kind.to_ascii_uppercase();
    let bad = |why: String| Refused::bad(field.as_str(), format!("{kind}: {why}"));
    if let Some(word) = step.args.iter().find(|word| word.contains('\0')) {
        return Err(bad(format!("{word:?} has a NUL")));
    }
    if step.args.iter().any(|word| word.len() > MAX_WORD) {
        return Err(bad("use at most 64 KiB in a word".into()));
    }
    let mut args = step.args.into_iter();
    let mut next = || args.next().filter(|word| !word.is_empty());
    let does = match kind.as_str() {
        "RUN" => Instruction::Run {
            command: next().ok_or_else(|| bad("it has no command".into()))?,
            user: next(),
        },
        "COPY" | "ADD" => {
            let (source, target) = (next(), next());
            let (Some(source), Some(target)) = (source, target) else {
                return Err(bad("it needs a source and a destination".into()));
            };
            let (owner, mode) = (next(), next());
            let source = within_context(&source).ok_or_else(|| {
                bad(format!(
                    "{source:?} leaves the context: use a relative path within it"
                ))
            })?;
            let files = step.files_hash.ok_or_else(|| {
                bad("it has no filesHash: upload its files and name them by their hash".into())
            })?;
            if !is_hash(&files) {
                return Err(bad(
                    "filesHash is not a SHA-256 in hexadecimal digits".into()
                ));
            }
            if owner.as_deref().is_some_and(|owner| !is_owner(owner)) {
                return Err(bad("write the owner as user or user:group".into()));
            }
            let mode = mode.map(|mode| {
                let read = u32::from_str_radix(&mode, 8).ok();
                read.filter(|mode| *mode <= 0o7777)
                    .ok_or_else(|| bad(format!("{mode:?} is not an octal mode, as 0755")))
            });
            Instruction::Copy(Copy {
                source,
                target,
                owner,
                mode: mode.transpose()?,
                files,
            })
        }
        "ENV" | "ARG" => {
            let words: Vec<String> = args.collect();
            if words.is_empty() || words.len() % 2 == 1 {
                return Err(bad("it needs names and values, in turn".into()));
            }
            let pairs: Vec<(String, String)> = words
                .chunks_exact(2)
                .map(|pair| (pair[0].clone(), pair[1].clone()))
                .collect();
            if let Some((name, _)) = pairs.iter().find(|(name, _)| !is_variable(name)) {
                return Err(bad(format!("{name:?} is not the name of a variable")));
            }
            Instruction::Env(pairs)
        }
        "WORKDIR" => Instruction::Workdir(next().ok_or_else(|| bad("it has no path".into()))?),
        "USER" => {
            let user = next().ok_or_else(|| bad("it names nobody".into()))?;
            if !is_owner(&user) {
                return Err(bad(format!("{user:?} does not name a user")));
            }
            if let Some((name, group)) = user.split_once(':') {
                let why = format!(
                    "the group {group:?} cannot be chosen: write {name:?} alone, whose own groups \
                     it gets"
                );
                return Err(bad(why));
            }
            Instruction::User(user)
        }
        _ => {
            let why = "it is not an instruction: use COPY, RUN, ENV, ARG, WORKDIR or USER";
            return Err(bad(why.into()));
        }
    };
    Ok(Step {
        does,
        force: step.force,
    })
}

/// A relative path without its detours; none if it leaves the context.
fn within_context(path: &str) -> Option<String> {
    if path.starts_with('/') || path.contains('\\') {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop()?;
            }
            part => parts.push(part),
        }
    }
    Some(if parts.is_empty() {
        ".".to_owned()
    } else {
        parts.join("/")
    })
}

/// Whether a text is what files are uploaded as.
#[must_use]
pub fn is_hash(text: &str) -> bool {
    text.len() == 64
        && text
            .bytes()
            .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
}

fn is_owner(text: &str) -> bool {
    let word = |b: u8| b.is_ascii_alphanumeric() || b"_.-".contains(&b);
    let name = |name: &str| {
        (1..=64).contains(&name.len()) && name.bytes().all(word) && !name.starts_with('-')
    };
    match text.split_once(':') {
        Some((user, group)) => name(user) && name(group),
        None => name(text),
    }
}

fn is_variable(name: &str) -> bool {
    let letter = |b: u8| b.is_ascii_alphabetic() || b == b'_';
    let word = |b: u8| letter(b) || b.is_ascii_digit();
    name.bytes().next().is_some_and(letter) && name.bytes().all(word)
}

#[cfg(test)]
mod tests;
