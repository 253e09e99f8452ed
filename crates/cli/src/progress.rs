//! Saying on stderr what takes longer than a moment.

use std::{
    io::{IsTerminal as _, Write as _},
    pin::pin,
    time::Duration,
};

use tokio::time::{Instant, interval_at};

const MOMENT: Duration = Duration::from_secs(1);

/// Waits for something, and says so if it takes longer than a second: on a terminal with the time
/// that has passed, elsewhere in one line.
pub(crate) async fn slow<T>(what: &str, work: impl Future<Output = T>) -> T {
    said(|| what.to_owned(), work).await
}

/// The same, where what is said changes.
pub(crate) async fn said<T>(what: impl Fn() -> String, work: impl Future<Output = T>) -> T {
    let mut work = pin!(work);
    let started = Instant::now();
    let mut ticks = interval_at(started + MOMENT, MOMENT);
    let is_terminal = std::io::stderr().is_terminal();
    let mut shown = false;
    loop {
        tokio::select! {
            biased;
            done = &mut work => {
                if shown && is_terminal {
                    tell("\r\x1b[K");
                }
                return done;
            }
            _ = ticks.tick() => {
                let seconds = started.elapsed().as_secs();
                if is_terminal {
                    tell(&format!("\r\x1b[K{}… {seconds} s", what()));
                } else if !shown {
                    tell(&format!("{}…\n", what()));
                }
                shown = true;
            }
        }
    }
}

fn tell(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // There is nobody left to tell.
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}
