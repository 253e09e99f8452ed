//! What a real API server answered, the stand-in answers too.

use serde_json::Value;
use standin_kube::{Options, Standin, transcript};

const RECORDED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/transcripts/kubernetes.json");

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_recorded_conversation_with_a_real_api_server_goes_the_same_way() {
    let standin = Standin::start(Options::default()).await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    kit::durable::write_file(&kubeconfig, standin.kubeconfig().as_bytes(), 0o600).unwrap();
    let replayed = transcript::record_from(&kubeconfig).await.unwrap();
    let recorded = std::fs::read_to_string(RECORDED).unwrap();
    let recorded: Value = serde_json::from_str(&recorded).unwrap();
    let differences = transcript::differences(&recorded, &replayed);
    assert!(
        differences.is_empty(),
        "{} differences from {}:\n{}",
        differences.len(),
        recorded["version"],
        differences.join("\n")
    );
    standin.end().await;
}
