//! Whose word counts, where several may speak of one container: the daemon for one control loop, a
//! worker for the next, each of them late.
//!
//! What was ordered is noted on the container itself, in containerd: the daemon and every worker of the
//! node see it there, over a restart of any of them. Each rank has a label of its own, because containerd
//! changes one without a look at the others: what is newer cannot be overwritten, only added to.
//!
//! ```text
//!  look ──▶ note ──▶ look ──▶ act ──▶ look ──▶ done
//!    └───────┴─ newer: refused ─┘        └─ newer: what that wants is brought about, refused
//! ```
//!
//! Somebody newer may note and act between a look and an act. So who has acted looks once more, and
//! brings about what the newest wants: whoever acts last leaves what the newest has asked for.

use std::collections::{BTreeMap, HashMap};

use runtime::node::Rank;

use crate::{
    containerd::Containerd,
    error::{NodeError, Result},
    guard::Sandbox,
};

/// What the label of an order begins with; its rank follows.
const LABEL: &str = "dormouse.dev/order.";

/// What an order wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wish {
    Frozen,
    Running,
}

impl Wish {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Frozen => "frozen",
            Self::Running => "running",
        }
    }

    fn parse(text: &str) -> Option<Self> {
        [Self::Frozen, Self::Running]
            .into_iter()
            .find(|wish| wish.as_str() == text)
    }

    /// Answers whether it was otherwise until now.
    async fn bring(self, containerd: &Containerd, id: &str) -> Result<bool> {
        match self {
            Self::Frozen => containerd.pause(id).await,
            Self::Running => containerd.resume(id).await,
        }
    }
}

/// The orders that are noted, by rank.
fn noted(labels: &HashMap<String, String>) -> BTreeMap<Rank, Wish> {
    let noted = labels.iter().filter_map(|(name, value)| {
        let rank = name.strip_prefix(LABEL)?.parse().ok()?;
        Some((rank, Wish::parse(value)?))
    });
    noted.collect()
}

impl Sandbox {
    /// Stops its processes where they are. Answers whether they ran until now.
    ///
    /// # Errors
    /// If a newer order was heard, there are none, or containerd fails.
    pub async fn freeze(&self, rank: Rank) -> Result<bool> {
        self.obey(rank, Wish::Frozen).await
    }

    /// Lets them go on. Answers whether they stood still until now.
    ///
    /// # Errors
    /// If a newer order was heard, there are none, or containerd fails.
    pub async fn thaw(&self, rank: Rank) -> Result<bool> {
        self.obey(rank, Wish::Running).await
    }

    /// Checks that an order to freeze is still the newest, and is what it was.
    ///
    /// # Errors
    /// If it is not, or containerd does not answer.
    pub async fn stands(&self, rank: Rank) -> Result<()> {
        match self.orders().await?.last_key_value() {
            Some((newest, _)) if *newest > rank => Err(self.stale(rank, *newest)),
            Some((newest, Wish::Frozen)) if *newest == rank => Ok(()),
            Some(_) | None => Err(NodeError::Disturbed(self.container().id.clone())),
        }
    }

    async fn obey(&self, rank: Rank, wish: Wish) -> Result<bool> {
        let (containerd, id) = (self.containerd(), &self.container().id);
        let heard = self.orders().await?;
        if let Some((newest, _)) = heard.last_key_value().filter(|(newest, _)| **newest > rank) {
            return Err(self.stale(rank, *newest));
        }
        // What is older says nothing any more.
        let older = heard.keys().filter(|older| **older < rank);
        let notes = older
            .map(|older| (format!("{LABEL}{older}"), String::new()))
            .chain([(format!("{LABEL}{rank}"), wish.as_str().to_owned())]);
        containerd.label(id, notes.collect()).await?;
        let (mut changed, mut brought) = (false, None);
        loop {
            let orders = self.orders().await?;
            let newest = orders.last_key_value().map(|(rank, wish)| (*rank, *wish));
            let newest = newest.unwrap_or((rank, wish));
            match brought {
                None if newest.0 > rank => return Err(self.stale(rank, newest.0)),
                Some(last) if last == newest => break,
                Some(_) | None => {}
            }
            changed |= newest.1.bring(containerd, id).await?;
            brought = Some(newest);
        }
        match brought {
            Some((newest, _)) if newest > rank => Err(self.stale(rank, newest)),
            Some(_) | None => Ok(changed),
        }
    }

    async fn orders(&self) -> Result<BTreeMap<Rank, Wish>> {
        let container = self.containerd().container(&self.container().id).await?;
        Ok(noted(&container.labels))
    }

    fn stale(&self, rank: Rank, newest: Rank) -> NodeError {
        NodeError::Stale {
            id: self.container().id.clone(),
            rank,
            newest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_order_is_found_among_all_labels() {
        let labels = [
            ("io.kubernetes.pod.uid", "p"),
            ("dormouse.dev/order.2.10", "frozen"),
            ("dormouse.dev/order.2.9", "running"),
            ("dormouse.dev/order.x", "frozen"),
            ("dormouse.dev/order.3.1", "dancing"),
        ];
        let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let noted = noted(&HashMap::from(labels));
        let newest = noted.last_key_value();
        let rank = Rank {
            generation: 2,
            operation: 10,
        };
        assert_eq!(newest, Some((&rank, &Wish::Frozen)));
        assert_eq!(noted.len(), 2);
    }
}
