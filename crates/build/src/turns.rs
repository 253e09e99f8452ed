//! Who builds next: teams in turn, and of one team whoever has waited longest.
//!
//! A team that asks for many builds at once so delays another by no more than one build per slot.

use std::{collections::VecDeque, sync::Arc};

use model::Namespace;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// The line for a number of slots.
#[derive(Clone, Debug)]
pub(crate) struct Turns(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// None while anybody waits.
    free: usize,
    /// Teams that wait, the next one first.
    waiting: VecDeque<(Namespace, VecDeque<oneshot::Sender<Turn>>)>,
}

/// A slot that is held. Whoever is next gets it when it is dropped.
#[derive(Debug)]
pub(crate) struct Turn(Option<Turns>);

impl Turns {
    pub(crate) fn new(slots: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            free: slots.max(1),
            waiting: VecDeque::new(),
        })))
    }

    /// Waits for a team's turn. Whoever stops waiting leaves the line.
    pub(crate) async fn take(&self, team: &Namespace) -> Turn {
        let receiver = {
            let mut state = self.0.lock();
            if state.free > 0 {
                state.free -= 1;
                return Turn(Some(self.clone()));
            }
            let (sender, receiver) = oneshot::channel();
            match state.waiting.iter_mut().find(|(of, _)| of == team) {
                Some((_, line)) => line.push_back(sender),
                None => state
                    .waiting
                    .push_back((team.clone(), VecDeque::from([sender]))),
            }
            receiver
        };
        match receiver.await {
            Ok(turn) => turn,
            // The line holds the sender for as long as somebody waits.
            Err(_) => std::future::pending().await,
        }
    }

    /// Whoever is next; without anybody the slot is free.
    fn next(&self) -> Option<oneshot::Sender<Turn>> {
        let mut state = self.0.lock();
        while let Some((team, mut line)) = state.waiting.pop_front() {
            let next = line.pop_front();
            if !line.is_empty() {
                state.waiting.push_back((team, line));
            }
            if next.is_some() {
                return next;
            }
        }
        state.free += 1;
        None
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(turns) = self.0.take() else { return };
        while let Some(next) = turns.next() {
            match next.send(Self(Some(turns.clone()))) {
                Ok(()) => return,
                // It has left: its turn is the next one's.
                Err(mut turn) => drop(turn.0.take()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn a_team_with_many_builds_does_not_keep_another_waiting_for_all_of_them() {
        let (a, b) = (Namespace::new("a").unwrap(), Namespace::new("b").unwrap());
        let turns = Turns::new(1);
        let first = turns.take(&a).now_or_never().unwrap();
        let mut waiting: Vec<_> = [&a, &a, &a, &b]
            .into_iter()
            .map(|team| Box::pin(turns.take(team)))
            .collect();
        for line in &mut waiting {
            assert!(line.as_mut().now_or_never().is_none());
        }
        // One that leaves is passed over.
        drop(waiting.remove(0));
        drop(first);
        let mut order = Vec::new();
        for _ in 0..3 {
            let ready = waiting
                .iter_mut()
                .enumerate()
                .find_map(|(at, line)| Some((at, line.as_mut().now_or_never()?)));
            let (at, turn) = ready.unwrap();
            order.push(at);
            drop(turn);
            drop(waiting.remove(at));
        }
        // Whose turn a's first was, had it stayed; so b's is the next.
        assert_eq!(order, [2, 0, 0], "b, then both of a");
        assert_eq!(turns.0.lock().free, 1);
    }
}
