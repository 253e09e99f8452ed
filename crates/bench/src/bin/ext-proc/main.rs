//! Envoy with the external processor beside Envoy alone and the gateway alone: one thread each, the
//! same program behind them, the same clients, in turns within one run.
//!
//! The gateway, and the processor that stands beside it in one process, hold 100,000 routes and check
//! a token on every request; Envoy alone has one static upstream and checks nothing. By the relay a
//! request crosses Envoy and the gateway, and is decided twice; direct it crosses Envoy only. The
//! load, Envoy and the gateway share the machine's processors, so besides requests a second there is
//! the processor time that each process spends on a request.

#[path = "../gateway/backend.rs"]
#[allow(dead_code, reason = "the gateway's benchmark needs more of it")]
mod backend;
#[path = "../gateway/load.rs"]
#[allow(dead_code, reason = "the gateway's benchmark needs more of it")]
mod load;
#[path = "../gateway/proxies.rs"]
#[allow(dead_code, reason = "the gateway's benchmark needs more of it")]
mod proxies;
#[path = "../gateway/serve.rs"]
mod serve;

use std::{error::Error, fs};

use load::Run;
use proxies::Proxy;

const ROUNDS: usize = 3;
const SECONDS: u64 = 3;
const CONNECTIONS: u32 = 64;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["serve", upstream] => serve::serve(upstream.parse()?),
        _ => compare(),
    }
}

fn compare() -> Result<(), Box<dyn Error>> {
    let upstream = backend::start()?;
    let directory = tempfile::tempdir()?;
    let headers = [
        format!("Host: {}", serve::host(upstream)),
        format!("e2b-traffic-access-token: {}", serve::TOKEN),
    ];
    let gateway = Proxy::gateway(upstream)?;
    let alone = Proxy::envoy(directory.path(), upstream)?;
    let relay = Proxy::envoy_before(&gateway, "relay", directory.path(), &headers)?;
    let direct = Proxy::envoy_before(&gateway, "direct", directory.path(), &headers)?;
    let proxies = [&alone, &gateway, &relay, &direct];
    println!("load of the machine before: {}", machine_load()?);
    let mut rounds: Vec<Vec<(Run, f64)>> = Vec::new();
    for round in 0..=ROUNDS {
        let each = proxies.iter().map(|proxy| {
            let before = gateway.cpu()?;
            let seconds = if round == 0 { 1 } else { SECONDS };
            let run = load::wrk(
                Some(proxy),
                proxy.address,
                "/",
                CONNECTIONS,
                seconds,
                &headers,
            )?;
            let beside = (gateway.cpu()? - before) * 1e6 / (run.rate * seconds as f64);
            Ok((run, beside))
        });
        let each = each.collect::<Result<Vec<_>, Box<dyn Error>>>()?;
        // The first one warms up.
        if round > 0 {
            rounds.push(each);
        }
    }
    println!("load of the machine after: {}", machine_load()?);
    println!(
        "{:<16} {:>11} {:>8} {:>8} {:>14} {:>22}",
        "median of", "requests/s", "p50 us", "p99 us", "its CPU us", "gateway process CPU us"
    );
    let of = |at: usize, what: fn(&(Run, f64)) -> f64| {
        median(rounds.iter().map(|round| what(&round[at])).collect())
    };
    for (at, proxy) in proxies.iter().enumerate() {
        println!(
            "{:<16} {:>11.0} {:>8.0} {:>8.0} {:>14.1} {:>22.1}",
            proxy.name,
            of(at, |run| run.0.rate),
            of(at, |run| run.0.p50),
            of(at, |run| run.0.p99),
            of(at, |run| run.0.cpu),
            of(at, |run| run.1),
        );
    }
    for (at, proxy) in proxies.iter().enumerate().skip(1) {
        let ratio = |what: fn(&Run) -> f64| {
            let ratios = rounds
                .iter()
                .map(|round| what(&round[at].0) / what(&round[0].0));
            median(ratios.collect())
        };
        println!(
            "{} over Envoy alone: requests/s {:.2}, p99 {:.2}",
            proxy.name,
            ratio(|run| run.rate),
            ratio(|run| run.p99)
        );
    }
    Ok(())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// What else runs: the kernel's own averages.
fn machine_load() -> Result<String, Box<dyn Error>> {
    Ok(fs::read_to_string("/proc/loadavg")?.trim().to_owned())
}
