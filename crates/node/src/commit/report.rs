//! How a worker says how it went: in the file that a Pod's last words are taken from.

use std::{fs::File, io::Write as _, path::Path};

use runtime::node::Report;

use crate::error::{NodeError, Result};

/// Writes a report.
///
/// # Errors
/// If the file cannot be written.
pub fn write(report: &Report, to: &Path) -> Result<()> {
    let disk = |source| NodeError::Disk {
        doing: "write the report",
        source,
    };
    let text = serde_json::to_vec(report).map_err(|error| disk(error.into()))?;
    // In place: a kubelet has the file mounted, so nothing can take its name.
    let file = File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .open(to);
    let mut file = file.map_err(disk)?;
    file.write_all(&text)
        .and_then(|()| file.sync_all())
        .map_err(disk)
}
