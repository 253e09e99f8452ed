//! What one server tells another of who is in use, over a real line.

use std::{ops::Range, sync::Arc, time::Duration};

use kit::{Clock, SystemClock, Tasks};
use model::{Epoch, Uid};
use plan::idle::Activity;
use tokio::{
    io::AsyncWriteExt as _,
    net::UnixStream,
    sync::watch,
    time::{sleep, timeout},
};

use super::{
    earlier::{Earlier, Seen},
    give::Successor,
    line::{Line, Used},
    take::follow,
};

const EPOCH: Epoch = Epoch(3);

fn used(numbers: Range<u64>, open: u32) -> Vec<Used> {
    let one = |number| Used {
        uid: Uid::from_random(number),
        epoch: EPOCH,
        open,
        ago: 0,
    };
    numbers.map(|number| one(number.into())).collect()
}

/// A server that was replaced, as the one that replaced it hears of it.
struct Heard {
    of: Earlier,
    serves: watch::Sender<bool>,
}

impl Heard {
    fn by(line: UnixStream, clock: &Arc<dyn Clock>, tasks: &Tasks) -> Self {
        let (told, seen) = watch::channel(Seen::default());
        let (serves, serving) = watch::channel(false);
        let line = Line::new(line);
        tasks.spawn(follow(line, told, serving, Arc::clone(clock)));
        let of = Earlier::new(seen, Arc::clone(clock));
        Self { of, serves }
    }

    fn is_used(&self, number: u64) -> Option<bool> {
        match self.of.activity(Uid::from_random(number.into()), EPOCH) {
            Activity::InUse => Some(true),
            Activity::Quiet { .. } => Some(false),
            Activity::Unknown => None,
        }
    }

    async fn hears_that(&self, number: u64, is_used: Option<bool>) {
        let waiting = timeout(Duration::from_secs(60), async {
            while self.is_used(number) != is_used {
                sleep(Duration::from_millis(2)).await;
            }
        });
        waiting.await.expect("it is never heard");
    }
}

#[tokio::test]
async fn however_many_are_in_use_all_are_told_and_then_what_is_new() {
    const MANY: u64 = 300_000;
    let (clock, tasks): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::default()), Tasks::default());
    let (old, new) = UnixStream::pair().unwrap();
    let heard = Heard::by(new, &clock, &tasks);
    let (sees, seen) = watch::channel(Seen::default());
    let inside = Earlier::new(seen, Arc::clone(&clock));
    let mut successor = Successor::new(Line::new(old));
    sees.send_modify(|seen| seen.hear(&used(0..MANY, 1), false, clock.monotonic()));
    let says = async {
        assert_eq!(heard.is_used(0), None);
        heard.hears_that(0, Some(true)).await;
        for number in 0..MANY {
            assert_eq!(heard.is_used(number), Some(true), "{number}");
        }
        heard.serves.send_replace(true);
    };
    let (went, ()) = tokio::join!(successor.go_ahead(inside.clone()), says);
    went.unwrap();
    let goes_on = async {
        // One ends, and another is forgotten.
        sees.send_modify(|seen| seen.hear(&used(1..2, 0), false, clock.monotonic()));
        heard.hears_that(1, Some(false)).await;
        let mut fewer = Seen::default();
        fewer.hear(&used(3..MANY, 1), false, clock.monotonic());
        sees.send_replace(fewer);
        heard.hears_that(2, Some(false)).await;
        assert_eq!(heard.is_used(3), Some(true));
        sees.send_modify(|seen| seen.go(clock.monotonic()));
    };
    tokio::join!(successor.see_out(inside), goes_on);
    heard.hears_that(3, Some(false)).await;
    heard.of.gone().await;
}

#[tokio::test]
async fn one_that_is_not_understood_leaves_all_in_use_until_it_is_gone() {
    let (clock, tasks): (Arc<dyn Clock>, _) = (Arc::new(SystemClock::default()), Tasks::default());
    let (mut old, new) = UnixStream::pair().unwrap();
    let heard = Heard::by(new, &clock, &tasks);
    let nobody = b"{\"say\":\"use\",\"used\":[],\"more\":false}\n";
    old.write_all(nobody).await.unwrap();
    heard.hears_that(7, Some(false)).await;
    old.write_all(b"{\"say\":\"use\",\"used\":7}\n")
        .await
        .unwrap();
    heard.hears_that(7, None).await;
    // It was said of somebody, and that is not known ever.
    old.write_all(nobody).await.unwrap();
    for _ in 0..50 {
        sleep(Duration::from_millis(2)).await;
        assert_eq!(heard.is_used(7), None);
    }
    drop(old);
    heard.hears_that(7, Some(false)).await;
}
