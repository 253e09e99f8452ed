//! What only an installation on Kubernetes is told, as text.

use std::{fmt, net::SocketAddr, str::FromStr};

/// A name or a path, or nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OptionalText(pub(crate) Option<Box<str>>);

impl FromStr for OptionalText {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err(format!("`{text}` has blanks in it"));
        }
        Ok(Self((!text.is_empty()).then(|| text.into())))
    }
}

impl fmt::Display for OptionalText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or_default())
    }
}

/// A port that a process of ours listens on elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Port(pub(crate) u16);

impl FromStr for Port {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            Ok(0) | Err(_) => Err(format!("`{text}` is not a port from 1 to 65535")),
            Ok(port) => Ok(Self(port)),
        }
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Where gateways are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Gateways {
    /// There are none.
    None,
    /// Behind this headless Service of the own namespace.
    Service(Box<str>),
    /// At these addresses, always.
    Fixed(Vec<SocketAddr>),
}

impl FromStr for Gateways {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if text.is_empty() {
            return Ok(Self::None);
        }
        if text.len() < 64 && text.chars().all(is_name) {
            return Ok(Self::Service(text.into()));
        }
        let addresses = text.split(',').map(|one| {
            one.parse().map_err(|_| {
                format!(
                    "`{one}` is neither the name of a Service nor an address and port, as \
                     10.0.0.1:7945"
                )
            })
        });
        addresses.collect::<Result<_, _>>().map(Self::Fixed)
    }
}

impl fmt::Display for Gateways {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => Ok(()),
            Self::Service(name) => f.write_str(name),
            Self::Fixed(addresses) => {
                let each: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                f.write_str(&each.join(","))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_are_a_service_or_addresses_and_nothing_in_between() {
        let read = |text: &str| text.parse::<Gateways>();
        assert_eq!(read(""), Ok(Gateways::None));
        let service = "dormouse-gateway-peers";
        assert_eq!(read(service), Ok(Gateways::Service(service.into())));
        let fixed = read("10.0.0.1:7945,[::1]:7945").unwrap();
        assert_eq!(fixed.to_string(), "10.0.0.1:7945,[::1]:7945");
        for wrong in ["10.0.0.1", "10.0.0.1:7945,", "Gateways", "a b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
