//! What gateways tell the control loop of their installation.
//!
//! ```text
//!           ┌─ GET /v1/activity   one stream of frames: who is in use, and since when no more
//!  control ─┼─ GET /v1/seen       waits until the gateway goes by a version; answers with the use then
//!           └─ POST /v1/drained   waits until nothing is inside a delivery
//! ```
//!
//! Whoever asks keeps one connection to each gateway, made by [`peer`]'s identity on both sides, and
//! everything goes over it: HTTP/2, so a call that waits holds up no other. A gateway that is listed and
//! has no such connection *cannot be asked*, which is not the same as one that saw nothing.
//!
//! Times of a gateway are those of its own monotonic clock, and each frame says what that clock shows:
//! no two clocks are compared. What is known of a gateway is known as of its last frame; nobody vouches
//! for the moment since. So who wants to act on *nobody uses it* closes the sandbox first and asks
//! [`Peers::seen`], whose answer brings the use as of after the closing.
//!
//! Both sides say to which installation they belong and in which format they speak; who says otherwise, or
//! nothing, is refused, and cannot be asked.
//!
//! What a gateway that is gone has seen is not forgotten: its open requests ended when it did.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`frame`] | what is sent |
//! | [`kin`] | whether both sides belong together |
//! | [`serve`] | a gateway's side |
//! | [`view`] | what is known of one gateway, and of those that are gone: pure |
//! | [`link`] | the connection to one gateway |
//! | [`ask`] | all gateways |

pub mod ask;
pub mod frame;
pub mod kin;
mod link;
pub mod serve;
pub mod view;

pub use ask::{Members, Peers};
pub use frame::Used;
pub use kin::Kin;
pub use serve::{Desk, Front, Noted};
pub use view::Known;
