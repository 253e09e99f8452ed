//! `dormouse sandbox cp`.

use std::cell::Cell;

use anyhow::Context as _;
use clap::Args;

use super::{place::Direction, transfer::Transfer};
use crate::{e2b::Access, progress};

/// From where, and to where.
#[derive(Debug, Args)]
pub struct Arguments {
    /// What to copy: a path here, or SANDBOX:PATH
    from: String,
    /// Where to: a path here, or SANDBOX:PATH
    to: String,
    /// Whose files they are inside; the default is the sandbox's own user
    #[arg(long)]
    user: Option<String>,
    #[command(flatten)]
    access: Access,
}

/// What was copied so far.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub(super) files: Cell<u64>,
    pub(super) bytes: Cell<u64>,
}

impl Tally {
    pub(super) fn add_file(&self) {
        self.files.set(self.files.get() + 1);
    }

    pub(super) fn add_bytes(&self, more: usize) {
        self.bytes.set(self.bytes.get() + more as u64);
    }

    fn show(&self) -> String {
        let mib = self.bytes.get() as f64 / f64::from(1 << 20);
        format!("Copied {} files, {mib:.1} MiB", self.files.get())
    }
}

pub(super) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let direction = Direction::of(&arguments.from, &arguments.to)?;
    let api = arguments.access.api(is_root)?;
    let (Direction::In { sandbox, .. } | Direction::Out { sandbox, .. }) = &direction;
    let found = api.awake(sandbox).await?;
    let mut agent = api.agent(&found)?;
    if let Some(user) = &arguments.user {
        agent = agent.as_user(user);
    }
    let tally = Tally::default();
    let transfer = Transfer {
        agent: &agent,
        tally: &tally,
    };
    let work = async {
        match &direction {
            Direction::In { from, to, .. } => transfer.put(from, to).await,
            Direction::Out { from, to, .. } => transfer.fetch(from, to).await,
        }
    };
    progress::said(|| tally.show(), work)
        .await
        .with_context(|| format!("copy {} to {}", arguments.from, arguments.to))
}
