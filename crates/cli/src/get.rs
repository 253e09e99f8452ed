//! `dormouse get`.

use clap::Args;
use serde_json::{Value, json};

use crate::{
    connect::{Connection, Scope},
    output::{self, Columns, Output},
    print, resource, watch,
};

/// What to get.
#[derive(Debug, Args)]
pub struct Arguments {
    /// Kind and names: `sandboxes`, `sandbox NAME…`, `sandbox/NAME…`
    #[arg(required = true, value_name = "KIND [NAME]")]
    pub(crate) what: Vec<String>,
    #[command(flatten)]
    pub(crate) filter: Filter,
    /// How to show them
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: Output,
    /// After that, follow the changes: the same as `dormouse watch`
    #[arg(short, long)]
    watch: bool,
    #[command(flatten)]
    pub(crate) connection: Connection,
}

/// Which objects of a kind.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    #[command(flatten)]
    pub(crate) scope: Scope,
    /// Objects of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub(crate) all_namespaces: bool,
    /// Only objects with these labels, as `team=blue,tier!=test`
    #[arg(short = 'l', long)]
    pub(crate) selector: Option<String>,
    /// Only objects with these values in fields, as `status.phase=Running`
    #[arg(long)]
    pub(crate) field_selector: Option<String>,
}

impl Filter {
    /// The namespace to look in; `None` for all of them.
    pub(crate) fn namespace<'a>(&'a self, default: &'a str) -> Option<&'a str> {
        (!self.all_namespaces).then(|| self.scope.namespace.as_deref().unwrap_or(default))
    }

    /// The selectors as parts of a query.
    pub(crate) fn query(&self) -> Vec<(&str, &str)> {
        let labels = self.selector.as_deref().map(|s| ("labelSelector", s));
        let fields = self.field_selector.as_deref().map(|s| ("fieldSelector", s));
        labels.into_iter().chain(fields).collect()
    }
}

/// Runs the command.
pub(crate) async fn run(arguments: Arguments, is_root: bool) -> anyhow::Result<()> {
    if arguments.watch {
        return watch::run(arguments.into(), is_root).await;
    }
    let selection = resource::select(&arguments.what)?;
    let kind = selection.kind;
    let (filter, output) = (&arguments.filter, arguments.output);
    let client = arguments.connection.client(is_root)?;
    let namespace = filter.namespace(client.default_namespace());

    if selection.names.is_empty() {
        let path = resource::with_query(&resource::collection(kind, namespace), &filter.query());
        let list = client.get(&path, output.accept()).await?;
        let is_table = matches!(output, Output::Table | Output::Wide);
        let is_empty = |list: &Value| list["rows"].as_array().is_none_or(Vec::is_empty);
        if is_table && is_empty(&list) {
            let place = namespace
                .filter(|_| kind.scope == model::kinds::Scope::Namespaced)
                .map(|n| format!(" in namespace {n}"))
                .unwrap_or_default();
            // To stderr: a script that counts lines must count none.
            eprintln!("No {} found{place}.", kind.plural);
            return Ok(());
        }
        if is_table && filter.all_namespaces {
            let columns = Columns::of(&list, output, true);
            let rows = list["rows"].as_array().into_iter().flatten();
            let rows: Vec<_> = rows.map(|row| columns.cells(row)).collect();
            return print(&output::table(&columns.header(), &rows));
        }
        return print(&output::show(kind, &list, output)?);
    }

    let Some(namespace) = namespace else {
        anyhow::bail!("a name is looked for in one namespace: give -n instead of -A");
    };
    if !filter.query().is_empty() {
        anyhow::bail!("give names or selectors, not both");
    }
    let mut found: Vec<Value> = Vec::new();
    let mut failed = 0;
    for name in &selection.names {
        match client
            .get(&resource::object(kind, namespace, name), output.accept())
            .await
        {
            Ok(object) => found.push(object),
            // One missing name must not hide the others; a server that is away must not be asked
            // for each.
            Err(error) if error.is::<crate::client::Refusal>() => {
                crate::complain(&error);
                failed += 1;
            }
            Err(error) => return Err(error),
        }
    }
    print(&combine(kind, found, output)?)?;
    crate::tally(failed)
}

/// Several answers as one.
fn combine(
    kind: &model::kinds::KindInfo,
    mut found: Vec<Value>,
    output: Output,
) -> anyhow::Result<String> {
    if found.len() <= 1 {
        return found.first().map_or(Ok(String::new()), |object| {
            output::show(kind, object, output)
        });
    }
    let together = match output {
        Output::Table | Output::Wide => {
            let rows: Vec<Value> = found
                .iter_mut()
                .filter_map(|table| table["rows"].as_array_mut())
                .flat_map(std::mem::take)
                .collect();
            json!({"columnDefinitions": found[0]["columnDefinitions"], "rows": rows})
        }
        Output::Yaml | Output::Json | Output::Name => {
            json!({"apiVersion": "v1", "kind": "List", "items": found})
        }
    };
    output::show(kind, &together, output)
}
