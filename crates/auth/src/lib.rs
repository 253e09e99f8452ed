//! Who may do what: API keys, teams, and the tokens of sandboxes.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`seal`] | tokens derived from the server's own secret |

pub mod seal;

pub use seal::Seal;
