//! What is seen of a mesh from outside.

use std::collections::BTreeSet;

use model::Version;

use super::{Core, Side};
use crate::stats::Stats;

impl Core {
    /// A look from outside.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let (alive, suspect, down) = self.members.count();
        let mut stats = Stats {
            alive,
            suspect,
            down,
            counts: self.counts.clone(),
            ..Stats::default()
        };
        let mut ahead = Version::ZERO;
        for link in self.links.values() {
            let Some(peer) = &link.peer else { continue };
            ahead = ahead.max(peer.watched);
            match link.side {
                Side::Accepted(_) => stats.accepted += 1,
                Side::Dialled(_) => {
                    stats.dialled += 1;
                    if peer.listens {
                        stats.in_standing += usize::from(link.in_standing);
                        stats.listeners += 1;
                        let unheard = self.ring.next().saturating_sub(link.acked);
                        stats.unheard = stats.unheard.max(unheard);
                    }
                }
            }
        }
        let processes = |is_side: fn(Side) -> bool| {
            let links = self.links.values().filter(move |link| is_side(link.side));
            links.filter_map(|link| link.peer.as_ref().map(|peer| peer.process))
        };
        let here: BTreeSet<u64> = processes(|side| matches!(side, Side::Accepted(_))).collect();
        let there = processes(|side| matches!(side, Side::Dialled(_)));
        stats.unmet = there.filter(|process| !here.contains(process)).count();
        let own = self.watched();
        if ahead.incarnation() == own.incarnation() {
            stats.behind = ahead.sequence().saturating_sub(own.sequence());
        }
        stats
    }
}
