//! Finding the server: by a kubeconfig, named or in the data directory where a server of this user
//! leaves it.

use std::{
    ffi::OsString,
    io,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, anyhow};
use clap::Args;

use crate::{
    client::Client,
    kubeconfig::{Kubeconfig, Target},
};

/// Names a kubeconfig for the commands.
pub const KUBECONFIG_VARIABLE: &str = "DORMOUSE_KUBECONFIG";
const DATA_DIR_VARIABLE: &str = "DORMOUSE_DATA_DIR";

/// Where a server keeps its data unless told otherwise: the system's place for root, the user's for
/// others, `None` if the user has no home.
#[must_use]
pub fn default_data_dir(
    is_root: bool,
    variable: impl Fn(&str) -> Option<PathBuf>,
) -> Option<PathBuf> {
    if is_root {
        return Some(PathBuf::from("/var/lib/dormouse"));
    }
    let data_home = variable("XDG_DATA_HOME")
        // The XDG specification: a relative path is to be ignored.
        .filter(|path| path.is_absolute())
        .or_else(|| variable("HOME").map(|home| home.join(".local/share")))?;
    Some(data_home.join("dormouse"))
}

/// Which server.
#[derive(Debug, Default, Args)]
pub struct Connection {
    /// File that names the server, its CA and a token [env: DORMOUSE_KUBECONFIG]
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    kubeconfig: Option<PathBuf>,
    /// Data directory of the server, where it wrote its kubeconfig [env: DORMOUSE_DATA_DIR]
    #[arg(
        long,
        value_name = "DIR",
        help_heading = "Server",
        conflicts_with = "kubeconfig"
    )]
    data_dir: Option<PathBuf>,
}

/// Which namespace.
#[derive(Debug, Default, Args)]
pub struct Scope {
    /// Namespace of the objects [default: that of the kubeconfig, `default` as the server writes it]
    #[arg(short, long)]
    pub(crate) namespace: Option<String>,
}

impl Connection {
    /// The server that has a data directory.
    pub(crate) fn in_directory(data_dir: &Path) -> Self {
        Self {
            kubeconfig: None,
            data_dir: Some(data_dir.to_owned()),
        }
    }

    /// A client of that server.
    pub(crate) fn client(&self, is_root: bool) -> anyhow::Result<Client> {
        let (target, path) = self.target(is_root)?;
        Client::new(target, path)
    }

    /// Whether a flag says which server, and not a variable or a default.
    pub(crate) const fn is_named(&self) -> bool {
        self.kubeconfig.is_some() || self.data_dir.is_some()
    }

    /// What is known of that server, and the file that says it.
    pub(crate) fn target(&self, is_root: bool) -> anyhow::Result<(Target, PathBuf)> {
        let path = self.find(is_root, |name| std::env::var_os(name))?;
        let shown = path.display();
        let text = std::fs::read_to_string(&path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => anyhow!(
                "there is no {shown}: start a server with `dormouse serve{}`, or name the \
                 kubeconfig of one with --kubeconfig or {KUBECONFIG_VARIABLE}",
                self.hint()
            ),
            io::ErrorKind::PermissionDenied => anyhow!(
                "{shown} may not be read by this user: it holds a token and belongs to whoever \
                 runs the server; ask for a copy and name it with --kubeconfig"
            ),
            _ => anyhow!("read {shown}: {e}"),
        })?;
        let target = Kubeconfig::parse(&text)
            .and_then(|kubeconfig| {
                let directory = path.parent().unwrap_or(Path::new(""));
                kubeconfig.target(directory)
            })
            .with_context(|| {
                format!(
                    "{shown} is not a kubeconfig that works here; a server writes one at each start"
                )
            })?;
        Ok((target, path))
    }

    fn find(
        &self,
        is_root: bool,
        variable: impl Fn(&str) -> Option<OsString>,
    ) -> anyhow::Result<PathBuf> {
        let variable = |name: &str| {
            variable(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let within = |directory: &Path| directory.join("kubeconfig");
        // A flag wins over any variable, the more exact of two over the other.
        if let Some(path) = &self.kubeconfig {
            return Ok(path.clone());
        }
        if let Some(directory) = &self.data_dir {
            return Ok(within(directory));
        }
        variable(KUBECONFIG_VARIABLE)
            .or_else(|| variable(DATA_DIR_VARIABLE).map(|d| within(&d)))
            .or_else(|| default_data_dir(is_root, variable).map(|d| within(&d)))
            .context("there is no HOME to look under: give --kubeconfig or --data-dir")
    }

    fn hint(&self) -> String {
        self.data_dir
            .as_ref()
            .map(|directory| format!(" --data-dir {}", directory.display()))
            .unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_win_over_variables_and_the_file_over_the_directory() {
        let none = |_: &str| None;
        let both = |name: &str| match name {
            KUBECONFIG_VARIABLE => Some("/v/file".into()),
            DATA_DIR_VARIABLE => Some("/v".into()),
            _ => None,
        };
        let directory_only = |name: &str| (name == DATA_DIR_VARIABLE).then(|| "/v".into());
        let connection = |kubeconfig: Option<&str>, data_dir: Option<&str>| Connection {
            kubeconfig: kubeconfig.map(PathBuf::from),
            data_dir: data_dir.map(PathBuf::from),
        };
        let path = |c: Connection, v: &dyn Fn(&str) -> Option<OsString>| {
            c.find(true, v).unwrap().display().to_string()
        };
        assert_eq!(path(connection(Some("/f"), None), &both), "/f");
        assert_eq!(path(connection(None, Some("/d")), &both), "/d/kubeconfig");
        assert_eq!(path(connection(None, None), &both), "/v/file");
        assert_eq!(
            path(connection(None, None), &directory_only),
            "/v/kubeconfig"
        );
        assert_eq!(
            path(connection(None, None), &none),
            "/var/lib/dormouse/kubeconfig"
        );
        assert!(connection(None, None).find(false, none).is_err());
    }
}
