//! Where files are copied from and to: here, or in a sandbox.

use std::path::PathBuf;

use anyhow::bail;

/// A place of files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On this machine.
    Here(PathBuf),
    /// In a sandbox.
    Inside { sandbox: String, path: String },
}

/// One of the two is inside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    In {
        from: PathBuf,
        sandbox: String,
        to: String,
    },
    Out {
        sandbox: String,
        from: String,
        to: PathBuf,
    },
}

impl Place {
    /// `SANDBOX:PATH` is inside; anything else is here.
    pub(super) fn read(text: &str) -> Self {
        let id = |word: &str| {
            !word.is_empty()
                && word
                    .bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
        };
        match text.split_once(':') {
            Some((sandbox, path)) if id(sandbox) => Self::Inside {
                sandbox: sandbox.to_owned(),
                path: if path.is_empty() { "." } else { path }.to_owned(),
            },
            Some(_) | None => Self::Here(text.into()),
        }
    }
}

impl Direction {
    /// From one place to another.
    pub(super) fn of(from: &str, to: &str) -> anyhow::Result<Self> {
        match (Place::read(from), Place::read(to)) {
            (Place::Here(from), Place::Inside { sandbox, path: to }) => {
                Ok(Self::In { from, sandbox, to })
            }
            (
                Place::Inside {
                    sandbox,
                    path: from,
                },
                Place::Here(to),
            ) => Ok(Self::Out { sandbox, from, to }),
            (Place::Here(_), Place::Here(_)) => {
                bail!("neither {from} nor {to} is in a sandbox: write one of them as SANDBOX:PATH")
            }
            (Place::Inside { .. }, Place::Inside { .. }) => bail!(
                "both {from} and {to} are in a sandbox: copy out of one first, then into the other"
            ),
        }
    }
}

/// The last part of a path inside.
pub(super) fn last(path: &str) -> &str {
    let path = path.trim_end_matches('/');
    path.rsplit('/').next().unwrap_or(path)
}

/// A name below a path inside.
pub(super) fn below(path: &str, name: &str) -> String {
    format!("{}/{name}", path.trim_end_matches('/'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_and_a_colon_make_a_place_inside() {
        let inside = |sandbox: &str, path: &str| Place::Inside {
            sandbox: sandbox.into(),
            path: path.into(),
        };
        assert_eq!(Place::read("i0a:/x/y"), inside("i0a", "/x/y"));
        assert_eq!(Place::read("i0a:x:y"), inside("i0a", "x:y"));
        assert_eq!(Place::read("i0a:"), inside("i0a", "."));
        for here in ["file", "./a:b", "/a:b", "A:b", ":b"] {
            assert_eq!(Place::read(here), Place::Here(here.into()), "{here}");
        }
        assert!(Direction::of("a", "b").is_err());
        assert!(Direction::of("a:b", "b:c").is_err());
    }

    #[test]
    fn names_are_put_below_paths() {
        assert_eq!(last("/a/b/"), "b");
        assert_eq!(last("b"), "b");
        assert_eq!(last("/"), "");
        assert_eq!(below("/a/", "b"), "/a/b");
        assert_eq!(below("/", "b"), "/b");
    }
}
