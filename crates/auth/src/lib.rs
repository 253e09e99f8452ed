//! Who may do what: API keys, teams and their quotas, the audit log, and the tokens of sandboxes.
//!
//! ```text
//!  key ──hash──▶ Keys (caches of ApiKey and Team, no IO) ──▶ Caller ──▶ Ledger: within quotas?
//!                                                              │            holds a reservation
//!                                                              └──▶ Audit: who did what
//! ```
//!
//! A team is a namespace. Its keys are records like all others; what is kept of a key is a hash,
//! so the store, its backups and the logs give none away. Whoever answers requests asks [`Keys`]
//! who is calling, [`Ledger`] whether the caller may have one more, and tells [`Audit`] what
//! became of it. None of them knows a protocol.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`key`] | the text of a key: minted, hashed, masked |
//! | [`keys`] | who is calling |
//! | [`manage`] | making, listing, renaming and revoking keys; the first key of an installation |
//! | [`settled`] | a store whose writes of keys and teams answer once they are in force |
//! | [`quota`] | what sandboxes count for, and whether that is too much: pure |
//! | [`ledger`] | quotas under concurrent requests |
//! | [`members`] | quotas as a plugin, for members of pools and declarative claims |
//! | [`audit`] | who did what, on disk |
//! | [`seal`] | tokens derived from the server's own secret |

pub mod audit;
pub mod key;
pub mod keys;
pub mod ledger;
pub mod manage;
pub mod members;
pub mod quota;
pub mod seal;
pub mod settled;

pub use audit::Audit;
pub use keys::{Caller, Denied, Keys};
pub use ledger::{Ledger, Reservation};
pub use quota::{QuotaExceeded, Usage};
pub use seal::Seal;
