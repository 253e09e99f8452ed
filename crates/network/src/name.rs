//! Names of the domain system, in one form only: what a policy says and what a question asks are
//! read into the same labels, so that they cannot be understood in two ways.

use std::fmt;

/// The longest name, as it goes over the wire.
const LONGEST: usize = 255;

/// A name: labels in lower case, each of letters, digits, hyphens and underscores.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Name(Box<str>);

impl Name {
    /// Reads text. A dot at the end means nothing more.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let text = text.strip_suffix('.').unwrap_or(text);
        Self::from_labels(text.split('.').map(str::as_bytes))
    }

    /// Takes labels as they came. A label with any other byte in it is no host's: a dot within
    /// one would make it look like two.
    pub(crate) fn from_labels<'a>(labels: impl Iterator<Item = &'a [u8]>) -> Option<Self> {
        let mut text = String::new();
        for label in labels {
            let plain = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
            if label.is_empty() || label.len() > 63 || !label.iter().all(plain) {
                return None;
            }
            if !text.is_empty() {
                text.push('.');
            }
            text.extend(label.iter().map(|b| char::from(b.to_ascii_lowercase())));
        }
        (!text.is_empty() && text.len() + 2 <= LONGEST).then(|| Self(text.into()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A name, or every name below one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// `example.com`
    Exactly(Name),
    /// `*.example.com`: at any depth, but not itself.
    Below(Name),
}

impl Pattern {
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (name, pattern): (_, fn(Name) -> Self) = match text.strip_prefix("*.") {
            Some(rest) => (rest, Self::Below),
            None => (text, Self::Exactly),
        };
        // Digits and dots only are an address that is none.
        let address = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        Name::read(name).filter(|_| !address).map(pattern)
    }

    pub(crate) fn matches(&self, name: &Name) -> bool {
        match self {
            Self::Exactly(exactly) => exactly == name,
            Self::Below(above) => {
                let rest = name.0.strip_suffix(above.as_str());
                rest.is_some_and(|rest| rest.ends_with('.'))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_labels_in_any_case() {
        let name = |text| Name::read(text).unwrap();
        let exactly = Pattern::read("Example.com").unwrap();
        assert!(exactly.matches(&name("eXample.COM.")));
        assert!(!exactly.matches(&name("a.example.com")));
        let below = Pattern::read("*.example.com").unwrap();
        assert!(below.matches(&name("a.b.example.com")));
        for other in ["example.com", "badexample.com", "example.com.evil.org"] {
            assert!(!below.matches(&name(other)), "{other}");
        }
    }

    #[test]
    fn what_could_be_read_in_two_ways_is_no_name() {
        assert_eq!(
            Name::from_labels([&b"evil.example"[..], b"com"].into_iter()),
            None
        );
        assert_eq!(Name::from_labels([&b"a\0"[..], b"com"].into_iter()), None);
        for bad in [
            "",
            ".",
            "a..b",
            "ä.de",
            "a b",
            &"x".repeat(64),
            &"x.".repeat(130),
        ] {
            assert_eq!(Name::read(bad), None, "{bad}");
        }
        for bad in ["*", "*.", "a.*.b", "1.2.3.400", "*.1.2"] {
            assert_eq!(Pattern::read(bad), None, "{bad}");
        }
    }
}
