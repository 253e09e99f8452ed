//! `dormouse sandbox pause`, `resume` and `kill`.

use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::seconds;
use crate::{
    complain,
    e2b::{Access, Api},
    print, progress, tally,
};

/// Which to put to sleep.
#[derive(Debug, Args)]
pub struct Pause {
    /// The sandboxes
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
    /// Keep their files only
    #[arg(long)]
    no_memory: bool,
    #[command(flatten)]
    access: Access,
}

/// Which to wake.
#[derive(Debug, Args)]
pub struct Resume {
    /// The sandboxes
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
    /// How long they have: seconds, or a number with s, m, h or d
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = seconds)]
    timeout: u32,
    #[command(flatten)]
    access: Access,
}

/// Which to end.
#[derive(Debug, Args)]
pub struct Kill {
    /// The sandboxes
    #[arg(required = true, value_name = "SANDBOX")]
    sandboxes: Vec<String>,
    #[command(flatten)]
    access: Access,
}

pub(super) async fn pause(arguments: &Pause, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let memory = !arguments.no_memory;
    each(&api, &arguments.sandboxes, "paused", async |id| {
        let path = format!("/sandboxes/{id}/pause");
        let asked = api.post(&path, json!({"memory": memory}));
        progress::slow("Putting it to sleep", asked).await.map(drop)
    })
    .await
}

pub(super) async fn resume(arguments: &Resume, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let body = json!({"timeout": arguments.timeout});
    each(&api, &arguments.sandboxes, "running", async |id| {
        let path = format!("/v2/sandboxes/{id}/connect");
        let asked = api.post(&path, body.clone());
        progress::slow("Waking it", asked).await.map(drop)
    })
    .await
}

pub(super) async fn kill(arguments: &Kill, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    each(&api, &arguments.sandboxes, "killed", async |id| {
        progress::slow("Ending it", api.kill(id)).await
    })
    .await
}

/// One after the other; what fails is said, and the others are still done.
async fn each(
    api: &Api,
    words: &[String],
    done: &str,
    act: impl AsyncFn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut failed = 0;
    for word in words {
        let one = async {
            let id = api.find(word).await?.id;
            act(&id).await?;
            print(&format!("{id} {done}\n"))
        };
        match one.await.with_context(|| format!("sandbox {word}")) {
            Ok(()) => {}
            Err(error) if words.len() == 1 => return Err(error),
            Err(error) => {
                complain(&error);
                failed += 1;
            }
        }
    }
    tally(failed)
}
