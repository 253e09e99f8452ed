//! What all verbs share.

use std::{
    collections::BTreeMap,
    ffi::CString,
    fs,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use ::network::Network;
use ::runtime::{FailedHook, Fence, RuntimeError};
use bringup::Flights;
use kit::{Entropy, Tasks};
use model::Uid;
use parking_lot::Mutex;
use rustix::process::{DumpableBehavior, dumpable_behavior};

use crate::{
    base::Bases,
    cgroups::{self, Cgroup, Cgroups},
    disk::Disks,
    error::{Doing as _, EngineError, Result},
    instance,
    look::Looks,
    network::open_network,
    options::{Limits, Options},
    ranges::Ranges,
    record::{Place, Record, Stage},
    rootfs::KernelFiles,
    seccomp::Filter,
    settle::Settling,
    socket::Home,
    strays, tree,
    workload::{Slot, Workload, boot_id},
};

/// The engine: one for each data directory.
#[derive(Debug)]
pub(crate) struct Engine {
    pub(crate) options: Options,
    pub(crate) data: PathBuf,
    pub(crate) cgroups: Cgroups,
    pub(crate) ranges: Ranges,
    pub(crate) filter: Filter,
    pub(crate) bases: Bases,
    pub(crate) images: images::Store,
    pub(crate) disks: Disks,
    pub(crate) kernel_files: KernelFiles,
    /// What it is called on this host.
    pub(crate) instance: Box<str>,
    pub(crate) boot_id: Box<str>,
    pub(crate) entropy: Entropy,
    /// An empty directory where a new root is attached for a moment; only its own process sees it.
    pub(crate) attach_at: CString,
    /// Who may look into the server's memory, where that is more than nobody.
    pub(crate) dumpable: Option<DumpableBehavior>,
    /// The network namespace that sockets inside are made from.
    pub(crate) home: Home,
    pub(crate) network: Option<Network>,
    pub(crate) boots: Flights<()>,
    pub(crate) hooks: Flights<Vec<FailedHook>>,
    pub(crate) looks: Looks,
    pub(crate) settling: Settling,
    /// Owns what goes on between calls.
    pub(crate) tasks: Tasks,
    slots: Mutex<BTreeMap<Uid, Arc<Slot>>>,
}

impl Engine {
    /// Sets up what is shared, and adopts what is there.
    pub(crate) fn open(data: &Path, mut options: Options) -> Result<Self> {
        fs::create_dir_all(data).doing(format!("make {}", data.display()))?;
        let data = fs::canonicalize(data).doing(format!("find {}", data.display()))?;
        for (name, mode) in [
            ("sandboxes", 0o711),
            ("base", 0o711),
            ("run", 0o700),
            ("run/root", 0o700),
        ] {
            tree::ensure_directory(&data.join(name), mode)
                .doing(format!("make {}", data.join(name).display()))?;
        }
        let init = &options.init;
        if !fs::metadata(init)
            .doing(format!("find the init program {}", init.display()))?
            .is_file()
        {
            return Err(EngineError::Lacking {
                name: "init program",
                detail: format!("{} is not a file", init.display()).into(),
                remedy: "Name the agent's binary.",
            });
        }
        let entropy = Entropy::from_os();
        let parent = options.cgroup_parent.clone();
        let below = cgroups::below(&parent)?;
        let instance = instance::open(&data, &entropy, |name, sandbox| {
            cgroups::is_populated(&below.join(name).join(sandbox))
        })?;
        if options.network.is_some() {
            strays::sweep(&parent, &instance);
        }
        let attach_at = CString::new(data.join("run/root").as_os_str().as_bytes());
        let engine = Self {
            network: open_network(&instance, &data, &mut options)?,
            cgroups: Cgroups::open(Path::new(&parent).join(&instance))?,
            instance: instance.into(),
            ranges: Ranges::new(options.first_uid, options.ranges),
            filter: Filter::new(),
            bases: Bases::open(&data.join("base"), &options)?,
            images: images::Store::open(&data, options.image_store.clone())?,
            disks: Disks::open(data.join("disks"))?,
            kernel_files: KernelFiles::detect(),
            boot_id: boot_id()?,
            entropy,
            attach_at: attach_at
                .map_err(std::io::Error::from)
                .doing("use the data directory's path")?,
            dumpable: dumpable_behavior()
                .ok()
                .filter(|b| *b == DumpableBehavior::Dumpable),
            home: Home::here()?,
            boots: Flights::default(),
            hooks: Flights::default(),
            looks: Looks::default(),
            settling: Settling::default(),
            tasks: Tasks::default(),
            slots: Mutex::default(),
            options,
            data,
        };
        engine.adopt()?;
        engine.adopt_connected()?;
        Ok(engine)
    }

    pub(crate) fn place(&self, uid: Uid) -> Place {
        Place::new(self.data.join("sandboxes").join(uid.to_string()))
    }

    pub(crate) fn cgroup(&self, uid: Uid) -> Cgroup<'_> {
        self.cgroups.of(&uid.to_string())
    }

    /// Where a captured layer is or would be.
    pub(crate) fn layer_file(&self, digest: &model::Digest) -> PathBuf {
        self.images.blobs().join(images::digest::hex(digest))
    }

    pub(crate) fn limits(&self, record: &Record) -> Limits {
        let mut limits = self.options.limits;
        if let Some(asked) = &record.resources {
            limits.cpu_millis = asked.cpu_millis.or(limits.cpu_millis);
            limits.memory_mib = asked.memory_mib.or(limits.memory_mib);
        }
        limits
    }

    /// Runs one call on a uid, alone. `call` gets what is there, after the fence was admitted.
    pub(crate) fn perform<T>(
        &self,
        fence: Fence,
        call: impl FnOnce(&Slot, Option<Workload>) -> Result<T>,
    ) -> Result<T> {
        let slot = Arc::clone(self.slots.lock().entry(fence.uid).or_default());
        let result = {
            let _alone = slot.work.lock();
            self.admit(fence, &slot)
                .and_then(|there| call(&slot, there))
        };
        self.let_go(fence.uid, &slot);
        result
    }

    /// The same, or nothing if another call is at work on that uid.
    pub(crate) fn perform_at_once<T>(
        &self,
        fence: Fence,
        call: impl FnOnce(&Slot, Option<Workload>) -> Result<T>,
    ) -> Option<Result<T>> {
        let slot = self.slot(fence.uid)?;
        let result = {
            let _alone = slot.work.try_lock()?;
            self.admit(fence, &slot)
                .and_then(|there| call(&slot, there))
        };
        self.let_go(fence.uid, &slot);
        Some(result)
    }

    /// Forgets the place of a uid that nobody works on and that has nothing.
    fn let_go(&self, uid: Uid, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock();
        // Slots are only handed out under the lock that is held now: the table's and this one.
        if Arc::strong_count(slot) == 2 && slot.seen.lock().is_none() {
            slots.remove(&uid);
            self.boots.forget(uid);
            self.hooks.forget(uid);
        }
    }

    /// Refuses a call that a newer one has overtaken; else notes its fence before anything else
    /// is done, so that it holds even if this call never ends.
    fn admit(&self, fence: Fence, slot: &Slot) -> Result<Option<Workload>> {
        self.refresh(fence.uid, slot);
        let mut seen = slot.seen.lock();
        let Some(workload) = seen.as_mut() else {
            return Ok(None);
        };
        if fence.rank() < workload.ledger.rank() {
            return Err(RuntimeError::Stale(fence).into());
        }
        if fence.rank() != workload.ledger.rank() {
            let mut ledger = workload.ledger;
            (ledger.generation, ledger.operation) = fence.rank();
            self.place(fence.uid).write_ledger(ledger)?;
            workload.ledger = ledger;
        }
        Ok(Some(workload.clone()))
    }

    /// Looks whether the first process has ended by itself.
    pub(crate) fn refresh(&self, uid: Uid, slot: &Slot) {
        let mut seen = slot.seen.lock();
        let Some(workload) = seen.as_mut() else {
            return;
        };
        if workload.record.stage != Stage::Made {
            return;
        }
        let Some(code) = workload.process.as_ref().and_then(|p| p.exit_code()) else {
            return;
        };
        let place = self.place(uid);
        let code = crate::inspect::exit_code(&place, code);
        workload.process = None;
        workload.frozen = false;
        workload.record.exit_code = Some(code);
        workload.record.oom_kills = self.cgroup(uid).oom_kills();
        // Known again after a restart if this works; else looked for again then.
        if let Err(error) = place.write_record(&workload.record, false) {
            tracing::warn!(%uid, %error, "the exit code of a sandbox could not be kept");
        }
    }

    /// Notes what was found on disk.
    pub(crate) fn insert(&self, uid: Uid, workload: Workload) {
        let slot = Slot::default();
        *slot.seen.lock() = Some(workload);
        self.slots.lock().insert(uid, Arc::new(slot));
    }

    pub(crate) fn slot(&self, uid: Uid) -> Option<Arc<Slot>> {
        self.slots.lock().get(&uid).cloned()
    }

    pub(crate) fn all_slots(&self) -> Vec<(Uid, Arc<Slot>)> {
        let slots = self.slots.lock();
        slots.iter().map(|(uid, s)| (*uid, Arc::clone(s))).collect()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // What goes on between calls has nothing to go on with.
        self.tasks.stopping().cancel();
    }
}
