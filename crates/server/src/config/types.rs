//! What a configured value can be. Each type reads and prints itself as text, and says in its
//! error what it would have taken.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    path::PathBuf,
    str::FromStr,
    time::Duration,
};

use tracing_subscriber::EnvFilter;

/// A host, by address or name, and a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Listen {
    /// An address without brackets, or a name.
    pub(crate) host: String,
    /// 0 lets the system choose.
    pub(crate) port: u16,
}

impl Listen {
    /// The host by which a client on this machine reaches a server that listens here.
    pub(crate) fn client_host(&self) -> &str {
        match self.host.parse::<IpAddr>() {
            Ok(IpAddr::V4(address)) if address.is_unspecified() => "127.0.0.1",
            Ok(IpAddr::V6(address)) if address == Ipv6Addr::UNSPECIFIED => "::1",
            Ok(_) | Err(_) => &self.host,
        }
    }

    /// The same host with another port, as in a URL.
    pub(crate) fn authority(host: &str, port: u16) -> String {
        if host.contains(':') {
            format!("[{host}]:{port}")
        } else {
            format!("{host}:{port}")
        }
    }
}

impl FromStr for Listen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let refuse = || {
            format!(
                "`{text}` is not an address and port, as 127.0.0.1:7443, localhost:0 or [::1]:7443"
            )
        };
        let (host, port) = text.rsplit_once(':').ok_or_else(refuse)?;
        let port = port.parse().map_err(|_| refuse())?;
        let host = match host.strip_prefix('[').and_then(|h| h.strip_suffix(']')) {
            Some(v6) => v6.parse::<Ipv6Addr>().map_err(|_| refuse())?.to_string(),
            None => host.to_owned(),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.';
        let is_v6 = host.parse::<Ipv6Addr>().is_ok();
        // Without brackets nobody could tell where a v6 address ends and the port begins.
        if host.is_empty() || !(host.chars().all(is_name) || (is_v6 && text.starts_with('['))) {
            return Err(refuse());
        }
        Ok(Self { host, port })
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&Self::authority(&self.host, self.port))
    }
}

/// A host and a port, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OptionalListen(pub(crate) Option<Listen>);

impl FromStr for OptionalListen {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        text.parse().map(|listen| Self(Some(listen)))
    }
}

impl fmt::Display for OptionalListen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(listen) => listen.fmt(f),
            None => Ok(()),
        }
    }
}

/// A directory. Relative ones are seen from where the process was started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directory(pub(crate) PathBuf);

impl FromStr for Directory {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        // Also refuses the empty path.
        std::path::absolute(text)
            .map(Self)
            .map_err(|e| format!("`{text}` is not a directory: {e}"))
    }
}

impl fmt::Display for Directory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.display().fmt(f)
    }
}

/// What is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LogLevel(String);

impl LogLevel {
    /// As a filter.
    pub(crate) fn filter(&self) -> EnvFilter {
        EnvFilter::new(&self.0)
    }
}

impl FromStr for LogLevel {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        // A filter takes any bare word for the name of a module, so that `inof` would silently
        // log nothing but that.
        for word in text.split(',').filter(|part| !part.contains(['=', '['])) {
            word.parse::<tracing_subscriber::filter::LevelFilter>()
                .map_err(|_| format!("`{word}` is not off, error, warn, info, debug or trace"))?;
        }
        EnvFilter::builder()
            .parse(text)
            .map_err(|e| format!("`{text}` is not a filter: {e}"))?;
        Ok(Self(text.to_owned()))
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A type that is one of a few words.
macro_rules! words {
    ($(#[$about:meta])* $type:ident { $($(#[$each:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum $type { $($(#[$each])* $variant,)+ }

        impl FromStr for $type {
            type Err = String;
            fn from_str(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err(format!("`{text}` is not {}", [$($word),+].join(" or "))),
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self { $(Self::$variant => $word,)+ })
            }
        }
    };
}

words! {
    /// How it is logged.
    LogFormat {
        /// For people.
        Text = "text",
        /// One JSON object a line.
        Json = "json",
    }
}

words! {
    /// Where Envoys send what may go on.
    EnvoyUpstream {
        /// To the gateway's entrance.
        Relay = "relay",
        /// To Pods, where they have an address of their own.
        Direct = "direct",
    }
}

words! {
    /// What runs sandboxes.
    RuntimeKind {
        /// Nothing: they stay Pending.
        None = "none",
        /// A pretence, for development.
        Fake = "fake",
        /// Containers on this host.
        Local = "local",
    }
}

/// On or off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Switch(pub(crate) bool);

impl FromStr for Switch {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "on" | "true" => Ok(Self(true)),
            "off" | "false" => Ok(Self(false)),
            _ => Err(format!("`{text}` is not on or off")),
        }
    }
}

impl fmt::Display for Switch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// A domain, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Domain(pub(crate) Option<String>);

impl Domain {
    /// Without the port that clients may need to name.
    pub(crate) fn host(&self) -> Option<&str> {
        let text = self.0.as_deref()?;
        Some(text.split_once(':').map_or(text, |(host, _)| host))
    }
}

impl FromStr for Domain {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        let refuse =
            || format!("`{text}` is not a domain, as sandboxes.example.com or sbx.test:8443");
        let (host, port) = text
            .split_once(':')
            .map_or((text, None), |(h, p)| (h, Some(p)));
        let label = |label: &str| {
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            !label.is_empty()
                && label.len() < 64
                && label.chars().all(plain)
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let has_port = port.is_none_or(|port| port.parse::<u16>().is_ok_and(|port| port > 0));
        if !has_port || host.len() > 200 || !host.split('.').all(label) {
            return Err(refuse());
        }
        Ok(Self(Some(text.to_owned())))
    }
}

impl fmt::Display for Domain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.as_deref().unwrap_or_default())
    }
}

/// A file, or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct OptionalFile(pub(crate) Option<PathBuf>);

impl FromStr for OptionalFile {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self(None));
        }
        std::path::absolute(text)
            .map(|path| Self(Some(path)))
            .map_err(|e| format!("`{text}` is not a file: {e}"))
    }
}

impl fmt::Display for OptionalFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(path) => path.display().fmt(f),
            None => Ok(()),
        }
    }
}

/// A count or size of which nothing would be too little.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtLeastOne(pub(crate) usize);

impl FromStr for AtLeastOne {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse::<u32>() {
            Ok(0) | Err(_) => Err(format!(
                "`{text}` is not a whole number from 1 to 4294967295"
            )),
            Ok(number) => Ok(Self(number as usize)),
        }
    }
}

impl fmt::Display for AtLeastOne {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A number of bytes, which may be none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes(pub(crate) u64);

impl FromStr for Bytes {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.parse().map(Self);
        number.map_err(|_| format!("`{text}` is not a whole number of bytes"))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A length of time, as `500ms`, `10s`, `5m`, `1h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Period(pub(crate) Duration);

const UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];

impl FromStr for Period {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        UNITS
            .iter()
            .find_map(|(unit, millis)| {
                let number: u32 = text.strip_suffix(unit)?.parse().ok()?;
                Some(Self(Duration::from_millis(u64::from(number) * millis)))
            })
            .ok_or_else(|| format!("`{text}` is not a length of time, as 500ms, 10s, 5m or 1h"))
    }
}

impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_millis();
        let (unit, size) = UNITS
            .iter()
            .rev()
            .find(|(_, size)| millis > 0 && millis.is_multiple_of(u128::from(*size)))
            .unwrap_or(&UNITS[1]);
        write!(f, "{}{unit}", millis / u128::from(*size))
    }
}

/// A length of time in whole seconds, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seconds(pub(crate) Duration);

impl FromStr for Seconds {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let Period(period) = text.parse()?;
        if period.is_zero() || period.subsec_nanos() > 0 {
            return Err(format!("`{text}` is not a number of whole seconds from 1s"));
        }
        Ok(Self(period))
    }
}

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Period(self.0).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round_trip<T: FromStr<Err = String> + ToString>(text: &str) -> Result<String, String> {
        text.parse::<T>().map(|value| value.to_string())
    }

    #[test]
    fn addresses_are_read_with_a_port_and_v6_needs_brackets() {
        for good in [
            "127.0.0.1:7443",
            "localhost:0",
            "[::1]:80",
            "a-b.example:65535",
        ] {
            assert_eq!(round_trip::<Listen>(good).as_deref(), Ok(good));
        }
        for bad in [
            "",
            "localhost",
            ":80",
            "::1:80",
            "[x]:1",
            "a b:1",
            "h:70000",
            "https://h:1",
        ] {
            assert!(round_trip::<Listen>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_server_on_every_address_is_reached_on_loopback() {
        let host = |text: &str| text.parse::<Listen>().unwrap().client_host().to_owned();
        assert_eq!(host("0.0.0.0:1"), "127.0.0.1");
        assert_eq!(host("[::]:1"), "::1");
        assert_eq!(host("192.0.2.1:1"), "192.0.2.1");
    }

    #[test]
    fn periods_print_in_the_largest_unit_that_is_exact() {
        for (text, printed) in [
            ("90s", "90s"),
            ("120s", "2m"),
            ("1500ms", "1500ms"),
            ("0s", "0s"),
        ] {
            assert_eq!(round_trip::<Period>(text).as_deref(), Ok(printed));
        }
        for bad in ["", "10", "s", "-1s", "1.5s", "1 s", "1d"] {
            assert!(round_trip::<Period>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_is_measured_in_seconds_is_whole_and_not_none() {
        assert_eq!(round_trip::<Seconds>("1000ms").as_deref(), Ok("1s"));
        assert_eq!(round_trip::<Seconds>("2m").as_deref(), Ok("2m"));
        for bad in ["0s", "999ms", "1500ms", "1"] {
            assert!(round_trip::<Seconds>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_misspelt_log_level_is_refused_and_filters_are_taken() {
        assert!(round_trip::<LogLevel>("inof").is_err());
        assert!(round_trip::<LogLevel>("info,api=debug").is_ok());
        assert!(round_trip::<LogLevel>("info,api=loud").is_err());
    }

    #[test]
    fn a_domain_is_lower_case_labels_and_perhaps_a_port() {
        for good in ["", "sbx.test", "sbx.test:8443", "localhost"] {
            assert_eq!(round_trip::<Domain>(good).as_deref(), Ok(good));
        }
        for bad in [
            "-a.b", "a..b", "A.b", "a.b:", "a.b:0", "a.b:x", "*.a", "a/b",
        ] {
            assert!(round_trip::<Domain>(bad).is_err(), "{bad}");
        }
        let host = |text: &str| text.parse::<Domain>().unwrap().host().map(str::to_owned);
        assert_eq!(host("sbx.test:8443").as_deref(), Some("sbx.test"));
    }

    #[test]
    fn nothing_is_too_little() {
        assert!(round_trip::<AtLeastOne>("0").is_err());
        assert!(round_trip::<AtLeastOne>("-1").is_err());
        assert_eq!(round_trip::<AtLeastOne>("7").as_deref(), Ok("7"));
    }
}
