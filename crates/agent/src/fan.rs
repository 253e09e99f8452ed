//! What a process says, to everyone who listens.
//!
//! Each listener has a short queue. The process's output waits for the slowest of them: that is
//! the backpressure, all the way from a client's socket to the process's pipe. With no listener
//! the output is dropped. Who comes after the end hears the end.

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use wire::{connect::Error, process::EndEvent};

/// Events a listener may be behind. With chunks of 128 KiB this bounds a stream's memory.
const QUEUE: usize = 8;

/// Where output came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Stdout,
    Stderr,
    Pty,
}

/// What happens to a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Start(u32),
    Data(Source, Bytes),
    End(EndEvent),
}

/// A stream of what happens, as it goes to one client.
pub(crate) type Listener<T> = mpsc::Receiver<Result<T, Error>>;
type Sender = mpsc::Sender<Result<Event, Error>>;

#[derive(Debug, Default)]
struct State {
    listeners: Vec<Sender>,
    end: Option<EndEvent>,
}

/// The listeners of one process.
#[derive(Debug, Default)]
pub(crate) struct Fan(Mutex<State>);

impl Fan {
    /// A listener that first hears the start, and what comes from now on.
    pub(crate) fn listen(&self, pid: u32) -> Listener<Event> {
        // Room for the start and the end: neither waits.
        let (sender, listener) = mpsc::channel(QUEUE + 2);
        let mut state = self.0.lock();
        sender.try_send(Ok(Event::Start(pid))).ok();
        match &state.end {
            Some(end) => {
                sender.try_send(Ok(Event::End(end.clone()))).ok();
            }
            None => state.listeners.push(sender),
        }
        listener
    }

    /// Hands out a piece of output, and returns when every listener has room for it.
    pub(crate) async fn data(&self, source: Source, bytes: Bytes) {
        let listeners = self.0.lock().listeners.clone();
        let mut gone = false;
        for listener in &listeners {
            let event = Event::Data(source, bytes.clone());
            gone |= listener.send(Ok(event)).await.is_err();
        }
        if gone {
            self.0
                .lock()
                .listeners
                .retain(|listener| !listener.is_closed());
        }
    }

    /// Says that it is over. All data was handed out before.
    pub(crate) async fn end(&self, end: EndEvent) {
        let listeners = {
            let mut state = self.0.lock();
            state.end = Some(end.clone());
            std::mem::take(&mut state.listeners)
        };
        for listener in listeners {
            listener.send(Ok(Event::End(end.clone()))).await.ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn data(text: &'static str) -> Event {
        Event::Data(Source::Stdout, Bytes::from_static(text.as_bytes()))
    }

    async fn say(fan: &Fan, text: &'static str) {
        fan.data(Source::Stdout, Bytes::from_static(text.as_bytes()))
            .await;
    }

    #[tokio::test]
    async fn every_listener_hears_what_comes_after_it_came() {
        let fan = Fan::default();
        say(&fan, "nobody").await;
        let mut first = fan.listen(7);
        say(&fan, "a").await;
        let mut second = fan.listen(7);
        say(&fan, "b").await;
        drop(second.recv().await);
        assert_eq!(second.recv().await.unwrap().unwrap(), data("b"));
        drop(second);
        say(&fan, "c").await;
        fan.end(EndEvent::default()).await;
        let mut late = fan.listen(7);
        for expected in [
            Event::Start(7),
            data("a"),
            data("b"),
            data("c"),
            Event::End(EndEvent::default()),
        ] {
            assert_eq!(first.recv().await.unwrap().unwrap(), expected);
        }
        assert!(first.recv().await.is_none());
        assert_eq!(late.recv().await.unwrap().unwrap(), Event::Start(7));
        assert_eq!(
            late.recv().await.unwrap().unwrap(),
            Event::End(EndEvent::default())
        );
        assert!(late.recv().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn output_waits_for_a_listener_that_is_behind() {
        let fan = Fan::default();
        let mut listener = fan.listen(1);
        for _ in 0..=QUEUE {
            say(&fan, "x").await;
        }
        let stuck = tokio::time::timeout(Duration::from_secs(60), say(&fan, "y")).await;
        assert!(stuck.is_err(), "no room, so it waits");
        listener.recv().await;
        say(&fan, "y").await;
        drop(listener);
        say(&fan, "nobody is waited for").await;
    }
}
