//! What the control plane has told this agent.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use subtle::ConstantTimeEq as _;
use wire::{Secret, envd::InitRequest, time::Timestamp};

use crate::args::Args;

/// What `/init` changes, and what it does not.
#[derive(Debug)]
pub(crate) struct Settings {
    fixed: BTreeMap<String, String>,
    now: Mutex<Now>,
}

#[derive(Clone, Debug, Default)]
struct Now {
    env: BTreeMap<String, String>,
    token: Option<Secret>,
    user: String,
    workdir: String,
    events: Option<String>,
    heard: Option<Timestamp>,
}

/// What became of an `/init`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Init {
    Applied,
    /// Something newer was already heard.
    Stale,
    /// A token is set, and this call does not know it.
    Denied,
    /// It asks for something this agent does not do.
    Unsupported(&'static str),
}

impl Settings {
    pub(crate) fn new(args: &Args) -> Self {
        let mut fixed = BTreeMap::from([("E2B_SANDBOX".to_owned(), "true".to_owned())]);
        fixed.extend(args.env.iter().cloned());
        Self {
            fixed,
            now: Mutex::new(Now {
                user: args.user.clone(),
                workdir: args.workdir.clone(),
                ..Now::default()
            }),
        }
    }

    /// Takes what the control plane says. Once there is a token, only who knows it may speak:
    /// everything in the sandbox can reach this route.
    pub(crate) fn init(&self, request: InitRequest, header_token: Option<&[u8]>) -> Init {
        if request
            .volume_mounts
            .as_ref()
            .is_some_and(|mounts| !mounts.is_empty())
        {
            return Init::Unsupported("volumeMounts");
        }
        if request
            .ca_bundle
            .as_ref()
            .is_some_and(|bundle| !bundle.is_empty())
        {
            return Init::Unsupported("caBundle");
        }
        let mut now = self.now.lock();
        if let Some(token) = &now.token {
            let body_token = request.access_token.as_ref().map(|t| t.reveal().as_bytes());
            if !same(token, header_token) && !same(token, body_token) {
                return Init::Denied;
            }
        }
        if let (Some(heard), Some(said)) = (now.heard, request.timestamp)
            && said < heard
        {
            return Init::Stale;
        }
        now.heard = request.timestamp.or(now.heard);
        if let Some(env) = request.env_vars {
            now.env = env;
        }
        if let Some(token) = request.access_token.filter(|token| !token.is_empty()) {
            now.token = Some(token);
        }
        if let Some(user) = request.default_user.filter(|user| !user.is_empty()) {
            now.user = user;
        }
        if let Some(workdir) = request.default_workdir {
            now.workdir = workdir;
        }
        if let Some(ip) = request.hyperloop_ip.filter(|ip| !ip.is_empty()) {
            now.events = Some(format!("http://{ip}"));
        }
        Init::Applied
    }

    /// Whether a call that carries this token may pass.
    pub(crate) fn allows(&self, token: Option<&[u8]>) -> bool {
        self.now
            .lock()
            .token
            .as_ref()
            .is_none_or(|set| same(set, token))
    }

    pub(crate) fn token(&self) -> Option<Secret> {
        self.now.lock().token.clone()
    }

    pub(crate) fn default_user(&self) -> String {
        self.now.lock().user.clone()
    }

    pub(crate) fn default_workdir(&self) -> String {
        self.now.lock().workdir.clone()
    }

    /// The environment that every process gets.
    pub(crate) fn env(&self) -> BTreeMap<String, String> {
        let now = self.now.lock();
        let mut env = self.fixed.clone();
        if let Some(events) = &now.events {
            env.insert("E2B_EVENTS_ADDRESS".to_owned(), events.clone());
        }
        env.extend(now.env.clone());
        env
    }
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
        assert!(settings.allows(None));
        let first = InitRequest {
            access_token: Some("a".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(first.clone(), None), Init::Applied);
        assert!(!settings.allows(None));
        assert!(settings.allows(Some(b"a")));
        let other = InitRequest {
            access_token: Some("b".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(other.clone(), None), Init::Denied);
        assert_eq!(settings.init(InitRequest::default(), None), Init::Denied);
        assert_eq!(settings.init(first, None), Init::Applied);
        assert_eq!(settings.init(other, Some(b"a")), Init::Applied);
        assert!(settings.allows(Some(b"b")));
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
        let bundle = InitRequest {
            ca_bundle: Some("x".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(bundle, None), Init::Unsupported("caBundle"));
    }
}
