//! What the control plane has told this agent.
//!
//! ```text
//! sealed ──first /init──▶ open, or guarded by a token
//! ```
//!
//! An agent that starts sealed serves nobody before it was told for whom: only then is it sure that
//! no program was started by somebody who is not to know the token.
//!
//! One that others than its host can reach, as in a Pod, is started with the hash of a key. Who shows
//! that key is the control plane and may do everything; nobody else is heard at `/init`. Such an agent
//! keeps which delivery it is armed for, refuses what an older operation says, and opens its ports to
//! who shows the key of that delivery: whoever has the address of another finds them closed. Itself it
//! serves who knows the owner's token; where there is none, only who came by its own forwarder with that
//! key, or from inside. Any other Pod of the cluster may reach its address.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;
use wire::{
    Secret,
    envd::{Delivery, InitRequest},
    time::Timestamp,
};

use crate::{args::Args, surroundings, trust};

/// What `/init` changes, and what it does not.
#[derive(Debug)]
pub(crate) struct Settings {
    fixed: BTreeMap<String, String>,
    key_hash: Option<[u8; 32]>,
    now: Mutex<Now>,
}

/// Which way a call came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// From wherever the address can be reached.
    #[default]
    Outside,
    /// From the sandbox itself.
    Inside,
    /// Through the forwarder, by who showed the key of the delivery.
    Door,
}

/// What a call shows of itself.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shown<'a> {
    pub(crate) origin: Origin,
    pub(crate) token: Option<&'a [u8]>,
    /// The key of the control plane.
    pub(crate) key: Option<&'a [u8]>,
}

#[derive(Clone, Debug, Default)]
struct Now {
    sealed: bool,
    told: Told,
    heard: Option<Timestamp>,
    delivery: Delivery,
}

/// What is in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Told {
    env: BTreeMap<String, String>,
    token: Option<Secret>,
    user: String,
    workdir: String,
    events: Option<String>,
    door_key: Option<Secret>,
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
        let (mut fixed, mut user, mut workdir) =
            (BTreeMap::new(), args.user.clone(), args.workdir.clone());
        if args.inherit {
            let own = surroundings::own();
            (fixed, user) = (own.env, own.user);
            workdir = own.directory.unwrap_or(workdir);
        }
        fixed.insert("E2B_SANDBOX".to_owned(), "true".to_owned());
        fixed.extend(args.env.iter().cloned());
        let told = Told {
            user,
            workdir,
            ..Told::default()
        };
        Self {
            fixed,
            key_hash: args.init_key_hash,
            now: Mutex::new(Now {
                sealed: args.sealed || args.init_key_hash.is_some(),
                told,
                heard: None,
                delivery: Delivery::default(),
            }),
        }
    }

    /// Whether the control plane is told by a key.
    pub(crate) const fn is_keyed(&self) -> bool {
        self.key_hash.is_some()
    }

    /// Whether this is the control plane, at an agent that tells it by a key.
    fn is_control(&self, shown: Shown<'_>) -> bool {
        let (Some(hash), Some(key)) = (&self.key_hash, shown.key) else {
            return false;
        };
        bool::from(hash[..].ct_eq(&Sha256::digest(key)[..]))
    }

    /// Takes what the control plane says. Once there is a token, only who knows it may speak:
    /// everything in the sandbox can reach this route.
    pub(crate) fn init(&self, request: InitRequest, shown: Shown<'_>) -> Init {
        let mut now = self.now.lock();
        match (&self.key_hash, &now.told.token) {
            (Some(_), _) if !self.is_control(shown) => return Init::Denied,
            (None, Some(token)) => {
                let body_token = request.access_token.as_ref().map(|t| t.reveal().as_bytes());
                if !same(token, shown.token) && !same(token, body_token) {
                    return Init::Denied;
                }
            }
            (Some(_), _) | (None, None) => {}
        }
        let delivery = match (&self.key_hash, request.delivery) {
            (Some(_), Some(delivery)) => delivery,
            (Some(_), None) => {
                return Init::Bad("this agent must be told for which delivery".to_owned());
            }
            (None, Some(_)) => return Init::Unsupported("delivery"),
            (None, None) => Delivery::default(),
        };
        if self.key_hash.is_none() && request.door_key.is_some() {
            return Init::Unsupported("doorKey");
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
        next.door_key = request.door_key.filter(|key| !key.is_empty());
        let is_late = match self.key_hash {
            Some(_) => delivery.rank() < now.delivery.rank(),
            None => {
                matches!((now.heard, request.timestamp), (Some(heard), Some(said)) if said < heard)
            }
        };
        if is_late {
            // The same once more, late or by a clock that went back, is no contradiction.
            return if next == now.told && delivery.epoch == now.delivery.epoch {
                Init::Applied
            } else {
                Init::Stale
            };
        }
        *now = Now {
            // What is nobody's yet is still the control plane's alone.
            sealed: self.key_hash.is_some() && delivery.epoch == 0,
            told: next,
            heard: request.timestamp.or(now.heard),
            delivery,
        };
        Init::Applied
    }

    /// Whether a call that shows this may pass.
    pub(crate) fn access(&self, shown: Shown<'_>) -> Access {
        if self.is_control(shown) {
            return Access::Allowed;
        }
        let now = self.now.lock();
        match &now.told.token {
            _ if now.sealed => Access::Sealed,
            Some(set) if !same(set, shown.token) => Access::Denied,
            None if self.is_keyed() && shown.origin == Origin::Outside => Access::Denied,
            Some(_) | None => Access::Allowed,
        }
    }

    /// The delivery in force, for who may know it.
    pub(crate) fn delivery(&self, shown: Shown<'_>) -> Option<Delivery> {
        self.is_control(shown).then(|| self.now.lock().delivery)
    }

    /// Whether a door key is that of the delivery in force.
    pub(crate) fn opens(&self, door_key: Option<&[u8]>) -> bool {
        let now = self.now.lock();
        now.told
            .door_key
            .as_ref()
            .is_some_and(|set| same(set, door_key))
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

    fn with(token: &[u8]) -> Shown<'_> {
        Shown {
            token: Some(token),
            ..Shown::default()
        }
    }

    fn at(seconds: i64) -> Option<Timestamp> {
        Some(Timestamp { seconds, nanos: 0 })
    }

    #[test]
    fn once_a_token_is_set_only_its_holder_changes_anything() {
        let settings = Settings::new(&Args::default());
        assert_eq!(settings.access(Shown::default()), Access::Allowed);
        let first = InitRequest {
            access_token: Some("a".into()),
            ..InitRequest::default()
        };
        assert_eq!(
            settings.init(first.clone(), Shown::default()),
            Init::Applied
        );
        assert_eq!(settings.access(Shown::default()), Access::Denied);
        assert_eq!(settings.access(with(b"a")), Access::Allowed);
        let other = InitRequest {
            access_token: Some("b".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(other.clone(), Shown::default()), Init::Denied);
        assert_eq!(
            settings.init(InitRequest::default(), Shown::default()),
            Init::Denied
        );
        assert_eq!(settings.init(first, Shown::default()), Init::Applied);
        assert_eq!(settings.init(other, with(b"a")), Init::Applied);
        assert_eq!(settings.access(with(b"b")), Access::Allowed);
        let none = InitRequest {
            access_token: Some("".into()),
            ..InitRequest::default()
        };
        assert_eq!(settings.init(none.clone(), Shown::default()), Init::Denied);
        assert_eq!(settings.init(none, with(b"b")), Init::Applied);
        assert_eq!(settings.access(Shown::default()), Access::Allowed);
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
                Shown::default(),
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
            settings.init(mounts, Shown::default()),
            Init::Unsupported("volumeMounts")
        );
        let env = InitRequest {
            env_vars: Some([("A=B".to_owned(), String::new())].into()),
            ..InitRequest::default()
        };
        assert!(matches!(settings.init(env, Shown::default()), Init::Bad(_)));
    }

    #[test]
    fn a_sealed_agent_serves_nobody_before_its_first_init() {
        let settings = Settings::new(&Args {
            sealed: true,
            ..Args::default()
        });
        assert_eq!(settings.access(Shown::default()), Access::Sealed);
        let refused = InitRequest {
            volume_mounts: Some(vec![serde_json::json!({})]),
            ..InitRequest::default()
        };
        settings.init(refused, Shown::default());
        assert_eq!(settings.access(Shown::default()), Access::Sealed);
        settings.init(InitRequest::default(), Shown::default());
        assert_eq!(settings.access(Shown::default()), Access::Allowed);
    }

    const KEY: Shown<'static> = Shown {
        origin: Origin::Outside,
        token: None,
        key: Some(b"key"),
    };

    fn keyed() -> Settings {
        Settings::new(&Args {
            init_key_hash: Some(Sha256::digest(b"key").into()),
            ..Args::default()
        })
    }

    fn delivered(epoch: u32, operation: u64) -> InitRequest {
        InitRequest {
            delivery: Some(Delivery {
                generation: 1,
                operation,
                epoch,
            }),
            access_token: Some(format!("token {epoch}").into()),
            door_key: (epoch > 0).then(|| format!("door {epoch}").into()),
            ..InitRequest::default()
        }
    }

    #[test]
    fn an_agent_with_a_key_hears_only_who_shows_it() {
        let settings = keyed();
        assert_eq!(
            settings.init(delivered(1, 1), Shown::default()),
            Init::Denied
        );
        let wrong = Shown {
            token: Some(b"key"),
            key: Some(b"guess"),
            ..Shown::default()
        };
        assert_eq!(settings.init(delivered(1, 1), wrong), Init::Denied);
        assert_eq!(settings.access(wrong), Access::Sealed);
        assert_eq!(settings.delivery(wrong), None);
        assert_eq!(settings.access(KEY), Access::Allowed);
        assert_eq!(settings.delivery(KEY), Some(Delivery::default()));
        let plain = settings.init(InitRequest::default(), KEY);
        assert!(matches!(plain, Init::Bad(_)), "{plain:?}");
        assert_eq!(settings.init(delivered(1, 1), KEY), Init::Applied);
        assert_eq!(settings.access(with(b"token 1")), Access::Allowed);
        assert_eq!(settings.access(Shown::default()), Access::Denied);
        // Nor does who knows the token change anything.
        assert_eq!(
            settings.init(delivered(1, 2), with(b"token 1")),
            Init::Denied
        );
        let keyless = Settings::new(&Args::default());
        let refused = keyless.init(delivered(1, 1), KEY);
        assert_eq!(refused, Init::Unsupported("delivery"));
    }

    #[test]
    fn what_is_nobodys_yet_is_served_to_the_control_plane_alone() {
        let settings = keyed();
        assert_eq!(settings.init(delivered(0, 1), KEY), Init::Applied);
        assert_eq!(settings.access(with(b"token 0")), Access::Sealed);
        assert_eq!(settings.access(KEY), Access::Allowed);
        assert!(!settings.opens(None) && !settings.opens(Some(b"")));
    }

    #[test]
    fn without_a_token_only_who_came_by_the_door_or_from_inside_is_served() {
        let from = |origin| Shown {
            origin,
            ..Shown::default()
        };
        let open = InitRequest {
            access_token: Some("".into()),
            ..delivered(1, 1)
        };
        let settings = keyed();
        assert_eq!(settings.init(open, KEY), Init::Applied);
        assert_eq!(settings.access(from(Origin::Outside)), Access::Denied);
        assert_eq!(settings.access(from(Origin::Door)), Access::Allowed);
        assert_eq!(settings.access(from(Origin::Inside)), Access::Allowed);
        assert_eq!(settings.access(KEY), Access::Allowed);
        // A token is asked for whichever way a call came.
        settings.init(delivered(1, 2), KEY);
        assert_eq!(settings.access(from(Origin::Door)), Access::Denied);
        assert_eq!(settings.access(with(b"token 1")), Access::Allowed);
    }

    #[test]
    fn a_door_key_opens_one_delivery() {
        let settings = keyed();
        assert!(!settings.opens(Some(b"door 1")));
        settings.init(delivered(1, 1), KEY);
        assert!(settings.opens(Some(b"door 1")));
        assert!(!settings.opens(Some(b"door 2")) && !settings.opens(None));
        settings.init(delivered(2, 2), KEY);
        assert!(settings.opens(Some(b"door 2")) && !settings.opens(Some(b"door 1")));
    }

    #[test]
    fn what_an_older_operation_says_is_not_applied() {
        let settings = keyed();
        assert_eq!(settings.init(delivered(1, 5), KEY), Init::Applied);
        assert_eq!(settings.init(delivered(2, 4), KEY), Init::Stale);
        assert!(settings.opens(Some(b"door 1")));
        assert_eq!(
            settings.init(delivered(1, 4), KEY),
            Init::Applied,
            "the same again"
        );
        assert_eq!(settings.delivery(KEY).map(Delivery::rank), Some((1, 5)));
    }
}
