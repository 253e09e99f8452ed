//! Where the time of a create goes, by the engine's own steps.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Instant,
};

use bench::Samples;

/// Times between steps, of one create at a time.
#[derive(Clone, Default)]
pub(crate) struct Steps(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    last: Option<Instant>,
    all: Vec<(String, Samples)>,
}

impl Steps {
    fn with<T>(&self, work: impl FnOnce(&mut State) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What the engine calls.
    pub(crate) fn hook(&self) -> Arc<dyn Fn(runtime_local::Step) + Send + Sync> {
        let steps = self.clone();
        Arc::new(move |step| steps.note(&format!("{step:?}")))
    }

    pub(crate) fn begin(&self) {
        self.with(|state| state.last = Some(Instant::now()));
    }

    /// A step was reached; counted only after a [`Steps::begin`].
    pub(crate) fn note(&self, name: &str) {
        self.with(|state| {
            let Some(last) = state.last else { return };
            let now = Instant::now();
            match state.all.iter_mut().find(|(n, _)| n == name) {
                Some((_, samples)) => samples.record(now - last),
                None => {
                    let mut samples = Samples::default();
                    samples.record(now - last);
                    state.all.push((name.to_owned(), samples));
                }
            }
            state.last = (name != "answered").then_some(now);
        });
    }

    pub(crate) fn clear(&self) {
        self.with(|state| *state = State::default());
    }

    pub(crate) fn print(&self) {
        self.with(|state| {
            for (name, samples) in &state.all {
                samples.print(&format!("  until {name}"));
            }
        });
    }
}
