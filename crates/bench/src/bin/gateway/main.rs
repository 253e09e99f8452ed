//! The gateway beside nginx, HAProxy and Envoy: one thread each, the same program behind them, the
//! same clients, in turns within one run.
//!
//! The gateway holds 100,000 routes and checks a token on every request; the others have one static
//! upstream and check nothing. All keep their connections to it and set the same forwarding
//! headers. The machine is shared with the load itself, so besides requests a second there is the
//! processor time that each spends on a request, which neighbours disturb less.

mod backend;
mod load;
mod proxies;
mod serve;

use std::{error::Error, fs};

use bench::{Target, verdict};

use load::Run;
use proxies::Proxy;

const ROUNDS: usize = 5;
const SECONDS: u64 = 3;
const CONNECTIONS: u32 = 64;
const LARGE_CONNECTIONS: u32 = 8;
const ECHO_CONNECTIONS: usize = 32;
const IDLE_CONNECTIONS: usize = 10_000;

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
    let host = serve::host(upstream);
    let headers = [
        format!("Host: {host}"),
        format!("e2b-traffic-access-token: {}", serve::TOKEN),
    ];
    let proxies = [
        Proxy::gateway(upstream)?,
        Proxy::nginx(directory.path(), upstream)?,
        Proxy::haproxy(directory.path(), upstream)?,
        Proxy::envoy(directory.path(), upstream)?,
    ];
    let wrk = |proxy: &Proxy, path: &str, connections, seconds| {
        load::wrk(
            Some(proxy),
            proxy.address,
            path,
            connections,
            seconds,
            &headers,
        )
    };
    for proxy in &proxies {
        wrk(proxy, "/", CONNECTIONS, 1)?;
    }
    println!("load of the machine before: {}", machine_load()?);
    let mut small: Vec<Vec<Run>> = Vec::new();
    let mut large: Vec<Vec<Run>> = Vec::new();
    let mut echoes: Vec<Vec<f64>> = Vec::new();
    for _ in 0..ROUNDS {
        let each = |path: &str, connections, seconds| {
            let runs = proxies.iter().map(|p| wrk(p, path, connections, seconds));
            runs.collect::<Result<Vec<Run>, _>>()
        };
        small.push(each("/", CONNECTIONS, SECONDS)?);
        large.push(each("/l", LARGE_CONNECTIONS, 1)?);
        let echo =
            |proxy: &Proxy| load::echoes(proxy.address, &host, serve::TOKEN, ECHO_CONNECTIONS, 1);
        echoes.push(proxies.iter().map(echo).collect::<Result<_, _>>()?);
    }
    let direct = load::wrk(None, upstream, "/", CONNECTIONS, SECONDS, &headers)?;
    println!("load of the machine after: {}", machine_load()?);

    println!(
        "{:<10} {:>11} {:>8} {:>8} {:>12} {:>12} {:>12} {:>14}",
        "median of",
        "requests/s",
        "p50 us",
        "p99 us",
        "CPU us each",
        "1 MB MB/s",
        "echoes/s",
        "idle bytes each"
    );
    for (at, proxy) in proxies.iter().enumerate() {
        let of = |runs: &[Vec<Run>], what: fn(&Run) -> f64| {
            median(runs.iter().map(|round| what(&round[at])).collect())
        };
        let idle = load::idle(proxy, proxy.address, &headers, IDLE_CONNECTIONS)?;
        println!(
            "{:<10} {:>11.0} {:>8.0} {:>8.0} {:>12.2} {:>12.0} {:>12.0} {:>14.0}",
            proxy.name,
            of(&small, |run| run.rate),
            of(&small, |run| run.p50),
            of(&small, |run| run.p99),
            of(&small, |run| run.cpu),
            of(&large, |run| run.rate) * backend::LARGE as f64 / 1e6,
            median(echoes.iter().map(|round| round[at]).collect()),
            idle
        );
    }
    println!(
        "{:<10} {:>11.0} {:>8.0} {:>8.0}",
        "direct", direct.rate, direct.p50, direct.p99
    );
    for (at, other) in proxies.iter().enumerate().skip(1) {
        let ratio = |runs: &[Vec<Run>], of: fn(&Run) -> f64| {
            median(runs.iter().map(|r| of(&r[0]) / of(&r[at])).collect())
        };
        let say = |what: &str, ratio, target| {
            verdict(&format!("{what}, over {}", other.name), ratio, target);
        };
        say(
            "requests/s",
            ratio(&small, |r| r.rate),
            Target::AtLeast(0.95),
        );
        say("p99", ratio(&small, |r| r.p99), Target::AtMost(1.1));
        say(
            "CPU of a request",
            ratio(&small, |r| r.cpu),
            Target::AtMost(1.05),
        );
        say(
            "1 MB bodies/s",
            ratio(&large, |r| r.rate),
            Target::AtLeast(0.95),
        );
        let echoed = median(echoes.iter().map(|r| r[0] / r[at]).collect());
        say("echoes/s", echoed, Target::AtLeast(0.95));
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
