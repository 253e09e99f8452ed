use std::time::Duration;

use super::*;

type Queue = WorkQueue<&'static str, char>;

fn queue() -> Arc<Queue> {
    let backoff = Backoff {
        first: Duration::from_millis(100),
        cap: Duration::from_secs(10),
    };
    Arc::new(WorkQueue::new(backoff, Arc::new(Entropy::seeded(1))))
}

/// The lane is the first letter.
fn lane(key: &&'static str) -> char {
    key.chars().next().unwrap_or(' ')
}

async fn next_within(queue: &Arc<Queue>, wait: Duration) -> Option<Turn<&'static str, char>> {
    tokio::time::timeout(wait, queue.next(lane)).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_key_is_queued_once_at_the_earliest_time_asked_for() {
    let queue = queue();
    let now = Instant::now();
    queue.add("a", now + Duration::from_secs(5));
    queue.add("a", now + Duration::from_secs(1));
    queue.add("a", now + Duration::from_secs(9));
    assert_eq!(queue.len(), 1);
    let turn = next_within(&queue, Duration::from_secs(2)).await.unwrap();
    assert_eq!((*turn.key(), now.elapsed().as_secs()), ("a", 1));
    assert!(queue.is_empty());
}

#[tokio::test(start_paused = true)]
async fn two_turns_of_one_lane_never_overlap() {
    let queue = queue();
    queue.add("a1", Instant::now());
    queue.add("a2", Instant::now());
    queue.add("b1", Instant::now());
    let first = next_within(&queue, Duration::ZERO).await.unwrap();
    let second = next_within(&queue, Duration::ZERO).await.unwrap();
    assert_eq!(
        (*first.key(), *second.key()),
        ("a1", "b1"),
        "a2 is held, b1 goes past it"
    );
    assert!(next_within(&queue, Duration::from_secs(60)).await.is_none());
    drop(first);
    assert_eq!(
        *next_within(&queue, Duration::ZERO).await.unwrap().key(),
        "a2"
    );
}

#[tokio::test(start_paused = true)]
async fn a_key_added_during_its_own_turn_is_looked_at_again() {
    let queue = queue();
    queue.add("a", Instant::now());
    let turn = next_within(&queue, Duration::ZERO).await.unwrap();
    queue.add("a", Instant::now());
    assert!(next_within(&queue, Duration::from_secs(1)).await.is_none());
    drop(turn);
    assert!(next_within(&queue, Duration::ZERO).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn a_waiting_worker_is_woken_by_an_earlier_key() {
    let queue = queue();
    queue.add("a", Instant::now() + Duration::from_secs(100));
    let start = Instant::now();
    let (turn, ()) = tokio::join!(queue.next(lane), async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue.add("b", Instant::now());
    });
    assert_eq!((*turn.key(), start.elapsed().as_secs()), ("b", 1));
}

#[tokio::test(start_paused = true)]
async fn failures_in_a_row_wait_longer_until_a_success() {
    let queue = queue();
    let mut waits = Vec::new();
    for _ in 0..6 {
        let before = Instant::now();
        queue.retry("a");
        drop(queue.next(lane).await);
        waits.push(before.elapsed());
    }
    assert!(waits.windows(2).all(|w| w[1] >= w[0]), "{waits:?}");
    assert_eq!(queue.failures(&"a"), 6);
    queue.succeeded(&"a");
    let before = Instant::now();
    queue.retry("a");
    drop(queue.next(lane).await);
    assert!(before.elapsed() <= Duration::from_millis(100));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_rests_is_looked_at_once_for_all_who_ask() {
    let queue = queue();
    let start = Instant::now();
    queue.add("a", start);
    let turn = next_within(&queue, Duration::ZERO).await.unwrap();
    queue.add("a", start);
    queue.rest("a", start + Duration::from_secs(3));
    drop(turn);
    queue.add("a", start);
    let turn = next_within(&queue, Duration::from_secs(60)).await.unwrap();
    assert_eq!((*turn.key(), start.elapsed().as_secs()), ("a", 3));
    drop(turn);
    queue.add("a", Instant::now());
    assert!(next_within(&queue, Duration::ZERO).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn of_several_waiting_workers_one_always_waits_for_the_earliest_key() {
    let queue = queue();
    let start = Instant::now();
    let worker = || async {
        let mut seen = Vec::new();
        while let Some(turn) = next_within(&queue, Duration::from_secs(50)).await {
            seen.push((*turn.key(), start.elapsed().as_secs()));
            // Long: whoever has a turn watches no clock.
            tokio::time::sleep(Duration::from_secs(10)).await;
        }
        seen
    };
    let add = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        queue.add("a", start + Duration::from_secs(3));
        queue.add("b", start);
        queue.add("c", start + Duration::from_secs(2));
    };
    let (one, two, three, ()) = tokio::join!(worker(), worker(), worker(), add);
    let mut all = [one, two, three].concat();
    all.sort_unstable();
    assert_eq!(all, [("a", 3), ("b", 1), ("c", 2)]);
}
