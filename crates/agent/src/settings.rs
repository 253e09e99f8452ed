//! What the control plane has told this agent.
//!
//! ```text
//! sealed ──first /init──▶ open, or guarded by a token
//! ```
//!
//! An agent that starts sealed serves nobody before it was told for whom: only then is it sure that
//! no program was started by somebody who is not to know the token.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;
use wire::{Secret, envd::InitRequest, time::Timestamp};

use crate::{args::Args, trust};

/// What `/init` changes, and what it does not.
#[derive(Debug)]
pub(crate) struct Settings {
    fixed: BTreeMap<String, String>,
    now: Mutex<Now>,
}

#[derive(Clone, Debug, Default)]
struct Now {
    sealed: bool,
    told: Told,
    heard: Option<Timestamp>,
}

/// What is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    env: BTreeMap<String, String>,
    token: Option<Secret>,
    user: String,
    workdir: String,
    events: Option<String>,
}

/// What became of an `/init`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Init {
    /// What it says is in force.
    Applied,
    /// Something newer, and different, was already heard.
    Stale,
    /// A token is set, and this call does not know it.
    Denied,
    /// It asks for something this agent does not do.
    Unsupported(&'static str),
    /// It asks for what cannot be.
    Bad(String),
}

/// Whether a call may pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Allowed,
    /// The token is missing or wrong.
    Denied,
    /// Nobody is served yet.
    Sealed,
}

impl Settings {
    pub(crate) fn new(args: &Args) -> Self {
        let mut fixed = BTreeMap::from([("E2B_SANDBOX".to_owned(), "true".to_owned())]);
        fixed.extend(args.env.iter().cloned());
        let told = Told {
            user: args.user.clone(),
            workdir: args.workdir.clone(),
            ..Told::default()
        };
        Self {
            fixed,
            now: Mutex::new(Now {
                sealed: args.sealed,
                told,
                heard: None,
            }),
        }
    }

    /// Takes what the control plane says. Once there is a token, only who knows it may speak:
    /// everything in the sandbox can reach this route.
    pub(crate) fn init(&self, request: InitRequest, header_token: Option<&[u8]>) -> Init {
        let mut now = self.now.lock();
        if let Some(token) = &now.told.token {
            let body_token = request.access_token.as_ref().map(|t| t.reveal().as_bytes());
            if !same(token, header_token) && !same(token, body_token) {
                return Init::Denied;
            }
        }
        if request.volume_mounts.is_some_and(|all| !all.is_empty()) {
            return Init::Unsupported("volumeMounts");
        }
        let bundle = request.ca_bundle.as_ref().filter(|b| !b.is_empty());
        if bundle.is_some_and(|bundle| !trust::is_bundle(bundle)) {
            return Init::Bad("caBundle is not a bundle of PEM certificates".to_owned());
        }
        let mut next = now.told.clone();
        if let Some(env) = request.env_vars {
            let bad = env.iter().find(|(key, value)| !can_be_set(key, value));
            if let Some((key, _)) = bad {
                return Init::Bad(format!("environment variable {key:?} cannot be set"));
            }
            next.env = env;
        }
        if let Some(token) = request.access_token {
            next.token = Some(token).filter(|token| !token.is_empty());
        }
        if let Some(user) = request.default_user.filter(|user| !user.is_empty()) {
            next.user = user;
        }
        if let Some(workdir) = request.default_workdir {
            next.workdir = workdir;
        }
        if let Some(ip) = request.hyperloop_ip.filter(|ip| !ip.is_empty()) {
            next.events = Some(format!("http://{ip}"));
        }
        if let (Some(heard), Some(said)) = (now.heard, request.timestamp)
            && said < heard
        {
            // The same once more, late or by a clock that went back, is no contradiction.
            return if next == now.told {
                Init::Applied
            } else {
                Init::Stale
            };
        }
        *now = Now {
            sealed: false,
            told: next,
            heard: request.timestamp.or(now.heard),
        };
        Init::Applied
    }

    /// Whether a call that carries this token may pass.
    pub(crate) fn access(&self, token: Option<&[u8]>) -> Access {
        let now = self.now.lock();
        match &now.told.token {
            _ if now.sealed => Access::Sealed,
            Some(set) if !same(set, token) => Access::Denied,
            Some(_) | None => Access::Allowed,
        }
    }

    pub(crate) fn token(&self) -> Option<Secret> {
        self.now.lock().told.token.clone()
    }

    pub(crate) fn default_user(&self) -> String {
        self.now.lock().told.user.clone()
    }

    pub(crate) fn default_workdir(&self) -> String {
        self.now.lock().told.workdir.clone()
    }

    /// The environment that every process gets.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let told = &self.now.lock().told;
        let mut env = self.fixed.clone();
        if let Some(events) = &told.events {
            env.insert("E2B_EVENTS_ADDRESS".to_owned(), events.clone());
        }
        env.extend(told.env.clone());
        env
    }
}

/// Whether a program can be given this variable.
pub(crate) fn can_be_set(key: &str, value: &str) -> bool {
    !key.is_empty() && !key.contains(['=', '\0']) && !value.contains('\0')
}

fn same(token: &Secret, given: Option<&[u8]>) -> bool {
    given.is_some_and(|given| bool::from(token.reveal().as_bytes().ct_eq(given)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp { seconds, nanos: 0 })
    }

    #[test]
    fn once_a_token_is_set_only_its_holder_changes_anything() {
        let settings = Settings::new(&Args::default());
        assert_eq!(settings.access(None), Access::Allowed);
        let first = InitRequest {
            access_token: Some("a".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(first.clone(), None), Init::Applied);
        assert_eq!(settings.access(None), Access::Denied);
        assert_eq!(settings.access(Some(b"a")), Access::Allowed);
        let other = InitRequest {
            access_token: Some("b".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(other.clone(), None), Init::Denied);
        assert_eq!(settings.init(InitRequest::default(), None), Init::Denied);
        assert_eq!(settings.init(first, None), Init::Applied);
        assert_eq!(settings.init(other, Some(b"a")), Init::Applied);
        assert_eq!(settings.access(Some(b"b")), Access::Allowed);
        let none = InitRequest {
            access_token: Some("".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(none.clone(), None), Init::Denied);
        assert_eq!(settings.init(none, Some(b"b")), Init::Applied);
        assert_eq!(settings.access(None), Access::Allowed);
    }

    #[test]
    fn what_is_older_than_what_was_heard_is_not_applied() {
        let settings = Settings::new(&Args::default());
        let say = |seconds, value: &str| {
            settings.init(
                InitRequest {
                    timestamp: at(seconds),
                    env_vars: Some([("A".to_owned(), value.to_owned())].into()),
                    ..InitRequest::default()
                },
                None,
            )
        };
        assert_eq!(say(10, "new"), Init::Applied);
        assert_eq!(say(9, "old"), Init::Stale);
        assert_eq!(say(9, "new"), Init::Applied);
        assert_eq!(settings.env()["A"], "new");
        assert_eq!(settings.env()["E2B_SANDBOX"], "true");
    }

    #[test]
    fn what_is_not_done_is_refused_by_name() {
        let settings = Settings::new(&Args::default());
        let mounts = InitRequest {
            volume_mounts: Some(vec![serde_json::json!({})]),
            ..InitRequest::default()
        };
        assert_eq!(
            settings.init(mounts, None),
            Init::Unsupported("volumeMounts")
        );
        let env = InitRequest {
            env_vars: Some([("A=B".to_owned(), String::new())].into()),
            ..InitRequest::default()
        };
        assert!(matches!(settings.init(env, None), Init::Bad(_)));
    }

    #[test]
    fn a_sealed_agent_serves_nobody_before_its_first_init() {
        let settings = Settings::new(&Args {
            sealed: true,
            ..Args::default()
        });
        assert_eq!(settings.access(None), Access::Sealed);
        let refused = InitRequest {
            volume_mounts: Some(vec![serde_json::json!({})]),
            ..InitRequest::default()
        };
        settings.init(refused, None);
        assert_eq!(settings.access(None), Access::Sealed);
        settings.init(InitRequest::default(), None);
        assert_eq!(settings.access(None), Access::Allowed);
    }
}
