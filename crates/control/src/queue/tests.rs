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
