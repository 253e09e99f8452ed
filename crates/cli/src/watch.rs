//! `dormouse watch`: a list, then its changes, for as long as anybody looks.
//!
//! ```text
//! list ──▶ watch after the list's version ──line──▶ print, remember the version ─┐
//!  ▲             ▲                                                               │
//!  │             └── connection lost: again after the last version seen ◀────────┤
//!  └── 410, the server has forgotten that version: what differs is printed ◀─────┘
//! ```

use std::{collections::BTreeMap, time::Duration};

use anyhow::Context as _;
use clap::Args;
use http::StatusCode;
use kit::{Backoff, Entropy};
use model::kinds::KindInfo;
use serde_json::{Value, json};

use crate::{
    client::{Client, Refusal},
    connect::Connection,
    get::{self, Filter},
    output::{Columns, Layout, Output, yaml},
    print, resource,
};

const BACKOFF: Backoff = Backoff {
    first: Duration::from_millis(100),
    cap: Duration::from_secs(5),
};

/// What to watch.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Kind and name: `sandboxes`, `sandbox NAME`, `sandbox/NAME`
    #[arg(required = true, value_name = "KIND [NAME]")]
    what: Vec<String>,
    #[command(flatten)]
    filter: Filter,
    /// How to show them; json is one object a line
    #[arg(short, long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    connection: Connection,
}

impl From<get::Arguments> for Arguments {
    fn from(get: get::Arguments) -> Self {
        Self {
            what: get.what,
            filter: get.filter,
            output: get.output,
            connection: get.connection,
        }
    }
}

/// Runs the command.
pub(crate) async fn run(arguments: Arguments, is_root: bool) -> anyhow::Result<()> {
    let selection = resource::select(&arguments.what)?;
    let client = arguments.connection.client(is_root)?;
    let filter = &arguments.filter;
    let namespace = filter.namespace(client.default_namespace());
    let mut query: Vec<(String, String)> = filter
        .query()
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
    match selection.names.as_slice() {
        [] => {}
        [name] => {
            let own = format!("metadata.name={name}");
            let fields = query.iter_mut().find(|(key, _)| key == "fieldSelector");
            match fields {
                Some((_, value)) => *value = format!("{value},{own}"),
                None => query.push(("fieldSelector".to_owned(), own)),
            }
        }
        [..] => anyhow::bail!("watch one name, or all of a kind"),
    }
    let mut printer = Printer {
        kind: selection.kind,
        output: arguments.output,
        with_namespace: filter.all_namespaces,
        columns: Columns::default(),
        layout: Layout::default(),
    };
    let watcher = Watcher {
        client: &client,
        path: resource::collection(selection.kind, namespace),
        query,
        accept: arguments.output.accept(),
    };
    watcher.follow(&mut |event| printer.print(&event)).await
}

/// One change.
#[derive(Debug)]
struct Event {
    what: What,
    /// A row of a table with its columns, or an object.
    entry: Value,
    /// The columns, where the server sent them.
    table: Option<Value>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Added,
    Modified,
    Deleted,
}

impl What {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

/// What was seen last, by namespace and name.
type Known = BTreeMap<(String, String), Value>;

struct Watcher<'a> {
    client: &'a Client,
    path: String,
    query: Vec<(String, String)>,
    accept: &'static str,
}

/// Why a stream of changes ended.
enum End {
    Closed,
    Expired,
}

impl Watcher<'_> {
    async fn follow(
        &self,
        see: &mut impl FnMut(Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let entropy = Entropy::from_os();
        let mut known = Known::new();
        // The first list must succeed: a wrong name or a missing server is an answer.
        let mut version = self.list(&mut known, see).await?;
        let mut failures = 0;
        loop {
            let before = version.clone();
            let outcome = match self.changes(&mut version, &mut known, see).await {
                Ok(End::Closed) => Ok(()),
                Ok(End::Expired) => match self.list(&mut known, see).await {
                    Ok(listed) => {
                        version = listed;
                        Ok(())
                    }
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            if let Err(error) = outcome {
                if !is_passing(&error) {
                    return Err(error);
                }
                if failures == 0 {
                    eprintln!("watch interrupted: {error:#}; trying again");
                }
                failures += 1;
            } else if version != before {
                failures = 0;
            }
            // Also after a clean end: a server that ends every watch at once must not be stormed.
            tokio::time::sleep(BACKOFF.delay(failures.max(1), &entropy)).await;
        }
    }

    fn url(&self, more: &[(&str, &str)]) -> String {
        let own = self.query.iter().map(|(n, v)| (n.as_str(), v.as_str()));
        let pairs: Vec<(&str, &str)> = own.chain(more.iter().copied()).collect();
        resource::with_query(&self.path, &pairs)
    }

    /// Lists, and tells what differs from what was known. Returns the version to go on from.
    async fn list(
        &self,
        known: &mut Known,
        see: &mut impl FnMut(Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<String> {
        let mut list = self.client.get(&self.url(&[]), self.accept).await?;
        let version = list["metadata"]["resourceVersion"]
            .as_str()
            .context("the server's list has no resourceVersion")?
            .to_owned();
        let mut missing = std::mem::take(known);
        for entry in entries(&mut list) {
            let key = key(&entry);
            let what = match missing.remove(&key) {
                Some(old) if metadata(&old)["uid"] != metadata(&entry)["uid"] => {
                    see(Event::new(What::Deleted, old, &list))?;
                    Some(What::Added)
                }
                Some(old)
                    if metadata(&old)["resourceVersion"] != metadata(&entry)["resourceVersion"] =>
                {
                    Some(What::Modified)
                }
                Some(_) => None,
                None => Some(What::Added),
            };
            known.insert(key, entry.clone());
            if let Some(what) = what {
                see(Event::new(what, entry, &list))?;
            }
        }
        // What is not in the list was deleted while nobody looked.
        for (_, old) in missing {
            see(Event::new(What::Deleted, old, &list))?;
        }
        Ok(version)
    }

    async fn changes(
        &self,
        version: &mut String,
        known: &mut Known,
        see: &mut impl FnMut(Event) -> anyhow::Result<()>,
    ) -> anyhow::Result<End> {
        let url = self.url(&[
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", version),
        ]);
        let mut lines = match self.client.stream(&url, self.accept).await {
            Err(error) if Refusal::is(&error, StatusCode::GONE) => return Ok(End::Expired),
            other => other?,
        };
        while let Some(mut line) = lines.next().await? {
            let mut object = line["object"].take();
            let kind = line["type"].as_str().unwrap_or_default();
            if kind == "ERROR" {
                let code = object["code"].as_u64().unwrap_or_default();
                if code == u64::from(StatusCode::GONE.as_u16()) {
                    return Ok(End::Expired);
                }
                let code = u16::try_from(code).unwrap_or_default();
                return Err(Refusal::from_status(code, &object).into());
            }
            let table = object.clone();
            for entry in entries(&mut object) {
                if let Some(seen) = metadata(&entry)["resourceVersion"].as_str() {
                    seen.clone_into(version);
                }
                let what = match kind {
                    "ADDED" => What::Added,
                    "MODIFIED" => What::Modified,
                    "DELETED" => What::Deleted,
                    // A bookmark, or what a newer server may say: only its version counts.
                    _ => continue,
                };
                if what == What::Deleted {
                    known.remove(&key(&entry));
                } else {
                    known.insert(key(&entry), entry.clone());
                }
                see(Event::new(what, entry, &table))?;
            }
            if let Some(seen) = object["metadata"]["resourceVersion"].as_str() {
                seen.clone_into(version);
            }
        }
        Ok(End::Closed)
    }
}

impl Event {
    fn new(what: What, entry: Value, table: &Value) -> Self {
        let has_columns = table["columnDefinitions"]
            .as_array()
            .is_some_and(|c| !c.is_empty());
        Self {
            what,
            entry,
            table: has_columns.then(|| json!({"columnDefinitions": table["columnDefinitions"]})),
        }
    }
}

/// Whether trying again can help: the connection broke, or the server is overloaded or restarting.
fn is_passing(error: &anyhow::Error) -> bool {
    match error.downcast_ref::<Refusal>() {
        Some(refusal) => refusal.code == 429 || refusal.code >= 500,
        // Our own output failing is for good.
        None => !error.is::<std::io::Error>(),
    }
}

/// The rows of a table, the items of a list, or the object itself.
fn entries(object: &mut Value) -> Vec<Value> {
    for name in ["rows", "items"] {
        match object.get_mut(name).map(Value::take) {
            Some(Value::Array(entries)) => return entries,
            // An empty list may be spelt null.
            Some(_) => return Vec::new(),
            None => {}
        }
    }
    // An empty list of objects has a list's kind and no items.
    if object["kind"]
        .as_str()
        .is_some_and(|kind| kind.ends_with("List") || kind == "Table")
    {
        return Vec::new();
    }
    vec![object.clone()]
}

/// The metadata of a row or an object.
fn metadata(entry: &Value) -> &Value {
    match &entry["object"] {
        Value::Null => &entry["metadata"],
        object => &object["metadata"],
    }
}

fn key(entry: &Value) -> (String, String) {
    let text = |name: &str| {
        metadata(entry)[name]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    (text("namespace"), text("name"))
}

struct Printer {
    kind: &'static KindInfo,
    output: Output,
    with_namespace: bool,
    columns: Columns,
    layout: Layout,
}

impl Printer {
    fn print(&mut self, event: &Event) -> anyhow::Result<()> {
        let what = event.what.as_str();
        match self.output {
            Output::Json => print(&format!(
                "{}\n",
                json!({"type": what, "object": event.entry})
            )),
            Output::Yaml => print(&format!(
                "---\n{}",
                yaml(&json!({"type": what, "object": event.entry}))?
            )),
            Output::Name => {
                let name = metadata(&event.entry)["name"].as_str().unwrap_or_default();
                print(&format!("{what} {}\n", resource::title(self.kind, name)))
            }
            Output::Table | Output::Wide => {
                let mut text = String::new();
                if self.columns.is_empty()
                    && let Some(table) = &event.table
                {
                    self.columns = Columns::of(table, self.output, self.with_namespace);
                    let mut header = self.columns.header();
                    header.insert(0, "EVENT".to_owned());
                    // The longest event, so that the first lines stand under each other.
                    self.layout.widen(&["MODIFIED".to_owned()]);
                    self.layout.widen(&header);
                    // Wide enough for most names and phases; rows that are wider push the rest.
                    self.layout
                        .widen(&vec!["          ".to_owned(); header.len()]);
                    text = self.layout.line(&header);
                }
                let mut cells = self.columns.cells(&event.entry);
                cells.insert(0, what.to_owned());
                self.layout.widen(&cells);
                text.push_str(&self.layout.line(&cells));
                print(&text)
            }
        }
    }
}
