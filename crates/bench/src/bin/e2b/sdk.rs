//! The same calls by the official Python SDK, whose own work is most of what they take.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use bench::{Result, Samples, server::Server};

const ROUNDS: usize = 100;

/// Prints what the SDK takes, beside what the API takes by itself.
pub(crate) fn measure(server: &Server, alone: Duration) -> Result<()> {
    let api = server.api();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/bin/e2b/sdk.py");
    let url = format!("http://{}", api.address);
    let run = Command::new(python()?)
        .arg(script)
        .arg(ROUNDS.to_string())
        .env("E2B_API_KEY", &api.key)
        .env("E2B_API_URL", &url)
        .env("E2B_SANDBOX_URL", &url)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into());
    }
    let mut samples = BTreeMap::<&str, Samples>::new();
    let said = String::from_utf8(run.stdout)?;
    for line in said.lines() {
        let (name, nanos) = line.split_once(' ').ok_or("not a measurement")?;
        let took = Duration::from_nanos(nanos.parse()?);
        samples.entry(name).or_default().record(took);
    }
    for (name, what) in [
        ("create", "Python SDK: create"),
        ("output", "Python SDK: create to a command's output"),
        ("kill", "Python SDK: kill"),
    ] {
        samples.get(name).ok_or("nothing was measured")?.print(what);
    }
    println!(
        "Python SDK / API, create, p50: {:.2}",
        samples["create"].quantile(0.5).as_secs_f64() / alone.as_secs_f64()
    );
    Ok(())
}

/// A Python with the newest SDK that the conformance suite pins, made once.
fn python() -> Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut pinned: Vec<_> = std::fs::read_dir(root.join("conformance/e2b-python/versions"))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    let number = |path: &PathBuf| -> Vec<u32> {
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        name.split('.')
            .filter_map(|part| part.parse().ok())
            .collect()
    };
    pinned.sort_by_key(number);
    let newest = pinned.pop().ok_or("the suite pins no version")?;
    let version = newest.file_stem().ok_or("it has no name")?;
    let mut home = root.join("target/tmp/bench-sdk-");
    home.as_mut_os_string().push(version);
    let python = home.join("bin/python");
    if !home.join("made").exists() {
        run(Command::new("python3").args(["-m", "venv"]).arg(&home))?;
        let mut install = Command::new(&python);
        install.args(["-m", "pip", "install", "--quiet", "--no-deps", "-r"]);
        run(install.arg(newest))?;
        std::fs::File::create(home.join("made"))?;
    }
    Ok(python)
}

fn run(command: &mut Command) -> Result<()> {
    let done = command.output()?;
    if done.status.success() {
        Ok(())
    } else {
        Err(String::from_utf8_lossy(&done.stderr).into())
    }
}
