//! Log lines go to stderr, so that stdout stays for what a person or a script asked for.

use std::io::{IsTerminal as _, stderr};

use crate::config::{Settings, types::LogFormat};

/// Starts logging for the whole process.
pub(crate) fn start(settings: &Settings) {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(settings.log_level.filter())
        .with_writer(stderr)
        .with_ansi(stderr().is_terminal());
    match settings.log_format {
        LogFormat::Text => builder.init(),
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
}
