//! What is recorded.

use std::borrow::Cow;

use model::{Name, Namespace, SandboxId, Timestamp, api_key::KEY_DIGITS};
use serde::{Deserialize, Serialize};

/// Longest text that is not a checked name.
const LONGEST: usize = 128;
const HIDDEN: &str = "[hidden]";

/// What was done, as `sandbox.create`. Only words that stand in the code can be recorded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Action(Cow<'static, str>);

impl Action {
    /// This action.
    #[must_use]
    pub const fn new(word: &'static str) -> Self {
        Self(Cow::Borrowed(word))
    }

    /// The word.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Who did it. Nobody in particular is an administrator, or the server itself.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Actor {
    /// The team.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub team: Option<Namespace>,
    /// The key, by the name of its record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Name>,
    /// The person.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<Box<str>>,
}

/// What became of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was refused.
    Refused,
    /// It failed.
    Failed,
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// When.
    pub time: Timestamp,
    /// Who.
    #[serde(flatten)]
    pub actor: Actor,
    /// What.
    pub action: Action,
    /// To which sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sandbox: Option<SandboxId>,
    /// To which other record, as `kind/namespace/name` or `kind/name`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object: Option<Box<str>>,
    /// What became of it.
    pub outcome: Outcome,
    /// Why not, in a word that stands in the code.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'static, str>>,
    /// The id of the request, as the server's log has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<Box<str>>,
}

impl Entry {
    /// That this was done by this actor, now.
    #[must_use]
    pub const fn new(time: Timestamp, actor: Actor, action: Action) -> Self {
        Self {
            time,
            actor,
            action,
            sandbox: None,
            object: None,
            outcome: Outcome::Done,
            reason: None,
            request: None,
        }
    }

    /// To this sandbox.
    #[must_use]
    pub fn on(mut self, sandbox: SandboxId) -> Self {
        self.sandbox = Some(sandbox);
        self
    }

    /// It was refused, for this reason.
    #[must_use]
    pub fn refused(mut self, reason: &'static str) -> Self {
        self.outcome = Outcome::Refused;
        self.reason = Some(Cow::Borrowed(reason));
        self
    }

    /// It failed, for this reason.
    #[must_use]
    pub fn failed(mut self, reason: &'static str) -> Self {
        self.outcome = Outcome::Failed;
        self.reason = Some(Cow::Borrowed(reason));
        self
    }

    /// In answer to this request.
    #[must_use]
    pub fn request(mut self, id: impl Into<Box<str>>) -> Self {
        self.request = Some(id.into());
        self
    }

    /// Without what others than the code and its checked names put there.
    pub(super) fn cleaned(mut self) -> Self {
        let texts = [&mut self.actor.user, &mut self.object, &mut self.request];
        for text in texts.into_iter().flatten() {
            let plain: String = text.chars().filter(|c| !c.is_control()).collect();
            *text = if looks_secret(&plain) {
                HIDDEN.into()
            } else {
                let mut end = plain.len().min(LONGEST);
                while !plain.is_char_boundary(end) {
                    end -= 1;
                }
                plain[..end].into()
            };
        }
        self
    }
}

/// Whether this has as many hexadecimal digits in a row as a key or a token.
fn looks_secret(text: &str) -> bool {
    text.split(|c: char| !c.is_ascii_hexdigit())
        .any(|run| run.len() >= KEY_DIGITS)
}

/// An entry, and its number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recorded {
    /// Counts entries from 1.
    pub seq: u64,
    /// The entry.
    #[serde(flatten)]
    pub entry: Entry,
}
