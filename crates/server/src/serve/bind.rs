//! Listening where a setting says.

use anyhow::{Context as _, bail};
use tokio::net::TcpListener;

use crate::{config::types::Listen, handover::sockets::Sockets};

pub(crate) async fn bind(listen: &Listen) -> anyhow::Result<TcpListener> {
    bind_for("", listen, &Sockets::default()).await
}

/// The same for a setting, where something may listen for it already.
pub(crate) async fn bind_for(
    setting: &str,
    listen: &Listen,
    sockets: &Sockets,
) -> anyhow::Result<TcpListener> {
    let hint = "choose another with --listen, or port 0 for any free one";
    match sockets.listen(setting, listen).await {
        Err(e) if e.kind() == std::io::ErrorKind::AddrInUse => {
            bail!("another process listens on {listen} already: stop it, or {hint}")
        }
        other => other.with_context(|| format!("listen on {listen} ({hint})")),
    }
}
