//! What the outcome of a step is kept by: a hash of everything that led to it.

use std::fmt;

use sha2::{Digest as _, Sha256};

use crate::recipe::Instruction;

/// Raised when the same steps would leave something else: what was kept is not found any more.
const EDITION: &str = "1";

/// The key of a state that a build passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key([u8; 32]);

impl Key {
    /// Of what a build starts from: an image by its digest, with what else decides what the first
    /// step finds.
    #[must_use]
    pub fn of_base(image: &str, surroundings: &[&str]) -> Self {
        let mut words = vec!["base", EDITION, image];
        words.extend(surroundings);
        Self(hash(&[], &words))
    }

    /// After a step.
    #[must_use]
    pub fn then(self, step: &Instruction) -> Self {
        let mode;
        let words: Vec<&str> = match step {
            Instruction::Run { command, user } => {
                vec!["run", command, user.as_deref().unwrap_or_default()]
            }
            Instruction::Copy(copy) => {
                mode = copy.mode.map(|mode| mode.to_string()).unwrap_or_default();
                let owner = copy.owner.as_deref().unwrap_or_default();
                vec![
                    "copy",
                    &copy.source,
                    &copy.target,
                    owner,
                    &mode,
                    &copy.files,
                ]
            }
            Instruction::Env(pairs) => std::iter::once("env")
                .chain(pairs.iter().flat_map(|(k, v)| [k.as_str(), v.as_str()]))
                .collect(),
            Instruction::Workdir(path) => vec!["workdir", path],
            Instruction::User(user) => vec!["user", user],
        };
        Self(hash(&self.0, &words))
    }
}

fn hash(before: &[u8], words: &[&str]) -> [u8; 32] {
    let mut sum = Sha256::new();
    sum.update(before);
    for word in words {
        // With its length, so that two words never read like one.
        sum.update((word.len() as u64).to_be_bytes());
        sum.update(word);
    }
    sum.finalize().into()
}

impl fmt::Display for Key {
    /// Half of it: enough to be alone, and short enough for a name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0[..20].iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(command: &str, user: Option<&str>) -> Instruction {
        Instruction::Run {
            command: command.into(),
            user: user.map(Into::into),
        }
    }

    #[test]
    fn a_key_depends_on_everything_before_it_and_nothing_else() {
        let base = Key::of_base("sha256:a", &[]);
        let one = base.then(&run("a", None)).then(&run("b", None));
        assert_eq!(one, base.then(&run("a", None)).then(&run("b", None)));
        let others = [
            base.then(&run("b", None)).then(&run("a", None)),
            base.then(&run("ab", None)),
            base.then(&run("a", Some("b"))),
            base.then(&Instruction::Env(vec![("a".into(), "b".into())])),
            base.then(&Instruction::User("a".into()))
                .then(&run("b", None)),
            Key::of_base("sha256:b", &[])
                .then(&run("a", None))
                .then(&run("b", None)),
        ];
        for other in others {
            assert_ne!(one, other);
        }
        assert_eq!(one.to_string().len(), 40);
    }
}
