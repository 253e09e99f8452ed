//! Turns at waking: so many sandboxes at once, and fair between teams.
//!
//! Who finds no turn free waits in its team's line. A turn that comes free goes to the next team
//! that waits, to the first in its line; so a team that wakes a thousand sandboxes at once does not
//! make another, which wakes one, wait for all of them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use model::Namespace;
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A team; none for sandboxes without an owner.
pub(crate) type Team = Option<Namespace>;

#[derive(Debug)]
pub(crate) struct Turns(Mutex<State>);

#[derive(Debug)]
struct State {
    free: usize,
    lines: BTreeMap<Team, VecDeque<oneshot::Sender<Turn>>>,
    /// Teams that wait, in the order of their next turn.
    order: VecDeque<Team>,
}

/// The right to wake a sandbox. Dropped, the next one has it.
#[derive(Debug)]
pub(crate) struct Turn(Option<Arc<Turns>>);

impl Turns {
    pub(crate) fn new(at_once: usize) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            free: at_once.max(1),
            lines: BTreeMap::new(),
            order: VecDeque::new(),
        })))
    }

    /// Waits for a turn. Who stops waiting loses nothing of anybody else's.
    pub(crate) async fn take(self: &Arc<Self>, team: &Team) -> Turn {
        let given = {
            let mut state = self.0.lock();
            if state.free > 0 {
                state.free -= 1;
                return Turn(Some(Arc::clone(self)));
            }
            let (sender, given) = oneshot::channel();
            let line = state.lines.entry(team.clone()).or_default();
            line.push_back(sender);
            if line.len() == 1 {
                state.order.push_back(team.clone());
            }
            given
        };
        // The sender stays in its line for as long as somebody waits.
        given.await.unwrap_or(Turn(None))
    }

    fn give_back(self: Arc<Self>) {
        let mut turn = Turn(Some(Arc::clone(&self)));
        while let Some(sender) = self.next() {
            match sender.send(turn) {
                Ok(()) => return,
                // It left meanwhile.
                Err(unused) => turn = unused,
            }
        }
        turn.0 = None;
        self.0.lock().free += 1;
    }

    fn next(&self) -> Option<oneshot::Sender<Turn>> {
        let mut state = self.0.lock();
        let team = state.order.pop_front()?;
        let line = state.lines.get_mut(&team)?;
        let sender = line.pop_front();
        if line.is_empty() {
            state.lines.remove(&team);
        } else {
            state.order.push_back(team);
        }
        sender
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.give_back();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    fn team(name: &str) -> Team {
        Some(Namespace::new(name).unwrap())
    }

    #[tokio::test]
    async fn a_team_with_many_does_not_make_another_wait_for_all_of_them() {
        let turns = Turns::new(1);
        let (many, few) = (team("many"), team("few"));
        let first = turns.take(&many).await;
        let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(turns.take(&many))).collect();
        waiting
            .iter_mut()
            .for_each(|w| assert!(w.now_or_never().is_none()));
        let mut other = Box::pin(turns.take(&few));
        assert!((&mut other).now_or_never().is_none());
        drop(first);
        let second = (&mut waiting[0]).now_or_never().unwrap();
        assert!((&mut other).now_or_never().is_none());
        drop(second);
        assert!((&mut waiting[1]).now_or_never().is_none());
        assert!((&mut other).now_or_never().is_some());
    }

    #[tokio::test]
    async fn who_leaves_takes_no_turn_along() {
        let turns = Turns::new(1);
        let all = team("all");
        let first = turns.take(&all).await;
        let mut leaves = Box::pin(turns.take(&all));
        assert!((&mut leaves).now_or_never().is_none());
        let mut given_and_gone = Box::pin(turns.take(&all));
        assert!((&mut given_and_gone).now_or_never().is_none());
        drop(leaves);
        // It is handed to the second, who goes without looking.
        drop(first);
        drop(given_and_gone);
        assert!(turns.take(&all).now_or_never().is_some());
    }
}
