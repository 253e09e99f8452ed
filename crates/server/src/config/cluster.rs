//! What only an installation on Kubernetes is told, as text.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    str::FromStr,
    time::Duration,
};

use super::types::Period;

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

/// How often processes of an installation speak, or how long they wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PeerPeriod(pub(crate) Duration);

impl PeerPeriod {
    const SHORTEST: Duration = Duration::from_millis(10);

    /// With more, a link that works would count as silent.
    fn longest() -> Duration {
        mesh::options::SILENCE / 2
    }
}

impl FromStr for PeerPeriod {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let Period(period) = text.parse()?;
        let (shortest, longest) = (Self::SHORTEST, Self::longest());
        if (shortest..=longest).contains(&period) {
            return Ok(Self(period));
        }
        let (from, to) = (Period(shortest), Period(longest));
        Err(format!("`{text}` is not from {from} to {to}"))
    }
}

impl fmt::Display for PeerPeriod {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Period(self.0).fmt(f)
    }
}

/// Where other processes of an installation are found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Places {
    /// There are none.
    None,
    /// Behind this headless Service of the own namespace.
    Service(Box<str>),
    /// At these addresses, always.
    Fixed(Vec<SocketAddr>),
}

impl FromStr for Places {
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

impl fmt::Display for Places {
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

/// The address by which others reach a process, with a port or without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Advertised(pub(crate) Option<(IpAddr, Option<u16>)>);

impl FromStr for Advertised {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let whole = text
            .parse()
            .map(|at: SocketAddr| (at.ip(), Some(at.port())));
        let read = whole.or_else(|_| text.parse().map(|ip| (ip, None)));
        match read {
            Ok((ip, port)) if !ip.is_unspecified() && port != Some(0) => Ok(Self(Some((ip, port)))),
            Ok(_) | Err(_) => Err(format!(
                "`{text}` is not an address that others can reach, as 10.0.0.1 or 10.0.0.1:7945"
            )),
        }
    }
}

impl fmt::Display for Advertised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            None => Ok(()),
            Some((ip, None)) => ip.fmt(f),
            Some((ip, Some(port))) => SocketAddr::new(ip, port).fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advertised_address_is_one_and_a_port_may_follow() {
        for good in ["", "10.0.0.1", "10.0.0.1:7945", "fd00::1", "[fd00::1]:7945"] {
            assert_eq!(good.parse::<Advertised>().unwrap().to_string(), good);
        }
        for bad in ["0.0.0.0", "[::]:7945", "10.0.0.1:0", "gateway", "10.0.0.1:"] {
            assert!(bad.parse::<Advertised>().is_err(), "{bad}");
        }
    }

    #[test]
    fn peers_speak_neither_all_the_time_nor_too_seldom_to_be_noticed() {
        for good in ["10ms", "100ms", "1s", "2s"] {
            assert_eq!(good.parse::<PeerPeriod>().unwrap().to_string(), good);
        }
        for bad in ["0s", "0ms", "9ms", "2001ms", "4s", "5m", "soon"] {
            assert!(bad.parse::<PeerPeriod>().is_err(), "{bad}");
        }
    }

    #[test]
    fn places_are_a_service_or_addresses_and_nothing_in_between() {
        let read = |text: &str| text.parse::<Places>();
        assert_eq!(read(""), Ok(Places::None));
        let service = "dormouse-gateway-peers";
        assert_eq!(read(service), Ok(Places::Service(service.into())));
        let fixed = read("10.0.0.1:7945,[::1]:7945").unwrap();
        assert_eq!(fixed.to_string(), "10.0.0.1:7945,[::1]:7945");
        for wrong in ["10.0.0.1", "10.0.0.1:7945,", "Gateways", "a b"] {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
