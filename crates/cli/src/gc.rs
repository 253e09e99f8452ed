//! `dormouse gc`: what nothing needs any more, on a server that runs.

use clap::Args;
use http::Method;
use serde_json::Value;

use crate::{connect::Connection, output, print};

/// What to do.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Only say what would be removed, and why the rest stays
    #[arg(long)]
    dry_run: bool,
    /// Print it as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(arguments: &Arguments, is_root: bool) -> anyhow::Result<()> {
    let client = arguments.connection.client(is_root)?;
    let path = format!("/dormouse/gc?dryRun={}", arguments.dry_run);
    let swept = client
        .call(Method::POST, &path, "application/json", None)
        .await?;
    if arguments.json {
        return print(&format!("{swept}\n"));
    }
    print(&text(&swept, arguments.dry_run))
}

fn text(swept: &Value, dry_run: bool) -> String {
    let goes = if dry_run { "goes" } else { "gone" };
    let mut rows = Vec::new();
    for (what, list) in [
        ("image", "images"),
        ("unpacked layer", "layers"),
        ("blob", "blobs"),
        ("download", "downloads"),
    ] {
        for digest in swept[list].as_array().into_iter().flatten() {
            let digest = digest.as_str().unwrap_or_default();
            rows.push(vec![
                goes.into(),
                digest.into(),
                format!("{what}; nothing leads to it"),
            ]);
        }
    }
    for (digest, reasons) in swept["kept"].as_object().into_iter().flatten() {
        let reasons = reasons.as_array().into_iter().flatten();
        let reasons: Vec<_> = reasons.filter_map(Value::as_str).collect();
        rows.push(vec!["stays".into(), digest.clone(), reasons.join("; ")]);
    }
    let header = ["", "DIGEST", "WHY"].map(str::to_owned);
    let verb = if dry_run { "Would free" } else { "Freed" };
    let bytes = swept["bytes"].as_u64().unwrap_or(0);
    let mut text = output::table(&header, &rows);
    text.push_str(&format!(
        "{verb} {bytes} bytes, and what is unpacked of them.\n"
    ));
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_goes_and_why_the_rest_stays_is_told() {
        let swept = json!({
            "images": ["sha256:a"], "layers": [], "blobs": [], "downloads": [], "bytes": 7,
            "kept": {"sha256:b": ["Sandbox team/box", "it is called x"]},
        });
        let told = text(&swept, true);
        assert!(
            told.contains("goes") && told.contains("Would free 7 bytes"),
            "{told}"
        );
        assert!(told.contains("Sandbox team/box; it is called x"), "{told}");
    }
}
