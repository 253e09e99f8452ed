//! `dormouse template build`, `ls` and `rm`: templates of a team, over the E2B API.

mod context;
mod dockerfile;

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, bail};
use clap::Args;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Value, json};

use crate::{
    e2b::{Access, Api},
    output, print,
};
use context::Files;
use dockerfile::{Plan, Step};

/// How often the server is asked how far it is.
const POLL: Duration = Duration::from_millis(250);

/// What to build.
#[derive(Debug, Args)]
pub struct Build {
    /// What to call it, as name or name:tag
    name: String,
    /// The directory that COPY copies from
    #[arg(default_value = ".")]
    context: PathBuf,
    /// What is done; `Dockerfile` in that directory if none is named
    #[arg(short, long, value_name = "PATH")]
    file: Option<PathBuf>,
    /// Start from a template rather than from the image that FROM names
    #[arg(long, value_name = "TEMPLATE")]
    from_template: Option<String>,
    /// The value of an ARG; can be given several times
    #[arg(long = "build-arg", value_name = "NAME=VALUE", value_parser = crate::sandbox::pair)]
    arguments: Vec<(String, String)>,
    /// Another tag; can be given several times
    #[arg(long = "tag", value_name = "TAG")]
    tags: Vec<String>,
    /// Line of a shell that is started with every sandbox; CMD and ENTRYPOINT if there is none
    #[arg(long, value_name = "COMMAND")]
    start: Option<String>,
    /// Line of a shell that succeeds once a sandbox is ready
    #[arg(long, value_name = "COMMAND")]
    ready: Option<String>,
    /// Processors of its sandboxes
    #[arg(long, value_name = "COUNT")]
    cpus: Option<u32>,
    /// Memory of its sandboxes, in MiB
    #[arg(long, value_name = "MIB")]
    memory: Option<u32>,
    /// Do everything anew
    #[arg(long)]
    no_cache: bool,
    /// Print ids only
    #[arg(short, long)]
    quiet: bool,
    #[command(flatten)]
    access: Access,
}

/// Which to list.
#[derive(Debug, Args)]
pub struct List {
    /// Print them as JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    access: Access,
}

/// Which to delete.
#[derive(Debug, Args)]
pub struct Remove {
    /// Names or ids
    #[arg(required = true)]
    names: Vec<String>,
    #[command(flatten)]
    access: Access,
}

/// Builds a template, and prints its id once it is ready.
///
/// # Errors
/// If it cannot be built; the message says which step failed, and why.
pub async fn build(arguments: &Build, is_root: bool) -> anyhow::Result<()> {
    let path = match &arguments.file {
        Some(path) => path.clone(),
        None => arguments.context.join("Dockerfile"),
    };
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("read {} (name another with --file)", path.display()))?;
    let plan =
        Plan::read(&text, &arguments.arguments).with_context(|| format!("{}", path.display()))?;
    for note in &plan.notes {
        eprintln!("note: {note}");
    }
    let files = Files::open(&arguments.context)?;
    let api = arguments.access.api(is_root)?;
    let mut wish = json!({"name": arguments.name, "tags": arguments.tags});
    if let Some(cpus) = arguments.cpus {
        wish["cpuCount"] = cpus.into();
    }
    if let Some(memory) = arguments.memory {
        wish["memoryMB"] = memory.into();
    }
    let made = api.post("/v3/templates", wish).await?;
    let id = |name: &str| made[name].as_str().unwrap_or_default().to_owned();
    let (template, build) = (id("templateID"), id("buildID"));
    let mut steps = Vec::new();
    for step in &plan.steps {
        steps.push(match step {
            Step::Copy(copy) => {
                let hash = upload(&api, &template, &files, &copy.source, &copy.target).await?;
                json!({"type": "COPY", "args": copy.words(), "filesHash": hash})
            }
            Step::Other { kind, words } => json!({"type": kind, "args": words}),
        });
    }
    let mut asked = json!({"steps": steps, "force": arguments.no_cache});
    match (&arguments.from_template, &plan.from) {
        (Some(name), _) => asked["fromTemplate"] = name.as_str().into(),
        (None, Some(image)) => asked["fromImage"] = image.as_str().into(),
        (None, None) => {
            bail!("there is no FROM: name an image there, or a template with --from-template")
        }
    }
    let start = arguments.start.as_ref().or(plan.start.as_ref());
    if let Some(start) = start {
        asked["startCmd"] = start.as_str().into();
    }
    if let Some(ready) = &arguments.ready {
        asked["readyCmd"] = ready.as_str().into();
    }
    let path = format!("templates/{template}/builds/{build}");
    api.post(&format!("/v2/{path}"), asked).await?;
    follow(&api, &format!("/{path}/status"), arguments.quiet).await?;
    print(&format!("{template}\n"))
}

async fn upload(
    api: &Api,
    template: &str,
    files: &Files,
    source: &str,
    target: &str,
) -> anyhow::Result<String> {
    let found = files.find(source)?;
    let hash = files.hash(&found, source, target)?;
    let link = api
        .get(&format!("/templates/{template}/files/{hash}"))
        .await?;
    if link["present"] != true {
        let url = link["url"].as_str().unwrap_or_default();
        // By the way that everything else is asked: what the server calls itself may be unknown here.
        let at = url
            .find("/templates/")
            .context("the server named no address for files")?;
        let archive = files.archive(&found)?;
        let sent = api.put(&url[at..], archive);
        let what = format!("Uploading {source}");
        crate::progress::slow(&what, sent)
            .await
            .with_context(|| format!("upload {source}"))?;
    }
    Ok(hash)
}

/// Shows what a build says until it is over.
async fn follow(api: &Api, path: &str, quiet: bool) -> anyhow::Result<()> {
    let mut offset = 0;
    loop {
        let status = api.get(&format!("{path}?logsOffset={offset}")).await?;
        let lines = status["logEntries"].as_array().cloned().unwrap_or_default();
        offset += lines.len();
        for line in lines.iter().filter(|_| !quiet) {
            let step = line["step"].as_str().unwrap_or_default();
            eprintln!("[{step}] {}", line["message"].as_str().unwrap_or_default());
        }
        match status["status"].as_str() {
            // Until the last page.
            _ if !lines.is_empty() => continue,
            Some("ready") => return Ok(()),
            Some("error") => {
                let reason = &status["reason"];
                let message = reason["message"].as_str().unwrap_or("it failed");
                match reason["step"].as_str() {
                    Some(step) => bail!("step {step}: {message}"),
                    None => bail!("{message}"),
                }
            }
            _ => tokio::time::sleep(POLL).await,
        }
    }
}

/// Lists templates.
///
/// # Errors
/// If the server does not answer.
pub async fn list(arguments: &List, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    let all = api.pages("/v2/templates", &[]).await?;
    if arguments.json {
        return print(&format!("{:#}\n", Value::from(all)));
    }
    let header = ["NAME", "ID", "CPUS", "MEMORY", "PUBLIC"].map(str::to_owned);
    let rows: Vec<Vec<String>> = all
        .iter()
        .map(|template| {
            let text = |name: &str| template[name].as_str().unwrap_or_default().to_owned();
            let name = template["names"][0].as_str().unwrap_or_default();
            vec![
                name.to_owned(),
                text("templateID"),
                template["cpuCount"].to_string(),
                format!("{} MiB", template["memoryMB"]),
                template["public"].to_string(),
            ]
        })
        .collect();
    print(&output::table(&header, &rows))
}

/// Deletes templates.
///
/// # Errors
/// If one is not there, or not the team's, or in use.
pub async fn remove(arguments: &Remove, is_root: bool) -> anyhow::Result<()> {
    let api = arguments.access.api(is_root)?;
    for name in &arguments.names {
        let encoded = utf8_percent_encode(name, NON_ALPHANUMERIC);
        let deleted = api.delete(&format!("/templates/{encoded}")).await;
        deleted.with_context(|| format!("delete {name}"))?;
        print(&format!("{name}\n"))?;
    }
    Ok(())
}
