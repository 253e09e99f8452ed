//! A fork of many, beside as many creates at once: what the capture and the copies of the layer cost.

use std::time::{Duration, Instant};

use bench::{Samples, Target, verdict};

use crate::{
    Result,
    http::{Api, Made},
    ratio,
    server::Server,
};

const CHILDREN: usize = 20;
const ROUNDS: usize = 10;

/// In turns, so that what else the machine does falls on both.
pub(crate) fn measure(server: &Server) -> Result<()> {
    let api = server.api();
    let source = api.create()?;
    api.first_answer(&source)?;
    let (mut created, mut forked) = (Samples::default(), Samples::default());
    let layers = server.layers()?;
    for _ in 0..ROUNDS {
        created.record(timed(&api, || at_once(&api))?);
        forked.record(timed(&api, || api.fork(&source, CHILDREN))?);
    }
    api.kill(&source)?;
    created.print("API: 20 creates at once, to the last agent's answer");
    forked.print("API: a fork of 20, to the last agent's answer");
    let ratio = ratio(forked.quantile(0.5), created.quantile(0.5));
    verdict(
        "a fork of 20 / 20 creates at once, p50",
        ratio,
        Target::AtMost(1.3),
    );
    // What did not change between two forks is one layer.
    let more = server.layers()?.saturating_sub(layers) as f64;
    verdict(
        "layers stored by 10 forks of 20",
        more,
        Target::AtMost(ROUNDS as f64),
    );
    Ok(())
}

fn timed(api: &Api, make: impl Fn() -> Result<Vec<Made>>) -> Result<Duration> {
    let begun = Instant::now();
    let all = make()?;
    if all.len() != CHILDREN {
        return Err(format!("{} of {CHILDREN} were made", all.len()).into());
    }
    for made in &all {
        api.first_answer(made)?;
    }
    let took = begun.elapsed();
    for made in &all {
        api.kill(made)?;
    }
    Ok(took)
}

fn at_once(api: &Api) -> Result<Vec<Made>> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..CHILDREN)
            .map(|_| scope.spawn(|| api.create()))
            .collect();
        let end = |thread: std::thread::ScopedJoinHandle<'_, Result<Made>>| {
            thread.join().map_err(|_| "a caller panicked")?
        };
        threads.into_iter().map(end).collect()
    })
}
