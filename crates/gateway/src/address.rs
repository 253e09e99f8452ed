//! Which sandbox and which port a request is for.
//!
//! One parser, from bytes to typed values: what is checked later is what is dialled, because
//! nothing after this looks at the text again.
//!
//! | The request has | It is for |
//! |---|---|
//! | the host `api.…` | the API |
//! | a host whose first label is `{port}-{id}` | that sandbox; headers and path are its own affair |
//! | any other host (an address, `localhost`, `sandbox.…`, a name of the machine) with routing headers | the sandbox they name |
//! | such a host, and the path `/-/{id}/{port}/…` | that sandbox, without the prefix |
//! | such a host, and neither | nobody's: the API's where they share a port |
//!
//! Below the gateway's own domain every other label must be `{port}-{id}`. Elsewhere a label that
//! merely looks like a try at it is refused too, so that a mistyped port never means the API.

use std::{borrow::Cow, fmt, net::Ipv6Addr, num::NonZeroU16};

use thiserror::Error;

/// The longest id there is.
const MAX_ID: usize = 57;
const PATH_PREFIX: &str = "/-/";

/// A port: parsed once, in the one way to write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Port(NonZeroU16);

impl Port {
    /// Where the agent inside listens.
    pub const AGENT: Self = Self(NonZeroU16::new(49983).unwrap());

    /// Reads a port in its canonical form: decimal, no sign, no leading zero, 1 to 65535.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > 5 || text.first() == Some(&b'0') {
            return None;
        }
        let mut value = 0u32;
        for byte in text {
            if !byte.is_ascii_digit() {
                return None;
            }
            value = value * 10 + u32::from(byte - b'0');
        }
        u16::try_from(value)
            .ok()
            .and_then(NonZeroU16::new)
            .map(Self)
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u16 {
        self.0.get()
    }
}

impl From<NonZeroU16> for Port {
    fn from(number: NonZeroU16) -> Self {
        Self(number)
    }
}

impl fmt::Display for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Under which names the gateway is reached.
#[derive(Clone, Debug, Default)]
pub struct Hosts {
    /// The domain of which sandboxes are subdomains, lower-case; none if there is none.
    domain: Option<Box<str>>,
}

impl Hosts {
    /// A gateway for the subdomains of a domain, or one without a domain.
    #[must_use]
    pub fn new(domain: Option<&str>) -> Self {
        // A domain is configured as clients write it, which may be with a port.
        let name = |text: &str| text.split(':').next().unwrap_or(text).to_ascii_lowercase();
        Self {
            domain: domain.map(|text| name(text).into()),
        }
    }
}

/// How often a header is there, and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field<'a> {
    /// Not at all.
    Absent,
    /// Once.
    One(&'a [u8]),
    /// More than once: whoever wrote it meant something else than somebody who reads it.
    Many,
}

/// What addressing looks at.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The host the request names, with its port.
    pub host: Field<'a>,
    /// `E2b-Sandbox-Id`.
    pub id: Field<'a>,
    /// `E2b-Sandbox-Port`.
    pub port: Field<'a>,
    /// The path, without the query.
    pub path: &'a str,
}

/// Whom a request is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target<'a> {
    /// A port of a sandbox.
    Sandbox {
        /// Its id, without the suffix that old clients add.
        id: Cow<'a, str>,
        /// Its port.
        port: Port,
        /// How many bytes of the path are the address and not the sandbox's business.
        prefix: usize,
    },
    /// The API, by name.
    Api,
    /// Nobody in particular.
    Unaddressed,
}

/// The address makes no sense.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum AddressError {
    /// No host, several, or one that cannot be.
    #[error("the request needs one valid host")]
    Host,
    /// One routing header without the other, or twice.
    #[error("missing header: send both E2b-Sandbox-Id and E2b-Sandbox-Port, once each")]
    Headers,
    /// Not an id.
    #[error("the sandbox id must be made of a-z and 0-9")]
    Id,
    /// Not a port.
    #[error("the port must be a plain decimal number from 1 to 65535")]
    Port,
    /// A host below the domain that is not an address.
    #[error("the host must start with {{port}}-{{sandboxId}}")]
    Label,
    /// A path that starts like an address and is none.
    #[error("the path must start with /-/{{sandboxId}}/{{port}}/")]
    Path,
}

impl Hosts {
    /// Finds out whom a request is for.
    ///
    /// # Errors
    /// If it is addressed to a sandbox in a way that cannot be meant.
    pub fn parse<'a>(&self, asked: Asked<'a>) -> Result<Target<'a>, AddressError> {
        let Field::One(host) = asked.host else {
            return Err(AddressError::Host);
        };
        match self.classify(host)? {
            Name::Api => return Ok(Target::Api),
            Name::Label(label) => return by_label(label),
            Name::Neutral => {}
        }
        match (asked.id, asked.port) {
            (Field::One(id), Field::One(port)) => {
                return Ok(Target::Sandbox {
                    id: Cow::Borrowed(read_id(id)?),
                    port: Port::parse(port).ok_or(AddressError::Port)?,
                    prefix: 0,
                });
            }
            (Field::Absent, Field::Absent) => {}
            _ => return Err(AddressError::Headers),
        }
        by_path(asked.path)
    }

    fn classify<'a>(&self, host: &'a [u8]) -> Result<Name<'a>, AddressError> {
        let name = match host_name(host)? {
            HostName::Address => return Ok(Name::Neutral),
            HostName::Dns(name) => name,
        };
        let (label, parent) = name.split_once('.').unwrap_or((name, ""));
        let is_own = match &self.domain {
            Some(domain) => parent.eq_ignore_ascii_case(domain),
            None => !parent.is_empty(),
        };
        if is_own && label.eq_ignore_ascii_case("api") {
            return Ok(Name::Api);
        }
        if is_own && label.eq_ignore_ascii_case("sandbox") {
            return Ok(Name::Neutral);
        }
        let is_below = self.domain.is_some() && (is_own || self.is_further_below(parent));
        if is_below || looks_addressed(label) {
            Ok(Name::Label(label))
        } else {
            Ok(Name::Neutral)
        }
    }

    /// Whether a name is below the domain, not the domain itself.
    fn is_further_below(&self, name: &str) -> bool {
        let Some(domain) = &self.domain else {
            return false;
        };
        let (name, domain) = (name.as_bytes(), domain.as_bytes());
        let at = name.len().checked_sub(domain.len());
        at.is_some_and(|at| {
            at > 0 && name[at - 1] == b'.' && name[at..].eq_ignore_ascii_case(domain)
        })
    }
}

/// What a host is to addressing.
enum Name<'a> {
    Api,
    Label(&'a str),
    Neutral,
}

enum HostName<'a> {
    Address,
    Dns(&'a str),
}

/// The host without its port. An address is recognised; anything that is neither is refused.
fn host_name(host: &[u8]) -> Result<HostName<'_>, AddressError> {
    let host = std::str::from_utf8(host).map_err(|_| AddressError::Host)?;
    if let Some(rest) = host.strip_prefix('[') {
        let (address, after) = rest.split_once(']').ok_or(AddressError::Host)?;
        let is_port = after.is_empty() || after.strip_prefix(':').is_some_and(is_digits);
        return match address.parse::<Ipv6Addr>() {
            Ok(_) if is_port => Ok(HostName::Address),
            _ => Err(AddressError::Host),
        };
    }
    // One look at each byte: most requests come this way.
    let (mut end, mut is_number, mut is_plain) = (host.len(), true, true);
    for (at, byte) in host.bytes().enumerate() {
        match byte {
            b'0'..=b'9' | b'.' => {}
            b'a'..=b'z' | b'A'..=b'Z' | b'-' | b'_' => is_number = false,
            b':' => {
                end = at;
                break;
            }
            _ => is_plain = false,
        }
    }
    let (name, port) = host.split_at(end);
    let is_port = port.strip_prefix(':').is_none_or(is_digits);
    let name = name.strip_suffix('.').unwrap_or(name);
    if name.is_empty() || name.len() > 253 || !is_plain || !is_port {
        return Err(AddressError::Host);
    }
    // Anything that a resolver could take for an address is one here: only numbers and dots.
    if is_number {
        return Ok(HostName::Address);
    }
    Ok(HostName::Dns(name))
}

fn is_digits(text: &str) -> bool {
    text.len() <= 5 && text.bytes().all(|b| b.is_ascii_digit())
}

/// Whether somebody meant `{port}-{id}`: something with digits and no letters before the dash.
fn looks_addressed(label: &str) -> bool {
    let Some((port, _)) = label.split_once('-') else {
        return false;
    };
    port.bytes().any(|b| b.is_ascii_digit()) && !port.bytes().any(|b| b.is_ascii_alphabetic())
}

fn by_label(label: &str) -> Result<Target<'_>, AddressError> {
    let (port, id) = label.split_once('-').ok_or(AddressError::Label)?;
    let port = Port::parse(port.as_bytes()).ok_or(AddressError::Port)?;
    // Hosts have no case.
    let id = if id.bytes().any(|b| b.is_ascii_uppercase()) {
        let lower = id.to_ascii_lowercase();
        Cow::Owned(read_id(lower.as_bytes())?.to_owned())
    } else {
        Cow::Borrowed(read_id(id.as_bytes())?)
    };
    Ok(Target::Sandbox {
        id,
        port,
        prefix: 0,
    })
}

fn by_path(path: &str) -> Result<Target<'_>, AddressError> {
    let Some(rest) = path.strip_prefix(PATH_PREFIX) else {
        return Ok(Target::Unaddressed);
    };
    let (id, rest) = rest.split_once('/').ok_or(AddressError::Path)?;
    let port = rest.split('/').next().unwrap_or(rest);
    Ok(Target::Sandbox {
        id: Cow::Borrowed(read_id(id.as_bytes())?),
        port: Port::parse(port.as_bytes()).ok_or(AddressError::Port)?,
        prefix: PATH_PREFIX.len() + id.len() + 1 + port.len(),
    })
}

/// An id, without the suffix `-{clientId}` of old clients.
fn read_id(text: &[u8]) -> Result<&str, AddressError> {
    let id = text.split(|b| *b == b'-').next().unwrap_or(text);
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    if id.is_empty() || id.len() > MAX_ID || !id.iter().all(plain) {
        return Err(AddressError::Id);
    }
    std::str::from_utf8(id).map_err(|_| AddressError::Id)
}

#[cfg(test)]
mod tests;
