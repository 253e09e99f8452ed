//! Making a sandbox.

use std::{
    fs,
    io::{self, Write as _},
    net::Ipv4Addr,
    path::Path,
    thread,
};

use ::runtime::{Facts, Fence, WorkloadSpec};
use model::{Epoch, Uid};
use rustix::fs::{Gid, chown};

use crate::{
    engine::Engine,
    error::{Doing as _, Result, impossible},
    oci,
    options::Step,
    ranges::Range,
    record::{Ledger, Place, Record, Stage},
    rootfs::{Image, Root},
    tree,
    workload::{Process, Workload},
};

impl Engine {
    /// Makes and starts a sandbox; one that is there already is left as it is.
    pub(crate) fn create(&self, fence: Fence, spec: &WorkloadSpec) -> Result<Facts> {
        self.perform(fence, |slot, there| {
            if let Some(there) = there {
                there.alive(fence.uid)?;
                return Ok(there.facts());
            }
            let image = self.admit_spec(spec)?;
            let range = self.ranges.take()?;
            let record = Record {
                stage: Stage::Making,
                first_uid: range.first(),
                container_id: self.new_container_id(),
                images: spec.images.clone(),
                origin: Some(image.origin.clone()),
                layer: spec.from.clone(),
                resources: spec.resources,
                class: spec.class,
                sudo: spec.sudo,
                boot: spec.boot.clone(),
                network: spec.network.clone(),
                address: None,
                process: None,
                instance: Some(self.instance.clone()),
                boot_id: self.boot_id.clone(),
                oom_kills: 0,
                exit_code: None,
            };
            let ledger = Ledger {
                generation: fence.generation,
                operation: fence.operation,
                epoch: Epoch::default(),
            };
            match self.make(fence.uid, record.clone(), ledger, &image) {
                Ok(workload) => {
                    self.learn_look(fence.uid, &workload);
                    let facts = workload.facts();
                    *slot.seen.lock() = Some(workload);
                    Ok(facts)
                }
                Err(error) => {
                    // Nothing half-made is left if it can be helped.
                    if let Err(also) = self.destroy(fence.uid, None, Some(range)) {
                        tracing::warn!(uid = %fence.uid, error = %also, "a failed create left something");
                        *slot.seen.lock() = Some(Workload {
                            record,
                            ledger,
                            process: None,
                            frozen: false,
                            booted: false,
                            hooked: None,
                        });
                    }
                    Err(error)
                }
            }
        })
    }

    /// Refuses by name what this engine cannot do.
    fn admit_spec(&self, spec: &WorkloadSpec) -> Result<Image> {
        oci::admit(spec.class)?;
        if let Some(mib) = spec.resources.and_then(|resources| resources.disk_mib) {
            self.disks.admit(mib)?;
        }
        self.check_network(spec.network.as_deref())?;
        if spec.boot.is_some() && self.options.agent_port.is_none() {
            return Err(impossible(
                "startCommand",
                "the first process of these sandboxes runs no commands",
            ));
        }
        if let Some(digest) = &spec.from
            && !self.layer_file(digest).exists()
        {
            return Err(impossible(
                "snapshot",
                format!("layer {digest} does not exist"),
            ));
        }
        self.find_image_for(spec)
    }

    pub(crate) fn new_container_id(&self) -> Box<str> {
        format!("{:016x}", self.entropy.u64()).into()
    }

    /// As the kernel writes one: a random UUID. What is told by it, that memory and sockets of
    /// before are gone, is true of every start of a sandbox.
    fn new_boot_id(&self) -> String {
        let (high, low) = (self.entropy.u64(), self.entropy.u64());
        format!(
            "{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}\n",
            high >> 32,
            (high >> 16) & 0xffff,
            high & 0xfff,
            (low >> 48) & 0x3fff | 0x8000,
            low & 0xffff_ffff_ffff
        )
    }

    fn make(&self, uid: Uid, record: Record, ledger: Ledger, image: &Image) -> Result<Workload> {
        let place = self.place(uid);
        tree::ensure_directory(place.directory(), 0o711).doing("make the sandbox's directory")?;
        place.write_record(&record, false)?;
        place.write_ledger(ledger)?;
        self.options.reached(Step::Noted);
        self.launch(uid, &place, record, ledger, image)
    }

    /// Fresh directories, fresh cgroups and a first process: what making and restarting share.
    pub(crate) fn launch(
        &self,
        uid: Uid,
        place: &Place,
        mut record: Record,
        ledger: Ledger,
        image: &Image,
    ) -> Result<Workload> {
        let range = record.range();
        if let Some(mib) = record.resources.and_then(|resources| resources.disk_mib) {
            self.disks.make(uid, place, mib)?;
        }
        make_directories(place, range, &self.new_boot_id())
            .doing("make the sandbox's directories")?;
        self.options.reached(Step::Directories);
        record.origin = Some(image.origin.clone());
        record.stage = Stage::Starting;
        record.process = None;
        record.exit_code = None;
        record.oom_kills = 0;
        record.boot_id = self.boot_id.clone();
        record.instance = Some(self.instance.clone());
        record.address = self.reserve_address(uid)?;
        let mut connected = None;
        let process = thread::scope(|scope| {
            let filling = self.begin_restore(scope, uid, place, &record)?;
            let root = Root {
                place,
                record: &record,
                image,
                filling,
            };
            self.run(uid, root, &mut connected)
        })?;
        if connected != record.address {
            record.address = connected;
            place.write_record(&record, false)?;
        }
        record.stage = Stage::Made;
        record.process = Some(process.id.clone());
        place.write_process(&process.id)?;
        self.options.reached(Step::Made);
        let booted = record.boot.is_none();
        Ok(Workload {
            booted,
            hooked: None,
            record,
            ledger,
            process: Some(process),
            frozen: false,
        })
    }

    /// Cgroups, a first process and a connection, over directories that are there.
    fn run(&self, uid: Uid, root: Root<'_>, connected: &mut Option<Ipv4Addr>) -> Result<Process> {
        let record = root.record;
        self.cgroup(uid).make(&self.limits(record))?;
        self.options.reached(Step::Cgroups);
        let meanwhile = |pid| {
            *connected = self.connect(uid, pid, record)?;
            Ok(())
        };
        match oci::Kind::of(record.class) {
            None => self.start(uid, root, meanwhile),
            Some(kind) => self.start_by(kind, uid, root, meanwhile),
        }
    }
}

/// The writable layer, and what the sandbox sees at `/run/dormouse`.
fn make_directories(place: &Place, range: Range, boot_id: &str) -> io::Result<()> {
    let owner = |path: &Path| {
        let (uid, gid) = (range.first(), range.first());
        chown(
            path,
            Some(rustix::fs::Uid::from_raw(uid)),
            Some(Gid::from_raw(gid)),
        )
    };
    // New ones only: what is there already is not this sandbox's.
    let new = |path: &Path| {
        fs::create_dir(path)?;
        tree::ensure_directory(path, 0o755)
    };
    new(&place.upper())?;
    owner(&place.upper())?;
    new(&place.work())?;
    // The host's root owns these; the mapping of the mount shows them as root's inside.
    new(&place.inside())?;
    for point in ["init", "exit"] {
        fs::File::create_new(place.inside().join(point))?;
    }
    fs::File::create_new(place.inside().join("boot_id"))?.write_all(boot_id.as_bytes())?;
    fs::File::create_new(place.exit_file())?;
    Ok(())
}
