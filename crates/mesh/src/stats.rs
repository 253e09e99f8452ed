//! What a mesh counts.

use std::collections::BTreeMap;

use routes::Outcome;

use crate::why::Why;

/// What happened since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Own writes that were said.
    pub said: u64,
    /// Messages pushed, to each peer.
    pub sent: u64,
    /// Messages that peers pushed or told.
    pub received: u64,
    /// Of those received, news.
    pub applied: u64,
    /// Of those received, no news.
    pub ignored: u64,
    /// Of those received, and of full snapshots, what made no sense.
    pub invalid: u64,
    /// Questions asked in rounds.
    pub rounds: u64,
    /// Messages told in answers.
    pub told: u64,
    /// Messages heard in answers.
    pub heard: u64,
    /// Full snapshots taken from peers, and given to them.
    pub snapshots_taken: u64,
    /// See `snapshots_taken`.
    pub snapshots_given: u64,
    /// Messages that were not pushed to a peer that did not keep up, or fit into no frame.
    pub overflowed: u64,
    /// How often a peer lost its good standing.
    pub late: u64,
    /// Links that ended or never came to be, by why.
    pub ended: BTreeMap<Why, u64>,
}

impl Counts {
    /// Counts a message of a peer, by what became of it.
    pub(crate) fn count(&mut self, outcome: &Outcome) {
        self.received += 1;
        match outcome {
            Outcome::Applied(_) => self.applied += 1,
            Outcome::Ignored(_) => self.ignored += 1,
            Outcome::Invalid(_) => self.invalid += 1,
        }
    }
}

/// A look at a mesh.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Members that are there.
    pub alive: usize,
    /// Members that may be gone.
    pub suspect: usize,
    /// Members that are gone, and not forgotten yet.
    pub down: usize,
    /// Links this process has made.
    pub dialled: usize,
    /// Links others have made to it.
    pub accepted: usize,
    /// Peers that this process has made a link to, and that have made none to it.
    pub unmet: usize,
    /// Peers that are told of changes.
    pub listeners: usize,
    /// Of those, in good standing.
    pub in_standing: usize,
    /// The most sayings that a linked peer has not acknowledged.
    pub unheard: u64,
    /// By how many versions the own watch is behind that of the best peer.
    pub behind: u64,
    /// Bytes sent over links, before encryption.
    pub bytes_sent: u64,
    /// Bytes received over links, after decryption.
    pub bytes_received: u64,
    /// What happened since the start.
    pub counts: Counts,
}
