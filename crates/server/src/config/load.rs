//! The layers: default, file, environment, flag. Whatever cannot be understood refuses the start
//! and names where it stands; nothing is ignored.

use std::{
    collections::BTreeMap,
    ffi::OsString,
    fmt,
    path::{Path, PathBuf},
};

use thiserror::Error;
use toml::de::{DeTable, DeValue};

use super::{Fallback, KEYS, Key, Settings};

/// Variables that begin like ours and are not keys: where the file is, and what the commands read.
const OTHER_VARIABLES: &[&str] = &[CONFIG_VARIABLE, cli::KUBECONFIG_VARIABLE];
const CONFIG_VARIABLE: &str = "DORMOUSE_CONFIG";

/// Why a configuration was refused: where, and what is wrong there.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{place}: {wrong}")]
pub(crate) struct Refusal {
    place: String,
    wrong: String,
}

impl Refusal {
    fn new(place: impl fmt::Display, wrong: impl Into<String>) -> Self {
        Self {
            place: place.to_string(),
            wrong: wrong.into(),
        }
    }
}

/// What the process was given besides its flags.
#[derive(Clone, Debug, Default)]
pub(crate) struct Environment {
    /// The variables.
    pub(crate) variables: BTreeMap<OsString, OsString>,
    /// Whether it may write where the system keeps state.
    pub(crate) is_root: bool,
}

impl Environment {
    /// Of this process.
    pub(crate) fn of_process() -> Self {
        Self {
            variables: std::env::vars_os().collect(),
            is_root: rustix::process::geteuid().is_root(),
        }
    }

    fn path(&self, name: &str) -> Option<PathBuf> {
        self.variables
            .get(&OsString::from(name))
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    }
}

/// The same rule as the commands use, so that both find each other without being told.
pub(super) fn default_data_dir(environment: &Environment) -> Result<String, Refusal> {
    cli::default_data_dir(environment.is_root, |name| environment.path(name))
        .map(|path| path.display().to_string())
        .ok_or_else(|| {
            Refusal::new(
                "data_dir",
                "there is no HOME to put it under: give --data-dir or DORMOUSE_DATA_DIR",
            )
        })
}

/// Who set a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody.
    Default,
    /// A line of the file.
    File(PathBuf, usize),
    /// A variable.
    Variable(String),
    /// A flag.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Variable(name) => f.write_str(name),
            Self::Flag(name) => write!(f, "--{name}"),
        }
    }
}

/// What is in force and who set it.
#[derive(Debug)]
pub(crate) struct InForce {
    /// Ready to use.
    pub(crate) settings: Settings,
    /// Value and origin of each key, in the order of [`KEYS`].
    pub(crate) values: Vec<(&'static Key, String, Origin)>,
}

/// Reads all layers. `flags` are pairs of a key's name and its value.
///
/// # Errors
/// If any of them has a key that is not declared or a value that does not fit.
pub(crate) fn load(
    environment: &Environment,
    file: Option<&Path>,
    flags: &[(&'static str, String)],
) -> Result<InForce, Refusal> {
    let mut found: BTreeMap<&'static str, (String, Origin)> = BTreeMap::new();
    let file = file
        .map(Path::to_owned)
        .or_else(|| environment.path(CONFIG_VARIABLE));
    if let Some(path) = file {
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Refusal::new(path.display(), format!("cannot be read: {e}")))?;
        read_file(&path, &text, &mut found)?;
    }
    read_variables(environment, &mut found)?;
    for (name, value) in flags {
        let key = find(name).ok_or_else(|| Refusal::new(name, "is not a key"))?;
        set(key, value, Origin::Flag(key.flag()), &mut found)?;
    }

    let mut values = Vec::with_capacity(KEYS.len());
    for key in KEYS {
        let (value, origin) = match found.remove(key.name) {
            Some(found) => found,
            None => {
                let text = match key.default {
                    Fallback::Fixed(text) => text.to_owned(),
                    Fallback::Found(find) => find(environment)?,
                };
                (text, Origin::Default)
            }
        };
        values.push((key, value, origin));
    }
    let texts: Vec<&str> = values.iter().map(|(_, text, _)| text.as_str()).collect();
    let settings = Settings::parse(&texts).map_err(|e| Refusal::new("configuration", e))?;
    Ok(InForce { settings, values })
}

fn find(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

fn set(
    key: &'static Key,
    text: &str,
    origin: Origin,
    found: &mut BTreeMap<&'static str, (String, Origin)>,
) -> Result<(), Refusal> {
    let value = (key.check)(text).map_err(|wrong| match &origin {
        Origin::File(..) => Refusal::new(&origin, format!("{}: {wrong}", key.name)),
        Origin::Default | Origin::Variable(_) | Origin::Flag(_) => Refusal::new(&origin, wrong),
    })?;
    found.insert(key.name, (value, origin));
    Ok(())
}

/// Refuses variables that look like ours and are not: a misspelt one must not go unnoticed.
///
/// # Errors
/// With the name of the first.
pub(crate) fn refuse_unknown_variables(environment: &Environment) -> Result<(), Refusal> {
    for name in environment.variables.keys() {
        let name = name.to_string_lossy();
        let is_known =
            || OTHER_VARIABLES.contains(&&*name) || KEYS.iter().any(|key| key.variable() == name);
        if name.starts_with("DORMOUSE_") && !is_known() {
            let keys = KEYS.iter().map(Key::variable);
            let others = OTHER_VARIABLES.iter().map(|&other| other.to_owned());
            let known: Vec<String> = keys.chain(others).collect();
            let known = known.join(", ");
            return Err(Refusal::new(
                &name,
                format!("is not a variable this version knows; unset it (known: {known})"),
            ));
        }
    }
    Ok(())
}

fn read_variables(
    environment: &Environment,
    found: &mut BTreeMap<&'static str, (String, Origin)>,
) -> Result<(), Refusal> {
    refuse_unknown_variables(environment)?;
    for key in KEYS {
        let name = key.variable();
        if let Some(value) = environment.variables.get(&OsString::from(&name)) {
            let value = value
                .to_str()
                .ok_or_else(|| Refusal::new(&name, "is not UTF-8"))?;
            set(key, value, Origin::Variable(name), found)?;
        }
    }
    Ok(())
}

fn read_file(
    path: &Path,
    text: &str,
    found: &mut BTreeMap<&'static str, (String, Origin)>,
) -> Result<(), Refusal> {
    let line = |at: usize| {
        text.get(..at)
            .map_or(1, |before| before.matches('\n').count() + 1)
    };
    let place = |at: usize| Origin::File(path.to_owned(), line(at));
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(0, |span| span.start);
        Refusal::new(place(at), e.message())
    })?;

    // Tables nest by dots; walk them without recursion.
    let mut tables = vec![(String::new(), table.get_ref())];
    while let Some((prefix, table)) = tables.pop() {
        for (name, value) in table {
            let at = place(name.span().start);
            let full = format!("{prefix}{}", name.get_ref());
            if let DeValue::Table(inner) = value.get_ref() {
                tables.push((format!("{full}."), inner));
                // An empty table says nothing, but a misspelt one was meant to.
                if KEYS
                    .iter()
                    .any(|key| key.name.starts_with(&format!("{full}.")))
                {
                    continue;
                }
            }
            let Some(key) = find(&full) else {
                let known: Vec<&str> = KEYS.iter().map(|key| key.name).collect();
                let known = known.join(", ");
                return Err(Refusal::new(
                    at,
                    format!("`{full}` is not a key this version knows; remove it (known: {known})"),
                ));
            };
            let value = match value.get_ref() {
                DeValue::String(text) => text.to_string(),
                DeValue::Integer(number) => number.to_string(),
                DeValue::Boolean(truth) => truth.to_string(),
                DeValue::Float(_)
                | DeValue::Datetime(_)
                | DeValue::Array(_)
                | DeValue::Table(_) => {
                    return Err(Refusal::new(
                        at,
                        format!("{full}: takes text or a whole number"),
                    ));
                }
            };
            set(key, &value, at, found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        let mut variables: BTreeMap<OsString, OsString> = pairs
            .iter()
            .map(|(name, value)| ((*name).into(), (*value).into()))
            .collect();
        variables.entry("HOME".into()).or_insert("/home/me".into());
        Environment {
            variables,
            is_root: false,
        }
    }

    fn file(text: &str) -> tempfile::NamedTempFile {
        use std::io::Write as _;
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file
    }

    fn refusal(pairs: &[(&str, &str)], text: &str) -> String {
        let file = file(text);
        let path = file.path().display().to_string();
        load(&environment(pairs), Some(file.path()), &[])
            .unwrap_err()
            .to_string()
            .replace(&path, "FILE")
    }

    #[test]
    fn a_flag_wins_over_the_environment_over_the_file_over_the_default() {
        let file = file("listen = \"127.0.0.1:1\"\n\n[log]\nlevel = \"debug\"\n");
        let pairs = [
            ("DORMOUSE_LISTEN", "127.0.0.1:2"),
            ("DORMOUSE_LOG_LEVEL", "warn"),
        ];
        let listen = |pairs: &[(&str, &str)], with_file: bool, flags: &[(&'static str, String)]| {
            let path = with_file.then(|| file.path());
            let found = load(&environment(pairs), path, flags).unwrap();
            let (_, value, origin) = found.values.into_iter().next().unwrap();
            assert_eq!(value, found.settings.listen.to_string());
            (value, origin)
        };
        let flag = [("listen", "127.0.0.1:3".to_owned())];
        assert_eq!(
            listen(&[], false, &[]),
            ("127.0.0.1:7443".to_owned(), Origin::Default)
        );
        assert_eq!(
            listen(&[], true, &[]),
            (
                "127.0.0.1:1".to_owned(),
                Origin::File(file.path().to_owned(), 1)
            )
        );
        assert_eq!(
            listen(&pairs, true, &[]),
            (
                "127.0.0.1:2".to_owned(),
                Origin::Variable("DORMOUSE_LISTEN".to_owned())
            )
        );
        assert_eq!(
            listen(&pairs, true, &flag),
            ("127.0.0.1:3".to_owned(), Origin::Flag("listen".to_owned()))
        );
    }

    #[test]
    fn the_file_can_be_named_by_a_variable() {
        let file = file("[log]\nformat = \"json\"\n");
        let path = file.path().to_str().unwrap();
        let found = load(&environment(&[("DORMOUSE_CONFIG", path)]), None, &[]).unwrap();
        assert_eq!(found.settings.log_format.to_string(), "json");
    }

    #[test]
    fn unknown_and_malformed_keys_are_refused_by_name_and_place() {
        type Case = (
            &'static [(&'static str, &'static str)],
            &'static str,
            &'static str,
        );
        let cases: &[Case] = &[
            (
                &[],
                "\nlisten_on = \"x\"\n",
                "FILE:2: `listen_on` is not a key",
            ),
            (
                &[],
                "[log]\nlevel = \"info\"\ncolour = 1\n",
                "FILE:3: `log.colour` is not a key",
            ),
            (&[], "[logs]\n", "FILE:1: `logs` is not a key"),
            (
                &[],
                "[log]\nlevel = \"loud\"\n",
                "FILE:2: log.level: `loud` is not off, error",
            ),
            (&[], "log = 1\n", "FILE:1: `log` is not a key"),
            (
                &[],
                "listen = [1]\n",
                "FILE:1: listen: takes text or a whole number",
            ),
            (
                &[],
                "listen.port = 1\n",
                "FILE:1: listen: takes text or a whole number",
            ),
            (
                &[],
                "api.max_connections = 0\n",
                "FILE:1: api.max_connections: `0` is not",
            ),
            (
                &[],
                "[peer]\nsync_interval = \"5s\"\n",
                "FILE:2: peer.sync_interval: `5s` is not from 10ms to 2s",
            ),
            (
                &[("DORMOUSE_PEER_ACK_TIMEOUT", "0s")],
                "",
                "DORMOUSE_PEER_ACK_TIMEOUT: `0s` is not from",
            ),
            (&[], "listen = \n", "FILE:1: "),
            (
                &[("DORMOUSE_LISTN", "x")],
                "",
                "DORMOUSE_LISTN: is not a variable",
            ),
            (
                &[("DORMOUSE_LISTEN", "x")],
                "",
                "DORMOUSE_LISTEN: `x` is not an address",
            ),
            (
                &[("DORMOUSE_LISTEN", "")],
                "",
                "DORMOUSE_LISTEN: `` is not an address",
            ),
        ];
        for (pairs, text, expected) in cases {
            let refusal = refusal(pairs, text);
            assert!(refusal.starts_with(expected), "{text:?}: {refusal}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_read_is_named() {
        let refusal = load(&environment(&[]), Some(Path::new("/nowhere/x.toml")), &[]);
        let refusal = refusal.unwrap_err().to_string();
        assert!(
            refusal.starts_with("/nowhere/x.toml: cannot be read"),
            "{refusal}"
        );
    }

    #[test]
    fn data_goes_where_the_user_or_the_system_keeps_it() {
        let data_dir = |environment: &Environment| {
            load(environment, None, &[]).map(|found| found.settings.data_dir.to_string())
        };
        let xdg = environment(&[("XDG_DATA_HOME", "/data")]);
        assert_eq!(data_dir(&xdg).as_deref(), Ok("/data/dormouse"));
        let home = environment(&[]);
        assert_eq!(
            data_dir(&home).as_deref(),
            Ok("/home/me/.local/share/dormouse")
        );
        let root = Environment {
            is_root: true,
            ..home
        };
        assert_eq!(data_dir(&root).as_deref(), Ok("/var/lib/dormouse"));
        assert!(data_dir(&Environment::default()).is_err());
    }
}
