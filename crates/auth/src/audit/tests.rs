//! The log on a real disk.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use model::{Name, Namespace, SandboxId, Timestamp};
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

const CREATE: Action = Action::new("sandbox.create");
const KILL: Action = Action::new("sandbox.kill");

fn entry(n: u64) -> Entry {
    let actor = Actor {
        team: Some(Namespace::new(format!("team{}", n % 3)).unwrap()),
        key: Some(Name::new(format!("key{}", n % 5)).unwrap()),
        user: n.is_multiple_of(2).then(|| format!("user{}", n % 4).into()),
    };
    let time = Timestamp::from_micros(1_000_000 * i64::try_from(n).unwrap());
    let action = if n % 7 < 4 { CREATE } else { KILL };
    let entry = Entry::new(time, actor, action)
        .on(SandboxId::new(format!("s{}", n % 11)).unwrap())
        .request(format!("request-{n}"));
    match n % 4 {
        0 => entry.refused("quota"),
        1 => entry.failed("store"),
        _ => entry,
    }
}

fn small(segment_bytes: u64) -> Options {
    Options {
        segment_bytes,
        segments: 1000,
        queue: 4,
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(work)
}

async fn everything(audit: &Audit) -> Vec<Recorded> {
    pages(audit, &Filter::default()).await
}

/// All pages of a filter, one after the other.
async fn pages(audit: &Audit, filter: &Filter) -> Vec<Recorded> {
    let mut filter = filter.clone();
    let mut all = Vec::new();
    loop {
        let page = audit.query(filter.clone()).await.unwrap();
        assert!(page.entries.len() <= filter.limit || filter.limit == 0);
        all.extend(page.entries);
        let Some(next) = page.next else { return all };
        // A cursor goes through text, as it does on its way to a client and back.
        filter.after = Some(next.to_string().parse().unwrap());
    }
}

fn newest(directory: &Path) -> PathBuf {
    segment::path(
        directory,
        *segment::list(directory).unwrap().last().unwrap(),
    )
}

#[test]
fn what_was_recorded_is_found_again_after_a_restart() {
    let root = TempDir::new().unwrap();
    let directory = root.path().join("audit");
    run(async {
        let audit = Audit::open(&directory, Options::default()).unwrap();
        for n in 0..10 {
            audit.record(entry(n)).await;
        }
        assert_eq!(everything(&audit).await.len(), 10);
        assert_eq!(
            audit.stats(),
            Stats {
                written: 10,
                lost: 0
            }
        );
        drop(audit);
        let audit = Audit::open(&directory, Options::default()).unwrap();
        audit.record(entry(10)).await;
        let all = everything(&audit).await;
        let expected: Vec<Recorded> = (0..11)
            .map(|n| Recorded {
                seq: n + 1,
                entry: entry(n),
            })
            .collect();
        assert_eq!(all, expected);
    });
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&directory), 0o700);
    assert_eq!(mode(&newest(&directory)), 0o600);
}

#[test]
fn a_line_is_one_flat_object_that_other_tools_can_read() {
    let root = TempDir::new().unwrap();
    run(async {
        let audit = Audit::open(root.path(), Options::default()).unwrap();
        audit.record(entry(4)).await;
        audit.flush().await.unwrap();
    });
    let text = fs::read_to_string(newest(root.path())).unwrap();
    assert_eq!(
        text,
        "{\"seq\":1,\"time\":\"1970-01-01T00:00:04.000000Z\",\"team\":\"team1\",\"key\":\"key4\",\
         \"user\":\"user0\",\"action\":\"sandbox.kill\",\"sandbox\":\"s4\",\"outcome\":\"refused\",\
         \"reason\":\"quota\",\"request\":\"request-4\"}\n"
    );
}

#[test]
fn full_segments_are_followed_by_new_ones_and_the_oldest_go() {
    let root = TempDir::new().unwrap();
    let options = Options {
        segment_bytes: 1000,
        segments: 3,
        queue: 1,
    };
    run(async {
        let audit = Audit::open(root.path(), options).unwrap();
        let first = {
            audit.record(entry(0)).await;
            let filter = Filter {
                limit: 1,
                ..Filter::default()
            };
            audit.record(entry(1)).await;
            audit.query(filter).await.unwrap().next.unwrap()
        };
        for n in 2..200 {
            audit.record(entry(n)).await;
            audit.flush().await.unwrap();
        }
        let segments = segment::list(root.path()).unwrap();
        assert_eq!(segments.len(), 3);
        let all = everything(&audit).await;
        assert_eq!(all[0].seq, segments[0], "a name is the first number");
        assert_eq!(all.last().unwrap().seq, 200);
        assert!(all.windows(2).all(|w| w[0].seq + 1 == w[1].seq));
        for first in segments {
            let length = fs::metadata(segment::path(root.path(), first))
                .unwrap()
                .len();
            assert!(length < 1500, "{length}");
        }
        // A query whose place is gone continues with what is left.
        let filter = Filter {
            after: Some(first),
            ..Filter::default()
        };
        assert_eq!(pages(&audit, &filter).await, all);
    });
}

#[test]
fn half_a_line_is_cut_off_wherever_the_crash_was() {
    let root = TempDir::new().unwrap();
    let written = run(async {
        let audit = Audit::open(root.path(), Options::default()).unwrap();
        for n in 0..2 {
            audit.record(entry(n)).await;
        }
        everything(&audit).await
    });
    let whole = fs::read(newest(root.path())).unwrap();
    // Around the ends of lines, and here and there within them.
    let is_near =
        |end: &usize| whole[end.saturating_sub(2)..whole.len().min(end + 2)].contains(&b'\n');
    for end in (0..=whole.len()).filter(|end| is_near(end) || end.is_multiple_of(16)) {
        let lines = whole[..end].iter().filter(|b| **b == b'\n').count();
        for rubbish in [&b""[..], b"\0\0\0\0"] {
            let torn = TempDir::new().unwrap();
            let mut file = File::create(torn.path().join("00000000000000000001.jsonl")).unwrap();
            file.write_all(&whole[..end]).unwrap();
            file.write_all(rubbish).unwrap();
            run(async {
                let audit = Audit::open(torn.path(), Options::default()).unwrap();
                audit.record(entry(9)).await;
                let page = audit.query(Filter::default()).await.unwrap();
                assert_eq!(page.damaged, 0, "{end}");
                assert_eq!(page.entries[..lines], written[..lines], "{end}");
                assert_eq!(page.entries.len(), lines + 1, "{end}");
                assert_eq!(page.entries[lines].entry, entry(9));
                assert_eq!(page.entries[lines].seq, lines as u64 + 1);
            });
        }
    }
}

#[test]
fn a_damaged_line_is_passed_over_and_counted() {
    let root = TempDir::new().unwrap();
    run(async {
        let audit = Audit::open(root.path(), Options::default()).unwrap();
        audit.record(entry(0)).await;
    });
    let mut file = OpenOptions::new()
        .append(true)
        .open(newest(root.path()))
        .unwrap();
    file.write_all(b"\0\0\0\n{\"seq\":\"no\"}\n").unwrap();
    run(async {
        let audit = Audit::open(root.path(), Options::default()).unwrap();
        audit.record(entry(1)).await;
        let page = audit.query(Filter::default()).await.unwrap();
        assert_eq!(page.damaged, 2);
        let numbers: Vec<u64> = page.entries.iter().map(|e| e.seq).collect();
        assert_eq!(numbers, [1, 2]);
    });
}

#[test]
fn a_disk_that_fails_is_said_and_leaves_a_gap() {
    let root = TempDir::new().unwrap();
    let directory = root.path().join("audit");
    run(async {
        let audit = Audit::open(&directory, small(1)).unwrap();
        audit.record(entry(0)).await;
        audit.flush().await.unwrap();
        // Every line begins a new segment here, for which there is no directory now.
        let aside = root.path().join("aside");
        fs::rename(&directory, &aside).unwrap();
        audit.record(entry(1)).await;
        audit.flush().await.unwrap();
        assert_eq!(
            audit.stats(),
            Stats {
                written: 1,
                lost: 1
            }
        );
        fs::rename(&aside, &directory).unwrap();
        audit.record(entry(2)).await;
        let numbers: Vec<u64> = everything(&audit).await.iter().map(|e| e.seq).collect();
        assert_eq!(numbers, [1, 3]);
        assert_eq!(
            audit.stats(),
            Stats {
                written: 2,
                lost: 1
            }
        );
    });
}

#[test]
fn a_cursor_of_nowhere_is_refused() {
    let root = TempDir::new().unwrap();
    run(async {
        let audit = Audit::open(root.path(), Options::default()).unwrap();
        audit.record(entry(0)).await;
        for bad in ["", "1", "1-", "-1", "a-b", "1-+1", "1-1-1"] {
            assert_eq!(bad.parse::<Cursor>(), Err(InvalidCursor), "{bad}");
        }
        for bad in ["1-1", "1-1000000", "1-18446744073709551615"] {
            let filter = Filter {
                after: Some(bad.parse().unwrap()),
                ..Filter::default()
            };
            let refusal = audit.query(filter).await.unwrap_err();
            assert!(matches!(refusal, AuditError::Cursor(_)), "{bad}: {refusal}");
        }
    });
}

#[test]
fn many_writers_at_once_lose_nothing_and_mix_no_lines() {
    let root = TempDir::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .build()
        .unwrap();
    let audit = Audit::open(root.path(), small(5_000)).unwrap();
    let tasks = kit::Tasks::default();
    let writers: Vec<_> = (0..16u64)
        .map(|writer| {
            let audit = audit.clone();
            let _within = runtime.enter();
            tasks.spawn(async move {
                for n in 0..50 {
                    audit.record(entry(writer * 1000 + n)).await;
                }
            })
        })
        .collect();
    let all = runtime.block_on(async {
        for writer in writers {
            writer.await.unwrap();
        }
        everything(&audit).await
    });
    assert!(all.iter().map(|e| e.seq).eq(1..=800));
    for writer in 0..16 {
        let own: Vec<i64> = all
            .iter()
            .map(|e| e.entry.time.as_micros() / 1_000_000)
            .filter(|n| n / 1000 == writer)
            .collect();
        assert!(
            own.iter().copied().eq(writer * 1000..writer * 1000 + 50),
            "in order"
        );
    }
}

fn filters() -> impl Strategy<Value = Filter> {
    let pick = |from: u64| proptest::option::of(0..from);
    let time =
        || proptest::option::of((0..80i64).prop_map(|s| Timestamp::from_micros(s * 1_000_000)));
    (
        pick(4),
        pick(12),
        pick(10),
        pick(3),
        time(),
        time(),
        0..9usize,
    )
        .prop_map(
            |(team, sandbox, actor, action, from, until, limit)| Filter {
                team: team.map(|n| Namespace::new(format!("team{n}")).unwrap()),
                sandbox: sandbox.map(|n| SandboxId::new(format!("s{n}")).unwrap()),
                actor: actor.map(|n| match n {
                    0..5 => format!("key{n}").into(),
                    _ => format!("user{}", n - 5).into(),
                }),
                action: action.map(|n| {
                    ["sandbox.create", "sandbox.kill", "sandbox.pause"][usize::try_from(n).unwrap()]
                        .into()
                }),
                from,
                until,
                after: None,
                order: Order::default(),
                limit,
            },
        )
}

#[test]
fn a_log_that_is_closed_leaves_it_to_the_next_and_counts_what_comes_late() {
    let root = TempDir::new().unwrap();
    run(async {
        let old = Audit::open(root.path(), small(500)).unwrap();
        for n in 0..6 {
            old.record(entry(n)).await;
        }
        old.close().await;
        let new = Audit::open(root.path(), small(500)).unwrap();
        old.record(entry(6)).await;
        new.record(entry(7)).await;
        old.close().await;
        assert!(matches!(old.flush().await, Err(AuditError::Closed)));
        let stats = old.stats();
        assert_eq!((stats.written, stats.lost), (6, 1));
        let kept = everything(&new).await;
        let kept = kept.into_iter().map(|one| (one.seq, one.entry));
        let numbered = [0, 1, 2, 3, 4, 5, 7].into_iter().map(entry);
        assert!(kept.eq((1..).zip(numbered)));
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn pages_together_are_what_the_filter_asks_for(
        count in 0..40u64,
        segment_bytes in 1..3000u64,
        wanted in proptest::collection::vec(filters(), 1..6),
    ) {
        let root = TempDir::new().unwrap();
        run(async {
            let audit = Audit::open(root.path(), small(segment_bytes)).unwrap();
            for n in 0..count {
                audit.record(entry(n)).await;
            }
            let all: Vec<Recorded> = (0..count)
                .map(|n| Recorded { seq: n + 1, entry: entry(n) })
                .collect();
            for filter in wanted {
                let expected: Vec<Recorded> = all
                    .iter()
                    .filter(|recorded| filter.matches(recorded))
                    .cloned()
                    .collect();
                assert_eq!(pages(&audit, &filter).await, expected, "{filter:?}");
                let mut backwards = pages(&audit, &Filter {
                    order: Order::NewestFirst,
                    ..filter.clone()
                }).await;
                backwards.reverse();
                assert_eq!(backwards, expected, "newest first: {filter:?}");
            }
        });
    }

    #[test]
    fn no_secret_gets_in_wherever_it_is_put(
        seed: u64,
        before in "\\PC{0,150}",
        after in "\\PC{0,30}",
        cut in 4..44usize,
    ) {
        let team = Namespace::new("t").unwrap();
        let (_, secret) = crate::key::mint(&kit::Entropy::seeded(seed), team, Default::default());
        let secret = secret.reveal();
        // A control character inside would fall out and leave the key whole.
        let split = format!("{before}{}\u{7}{}{after}", &secret[..cut], &secret[cut..]);
        let plain = format!("{before}{secret}{after}");
        let root = TempDir::new().unwrap();
        run(async {
            let audit = Audit::open(root.path(), Options::default()).unwrap();
            for text in [split, plain] {
                let actor = Actor { user: Some(text.clone().into()), ..Actor::default() };
                audit.record(Entry::new(Timestamp::from_micros(0), actor, CREATE).request(text)).await;
            }
            audit.flush().await.unwrap();
            assert_eq!(audit.stats().written, 2);
        });
        let text = fs::read_to_string(newest(root.path())).unwrap();
        prop_assert!(!text.contains(&secret[4..]), "{}", text);
        prop_assert!(text.len() < 2 * 1000, "{}", text);
    }
}
