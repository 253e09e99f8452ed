//! What E2B's protocol has no field for: asked for by metadata under a prefix of our own.
//!
//! | Key | Value |
//! |---|---|
//! | `dormouse.dev/never-timeout` | `true`: no deadline |
//! | `dormouse.dev/idle-timeout` | seconds without use after which it sleeps, or what `idle-action` says |
//! | `dormouse.dev/idle-action` | `pause`, `kill`, or `release` for a member of a pool |
//! | `dormouse.dev/descend-after` | seconds asleep after which its memory is given up |
//! | `dormouse.dev/startup-timeout` | seconds it may take to be ready, a wait for a member of a pool included |
//! | `dormouse.dev/paused-retention` | seconds asleep after which it is ended |
//! | `dormouse.dev/image` | the image it runs instead of its template's, where the server's `e2b.images` allows it; in a member of a pool it is swapped in |
//!
//! The pairs stay in the sandbox's metadata. Another key under the prefix is refused by name.

use model::{StringMap, sandbox::IdleAction, validate::is_image_reference};

use crate::refusal::Refusal;

const PREFIX: &str = "dormouse.dev/";
/// The key that names an image.
pub(crate) const IMAGE: &str = "dormouse.dev/image";
const YEAR: u32 = 365 * 24 * 3600;

/// What happens to an unused sandbox, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Idle {
    pub(crate) seconds: u32,
    pub(crate) action: IdleAction,
}

/// What was asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extensions {
    pub(crate) never_timeout: bool,
    pub(crate) idle: Option<Idle>,
    pub(crate) descend_after: Option<u32>,
    pub(crate) paused_retention: Option<u32>,
    pub(crate) startup: Option<u32>,
    pub(crate) image: Option<Box<str>>,
}

impl Extensions {
    pub(crate) fn read(metadata: &StringMap, filesystem_pause: bool) -> Result<Self, Refusal> {
        let mut found = Self::default();
        let mut action = None;
        let mut seconds = None;
        for (key, value) in metadata.iter() {
            let Some(name) = key.strip_prefix(PREFIX) else {
                continue;
            };
            let bad = |what: &str| Refusal::bad_field(&format!("metadata.{key}"), what);
            let number = || {
                let number = value.parse().ok().filter(|n| (1..=YEAR).contains(n));
                number.ok_or_else(|| bad("use 1 to 31536000 seconds"))
            };
            match name {
                "never-timeout" => {
                    found.never_timeout = value
                        .parse()
                        .map_err(|_| bad("use \"true\" or \"false\""))?;
                }
                "idle-timeout" => seconds = Some(number()?),
                "idle-action" => {
                    action = Some(match value {
                        "pause" => IdleAction::Pause,
                        "kill" => IdleAction::Kill,
                        "release" => IdleAction::Release,
                        _ => return Err(bad("use \"pause\", \"kill\" or \"release\"")),
                    });
                }
                "image" if is_image_reference(value) => found.image = Some(value.into()),
                "image" => {
                    return Err(bad("write it as [registry/]path[:tag][@sha256:digest]"));
                }
                "startup-timeout" => found.startup = Some(number()?),
                "paused-retention" => found.paused_retention = Some(number()?),
                "descend-after" if filesystem_pause => found.descend_after = Some(number()?),
                "descend-after" => {
                    return Err(bad("this server cannot keep files without memory"));
                }
                _ => return Err(bad("unknown: keys under dormouse.dev/ are the server's")),
            }
        }
        found.idle = match (seconds, action) {
            (Some(seconds), action) => Some(Idle {
                seconds,
                action: action.unwrap_or_default(),
            }),
            (None, None) => None,
            (None, Some(_)) => {
                let why = "it needs dormouse.dev/idle-timeout";
                return Err(Refusal::bad_field("metadata.dormouse.dev/idle-action", why));
            }
        };
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(pairs: &[(&str, &str)]) -> Result<Extensions, Refusal> {
        Extensions::read(&pairs.iter().copied().collect(), true)
    }

    #[test]
    fn known_keys_are_read_and_others_refused() {
        let all = read(&[
            ("dormouse.dev/never-timeout", "true"),
            ("dormouse.dev/idle-timeout", "60"),
            ("dormouse.dev/idle-action", "kill"),
            ("dormouse.dev/paused-retention", "3600"),
            ("dormouse.dev/image", "ghcr.io/a/b:1"),
            ("user", "anything"),
        ]);
        let all = all.unwrap();
        assert!(all.never_timeout);
        assert_eq!(all.paused_retention, Some(3600));
        assert_eq!(all.image.as_deref(), Some("ghcr.io/a/b:1"));
        let idle = all.idle.unwrap();
        assert_eq!((idle.seconds, idle.action), (60, IdleAction::Kill));
        for bad in [
            ("dormouse.dev/never-timeout", "yes"),
            ("dormouse.dev/idle-timeout", "0"),
            ("dormouse.dev/idle-action", "kill"),
            ("dormouse.dev/paused-retention", "0"),
            ("dormouse.dev/paused-retention", "1.5"),
            ("dormouse.dev/kept", "60"),
            ("dormouse.dev/image", "No Image"),
        ] {
            assert!(read(&[bad]).is_err(), "{bad:?}");
        }
    }
}
