//! Stock kubectl against the stand-in.

use std::process::{Command, Stdio};

use standin_kube::testing;

fn kubectl(cluster: &testing::TestCluster, args: &[&str], input: &str) -> (bool, String) {
    use std::io::Write as _;
    let mut child = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig())
        .args(["--namespace", cluster.namespace()])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned()
        + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// The first line that a watch of a kind tells.
fn first_watched(cluster: &testing::TestCluster, kind: &str) -> String {
    use std::io::{BufRead as _, BufReader};
    let mut child = Command::new("kubectl")
        .arg("--kubeconfig")
        .arg(cluster.kubeconfig())
        .args(["--namespace", cluster.namespace()])
        .args(["get", kind, "--watch", "-o", "name"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    lines.read_line(&mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    line
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn kubectl_applies_reads_watches_and_deletes_our_kinds() {
    let cluster = testing::cluster().await.unwrap();
    let run = |args: &[&str], input: &str| {
        let (fine, text) = kubectl(&cluster, args, input);
        assert!(fine, "{args:?}: {text}");
        text
    };
    let definitions: Vec<String> = model::kinds::ALL
        .iter()
        .map(|info| model::schema::crd(info).to_string())
        .collect();
    run(&["apply", "-f", "-"], &definitions.join("\n"));
    run(
        &[
            "wait",
            "--for=condition=Established",
            "crd/sandboxpools.dormouse.dev",
            "--timeout=30s",
        ],
        "",
    );
    let pool = |max: u32| {
        format!(
            "apiVersion: dormouse.dev/v1alpha1\nkind: SandboxPool\nmetadata:\n  name: small\nspec:\n  template: base\n  minIdle: 0\n  maxIdle: 1\n  max: {max}\n"
        )
    };
    let text = run(&["apply", "-f", "-"], &pool(1));
    assert!(text.contains("created"), "{text}");
    let text = run(&["apply", "-f", "-"], &pool(1));
    assert!(text.contains("unchanged"), "{text}");
    let text = run(&["apply", "-f", "-"], &pool(2));
    assert!(text.contains("configured"), "{text}");
    let text = run(
        &["apply", "--server-side", "--force-conflicts", "-f", "-"],
        &pool(3),
    );
    assert!(text.contains("serverside-applied"), "{text}");
    let unknown = pool(3) + "  colour: red\n";
    let (fine, text) = kubectl(&cluster, &["apply", "-f", "-"], &unknown);
    assert!(!fine && text.contains("spec.colour"), "{text}");
    let text = run(&["get", "sbp"], "");
    assert!(text.contains("NAME") && text.contains("small"), "{text}");
    let text = run(&["get", "sbp", "small", "-o", "jsonpath={.spec.max}"], "");
    assert_eq!(text, "3");
    assert!(first_watched(&cluster, "sbp").contains("small"));
    run(&["delete", "sbp", "small", "--timeout=30s"], "");
    let (found, text) = kubectl(&cluster, &["get", "sbp", "small"], "");
    assert!(!found && text.contains("not found"), "{text}");
    let plain = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: plain\ndata:\n  a: b\n";
    let text = run(&["apply", "-f", "-"], plain);
    assert!(text.contains("created"), "{text}");
    run(&["label", "configmap", "plain", "colour=red"], "");
    let text = run(&["get", "configmap", "-l", "colour=red", "-o", "name"], "");
    assert_eq!(text.trim(), "configmap/plain");
}

#[tokio::test(flavor = "multi_thread")]
async fn kubectl_finds_nothing_wrong_with_an_installation() {
    let cluster = testing::cluster().await.unwrap();
    let options = install_kube::Options {
        namespace: cluster.namespace().to_owned(),
        ..install_kube::Options::default()
    };
    let manifests = install_kube::manifests(&options);
    let text = install_kube::yaml::documents(&manifests).unwrap();
    let dry = [
        "apply",
        "--server-side",
        "--force-conflicts",
        "--dry-run=server",
        "-f",
        "-",
    ];
    let (fine, said) = kubectl(&cluster, &dry, &text);
    assert!(fine, "{said}");
    let accepted = said
        .lines()
        .filter(|line| line.contains("(server dry run)"));
    assert_eq!(accepted.count(), manifests.len(), "{said}");
}
