//! The Runtime port on Pods.
//!
//! ```text
//!  Runtime calls ──▶ runtime ─┬▶ pod ──────▶ API server: Pods, NetworkPolicies
//!                             ├▶ agent ────▶ the agent in the Pod: armed for whom, commands, hooks
//!                             ├▶ node ─────▶ `dormouse node` beside the Pod: frozen or not
//!                             └▶ pods ◀──watch── API server, and look: what a Pod says of itself
//! ```
//!
//! A sandbox is one Pod in the namespace of its team, with the name of its record and owned by it. Its
//! container `sandbox` runs the image with the agent as its first process; the agent comes from an
//! emptyDir that an init container fills. What is true is kept where it is:
//!
//! | What | Where |
//! |---|---|
//! | containers, images, restarts, eviction | the Pod's status |
//! | which delivery it is armed for | the agent's memory: a container that starts over is armed for nobody |
//! | frozen | containerd, asked through the node's daemon |
//! | what it was made of, that it is up, that its hooks were run, what it may reach | annotations |
//!
//! A Pod whose container has started over by itself has lost the files of its owner, so it is seen as
//! one that has ended. Only the container `sandbox` counts; others may come and go.
//!
//! | Module | What it holds |
//! |---|---|
//! | [`options`] | what can be chosen |
//! | `names` | labels, annotations and the names of containers |
//! | `pod`, `network` | a workload as a Pod and a NetworkPolicy: pure |
//! | `look` | what a Pod says of itself: pure |
//! | `pods` | the Pods that there are, by uid |
//! | `known` | fences, and what was last learnt of agents and nodes |
//! | `agent`, `node` | those two, asked |
//! | [`commit`] | captures, by workers on the nodes |
//! | `create`, `remove`, `swap`, `boot`, `inspect` | the verbs |
//! | `runtime` | the port |

mod agent;
mod boot;
pub mod commit;
mod create;
mod error;
mod inspect;
mod known;
mod look;
mod names;
mod network;
mod node;
pub mod options;
mod pod;
mod pods;
mod remove;
mod runtime;
mod swap;

pub use options::{Keys, NodeDaemon, Options};
pub use runtime::{KubeRuntime, StartError};
