//! What goes wrong with processes and between them, one thing at a time.

use std::{sync::Arc, time::Duration};

use mesh::Role as Part;

use super::World;
use crate::{process::Memory, surroundings::REPLICAS};

impl World {
    /// Something goes wrong.
    pub(super) async fn trouble(&mut self) {
        match self.entropy.below(92) / 4 {
            0 | 1 => {
                if let Some(leader) = self.control.take() {
                    self.checker.control_blind();
                    leader.crash(self.entropy.chance(0.3));
                }
            }
            2..5 => self.start_control().await,
            5 | 15 => {
                let gateways = self.gateways();
                let at = self.entropy.below(gateways.len());
                if self.entropy.chance(0.5) {
                    let long = Duration::from_millis(self.entropy.below(60_000) as u64);
                    gateways[at].deaf.begin(long);
                    if self.entropy.chance(0.8) {
                        self.around.isolate(gateways[at].process.address);
                    }
                    return;
                }
                self.checker.gateway_died(at);
                gateways[at].crash(self.entropy.chance(0.3));
                let new = self.new_gateway(at);
                self.fronts.gateways.lock()[at] = new;
            }
            6 | 7 => {
                self.checker.control_blind();
                self.store.lag();
            }
            8 | 9 => self.catch_up(),
            10 => self.store.lose_watches(),
            11 => self.lose_something(),
            12 => {
                let hours = self.entropy.below(48) as i64 - 24;
                self.clock.jump(hours * 3_600_000_000);
                self.checker.clock_jumped();
            }
            13 => {
                let there = self.runtime.truth();
                let at = self.entropy.below(there.len());
                if let Some(uid) = there.keys().nth(at) {
                    self.checker.workload_ended(*uid);
                    self.runtime.exit(*uid, self.entropy.below(2) as i32);
                }
            }
            16 | 17 => self.around.part(),
            18 | 19 => self.around.network.mend(),
            20 => self.around.network.cut_some(),
            21 => self.restart_replica(),
            22 => self.deafen(),
            // Everything of one machine goes at once.
            _ => {
                if let Some(leader) = self.control.take() {
                    self.checker.control_blind();
                    leader.crash(true);
                }
                self.runtime.restart_host();
                for uid in self.runtime.truth().keys() {
                    self.checker.host_restarted(*uid);
                }
            }
        }
    }

    /// Some gateway hears nothing of the store for a while.
    pub(super) fn deafen(&self) {
        let gateways = self.gateways();
        let long = Duration::from_millis(self.entropy.below(120_000) as u64);
        gateways[self.entropy.below(gateways.len())]
            .deaf
            .begin(long);
    }

    /// A replica of the API starts over, as the others know it; or hears late for a while.
    fn restart_replica(&mut self) {
        let number = self.entropy.below(REPLICAS);
        let replica = &mut self.replicas[number];
        if self.entropy.chance(0.5) {
            let long = Duration::from_millis(self.entropy.below(30_000) as u64);
            return replica.deaf.begin(long);
        }
        replica.process.crash(self.entropy.chance(0.3));
        let memory = Memory::Ear(Arc::clone(&replica.ear));
        replica.process = self.around.start(Part::Api, number, memory);
        replica.voice.lend(&replica.process);
    }

    fn catch_up(&self) {
        self.store.catch_up();
        if self.control.is_some() {
            self.checker.control_sees();
        }
    }

    fn lose_something(&self) {
        let there = self.runtime.truth();
        let at = self.entropy.below(there.len());
        if let Some(uid) = there.keys().nth(at) {
            self.checker.workload_ended(*uid);
            self.runtime.lose(*uid);
        }
    }
}
