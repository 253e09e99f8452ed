//! Whether somebody asks something on a connection: one without requests holds a place that another
//! could have.

use std::{sync::Arc, time::Duration};

use tokio::{
    sync::watch,
    time::{Instant, timeout_at},
};

/// Counts the requests that are on a connection. Clones count the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Attendance(Arc<watch::Sender<usize>>);

/// A request, as long as it is there.
#[derive(Debug)]
pub(crate) struct Attending(Attendance);

/// Why nobody is waited for any longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unattended {
    /// There never was a request.
    Never,
    /// There was one, and no other for long.
    AnyMore,
}

impl Attendance {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(crate) fn begin(&self) -> Attending {
        self.0.send_modify(|open| *open += 1);
        Attending(self.clone())
    }

    /// Waits until there is no request by `first`, or has been none for `idle`.
    pub(crate) async fn unattended(&self, first: Instant, idle: Duration) -> Unattended {
        let mut open = self.0.subscribe();
        let mut ending = Unattended::Never;
        let mut deadline = first;
        loop {
            let now = *open.borrow_and_update();
            let changed = match now {
                0 => timeout_at(deadline, open.changed()).await,
                _ => Ok(open.changed().await),
            };
            if changed.is_err() {
                return ending;
            }
            // One came or went: from here on the last one counts.
            (ending, deadline) = (Unattended::AnyMore, Instant::now() + idle);
        }
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.0.0.send_modify(|open| *open -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IDLE: Duration = Duration::from_secs(60);

    fn after(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_without_a_request_is_waited_for_until_its_deadline() {
        let (attendance, deadline) = (Attendance::new(), after(10));
        let ended = attendance.unattended(deadline, IDLE).await;
        assert_eq!((ended, Instant::now()), (Unattended::Never, deadline));
    }

    #[tokio::test(start_paused = true)]
    async fn one_with_a_request_is_kept_and_given_up_long_after_the_last() {
        let attendance = Attendance::new();
        let visits = async {
            let first = attendance.begin();
            tokio::time::sleep(Duration::from_secs(600)).await;
            drop(first);
            tokio::time::sleep(IDLE / 2).await;
            // However short it is.
            drop(attendance.begin());
            Instant::now()
        };
        let (ended, last) = tokio::join!(attendance.unattended(after(10), IDLE), visits);
        assert_eq!(ended, Unattended::AnyMore);
        assert_eq!(Instant::now(), last + IDLE);
    }
}
