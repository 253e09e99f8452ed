//! The command line. By hand, because a parser would be a third of the binary.

use std::{ffi::OsString, net::SocketAddr, os::fd::RawFd};

use wire::envd::{AGENT_PROTOCOL, ENVD_VERSION, PORT};

/// Where to listen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Listen {
    /// At an address.
    Address(SocketAddr),
    /// On a socket that was opened by whoever started this process.
    Inherited(RawFd),
}

/// What the command line says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Args {
    /// Where to listen.
    pub listen: Listen,
    /// Behave as the first process: reap orphans, forward signals.
    pub pid1: bool,
    /// Serve nothing but `/health` and `/init` until `/init` was called.
    pub sealed: bool,
    /// SHA-256 of the key that `/init` demands. An agent that has one is sealed, and keeps which
    /// delivery it is armed for.
    pub init_key_hash: Option<[u8; 32]>,
    /// Give processes what this one was given: its environment, its user and its directory.
    pub inherit: bool,
    /// Who runs processes until `/init` says otherwise.
    pub user: String,
    /// Where processes start until `/init` says otherwise; empty means at home.
    pub workdir: String,
    /// Environment of every process, kept whatever `/init` says.
    pub env: Vec<(String, String)>,
}

impl Default for Args {
    fn default() -> Self {
        Self {
            listen: Listen::Address(SocketAddr::from(([0, 0, 0, 0], PORT))),
            pid1: false,
            sealed: false,
            init_key_hash: None,
            inherit: false,
            user: "root".to_owned(),
            workdir: String::new(),
            env: Vec::new(),
        }
    }
}

/// What is wrong with the command line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UsageError {
    /// An option or argument that there is not.
    #[error("unknown argument {0:?}")]
    Unknown(String),
    /// An option without its value.
    #[error("{0} needs a value")]
    Missing(&'static str),
    /// An option with a value that it cannot take.
    #[error("{option} cannot be {value:?}: {expected}")]
    Bad {
        /// The option.
        option: &'static str,
        /// What it was given.
        value: String,
        /// What it takes.
        expected: &'static str,
    },
}

impl Args {
    /// What `--help` prints.
    pub const HELP: &str = "\
Serves the processes and files of a sandbox over envd's protocol.

Usage: dormouse-agent [OPTIONS]
       dormouse-agent install PATH [OTHER NAMES]   copy this program there

      --listen ADDRESS   address and port [default: 0.0.0.0:49983]
      --listen-fd NUMBER serve an inherited listening socket instead
      --pid1             reap orphans and forward signals, as the first process must
      --sealed           serve nobody until /init was called
      --init-key-hash HEX
                         have /init demand the key of this SHA-256; implies --sealed
      --inherit          give processes the environment, user and directory of this one
      --user NAME        who runs processes until /init says otherwise [default: root]
      --workdir PATH     where they start until /init says otherwise [default: home]
      --env KEY=VALUE    environment of every process; repeatable
      --version          print version, envd version and protocol number
      --help             print this";

    /// Reads the arguments. None asks for help.
    ///
    /// # Errors
    /// By name, for what is unknown or unusable.
    pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Option<Self>, UsageError> {
        let mut parsed = Self::default();
        let mut args = args.map(|arg| arg.to_string_lossy().into_owned());
        while let Some(arg) = args.next() {
            let (name, inline) = match arg.split_once('=') {
                Some((name, value)) if name.starts_with("--") => (name, Some(value.to_owned())),
                _ => (arg.as_str(), None),
            };
            let mut value = |option| {
                inline
                    .clone()
                    .or_else(|| args.next())
                    .ok_or(UsageError::Missing(option))
            };
            match name {
                "--help" | "-h" => return Ok(None),
                "--version" => {
                    println!(
                        "dormouse-agent {} (envd {ENVD_VERSION}, protocol {AGENT_PROTOCOL})",
                        env!("CARGO_PKG_VERSION")
                    );
                    std::process::exit(0);
                }
                "--pid1" if inline.is_none() => parsed.pid1 = true,
                "--sealed" if inline.is_none() => parsed.sealed = true,
                "--inherit" if inline.is_none() => parsed.inherit = true,
                "--init-key-hash" => {
                    let value = value("--init-key-hash")?;
                    parsed.init_key_hash = Some(hash(&value).ok_or(UsageError::Bad {
                        option: "--init-key-hash",
                        value,
                        expected: "it takes 64 hexadecimal digits",
                    })?);
                }
                "--listen" => {
                    let value = value("--listen")?;
                    parsed.listen =
                        Listen::Address(value.parse().map_err(|_| UsageError::Bad {
                            option: "--listen",
                            value,
                            expected: "it takes an address and a port, like 0.0.0.0:49983",
                        })?);
                }
                "--listen-fd" => {
                    let value = value("--listen-fd")?;
                    let fd = value.parse().ok().filter(|fd: &RawFd| *fd >= 3);
                    parsed.listen = Listen::Inherited(fd.ok_or(UsageError::Bad {
                        option: "--listen-fd",
                        value,
                        expected: "it takes the number of a descriptor, 3 or more",
                    })?);
                }
                "--user" => parsed.user = value("--user")?,
                "--workdir" => parsed.workdir = value("--workdir")?,
                "--env" => {
                    let value = value("--env")?;
                    match value.split_once('=') {
                        Some((key, text)) if !key.is_empty() => {
                            parsed.env.push((key.to_owned(), text.to_owned()));
                        }
                        _ => {
                            return Err(UsageError::Bad {
                                option: "--env",
                                value,
                                expected: "it takes KEY=VALUE",
                            });
                        }
                    }
                }
                _ => return Err(UsageError::Unknown(arg)),
            }
        }
        Ok(Some(parsed))
    }
}

fn hash(text: &str) -> Option<[u8; 32]> {
    let mut bytes = [0; 32];
    if text.len() != 2 * bytes.len() || !text.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return None;
    }
    for (at, byte) in bytes.iter_mut().enumerate() {
        *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(args: &[&str]) -> Result<Option<Args>, UsageError> {
        Args::parse(args.iter().map(OsString::from))
    }

    #[test]
    fn options_are_read_in_both_spellings() {
        let args = parse(&[
            "--listen=127.0.0.1:1",
            "--pid1",
            "--sealed",
            "--env",
            "A=b=c",
            "--user",
            "user",
        ])
        .unwrap()
        .unwrap();
        assert_eq!(args.listen, Listen::Address(([127, 0, 0, 1], 1).into()));
        assert!(args.pid1 && args.sealed);
        assert_eq!(args.env, [("A".to_owned(), "b=c".to_owned())]);
        assert_eq!(args.user, "user");
        let hash = parse(&["--inherit", "--init-key-hash", &"0aFF".repeat(16)]);
        let args = hash.unwrap().unwrap();
        assert!(args.inherit);
        assert_eq!(args.init_key_hash.unwrap()[..2], [0x0a, 0xff]);
        assert_eq!(
            parse(&["--listen-fd", "3"]).unwrap().unwrap().listen,
            Listen::Inherited(3)
        );
    }

    #[test]
    fn mistakes_are_named() {
        for (args, named) in [
            (&["--lisen"][..], "--lisen"),
            (&["x"], "\"x\""),
            (&["--listen"], "--listen needs a value"),
            (&["--listen", "here"], "\"here\""),
            (&["--listen-fd", "1"], "3 or more"),
            (&["--env", "=x"], "KEY=VALUE"),
            (&["--pid1=yes"], "--pid1=yes"),
            (&["--init-key-hash", "0a"], "64 hexadecimal digits"),
            (
                &["--init-key-hash", &"é".repeat(32)],
                "64 hexadecimal digits",
            ),
        ] {
            let why = parse(args).unwrap_err().to_string();
            assert!(why.contains(named), "{args:?}: {why}");
        }
    }
}
