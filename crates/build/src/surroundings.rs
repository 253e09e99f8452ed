//! What a step finds: the environment, the user and the directory that the steps before it left.

use std::collections::BTreeMap;

use crate::recipe::Instruction;

/// Where a login shell looks for programs, if nobody says otherwise.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Who runs commands in a sandbox that says nothing else.
pub(crate) const USER: &str = "user";
/// Where they run.
pub(crate) const WORKDIR: &str = "/home/user";

/// What the next step finds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surroundings {
    /// Variables that steps have set, or the template they started from.
    pub env: BTreeMap<String, String>,
    /// Who runs it.
    pub user: String,
    /// Where.
    pub workdir: String,
    /// Variables of the image, for values that refer to them.
    image: BTreeMap<String, String>,
}

impl Surroundings {
    /// Before the first step, on an image with these variables.
    #[must_use]
    pub fn new(image: &[String]) -> Self {
        let pairs = image.iter().filter_map(|pair| pair.split_once('='));
        Self {
            env: BTreeMap::new(),
            user: USER.into(),
            workdir: WORKDIR.into(),
            image: pairs.map(|(k, v)| (k.into(), v.into())).collect(),
        }
    }

    /// Takes over what a step says about the next ones.
    pub fn follow(&mut self, step: &Instruction) {
        match step {
            Instruction::Run { .. } | Instruction::Copy(_) => {}
            Instruction::Env(pairs) => {
                // All are expanded by what was before any of them, as in a Dockerfile.
                let expanded: Vec<_> = pairs
                    .iter()
                    .map(|(name, value)| (name.clone(), self.expand(value)))
                    .collect();
                self.env.extend(expanded);
            }
            Instruction::Workdir(path) => self.workdir = self.place(path),
            Instruction::User(user) => self.user.clone_from(user),
        }
    }

    /// A path inside, from where the next step runs.
    #[must_use]
    pub fn place(&self, path: &str) -> String {
        let path = self.expand(path);
        if path.starts_with('/') {
            return path;
        }
        let from = self.workdir.trim_end_matches('/');
        match path.strip_prefix("./").unwrap_or(&path) {
            "." | "" => self.workdir.clone(),
            path => format!("{from}/{path}"),
        }
    }

    fn variable(&self, name: &str) -> Option<&str> {
        let known = self.env.get(name).or_else(|| self.image.get(name));
        known
            .map(String::as_str)
            .or_else(|| (name == "PATH").then_some(PATH))
    }

    /// A text with its variables replaced: `$NAME`, `${NAME}`, `${NAME:-otherwise}`; `\$` is a
    /// dollar. One that nobody has set is empty.
    fn expand(&self, text: &str) -> String {
        let mut out = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find(['$', '\\']) {
            out.push_str(&rest[..at]);
            rest = &rest[at..];
            if let Some(escaped) = rest.strip_prefix("\\$") {
                out.push('$');
                rest = escaped;
                continue;
            }
            if rest.starts_with('\\') {
                out.push('\\');
                rest = &rest[1..];
                continue;
            }
            rest = &rest[1..];
            if let Some((inner, after)) = rest
                .strip_prefix('{')
                .and_then(|inner| inner.split_once('}'))
            {
                let (name, otherwise) = inner.split_once(":-").unwrap_or((inner, ""));
                let value = self.variable(name).filter(|value| !value.is_empty());
                out.push_str(value.unwrap_or(otherwise));
                rest = after;
                continue;
            }
            let end = rest
                .find(|c: char| !c.is_ascii_alphanumeric() && c != '_')
                .unwrap_or(rest.len());
            let (name, after) = rest.split_at(end);
            if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
                out.push('$');
                continue;
            }
            out.push_str(self.variable(name).unwrap_or_default());
            rest = after;
        }
        out.push_str(rest);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(pairs: &[(&str, &str)]) -> Instruction {
        let pairs = pairs.iter();
        Instruction::Env(pairs.map(|(k, v)| ((*k).into(), (*v).into())).collect())
    }

    #[test]
    fn values_refer_to_what_was_set_before_them() {
        let mut now = Surroundings::new(&["PATH=/bin".into(), "LANG=C".into()]);
        now.follow(&env(&[("A", "1"), ("B", "$A")]));
        now.follow(&env(&[
            ("PATH", "$PATH:/opt/bin"),
            ("C", "${A}${NONE:-x}$NONE"),
            ("D", r"\$A costs 5$ and \n"),
            ("E", "$LANG"),
        ]));
        let of = |name: &str| now.env.get(name).map(String::as_str);
        assert_eq!(of("B"), Some(""));
        assert_eq!(of("PATH"), Some("/bin:/opt/bin"));
        assert_eq!(of("C"), Some("1x"));
        assert_eq!(of("D"), Some(r"$A costs 5$ and \n"));
        assert_eq!(of("E"), Some("C"));
    }

    #[test]
    fn paths_go_on_from_the_last_one() {
        let mut now = Surroundings::new(&[]);
        assert_eq!(now.place("app"), "/home/user/app");
        now.follow(&Instruction::Workdir("app".into()));
        now.follow(&Instruction::Workdir("./sub".into()));
        assert_eq!(now.workdir, "/home/user/app/sub");
        assert_eq!(now.place("."), "/home/user/app/sub");
        now.follow(&Instruction::Workdir("/srv/".into()));
        assert_eq!(now.place("x"), "/srv/x");
        now.follow(&Instruction::User("root".into()));
        assert_eq!(now.user, "root");
    }
}
