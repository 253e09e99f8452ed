//! Tokens derived from one secret of the server's.
//!
//! A sandbox's tokens are a function of the secret and the sandbox's id. So they are the same for
//! as long as the id is, through every sleep and restart; a new delivery has a new id and with it
//! new tokens; and nothing that can be read from a record, a log or a backup gives one away.

use std::fmt;

use hmac::{Hmac, Mac as _};
use model::{Epoch, SandboxId, Uid, sandbox::Access, workload::Secret};
use sha2::{Digest as _, Sha256};

/// The server's secret.
#[derive(Clone)]
pub struct Seal([u8; 32]);

impl fmt::Debug for Seal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Seal(…)")
    }
}

impl Seal {
    /// Derives from this secret.
    #[must_use]
    pub const fn new(secret: [u8; 32]) -> Self {
        Self(secret)
    }

    /// What the agent of a sandbox demands, where it demands something.
    #[must_use]
    pub fn agent_token(&self, id: &SandboxId) -> Secret {
        self.derive("agent", id.as_str())
    }

    /// What the other ports of a sandbox demand, where public traffic is off.
    #[must_use]
    pub fn traffic_token(&self, id: &SandboxId) -> Secret {
        self.derive("traffic", id.as_str())
    }

    /// The part of a sandbox's record that says who may speak to it. Both hashes are there in any
    /// case: whether public traffic is off can change later.
    #[must_use]
    pub fn access(&self, id: &SandboxId, secure: bool) -> Access {
        Access {
            agent_token: secure.then(|| hash(&self.agent_token(id))),
            agent_is_open: !secure,
            traffic_token: Some(hash(&self.traffic_token(id))),
        }
    }

    /// What lets its holder upload files, and nothing else: whose, which and until when is in the
    /// text.
    #[must_use]
    pub fn upload_token(&self, what: &str) -> Secret {
        self.derive("upload", what)
    }

    /// What lets the control plane speak to the agent of a workload that others can reach, whoever it
    /// is delivered to.
    #[must_use]
    pub fn init_key(&self, uid: Uid) -> Secret {
        self.derive("init", &uid.to_string())
    }

    /// The same for one start of it, which has a random name: whatever starts over has another key.
    #[must_use]
    pub fn start_key(&self, uid: Uid, start: &str) -> Secret {
        self.derive("start", &format!("{uid}/{start}"))
    }

    /// What opens the ports of one delivery of such a workload.
    #[must_use]
    pub fn door_key(&self, uid: Uid, epoch: Epoch) -> Secret {
        self.derive("door", &format!("{uid}/{}", epoch.0))
    }

    /// A signature of what a process of ours says. It is no secret.
    #[must_use]
    pub fn sign(&self, text: &str) -> Box<str> {
        self.derive("says", text).reveal().into()
    }

    /// Whether one of ours has signed this text, in a time that does not depend on where it differs.
    #[must_use]
    pub fn has_signed(&self, text: &str, signature: &str) -> bool {
        let own = self.sign(text);
        let differ = own
            .bytes()
            .zip(signature.bytes())
            .fold(0, |differ, (a, b)| differ | (a ^ b));
        own.len() == signature.len() && differ == 0
    }

    fn derive(&self, purpose: &str, of: &str) -> Secret {
        // Keys of any length are taken, so this cannot fail; an empty key would be a fixed one.
        let mut mac = match Hmac::<Sha256>::new_from_slice(&self.0) {
            Ok(mac) => mac,
            Err(never) => unreachable!("{never}"),
        };
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(of.as_bytes());
        Secret::new(hexadecimal(&mac.finalize().into_bytes()))
    }
}

/// What is kept of a token.
#[must_use]
pub fn hash(token: &Secret) -> Box<str> {
    hexadecimal(&Sha256::digest(token.reveal())).into()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(text: &str) -> SandboxId {
        SandboxId::new(text).unwrap()
    }

    #[test]
    fn a_token_stays_with_its_id_and_is_nobody_elses() {
        let seal = Seal::new([7; 32]);
        let (one, two) = (id("abc"), id("abd"));
        assert_eq!(seal.agent_token(&one), seal.agent_token(&one));
        let all = [
            seal.agent_token(&one),
            seal.agent_token(&two),
            seal.traffic_token(&one),
            seal.upload_token(one.as_str()),
            Seal::new([8; 32]).agent_token(&one),
            seal.init_key(Uid::from_random(1)),
            seal.init_key(Uid::from_random(2)),
            seal.start_key(Uid::from_random(1), "a"),
            seal.start_key(Uid::from_random(1), "b"),
            seal.start_key(Uid::from_random(2), "a"),
            seal.door_key(Uid::from_random(1), Epoch(1)),
            seal.door_key(Uid::from_random(1), Epoch(2)),
            seal.door_key(Uid::from_random(2), Epoch(1)),
        ];
        for (at, token) in all.iter().enumerate() {
            assert_eq!(token.reveal().len(), 64);
            assert!(!all[..at].contains(token), "{at}");
        }
    }

    #[test]
    fn a_signature_is_of_one_text_by_one_seal() {
        let seal = Seal::new([7; 32]);
        let signature = seal.sign("abc");
        assert!(seal.has_signed("abc", &signature));
        assert!(!seal.has_signed("abd", &signature));
        assert!(!seal.has_signed("abc", &signature[1..]));
        assert!(!seal.has_signed("abc", ""));
        assert!(!Seal::new([8; 32]).has_signed("abc", &signature));
        assert_ne!(*signature, *seal.agent_token(&id("abc")).reveal());
    }

    #[test]
    fn a_record_holds_hashes_and_no_token() {
        let seal = Seal::new([7; 32]);
        let one = id("abc");
        let access = seal.access(&one, true);
        assert_eq!(access.agent_token, Some(hash(&seal.agent_token(&one))));
        let text = format!("{access:?}{seal:?}");
        assert!(!text.contains(seal.agent_token(&one).reveal()), "{text}");
        assert!(seal.access(&one, false).agent_is_open);
    }
}
