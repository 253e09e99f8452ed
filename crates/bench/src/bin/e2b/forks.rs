//! A fork of many, beside as many creates at once: what the capture and the copies of the layer cost.

use std::time::{Duration, Instant};

use bench::{Samples, Target, verdict};

use crate::{Result, Server, ratio};

const CHILDREN: usize = 20;
const ROUNDS: usize = 10;

/// In turns, so that what else the machine does falls on both.
pub(crate) fn measure(server: &Server) -> Result<()> {
    let api = server.api();
    let source = api.create()?;
    api.first_answer(&source)?;
    let at_once = || {
        std::thread::scope(|scope| {
            let create = || scope.spawn(|| api.create());
            let threads: Vec<_> = (0..CHILDREN).map(|_| create()).collect();
            let all = threads.into_iter().map(|thread| match thread.join() {
                Ok(made) => made,
                Err(_) => Err("a caller panicked".into()),
            });
            all.collect::<Result<Vec<_>>>()
        })
    };
    // Until the last one answers; then they go.
    let settle = |begun: Instant, all: Vec<_>| -> Result<Duration> {
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
    };
    let (mut created, mut forked) = (Samples::default(), Samples::default());
    let layers = server.layers()?;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        created.record(settle(begun, at_once()?)?);
        let begun = Instant::now();
        forked.record(settle(begun, api.fork(&source, CHILDREN)?)?);
    }
    api.kill(&source)?;
    created.print("API: 20 creates at once, to the last agent's answer");
    forked.print("API: a fork of 20, to the last agent's answer");
    let ratio = ratio(forked.quantile(0.5), created.quantile(0.5));
    let name = "a fork of 20 / 20 creates at once, p50";
    verdict(name, ratio, Target::AtMost(1.3));
    let more = server.layers()?.saturating_sub(layers) as f64;
    let name = "layers stored by 10 forks of 20 of the same files";
    verdict(name, more, Target::AtMost(1.0));
    Ok(())
}
