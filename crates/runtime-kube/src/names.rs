//! Labels, annotations and the names of containers.

/// The label that says which workload a Pod is.
pub(crate) const UID: &str = "dormouse.dev/uid";
/// Everything of ours has this label,
pub(crate) const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// with this value.
pub(crate) const DORMOUSE: &str = "dormouse";
/// What kind of thing it is: see [`SANDBOX`].
pub(crate) const COMPONENT: &str = "app.kubernetes.io/component";
/// Our own processes have this label, with the value [`DORMOUSE`].
pub(crate) const NAME: &str = "app.kubernetes.io/name";

/// The container that is the sandbox. Others are beside it.
pub(crate) const SANDBOX: &str = "sandbox";
/// The one that brings the agent.
pub(crate) const AGENT: &str = "agent";
/// What a record calls the image of the sandbox itself.
pub(crate) const MAIN: &str = "main";

/// The images it was asked for, by container, as JSON.
pub(crate) const IMAGES: &str = "dormouse.dev/images";
/// The layer it continued from.
pub(crate) const LAYER: &str = "dormouse.dev/layer";
/// The commands that bring it up, as JSON.
pub(crate) const BOOT: &str = "dormouse.dev/boot";
/// What it may reach, as JSON.
pub(crate) const NETWORK: &str = "dormouse.dev/network";
/// How often its container was started over on purpose.
pub(crate) const RESTARTS: &str = "dormouse.dev/restarts";
/// The rank of the last call that changed or removed something, as `generation.operation`.
pub(crate) const FENCE: &str = "dormouse.dev/fence";
/// The container that its commands have brought up.
pub(crate) const BOOTED: &str = "dormouse.dev/booted";
/// The hooks that were last run, as JSON.
pub(crate) const HOOKED: &str = "dormouse.dev/hooked";
/// The delivery that a container was armed for before it was first frozen, as JSON: while it is
/// frozen its agent cannot be asked.
pub(crate) const ARMED: &str = "dormouse.dev/armed";

/// The random name of a Pod's start: the key of its agent is derived from it, too.
pub(crate) const START: &str = "dormouse.dev/start";

/// What only who holds the seal can write: that a Pod of this place is the one that its label says.
pub(crate) const MARK: &str = "dormouse.dev/mark";

/// Where the agent is in the sandbox.
pub(crate) const AGENT_DIRECTORY: &str = "/run/dormouse";
/// The program that is its first process. It has the name of the engine on one machine, too.
pub(crate) const AGENT_PROGRAM: &str = "/run/dormouse/agent";
