//! The order of those that wait: turns go round between tenants, each tenant's own are served in
//! the order they came.
//!
//! A tenant of weight three has three turns in a row. One that has nobody waiting is forgotten, so
//! turns cannot be saved up.

use std::collections::{BTreeMap, VecDeque};

/// A line of `T`.
#[derive(Debug)]
pub struct FairQueue<T> {
    /// Tenants that have somebody waiting; the first one's turn it is.
    ring: VecDeque<Box<str>>,
    waiting: BTreeMap<Box<str>, VecDeque<T>>,
    /// Turns that the first of the ring has had in a row.
    had: u32,
    len: usize,
}

impl<T> Default for FairQueue<T> {
    fn default() -> Self {
        Self {
            ring: VecDeque::new(),
            waiting: BTreeMap::new(),
            had: 0,
            len: 0,
        }
    }
}

impl<T> FairQueue<T> {
    /// How many wait.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether nobody waits.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds one behind all others of its tenant.
    pub fn push(&mut self, tenant: &str, item: T) {
        self.len += 1;
        match self.waiting.get_mut(tenant) {
            Some(own) => own.push_back(item),
            None => {
                self.waiting.insert(tenant.into(), VecDeque::from([item]));
                self.ring.push_back(tenant.into());
            }
        }
    }

    /// Puts one back whose turn came to nothing: it is next.
    pub fn push_front(&mut self, tenant: &str, item: T) {
        self.len += 1;
        self.waiting
            .entry(tenant.into())
            .or_default()
            .push_front(item);
        if self.ring.front().is_none_or(|first| **first != *tenant) {
            self.ring.retain(|known| **known != *tenant);
            self.ring.push_front(tenant.into());
            self.had = 0;
        }
    }

    /// Takes the next one, by the weights that tenants have now.
    pub fn pop(&mut self, weight: impl Fn(&str) -> u32) -> Option<T> {
        let tenant = self.ring.front()?.clone();
        let own = self.waiting.get_mut(&tenant)?;
        let item = own.pop_front()?;
        self.len -= 1;
        self.had += 1;
        if own.is_empty() {
            self.waiting.remove(&tenant);
            self.ring.pop_front();
            self.had = 0;
        } else if self.had >= weight(&tenant).max(1) {
            self.ring.rotate_left(1);
            self.had = 0;
        }
        Some(item)
    }

    /// Takes out those of a tenant for which `is_meant` holds. Answers whether there were any.
    pub fn remove(&mut self, tenant: &str, is_meant: impl Fn(&T) -> bool) -> bool {
        let Some(own) = self.waiting.get_mut(tenant) else {
            return false;
        };
        let before = own.len();
        own.retain(|item| !is_meant(item));
        let removed = before - own.len();
        self.len -= removed;
        if own.is_empty() {
            self.waiting.remove(tenant);
            if self.ring.front().is_some_and(|first| **first == *tenant) {
                self.had = 0;
            }
            self.ring.retain(|known| **known != *tenant);
        }
        removed > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(queue: &mut FairQueue<u32>, weight: impl Fn(&str) -> u32) -> Vec<u32> {
        std::iter::from_fn(|| queue.pop(&weight)).collect()
    }

    #[test]
    fn a_greedy_tenant_has_every_other_turn_and_no_more() {
        let mut queue = FairQueue::default();
        (0..6).for_each(|n| queue.push("greedy", n));
        (10..12).for_each(|n| queue.push("modest", n));
        assert_eq!(queue.len(), 8);
        assert_eq!(drained(&mut queue, |_| 1), [0, 10, 1, 11, 2, 3, 4, 5]);
        assert!(queue.is_empty());
    }

    #[test]
    fn weights_are_turns_in_a_row() {
        let mut queue = FairQueue::default();
        (0..4).for_each(|n| queue.push("light", n));
        (10..16).for_each(|n| queue.push("heavy", n));
        let order = drained(&mut queue, |tenant| if tenant == "heavy" { 3 } else { 1 });
        assert_eq!(order, [0, 10, 11, 12, 1, 13, 14, 15, 2, 3]);
    }

    #[test]
    fn one_that_comes_back_is_next() {
        let mut queue = FairQueue::default();
        queue.push("a", 1);
        queue.push("b", 2);
        queue.push("a", 3);
        let first = queue.pop(|_| 1).unwrap();
        queue.push_front("a", first);
        assert_eq!(drained(&mut queue, |_| 1), [1, 2, 3]);
    }

    #[test]
    fn who_leaves_takes_no_turn() {
        let mut queue = FairQueue::default();
        (0..3).for_each(|n| queue.push("a", n));
        queue.push("b", 9);
        assert!(queue.remove("a", |n| *n < 2));
        assert!(!queue.remove("a", |n| *n < 2));
        assert!(!queue.remove("c", |_| true));
        assert_eq!(queue.len(), 2);
        assert!(queue.remove("a", |_| true));
        assert_eq!(drained(&mut queue, |_| 1), [9]);
    }

    #[test]
    fn nobody_waits_longer_than_one_round_of_the_others() {
        let mut queue = FairQueue::default();
        for n in 0..1000 {
            queue.push("greedy", n);
        }
        for n in 0..50 {
            // Each comes only after the last was served.
            queue.push("modest", 10_000 + n);
            let turns = (1..).find(|_| queue.pop(|_| 1) == Some(10_000 + n));
            assert!(turns.is_some_and(|turns| turns <= 2));
        }
    }
}
