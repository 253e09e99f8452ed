//! Finding again what an earlier server has left.

use std::{fs, path::Path};

use model::{StringMap, Uid, template::RuntimeClass};

use crate::{
    boot::was_up,
    engine::Engine,
    error::{Doing as _, EngineError, Result},
    hook,
    inspect::exit_code,
    record::{Place, Record, Stage},
    workload::{Process, UNKNOWN_EXIT, Workload},
};

impl Engine {
    /// Reads every sandbox's directory. What was being made, restarted or removed when its server
    /// died is there half, and can only be removed.
    pub(crate) fn adopt(&self) -> Result<()> {
        let sandboxes = self.data.join("sandboxes");
        for uid in uids(&sandboxes)? {
            let place = self.place(uid);
            let workload = self.adopt_one(uid, &place);
            self.must_be_here(uid, &workload)?;
            self.ranges.adopt(workload.record.range());
            self.insert(uid, workload);
        }
        // A cgroup goes before its directory, so one without is of a data directory that was
        // removed by hand: shown, so that it can be removed through the port.
        for name in self.cgroups.names()? {
            if let Ok(uid) = name.parse::<Uid>()
                && self.slot(uid).is_none()
            {
                self.insert(uid, partial(&self.place(uid)));
            }
        }
        Ok(())
    }

    /// Refuses what runs among processes that this one cannot see: in a container whose server died, or
    /// outside of ours. It would look as if it had ended.
    fn must_be_here(&self, uid: Uid, workload: &Workload) -> Result<()> {
        let is_ours = workload.record.boot_id == self.boot_id;
        let is_made = workload.record.stage == Stage::Made;
        if is_made && !is_ours && self.cgroup(uid).is_populated()? {
            return Err(EngineError::Elsewhere(uid));
        }
        Ok(())
    }

    fn adopt_one(&self, uid: Uid, place: &Place) -> Workload {
        let mut record = match place.read_record() {
            Ok(record) => record,
            Err(error) => {
                tracing::warn!(%uid, %error, "a sandbox is half-made: it can only be removed");
                return partial(place);
            }
        };
        if record.stage == Stage::Starting {
            let running = place.read_process().filter(|p| p.boot_id == self.boot_id);
            // Of another boot: whether it was made in the end need not be on disk, all that can be
            // left of it is. Its processes are gone either way.
            if running.is_some() || record.boot_id != self.boot_id {
                record.stage = Stage::Made;
                record.process = running;
            }
        }
        if record.stage != Stage::Made {
            return Workload {
                record: Record {
                    stage: Stage::Removing,
                    ..record
                },
                ..partial(place)
            };
        }
        let mut process = match (&record.process, record.exit_code) {
            (Some(id), None) => Process::adopt(id, &self.boot_id),
            (None, _) | (_, Some(_)) => None,
        };
        // Of a directory that this is a copy of. It may run there, or have been ended as what is left of
        // one that is gone.
        let is_anothers = match &record.instance {
            Some(instance) => *instance != self.instance,
            None => process.as_ref().is_some_and(|process| {
                !process.has_ended() && matches!(self.cgroup(uid).is_populated(), Ok(false))
            }),
        };
        if is_anothers {
            tracing::info!(%uid, "the processes of this sandbox were those of another data directory");
            process = None;
        }
        let mut workload = Workload {
            ledger: place.read_ledger(),
            frozen: process.is_some() && self.cgroup(uid).is_frozen(),
            process,
            booted: record.boot.is_none() || was_up(place, &record.container_id),
            hooked: hook::noted(place, &record.container_id),
            record,
        };
        // Its server may have died before they were synced.
        if workload.process.is_some()
            && let Some(mark) = place.open_mark()
            && let Err(error) = self.settle(uid, place, mark)
        {
            tracing::warn!(%uid, %error, "the files of a sandbox are not known to be on disk");
        }
        // Of another boot it is cut off, unless its first process said before how it ended.
        let said = exit_code(place, UNKNOWN_EXIT);
        let cut = (is_anothers || workload.record.boot_id != self.boot_id) && said == UNKNOWN_EXIT;
        if workload.process.is_none() && workload.record.exit_code.is_none() && !cut {
            workload.record.exit_code = Some(said);
        }
        workload
    }
}

/// A sandbox of which nothing is known but that something is there.
fn partial(place: &Place) -> Workload {
    Workload {
        record: Record {
            stage: Stage::Removing,
            first_uid: 0,
            container_id: "".into(),
            images: StringMap::new(),
            origin: None,
            layer: None,
            resources: None,
            class: RuntimeClass::default(),
            sudo: false,
            boot: None,
            network: None,
            address: None,
            process: None,
            instance: None,
            boot_id: "".into(),
            oom_kills: 0,
            exit_code: None,
        },
        ledger: place.read_ledger(),
        process: None,
        frozen: false,
        booted: false,
        hooked: None,
    }
}

fn uids(sandboxes: &Path) -> Result<Vec<Uid>> {
    let mut uids = Vec::new();
    for entry in fs::read_dir(sandboxes).doing("list the sandboxes")? {
        let name = entry.doing("list the sandboxes")?.file_name();
        match name.to_str().and_then(|name| name.parse().ok()) {
            Some(uid) => uids.push(uid),
            None => tracing::warn!(?name, "not a sandbox, left alone"),
        }
    }
    Ok(uids)
}
