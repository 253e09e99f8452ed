//! A process that is killed while it writes, as often as it takes.

use std::{
    io::{BufRead as _, BufReader, Write as _},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
};

use kit::{Entropy, Tasks};
use model::{Sandbox, Version};
use store::{Deletion, Precondition, Store as _, StoreExt as _};

use super::{assert_indexes_agree, find, key, number, numbered, open, set_number};
use crate::RedbStore;

const ROUNDS: usize = 20;
const WRITERS: usize = 6;
/// Tells the child where to write.
const DIRECTORY: &str = "STORE_CRASH_TEST_DIRECTORY";

/// Not a test: what the killed process runs.
#[test]
#[ignore = "run by the crash test, in a process of its own"]
fn write_until_killed() {
    let directory = std::env::var_os(DIRECTORY).expect("only the crash test runs this");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .unwrap();
    let store = Arc::new(open(Path::new(&directory)).unwrap());
    let tasks = Tasks::default();
    let _inside = runtime.enter();
    let writers: Vec<_> = (0..WRITERS)
        .map(|w| tasks.spawn(write_forever(Arc::clone(&store), format!("box-{w}"))))
        .collect();
    for writer in writers {
        runtime.block_on(writer).unwrap();
    }
}

async fn write_forever(store: Arc<RedbStore>, name: String) {
    let mut current: Option<Sandbox> = find(&store, &name).await;
    let mut n = current.as_ref().map_or(0, number);
    // The last life may have ended between its coming and its going.
    let other = format!("{name}-comes-and-goes");
    let _ = store.delete(&key(&other), Precondition::default()).await;
    loop {
        n += 1;
        let written = match current {
            None => store.create_object(&numbered(&name, n)).await.unwrap(),
            Some(mut sandbox) => {
                set_number(&mut sandbox, n);
                store.update_spec(&sandbox).await.unwrap()
            }
        };
        acknowledge(&name, n, written.version());
        current = Some(written);
        // A record of another name comes and goes, so that removals are among the last things.
        let created = store.create_object(&numbered(&other, n)).await.unwrap();
        acknowledge(&other, n, created.version());
        match store
            .delete(&created.key(), Precondition::default())
            .await
            .unwrap()
        {
            Deletion::Removed(last) => acknowledge(&other, 0, last.version()),
            Deletion::Marked(_) => panic!("it had no finalizers"),
        }
    }
}

/// Says that a record has been written, in one write to the pipe. A number of 0: it is gone.
fn acknowledge(name: &str, number: usize, version: Version) {
    let line = format!("ack {name} {number} {version} end\n");
    std::io::stdout().write_all(line.as_bytes()).unwrap();
}

/// Runs the child until it has said so many things, kills it, and returns all it said.
fn run_and_kill(directory: &Path, lines: usize) -> Vec<(String, usize, Version)> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "tests::crash::write_until_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(DIRECTORY, directory)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap();
    let mut said = Vec::new();
    let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
    while said.len() < lines {
        let line = output.next().expect("the child ended by itself").unwrap();
        said.extend(parse(&line));
    }
    child.kill().unwrap();
    // What was still in the pipe had been acknowledged as well.
    said.extend(output.filter_map(|line| parse(&line.unwrap())));
    child.wait().unwrap();
    said
}

fn parse(line: &str) -> Option<(String, usize, Version)> {
    // The harness may have begun the line, and the end of the last one may be missing.
    let (_, said) = line.split_once("ack ")?;
    let mut words = said.strip_suffix(" end")?.split(' ');
    let name = words.next()?.to_owned();
    Some((
        name,
        words.next()?.parse().ok()?,
        words.next()?.parse().ok()?,
    ))
}

#[tokio::test]
async fn nothing_acknowledged_is_lost_when_the_process_is_killed_20_times() {
    let directory = tempfile::tempdir().unwrap();
    let dice = Entropy::from_os();
    let mut head = Version::ZERO;
    for round in 0..ROUNDS {
        let said = run_and_kill(directory.path(), 1 + dice.below(60));
        let store = open(directory.path()).unwrap();
        let mut last = std::collections::BTreeMap::new();
        for (name, number, version) in said {
            assert!(version > head, "round {round}: {version:?} was used before");
            let known = last.entry(name).or_insert((number, version));
            if version > known.1 {
                *known = (number, version);
            }
        }
        for (name, (acknowledged, version)) in last {
            let found = store
                .find::<model::sandbox::SandboxSpec>(&key(&name))
                .await
                .unwrap();
            let context = format!("round {round}: {name} was {acknowledged} at {version:?}");
            match found {
                Some(found) => assert!(
                    // Something later may have been stored and not acknowledged.
                    found.version() > version
                        || (found.version() == version && number(&found) == acknowledged),
                    "{context}, is {} at {:?}",
                    number(&found),
                    found.version(),
                ),
                None => assert!(
                    name.ends_with("comes-and-goes"),
                    "{context}, is gone; only the others are ever deleted"
                ),
            }
            assert!(
                store.version() >= version,
                "{context}: the sequence went back"
            );
        }
        assert!(store.version() >= head);
        head = store.version();
        assert_indexes_agree(&store).await;
    }
}
