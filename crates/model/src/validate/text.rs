//! Rules for pieces of text that occur in several kinds.

use std::net::IpAddr;

use super::{Cause, Problems};
use crate::{StringMap, limits};

const MAX_ENV: usize = 1024;
const MAX_ENV_BYTES: usize = 256 << 10;
const MAX_PAIRS: usize = 256;
const MAX_CONTAINERS: usize = 16;

/// The digits of base64, in their order.
pub(super) const BASE64: &[u8; 64] =
    b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Bytes in base64, as far as they fill groups of four digits.
pub(super) fn whole_base64(bytes: &[u8]) -> String {
    let groups = bytes.chunks_exact(3).flat_map(|group| {
        let bits = group
            .iter()
            .fold(0, |bits, byte| bits << 8 | usize::from(*byte));
        [18, 12, 6, 0].map(|shift| char::from(BASE64[bits >> shift & 63]))
    });
    groups.collect()
}

/// Whether this is a label or annotation key: `[prefix/]name`.
#[must_use]
pub fn is_label_key(key: &str) -> bool {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    prefix.is_none_or(is_domain) && !name.is_empty() && is_qualified(name)
}

/// Whether this is a label's value.
#[must_use]
pub fn is_label_value(value: &str) -> bool {
    value.is_empty() || is_qualified(value)
}

fn is_qualified(text: &str) -> bool {
    let bytes = text.as_bytes();
    let edge = |b: Option<&u8>| b.is_some_and(u8::is_ascii_alphanumeric);
    bytes.len() <= 63
        && edge(bytes.first())
        && edge(bytes.last())
        && bytes
            .iter()
            .all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
}

/// Whether this is a DNS name in lower case.
pub(super) fn is_domain(text: &str) -> bool {
    text.len() <= 253
        && text.split('.').all(|label| {
            let bytes = label.as_bytes();
            let edge =
                |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
            bytes.len() <= 63
                && edge(bytes.first())
                && edge(bytes.last())
                && bytes
                    .iter()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-')
        })
}

fn is_host_and_port(text: &str) -> bool {
    let (host, port) = text
        .split_once(':')
        .map_or((text, None), |(h, p)| (h, Some(p)));
    is_domain(host) && port.is_none_or(|p| p.parse::<u16>().is_ok_and(|p| p > 0))
}

fn is_image_path(path: &str) -> bool {
    path.split('/').all(|part| {
        let bytes = part.as_bytes();
        let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        edge(bytes.first())
            && edge(bytes.last())
            && bytes
                .iter()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b"._-".contains(b))
    })
}

/// Whether this names an image: `[host[:port]/]path[:tag][@sha256:digest]`.
#[must_use]
pub fn is_image_reference(text: &str) -> bool {
    if text.len() > limits::IMAGE {
        return false;
    }
    let (name, digest) = text
        .split_once('@')
        .map_or((text, None), |(n, d)| (n, Some(d)));
    if digest.is_some_and(|d| crate::Digest::new(d).is_err()) {
        return false;
    }
    // A colon after the last slash begins a tag; one before it is a port.
    let path_at = name.rfind('/').map_or(0, |slash| slash + 1);
    let (name, tag) = match name[path_at..].find(':') {
        Some(colon) => (&name[..path_at + colon], Some(&name[path_at + colon + 1..])),
        None => (name, None),
    };
    let tag_is_fine = tag.is_none_or(|tag| {
        let bytes = tag.as_bytes();
        (1..=128).contains(&bytes.len())
            && (bytes[0].is_ascii_alphanumeric() || bytes[0] == b'_')
            && bytes
                .iter()
                .all(|b| b.is_ascii_alphanumeric() || b"_.-".contains(b))
    });
    let name_is_fine = match name.split_once('/') {
        // Docker's rule: a first part with a dot or a port, or `localhost`, is a registry.
        Some((host, path)) if host.contains(['.', ':']) || host == "localhost" => {
            is_host_and_port(host) && is_image_path(path)
        }
        Some(_) | None => is_image_path(name),
    };
    tag_is_fine && name_is_fine
}

pub(super) fn image(field: &str, text: &str, problems: &mut Problems) {
    if !is_image_reference(text) {
        problems.add(
            field,
            Cause::Invalid,
            format!("{text:?} does not name an image"),
            "write it as [registry/]path[:tag][@sha256:digest], in lower case",
        );
    }
}

pub(super) fn images(field: &str, images: &StringMap, problems: &mut Problems) {
    problems.at_most(field, images.len(), MAX_CONTAINERS);
    for (container, reference) in images.iter() {
        if let Err(e) = crate::Name::new(container) {
            problems.add(
                format!("{field}.{container}"),
                Cause::Invalid,
                e.to_string(),
                "name a container",
            );
        }
        image(&format!("{field}.{container}"), reference, problems);
    }
}

pub(super) fn registry(field: &str, text: &str, problems: &mut Problems) {
    let (host, path) = text
        .split_once('/')
        .map_or((text, None), |(h, p)| (h, Some(p)));
    if text.len() > limits::REGISTRY || !is_host_and_port(host) || !path.is_none_or(is_image_path) {
        problems.add(
            field,
            Cause::Invalid,
            format!("{text:?} does not name a registry"),
            "write it as host[:port][/path], in lower case, without a scheme",
        );
    }
}

pub(super) fn env(field: &str, env: &StringMap, problems: &mut Problems) {
    problems.at_most(field, env.len(), MAX_ENV);
    let mut total = 0;
    for (name, value) in env.iter() {
        total += name.len() + value.len() + 2;
        let printable = name.bytes().all(|b| b.is_ascii_graphic() && b != b'=');
        if name.is_empty() || !printable {
            problems.add(
                format!("{field}.{name}"),
                Cause::Invalid,
                format!("{name:?} is not the name of an environment variable"),
                "use printable ASCII without spaces and '='",
            );
        }
        if value.contains('\0') {
            problems.add(
                format!("{field}.{name}"),
                Cause::Invalid,
                "it contains a NUL",
                "remove it",
            );
        }
        if name.len() + value.len() + 2 > limits::VARIABLE {
            problems.add(
                format!("{field}.{name}"),
                Cause::TooLong,
                format!("{} bytes", value.len()),
                format!("use at most {}, or pass a file", limits::VARIABLE),
            );
        }
    }
    if total > MAX_ENV_BYTES {
        problems.add(
            field,
            Cause::TooLong,
            format!("{total} bytes in all"),
            format!("use at most {MAX_ENV_BYTES}, or pass files"),
        );
    }
}

/// Free pairs of the owner's.
pub(super) fn pairs(field: &str, pairs: &StringMap, problems: &mut Problems) {
    problems.at_most(field, pairs.len(), MAX_PAIRS);
    let total: usize = pairs.iter().map(|(k, v)| k.len() + v.len()).sum();
    if total > limits::PAIRS {
        problems.add(
            field,
            Cause::TooLong,
            format!("{total} bytes in all"),
            format!("use at most {}", limits::PAIRS),
        );
    }
    if pairs.contains_key("") {
        problems.add(field, Cause::Invalid, "a key is empty", "name it");
    }
}

/// Whether this is a lower-case hexadecimal digit.
pub(super) const fn is_hex_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Whether this is a SHA-256 in lower-case hexadecimal digits.
pub(super) fn is_sha256(text: &str) -> bool {
    text.len() == limits::SHA256 && text.bytes().all(is_hex_digit)
}

pub(super) fn is_address_or_block(text: &str) -> bool {
    let (address, prefix) = text
        .split_once('/')
        .map_or((text, None), |(a, p)| (a, Some(p)));
    let Ok(address) = address.parse::<IpAddr>() else {
        return false;
    };
    let max = if address.is_ipv4() { 32 } else { 128 };
    prefix.is_none_or(|p| {
        // No zeros before it, of which there could be any number.
        (1..=3).contains(&p.len())
            && p.bytes().all(|b| b.is_ascii_digit())
            && p.parse::<u8>().is_ok_and(|p| p <= max)
    })
}

pub(super) fn is_domain_pattern(text: &str) -> bool {
    let domain = text.strip_prefix("*.").unwrap_or(text);
    // All digits and dots is an address that did not parse, not a domain.
    is_domain(domain) && !domain.bytes().all(|b| b.is_ascii_digit() || b == b'.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_references_are_told_from_other_text() {
        let digest = format!("sha256:{}", "0".repeat(64));
        for good in [
            "alpine",
            "alpine:3.20",
            "library/alpine",
            "localhost:5000/a/b:latest",
            "ghcr.io/a/b_c.d",
            &format!("ghcr.io/a/b:tag@{digest}"),
            &format!("b@{digest}"),
        ] {
            assert!(is_image_reference(good), "{good}");
        }
        for bad in [
            "",
            " ",
            "Alpine",
            "a b",
            "a:",
            "a@",
            "a@sha256:1",
            "/a",
            "a/",
            "a//b",
            "http://x/y",
            "ghcr.io:99999/a",
            "a:tag:tag",
            "-a",
            &"a".repeat(600),
        ] {
            assert!(!is_image_reference(bad), "{bad}");
        }
    }

    #[test]
    fn label_keys_and_values_follow_kubernetes() {
        for good in ["a", "A.b_c-d", "example.com/name", &"x".repeat(63)] {
            assert!(is_label_key(good), "{good}");
        }
        for bad in [
            "",
            "/a",
            "a/",
            "a/b/c",
            "-a",
            "a-",
            "Example.com/a",
            "ä",
            &"x".repeat(64),
        ] {
            assert!(!is_label_key(bad), "{bad}");
        }
        assert!(is_label_value(""));
        assert!(!is_label_value("a b"));
    }

    #[test]
    fn network_entries_are_addresses_blocks_or_domains() {
        for good in ["1.2.3.4", "10.0.0.0/8", "::1", "fd00::/8", "0.0.0.0/0"] {
            assert!(is_address_or_block(good), "{good}");
        }
        for bad in [
            "",
            "1.2.3",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/+8",
            "10.0.0.0/0008",
            "a.b",
            "::/129",
        ] {
            assert!(!is_address_or_block(bad), "{bad}");
        }
        for good in ["example.com", "*.example.com", "localhost"] {
            assert!(is_domain_pattern(good), "{good}");
        }
        for bad in [
            "",
            "*",
            "*.",
            "a..b",
            "1.2.3.400",
            "exa mple.com",
            "http://x",
        ] {
            assert!(!is_domain_pattern(bad), "{bad}");
        }
    }
}
