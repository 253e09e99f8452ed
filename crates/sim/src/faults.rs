//! What goes wrong, drawn from the seed. Each run has its own mix: some are calm in one respect and
//! wild in another, so that rare combinations get their turn.

use std::{sync::Arc, time::Duration};

use kit::Entropy;
use runtime::fake::{Call, CallFault, FakeRuntime};
use store::memory::{MemoryStore, WriteFault};

use crate::desk::{Author, Role};

/// How likely each fault is, per call.
#[derive(Clone, Copy, Debug)]
pub struct Weather {
    write: f64,
    stale: f64,
    call: f64,
    inspect: f64,
}

impl Weather {
    /// The weather of one run.
    #[must_use]
    pub fn draw(entropy: &Entropy) -> Self {
        let pick = |of: [f64; 4]| of[entropy.below(4)];
        Self {
            write: pick([0.0, 0.01, 0.05, 0.15]),
            stale: pick([0.0, 0.05, 0.2, 0.4]),
            call: pick([0.0, 0.02, 0.1, 0.3]),
            inspect: pick([0.0, 0.0, 0.02, 0.2]),
        }
    }

    /// Lets it loose.
    pub fn begin(
        self,
        store: &MemoryStore,
        runtime: &FakeRuntime,
        author: &Author,
        entropy: &Arc<Entropy>,
    ) {
        let draw = Arc::clone(entropy);
        store.faults().on_write(move |_| {
            if !draw.chance(self.write) {
                return WriteFault::None;
            }
            [
                WriteFault::FailBefore,
                WriteFault::FailAfter,
                WriteFault::Conflict,
            ][draw.below(3)]
        });
        let draw = Arc::clone(entropy);
        let reader = author.clone();
        store.faults().on_read(move || match reader.get() {
            Role::Control | Role::Client if draw.chance(self.stale) => draw.below(20),
            Role::Control | Role::Client | Role::Gateway | Role::Waker => 0,
        });
        let draw = Arc::clone(entropy);
        runtime.on_call(move |call, _| self.strike(call, &draw));
    }

    fn strike(self, call: Call, draw: &Entropy) -> CallFault {
        let short = Duration::from_micros(draw.below(5_000) as u64);
        let likely = if call == Call::Inspect {
            self.inspect
        } else {
            self.call
        };
        if !draw.chance(likely) {
            return CallFault::Slow(short);
        }
        match draw.below(6) {
            0 if call == Call::Boot => CallFault::NeverReady,
            0 => CallFault::FailBefore,
            1 => CallFault::FailAfter,
            2 => CallFault::HalfWay,
            3 => CallFault::EffectLater(Duration::from_millis(draw.below(30_000) as u64)),
            _ => CallFault::Slow(Duration::from_millis(draw.below(10_000) as u64)),
        }
    }

    /// The end of all faults.
    pub fn end(store: &MemoryStore, runtime: &FakeRuntime) {
        store.faults().clear();
        store.catch_up();
        runtime.clear_faults();
    }
}
