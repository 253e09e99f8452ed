//! What tables show of each kind.

use serde_json::Value;

/// A column of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Its heading.
    pub name: &'static str,
    /// What its cells hold.
    pub kind: ColumnType,
    /// Where the value is found in an object, as a JSON path of plain fields: `.status.phase`.
    pub path: &'static str,
    /// Whether it is shown only when asked for more.
    pub wide: bool,
    /// A sentence on what it shows.
    pub description: &'static str,
}

/// What the cells of a column hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ColumnType {
    /// Text.
    String,
    /// A number.
    Integer,
    /// Yes or no.
    Boolean,
    /// A moment, shown as how long ago it was.
    Date,
}

impl ColumnType {
    /// The name, as CRDs spell it.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::String => "string",
            Self::Integer => "integer",
            Self::Boolean => "boolean",
            Self::Date => "date",
        }
    }
}

impl Column {
    /// The value for an object, if it has one.
    #[must_use]
    pub fn find<'v>(&self, object: &'v Value) -> Option<&'v Value> {
        self.path
            .split('.')
            .filter(|step| !step.is_empty())
            .try_fold(object, |at, step| at.get(step))
            .filter(|value| !value.is_null())
    }
}

const fn column(
    name: &'static str,
    kind: ColumnType,
    path: &'static str,
    description: &'static str,
) -> Column {
    Column {
        name,
        kind,
        path,
        wide: false,
        description,
    }
}

const fn wide(column: Column) -> Column {
    Column {
        wide: true,
        ..column
    }
}

const AGE: Column = column(
    "Age",
    ColumnType::Date,
    ".metadata.creationTimestamp",
    "Time since it was created.",
);

use ColumnType::{Boolean, Date, Integer, String};

pub(super) const SANDBOX: &[Column] = &[
    column("Phase", String, ".status.phase", "Where it is in its life."),
    column(
        "Template",
        String,
        ".spec.template",
        "Template it is made from.",
    ),
    column("Pool", String, ".spec.pool", "Pool it is a member of."),
    wide(column(
        "Snapshot",
        String,
        ".spec.snapshot",
        "Snapshot it started from.",
    )),
    column(
        "Sandbox-ID",
        String,
        ".spec.sandboxId",
        "What its owner calls it.",
    ),
    wide(column(
        "Desired",
        String,
        ".spec.desiredState",
        "Awake or asleep.",
    )),
    wide(column(
        "Wakes",
        Boolean,
        ".spec.wakeOnTraffic",
        "Whether a request wakes it.",
    )),
    wide(column(
        "Ends-At",
        String,
        ".spec.timeouts.endAt",
        "When it ends or sleeps by itself.",
    )),
    wide(column(
        "Operation",
        String,
        ".status.lastOperation.kind",
        "The operation in flight, or the last one.",
    )),
    wide(column(
        "State",
        String,
        ".status.lastOperation.state",
        "How far that operation is.",
    )),
    wide(column(
        "Last-Active",
        Date,
        ".status.lastActiveAt",
        "Time since it was last used.",
    )),
    AGE,
];

pub(super) const POOL: &[Column] = &[
    column(
        "Template",
        String,
        ".spec.template",
        "Template its members are made from.",
    ),
    column(
        "Idle",
        Integer,
        ".status.idle",
        "Members that can be claimed now.",
    ),
    column(
        "Claimed",
        Integer,
        ".status.claimed",
        "Members that have an owner.",
    ),
    column("Total", Integer, ".status.total", "All members."),
    column(
        "Waiting",
        Integer,
        ".status.waitingClaims",
        "Claims that wait for a member.",
    ),
    wide(column(
        "Min-Idle",
        Integer,
        ".spec.minIdle",
        "At least this many wait to be claimed.",
    )),
    wide(column(
        "Keeps-Idle",
        Integer,
        ".status.autoscale.minIdle",
        "How many are kept idle, where that follows demand.",
    )),
    wide(column(
        "Max-Idle",
        Integer,
        ".spec.maxIdle",
        "At most this many wait to be claimed.",
    )),
    wide(column(
        "Max",
        Integer,
        ".spec.max",
        "At most this many exist.",
    )),
    wide(column(
        "Revision",
        String,
        ".status.revision",
        "Revision of the template new members are made from.",
    )),
    wide(column(
        "Why",
        String,
        ".status.why",
        "Why it is not at its target.",
    )),
    AGE,
];

pub(super) const CLAIM: &[Column] = &[
    column("Pool", String, ".spec.pool", "The pool that is asked."),
    column("Phase", String, ".status.phase", "How far it is."),
    column(
        "Count",
        Integer,
        ".spec.count",
        "How many sandboxes are asked for.",
    ),
    wide(column(
        "Reason",
        String,
        ".status.reason",
        "Why it ended as it did, or still waits.",
    )),
    wide(column(
        "Timeout",
        Integer,
        ".spec.timeoutSeconds",
        "Seconds it waits for members.",
    )),
    AGE,
];

pub(super) const SNAPSHOT: &[Column] = &[
    column(
        "Sandbox",
        String,
        ".spec.sandbox",
        "The sandbox that is captured.",
    ),
    column("Phase", String, ".status.phase", "How far it is."),
    column("Alias", String, ".spec.alias", "What people call it."),
    wide(column(
        "Sandbox-ID",
        String,
        ".spec.sandboxId",
        "The delivery that is captured.",
    )),
    wide(column(
        "Registry",
        String,
        ".spec.registry",
        "Registry it is pushed to.",
    )),
    wide(column(
        "Attempts",
        Integer,
        ".status.attempts",
        "How often it was tried.",
    )),
    wide(column(
        "Reason",
        String,
        ".status.reason",
        "Why it failed, or still waits.",
    )),
    AGE,
];

pub(super) const RECORD: &[Column] = &[
    column(
        "Sandbox-ID",
        String,
        ".spec.sandboxId",
        "What its owner called it.",
    ),
    column("User", String, ".spec.owner.user", "Who it was made for."),
    column("Pool", String, ".spec.pool", "Pool it came from."),
    column("Reason", String, ".spec.ended.reason", "Why it ended."),
    column("Cause", String, ".spec.ended.cause", "What ended it."),
    wide(column(
        "Claimed",
        Date,
        ".spec.claimedAt",
        "Time since it was claimed.",
    )),
    column("Ended", Date, ".spec.ended.at", "Time since it ended."),
];

pub(super) const TEMPLATE: &[Column] = &[
    column(
        "Image",
        String,
        ".spec.image",
        "The image of the main container.",
    ),
    wide(column(
        "User",
        String,
        ".spec.user",
        "User that commands run as.",
    )),
    wide(column(
        "CPU",
        Integer,
        ".spec.resources.cpuMillis",
        "Thousandths of a processor.",
    )),
    wide(column(
        "Memory",
        Integer,
        ".spec.resources.memoryMiB",
        "Memory in MiB.",
    )),
    AGE,
];

pub(super) const TEAM: &[Column] = &[
    column(
        "Display-Name",
        String,
        ".spec.displayName",
        "What people call it.",
    ),
    column(
        "Sandboxes",
        Integer,
        ".spec.quotas.sandboxes",
        "The most sandboxes it may have.",
    ),
    column(
        "Running",
        Integer,
        ".spec.quotas.runningSandboxes",
        "The most of them that may be awake.",
    ),
    wide(column(
        "CPU",
        Integer,
        ".spec.quotas.cpuMillis",
        "The most thousandths of a processor.",
    )),
    wide(column(
        "Memory",
        Integer,
        ".spec.quotas.memoryMiB",
        "The most memory in MiB.",
    )),
    wide(column(
        "Max-Timeout",
        Integer,
        ".spec.limits.maxTimeoutSeconds",
        "The longest timeout in seconds.",
    )),
    AGE,
];

// Not the hash: it is of use to programs only.
pub(super) const API_KEY: &[Column] = &[
    column(
        "Display-Name",
        String,
        ".spec.displayName",
        "What people call it.",
    ),
    column("User", String, ".spec.user", "The person who uses it."),
    column(
        "Ends-With",
        String,
        ".spec.mask.last",
        "The last digits of the key.",
    ),
    wide(column(
        "Starts-With",
        String,
        ".spec.mask.first",
        "The first digits of the key.",
    )),
    wide(column(
        "Sandboxes",
        Integer,
        ".spec.quotas.sandboxes",
        "The most sandboxes it may have.",
    )),
    wide(column(
        "Running",
        Integer,
        ".spec.quotas.runningSandboxes",
        "The most of them that may be awake.",
    )),
    AGE,
];

pub(super) const EVENT: &[Column] = &[
    column("Type", String, ".spec.severity", "Normal or Warning."),
    column("Reason", String, ".spec.reason", "One word."),
    column(
        "Kind",
        String,
        ".spec.about.kind",
        "The kind of what it speaks of.",
    ),
    column(
        "Object",
        String,
        ".spec.about.name",
        "The name of what it speaks of.",
    ),
    column("Message", String, ".spec.message", "A sentence."),
    column("Count", Integer, ".spec.count", "How often it was seen."),
    column(
        "Last-Seen",
        Date,
        ".spec.lastSeen",
        "Time since it was last seen.",
    ),
];
