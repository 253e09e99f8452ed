//! The corpus of requests that two readers could understand in two ways, with a few bytes changed:
//! whatever comes of it, the sandbox sees plain requests only, and never the one that was hidden in
//! a body.

use std::time::Duration;

use rand::{Rng as _, SeedableRng as _, rngs::SmallRng, seq::IndexedRandom as _};
use tokio::{io::AsyncWriteExt as _, time::timeout};

use crate::{
    client::{Client, get, once},
    smuggling::corpus,
    witness::{Seen, Witness},
    world::World,
};

/// Each with its own number, by which it can be made again.
const MUTANTS: u64 = 2_000;
const AT_ONCE: usize = 32;

/// Bytes that mean something somewhere, and some that should not be there.
const BYTES: &[u8] = b"\r\n\t \0\x01\x0b\x7f:;,/%?#@\"'\\|()[]{}+-_.*0129aAfFxXzZ";

/// A case of the corpus with a few bytes changed, taken out, put in or said twice.
fn mutant(number: u64, host: &str) -> Vec<u8> {
    let mut random = SmallRng::seed_from_u64(number);
    let cases = corpus(host);
    let mut bytes = cases
        .choose(&mut random)
        .map(|case| case.bytes.clone().into_bytes())
        .unwrap_or_default();
    for _ in 0..random.random_range(1..=3) {
        let at = random.random_range(0..bytes.len().max(1));
        let byte = BYTES[random.random_range(0..BYTES.len())];
        match random.random_range(0..5) {
            0 if at < bytes.len() => bytes[at] = byte,
            1 if at < bytes.len() => drop(bytes.remove(at)),
            2 => {
                let end = (at + random.random_range(0..20)).min(bytes.len());
                let again = bytes[at.min(end)..end].to_vec();
                bytes.splice(at..at, again);
            }
            3 => bytes.truncate(at),
            _ => bytes.insert(at.min(bytes.len()), byte),
        }
        if bytes.is_empty() {
            bytes.push(byte);
        }
    }
    bytes
}

/// Says it, and waits until the gateway has nothing more to say.
async fn say(world: &World, bytes: Vec<u8>) -> bool {
    let mut client = Client::connect(world.address()).await;
    // It may be refused before all of it was said.
    let _ = client.stream.write_all(&bytes).await;
    let _ = client.stream.shutdown().await;
    let ended = timeout(Duration::from_secs(20), client.read_to_any_end()).await;
    ended.is_ok()
}

#[tokio::test]
async fn whatever_is_changed_a_sandbox_sees_plain_requests_and_none_that_was_hidden() {
    let world = World::new();
    let witness = Witness::start(world.ip).await;
    world.apply(world.route("box"));
    let host = format!("{}-box.sbx.test", witness.program.port);
    let mut plain = 0;
    for first in (0..MUTANTS).step_by(AT_ONCE) {
        let numbers = first..(first + AT_ONCE as u64).min(MUTANTS);
        let said = numbers
            .clone()
            .map(|number| say(&world, mutant(number, &host)));
        let ended = futures_util::future::join_all(said).await;
        assert!(ended.iter().all(|ended| *ended), "{numbers:?}: one hangs");
        for seen in witness.take() {
            match seen {
                Seen::Request { line, .. } if !line.contains("/smuggled") => plain += 1,
                seen => panic!("{numbers:?}: {seen:?}"),
            }
        }
    }
    // Most are refused, but not all.
    assert!(plain > MUTANTS / 40, "only {plain} went through");
    let alive = once(world.address(), get("/a", &[("Host", &host)])).await;
    assert_eq!(alive.status, 200);
    world.quiet().await;
}
