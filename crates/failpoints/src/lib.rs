//! Named steps at which a test can end the server, as a power cut would.
//!
//! Whoever changes something on disk in several steps calls [`reached`] between them. That does
//! nothing, and costs nothing, unless the crate was built with its feature `armed`, which only the
//! tests of the server ask for: then the process kills itself at the step that [`VARIABLE`] names.
//!
//! The steps are one list, so that a test can walk them all, and no step can be left out of it.

/// Which step a process ends at, by its name.
pub const VARIABLE: &str = "FAILPOINT";

macro_rules! steps {
    ($($(#[doc = $doc:literal])* $step:ident = $name:literal,)*) => {
        /// A moment between two changes on disk.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Step {
            $($(#[doc = $doc])* $step,)*
        }

        impl Step {
            /// Every step.
            pub const ALL: &[Self] = &[$(Self::$step,)*];

            /// What it is called.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$step => $name,)*
                }
            }
        }
    };
}

steps! {
    /// The record says that it falls asleep.
    PausingSaid = "status.pausing",
    /// The record does not say yet that it sleeps on its files.
    PausedUnsaid = "status.paused.before",
    /// The record says that it sleeps on its files, which still lie beside its memory.
    PausedSaid = "status.paused",
    /// The record says that it wakes.
    ResumingSaid = "status.resuming",
    /// It is awake, and its record does not say so yet.
    AwakeUnsaid = "status.running.before",
    /// The record says that it is awake.
    AwakeSaid = "status.running",
    /// The record of a snapshot says that it is captured.
    SnapshotBegun = "status.capturing",
    /// A snapshot is durable, and its record does not say so yet.
    SnapshotUnsaid = "status.ready.before",
    /// The record of a snapshot says that it is durable.
    SnapshotSaid = "status.ready",
    /// Nothing is left of a sandbox but its record.
    RecordLeft = "status.gone.before",
    /// Its processes stand still.
    Frozen = "runtime.frozen",
    /// Its processes go on.
    Thawed = "runtime.thawed",
    /// The note that it is being made is written.
    Noted = "runtime.noted",
    /// Its directories are there, with what its layer has.
    Directories = "runtime.directories",
    /// Its cgroups are there.
    Cgroups = "runtime.cgroups",
    /// Its first process exists and waits.
    Cloned = "runtime.cloned",
    /// Its mounts are made and handed over.
    Mounted = "runtime.mounted",
    /// Its first process runs the init program.
    Executed = "runtime.executed",
    /// The note that it is made is written.
    Made = "runtime.made",
    /// The note that it is being removed is written.
    Removing = "runtime.removing",
    /// Its processes are gone.
    Killed = "runtime.killed",
    /// Its cgroups are gone.
    Ungrouped = "runtime.ungrouped",
    /// Its writable layer is gone.
    Emptied = "runtime.emptied",
    /// The archive of a captured layer is written, under a name for the time being.
    LayerWritten = "layer.written",
    /// What the layer lies on is noted.
    LayerNoted = "layer.noted",
    /// The archive has its name, which a power cut could still take away.
    LayerNamed = "layer.named",
    /// The image of a captured layer is made.
    Committed = "image.committed",
    /// A registry has one blob more of an image.
    BlobPushed = "push.blob",
    /// A registry has one manifest more of an image, and not yet its tag.
    ManifestPushed = "push.manifest",
    /// A registry has it all.
    Pushed = "push.done",
    /// A sweep has taken an image away, and not yet what it is made of.
    ImageSwept = "gc.image",
    /// A sweep has moved an unpacked layer to the trash.
    LayerSwept = "gc.layer",
    /// A sweep has removed a captured layer or another blob, and not yet the note about it.
    BlobSwept = "gc.blob",
    /// A sweep has decided everything, and not yet emptied the trash.
    Swept = "gc.trash",
}

/// Says that a step is done.
#[cfg(not(feature = "armed"))]
#[inline(always)]
pub fn reached(_: Step) {}

/// Says that a step is done. If it is the one that [`VARIABLE`] names, nothing after it happens.
#[cfg(feature = "armed")]
pub fn reached(step: Step) {
    use std::sync::OnceLock;

    use rustix::process::{Signal, getpid, kill_process};

    static LAST: OnceLock<Option<String>> = OnceLock::new();
    let last = LAST.get_or_init(|| std::env::var(VARIABLE).ok());
    if last.as_deref() == Some(step.name()) {
        // No handler, no destructor and no other thread may do anything more.
        let killed = kill_process(getpid(), Signal::KILL);
        debug_assert!(killed.is_ok(), "a process may kill itself");
        loop {
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn no_two_steps_have_the_same_name() {
        let names: BTreeSet<_> = Step::ALL.iter().map(|step| step.name()).collect();
        assert_eq!(names.len(), Step::ALL.len());
    }
}
