//! How far a transfer is: as it is told over HTTP, and on one line of a terminal.

use std::io::{IsTerminal as _, Write as _};

use images::Progress;
use serde::{Deserialize, Serialize};

/// How far a transfer is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Far {
    /// Bytes that were moved.
    pub(super) bytes: u64,
    /// Of how many; zero until that is known.
    pub(super) total: u64,
    /// Which layer is being unpacked, from one on.
    pub(super) unpacking: usize,
    /// Of how many.
    pub(super) layers: usize,
}

impl From<&Progress> for Far {
    fn from(progress: &Progress) -> Self {
        Self {
            bytes: progress.done(),
            total: progress.total,
            unpacking: progress.unpacking.map_or(0, |layer| layer + 1),
            layers: progress.arrived.len(),
        }
    }
}

/// One line that says how far something is, on a terminal only.
#[derive(Debug, Default)]
pub(super) struct Line {
    last: String,
}

impl Line {
    pub(super) fn show(&mut self, far: Far) {
        let mut stderr = std::io::stderr();
        if far.total == 0 || !stderr.is_terminal() {
            return;
        }
        let text = text(far);
        if text != self.last {
            // A terminal that is gone is no reason to stop.
            let _ = write!(stderr, "\r\x1b[K{text}");
            self.last = text;
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if !self.last.is_empty() {
            let _ = writeln!(std::io::stderr());
        }
    }
}

const WIDTH: u64 = 24;

fn text(far: Far) -> String {
    let (done, total) = (far.bytes.min(far.total), far.total.max(1));
    let percent = u128::from(done) * 100 / u128::from(total);
    let full = usize::try_from(percent * u128::from(WIDTH) / 100).unwrap_or(0);
    let bar = "#".repeat(full) + &"-".repeat(WIDTH as usize - full);
    let mut text = format!("[{bar}] {percent:3} %  {} of {}", bytes(done), bytes(total));
    if far.unpacking > 0 {
        text.push_str(&format!(
            "  unpacking layer {} of {}",
            far.unpacking, far.layers
        ));
    }
    text
}

/// A number of bytes, for people.
pub(super) fn bytes(count: u64) -> String {
    let (mut value, mut unit) = (count as f64, "B");
    for next in ["kB", "MB", "GB", "TB"] {
        if value < 1000.0 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    match unit {
        "B" => format!("{count} B"),
        unit => format!("{value:.1} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_full_as_its_transfer() {
        let far = |bytes, unpacking| Far {
            bytes,
            total: 2_000_000,
            unpacking,
            layers: 3,
        };
        assert_eq!(
            text(far(500_000, 0)),
            "[######------------------]  25 %  500.0 kB of 2.0 MB"
        );
        assert_eq!(
            text(far(2_000_000, 2)),
            "[########################] 100 %  2.0 MB of 2.0 MB  unpacking layer 2 of 3"
        );
    }
}
