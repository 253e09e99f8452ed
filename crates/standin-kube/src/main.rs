//! `dormouse-standin-kube`: a cluster to try things against, until it is interrupted.

use std::{net::SocketAddr, path::PathBuf};

use clap::Parser;
use standin_kube::{Options, Standin, testing, transcript};

/// Serves a stand-in for a Kubernetes cluster.
#[derive(Debug, Parser)]
struct Args {
    /// Where to write a kubeconfig for it; with --record, which to read
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Serve nothing: record the transcript of the cluster that the kubeconfig names
    #[arg(long, value_name = "FILE")]
    record: Option<PathBuf>,
    /// Run Pods, with real agents in them
    #[arg(long)]
    kubelet: bool,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    tracing_subscriber::fmt()
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .with_writer(std::io::stderr)
        .init();
    let args = Args::parse();
    if let Some(out) = &args.record {
        let transcript = transcript::record_from(&args.kubeconfig).await?;
        let text = serde_json::to_string_pretty(&transcript)? + "\n";
        return Ok(kit::durable::write_file(out, text.as_bytes(), 0o644)?);
    }
    let standin = Standin::start(Options {
        address: args.listen,
        kubelet: args.kubelet,
        agent: args.kubelet.then(testing::agent).transpose()?,
        ..Options::default()
    })
    .await?;
    let kubeconfig = standin.kubeconfig();
    kit::durable::write_file(&args.kubeconfig, kubeconfig.as_bytes(), 0o600)?;
    println!("https://{}", standin.address());
    tokio::signal::ctrl_c().await?;
    standin.end().await;
    Ok(())
}
