//! Ports of the host that lead into sandboxes, as they are configured.

use std::{fmt, num::NonZeroU16, str::FromStr};

use model::{Name, Namespace, SandboxId};

use super::types::Listen;

/// All of them, in the order in which they were written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Forwards(pub(crate) Vec<Forward>);

/// One: where it listens, and where it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) listen: Listen,
    pub(crate) to: Target,
    pub(crate) port: NonZeroU16,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// By its id.
    Id(SandboxId),
    /// By the key of its record, whichever sandbox that is at the time.
    Name(Namespace, Name),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Id(id) => id.fmt(f),
            Self::Name(namespace, name) => write!(f, "{namespace}/{name}"),
        }
    }
}

impl FromStr for Forward {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = |why: &str| {
            format!(
                "`{text}` is not a forward, as 127.0.0.1:5432=NAMESPACE/NAME:5432 or \
                 127.0.0.1:5432=SANDBOX_ID:5432: {why}"
            )
        };
        let (listen, to) = text
            .split_once('=')
            .ok_or_else(|| refuse("there is no `=` in it"))?;
        let listen = listen.parse().map_err(|why: String| refuse(&why))?;
        let (to, port) = to
            .rsplit_once(':')
            .ok_or_else(|| refuse("it names no port inside"))?;
        let port = port
            .parse()
            .map_err(|_| refuse("the port inside is a number from 1 to 65535"))?;
        let to = match to.split_once('/') {
            Some((namespace, name)) => Target::Name(
                Namespace::new(namespace).map_err(|why| refuse(&why.to_string()))?,
                Name::new(name).map_err(|why| refuse(&why.to_string()))?,
            ),
            None => Target::Id(SandboxId::new(to).map_err(|why| refuse(&why.to_string()))?),
        };
        Ok(Self { listen, to, port })
    }
}

impl fmt::Display for Forward {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}:{}", self.listen, self.to, self.port)
    }
}

impl FromStr for Forwards {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let words = text.split(|c: char| c == ',' || c.is_whitespace());
        let words = words.filter(|word| !word.is_empty());
        words.map(str::parse).collect::<Result<_, _>>().map(Self)
    }
}

impl fmt::Display for Forwards {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, forward) in self.0.iter().enumerate() {
            let before = if at == 0 { "" } else { "," };
            write!(f, "{before}{forward}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwards_name_a_place_here_and_a_port_of_a_sandbox() {
        let read = |text: &str| text.parse::<Forwards>().map(|f| f.to_string());
        for (text, printed) in [
            ("", ""),
            (
                "127.0.0.1:5432=blue/db:5432, [::1]:0=abc123:22",
                "127.0.0.1:5432=blue/db:5432,[::1]:0=abc123:22",
            ),
        ] {
            assert_eq!(read(text).as_deref(), Ok(printed));
        }
        for bad in [
            "127.0.0.1:1",
            "127.0.0.1=a:1",
            "127.0.0.1:1=a",
            "127.0.0.1:1=a:0",
            "127.0.0.1:1=a:70000",
            "127.0.0.1:1=A/b:1",
            "127.0.0.1:1=a/:1",
            "127.0.0.1:1=:1",
            "127.0.0.1:1=a b:1",
        ] {
            assert!(read(bad).unwrap_err().contains("is not a forward"), "{bad}");
        }
    }
}
