//! Who may pass to which port.
//!
//! This comes before any look at the sandbox's state: a caller without the token learns nothing
//! of it and wakes nothing.

use http::Method;
use routes::{Route, State, TokenHash};
use sha2::{Digest as _, Sha256};

use crate::{address::Port, answer::Refusal, glance::Glance, signature};

/// How a request passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pass {
    /// It may do what the port allows, and wake.
    Full,
    /// A signed URL of a file: the agent checks the signature. It may wake only if the gateway has
    /// checked it too.
    Signed,
    /// A browser's question before the real request, to a port that wants a token. It carries none,
    /// so it wakes nothing.
    Preflight,
}

/// Asks the gate of a port.
pub(crate) fn ask(
    route: &Route,
    port: Port,
    method: &Method,
    path: &str,
    query: Option<&str>,
    seen: &Glance<'_>,
) -> Result<Pass, Refusal> {
    let is_agent = port == Port::AGENT;
    let (gate, token, refusal) = if is_agent {
        (&route.agent, seen.access_token, Refusal::Unauthorized)
    } else {
        (&route.traffic, seen.traffic_token, Refusal::Forbidden)
    };
    match gate {
        routes::Gate::Open => return Ok(Pass::Full),
        routes::Gate::Closed => return Err(refusal),
        routes::Gate::Token(_) => {}
    }
    if let Some(token) = token {
        let hash = TokenHash(Sha256::digest(token).into());
        return if gate.admits(Some(&hash)) {
            Ok(Pass::Full)
        } else {
            Err(refusal)
        };
    }
    if method == Method::OPTIONS && seen.is_of_a_preflight() {
        return Ok(Pass::Preflight);
    }
    if is_agent && signature::is_signed(method, path, query) {
        return Ok(Pass::Signed);
    }
    Err(refusal)
}

/// What becomes of a request that has passed its gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// It is sent on.
    Forward,
    /// Its sandbox is woken, or waited for if it is about to be ready or may go on, and it is sent on
    /// then.
    Park,
    /// There is nobody to send it to.
    NotFound,
}

/// Decides by the sandbox's state.
#[must_use]
pub const fn passage(route: &Route) -> Passage {
    match route.state {
        State::Running => Passage::Forward,
        // Its owner may have heard of it a moment before its route does.
        State::Creating => Passage::Park,
        // It may go on, and then nobody was to hear of it.
        State::Pausing if route.is_closing => Passage::Park,
        State::Pausing | State::Paused | State::Resuming | State::Unknown
            if route.wake_on_traffic =>
        {
            Passage::Park
        }
        State::Pausing
        | State::Paused
        | State::Resuming
        | State::Unknown
        | State::Idle
        | State::Dead => Passage::NotFound,
    }
}

/// Routes of the agent's that only the platform itself may use.
const INTERNAL: [&str; 7] = [
    "init", "freeze", "unfreeze", "collapse", "fsfreeze", "fsthaw", "upgrade",
];

/// Whether a path of the agent's port is the platform's alone, however it is spelled.
pub(crate) fn is_internal(path: &str) -> bool {
    // The common case, and the only one without a copy: a call of a service, or of a file.
    let first = path.strip_prefix('/').unwrap_or(path);
    let is_plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_uppercase() || b == b'.';
    if let Some((segment, rest)) = first.split_once('/')
        && segment.contains('.')
        && !segment.starts_with('.')
        && segment.bytes().all(is_plain)
        && rest.bytes().all(|b| b.is_ascii_alphabetic())
    {
        return false;
    }
    let decoded = signature::decode(path, signature::Plus::Stays);
    let text = String::from_utf8_lossy(&decoded).to_ascii_lowercase();
    let mut segments: Vec<&str> = Vec::new();
    for segment in text.split(['/', '\\']) {
        // A matrix parameter is not part of a name.
        match segment.split(';').next().unwrap_or(segment).trim() {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            name => segments.push(name),
        }
    }
    segments.len() == 1 && INTERNAL.contains(&segments[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn internal_routes_are_internal_in_every_spelling() {
        for path in [
            "/init",
            "//init",
            "/init/",
            "/./init",
            "/x/../init",
            "/%69nit",
            "/INIT",
            "/init;a=b",
            "/%2finit",
            "/freeze",
            "/fsthaw",
            "/upgrade",
            "\\init",
            "/a.b/../init",
        ] {
            assert!(is_internal(path), "{path}");
        }
        for path in [
            "/",
            "/files",
            "/health",
            "/initial",
            "/process.Process/Start",
            "/x/init",
            "*",
            "",
            "/%69nit%",
        ] {
            assert!(!is_internal(path), "{path}");
        }
    }
}
