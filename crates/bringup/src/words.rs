//! What is told of a command's end.

use agent_client::{Event, Process};
use wire::process::EndEvent;

/// How much of a command's last words is shown.
const LAST_WORDS: usize = 300;

/// Waits for a command's end; what is told of it if it did not end well.
pub(crate) async fn succeed(running: Process) -> Result<(), String> {
    let mut words = Vec::new();
    let ended = running
        .wait(|event| {
            said(&mut words, &event);
            Ok::<(), agent_client::Error>(())
        })
        .await;
    match ended {
        Ok(end) if end.exited && end.exit_code == 0 => Ok(()),
        Ok(end) => Err(describe(&end, &words)),
        Err(error) => Err(error.to_string()),
    }
}

/// Keeps the last of what a command says.
pub(crate) fn said(words: &mut Vec<u8>, event: &Event) {
    if let Event::Stdout(bytes) | Event::Stderr(bytes) | Event::Pty(bytes) = event {
        words.extend_from_slice(bytes);
        let surplus = words.len().saturating_sub(4 * LAST_WORDS);
        words.drain(..surplus);
    }
}

/// What is told of a command's end. Its words are untrusted: one line of them, without anything
/// that a terminal would obey.
pub(crate) fn describe(end: &EndEvent, words: &[u8]) -> String {
    let text = String::from_utf8_lossy(words);
    let line = text.lines().rev().find(|line| !line.trim().is_empty());
    let line: String = line
        .unwrap_or_default()
        .chars()
        .filter(|c| !c.is_control())
        .take(LAST_WORDS)
        .collect();
    if line.is_empty() {
        end.status.clone()
    } else {
        format!("{}: {line}", end.status)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_that_says_something_is_told() {
        let end = EndEvent {
            status: "exit status 2".into(),
            ..EndEvent::default()
        };
        assert_eq!(describe(&end, b""), "exit status 2");
        let words = b"first\nno \x1b[31mway\xff\n\n";
        assert_eq!(describe(&end, words), "exit status 2: no [31mway\u{fffd}");
        let long = vec![b'x'; 10_000];
        assert!(describe(&end, &long).len() < 400);
    }
}
