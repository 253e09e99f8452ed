//! What the start command of a sandbox says, as the E2B API asks for it.

use async_trait::async_trait;
use e2b::ports::{LogLine, LogSource};
use model::{Level, Sandbox};
use runtime_local::{LocalRuntime, OutputLine, Source};

/// The log of the processes that sandboxes of this host have started by themselves. A member of a
/// pool starts over, with other files, before each delivery: nothing of another owner's is there.
#[derive(Debug)]
pub(crate) struct ProcessLogs(pub(crate) LocalRuntime);

#[async_trait]
impl LogSource for ProcessLogs {
    async fn lines(&self, sandbox: &Sandbox) -> Vec<LogLine> {
        match self.0.output(sandbox.uid()).await {
            Ok(lines) => lines.into_iter().map(render).collect(),
            Err(error) => {
                tracing::warn!(key = %sandbox.key(), %error, "its output cannot be read");
                Vec::new()
            }
        }
    }
}

fn render(line: OutputLine) -> LogLine {
    let (stream, message) = match line.source {
        Source::Stdout => ("stdout", line.text),
        Source::Stderr => ("stderr", line.text),
        Source::End => (
            "end",
            format!("the start command has ended: {}", line.text).into(),
        ),
    };
    LogLine {
        at: line.at,
        // What a program writes where says nothing of how bad it is.
        level: Level::Info,
        logger: "process".into(),
        message,
        fields: vec![("stream".into(), stream.into())],
    }
}
