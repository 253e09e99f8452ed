//! Which collections there are: those built in, and those that CustomResourceDefinitions add.

use std::{collections::BTreeMap, sync::Arc};

use api::{Admission, Catalogue, Collection, Denied, Part};
use async_trait::async_trait;
use model::{
    Key, KindName, Name,
    kinds::{Column, ColumnType, Scope},
};
use parking_lot::{Mutex, RwLock};
use serde_json::{Value, json};
use store::{
    Change, Deletion, Half, Precondition, Record, Store as _, StoreError, memory::MemoryStore,
};

use crate::{
    kinds::{BUILT_IN, DEFINITIONS, NAMESPACES, PODS},
    rules, schema,
};

/// The grace of what waits for its controller: who sees to what is in it deletes it for good.
const HELD: u64 = 1;

/// What is served.
#[derive(Debug)]
pub(crate) struct Kinds {
    store: Arc<MemoryStore>,
    custom: RwLock<BTreeMap<&'static str, Custom>>,
}

/// A kind that a CustomResourceDefinition adds.
#[derive(Debug)]
struct Custom {
    collection: &'static Collection,
    /// Of its objects; what it says of metadata does not count.
    schema: Value,
}

impl Kinds {
    pub(crate) fn new(store: Arc<MemoryStore>) -> Self {
        Self {
            store,
            custom: RwLock::default(),
        }
    }

    /// The collection whose records are stored under this name.
    pub(crate) fn stored_as(&self, name: KindName) -> Option<&'static Collection> {
        let built_in = BUILT_IN.iter().find(|c| c.stored_as == name);
        built_in.copied().or_else(|| {
            let custom = self.custom.read();
            custom.get(name.0).map(|custom| custom.collection)
        })
    }

    /// Serves what a CustomResourceDefinition describes.
    pub(crate) fn define(&self, definition: &Value) {
        let Some((collection, schema)) = collection_of(definition) else {
            return;
        };
        self.custom
            .write()
            .insert(collection.stored_as.0, Custom { collection, schema });
    }

    /// Serves it no longer.
    pub(crate) fn undefine(&self, definition: &Value) -> Option<&'static Collection> {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        self.custom.write().remove(name).map(|c| c.collection)
    }

    fn schema_of(&self, collection: &Collection) -> Option<Value> {
        let custom = self.custom.read();
        custom
            .get(collection.stored_as.0)
            .map(|custom| custom.schema.clone())
    }

    /// Says of a namespace that it is going.
    async fn terminate(&self, namespace: &Record, only_if: Precondition) -> Result<(), StoreError> {
        let meant = only_if.uid.is_none_or(|uid| uid == namespace.uid())
            && only_if.version.is_none_or(|v| v == namespace.version());
        if !meant || namespace.meta.is_deleting() {
            return Ok(());
        }
        let mut fields = namespace.fields.clone();
        fields.insert("status.phase", "Terminating");
        let change = Change {
            key: namespace.key(),
            uid: Some(namespace.uid()),
            expected: namespace.version(),
            half: Half::Status {
                status: json!({"phase": "Terminating"}).to_string().into(),
            },
            fields,
        };
        self.store.update(change).await.map(drop)
    }

    /// Nothing is created in a namespace that is not there, or is going.
    async fn ensure_namespace(&self, admission: &Admission<'_>) -> Result<(), Denied> {
        let (Some(namespace), None) = (admission.namespace, admission.old) else {
            return Ok(());
        };
        let key = Key {
            kind: NAMESPACES.stored_as,
            namespace: None,
            name: Name::foreign(namespace).map_err(|_| Denied::NoNamespace)?,
        };
        match self.store.get(&key).await.map_err(Denied::Store)? {
            None => Err(Denied::NoNamespace),
            Some(found) if found.meta.is_deleting() => Err(Denied::Forbidden(format!(
                "unable to create new content in namespace {namespace} because it is being terminated"
            ))),
            Some(_) => Ok(()),
        }
    }
}

#[async_trait]
impl Catalogue for Kinds {
    fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static Collection> {
        let is = |c: &&'static Collection| {
            c.plural == plural && c.group == group && c.version == version
        };
        if let Some(found) = BUILT_IN.iter().copied().find(is) {
            return Some(found);
        }
        let custom = self.custom.read();
        custom.values().map(|c| c.collection).find(is)
    }

    fn all(&self) -> Vec<&'static Collection> {
        let custom = self.custom.read();
        let custom = custom.values().map(|c| c.collection);
        BUILT_IN.iter().copied().chain(custom).collect()
    }

    async fn admit(
        &self,
        admission: Admission<'_>,
        new: &mut Value,
    ) -> Result<Vec<String>, Denied> {
        self.ensure_namespace(&admission).await?;
        if let Some(schema) = self.schema_of(admission.collection) {
            return fit(&schema, new);
        }
        let problems = match (admission.old, admission.part) {
            (None, _) => rules::create(admission.collection, new),
            (Some(old), Part::Main) => rules::update(admission.collection, old, new),
            (Some(_), Part::Status) => Vec::new(),
        };
        match problems.is_empty() {
            true => Ok(Vec::new()),
            false => Err(Denied::Invalid(problems)),
        }
    }

    async fn delete(
        &self,
        collection: &'static Collection,
        key: &Key,
        only_if: Precondition,
        seconds: Option<u64>,
    ) -> Result<Deletion, StoreError> {
        let found = self.store.get(key).await?;
        let seconds = match (collection.stored_as, &found) {
            (kind, Some(pod)) if kind == PODS.stored_as => {
                Some(rules::grace(&PODS.object(pod)?, seconds))
            }
            (kind, Some(namespace)) if kind == NAMESPACES.stored_as => {
                self.terminate(namespace, only_if).await?;
                Some(HELD)
            }
            (kind, Some(_)) if kind == DEFINITIONS.stored_as => Some(HELD),
            (_, _) => None,
        };
        // What has changed since was changed by the line above.
        let only_if = Precondition {
            version: only_if.version.filter(|_| seconds != Some(HELD)),
            ..only_if
        };
        self.store.delete_gracefully(key, only_if, seconds)
    }
}

/// Brings a custom resource in line with its schema, or says why it cannot be.
fn fit(schema: &Value, new: &mut Value) -> Result<Vec<String>, Denied> {
    // Every object has these, whatever its schema says of them.
    let envelope = ["apiVersion", "kind", "metadata"];
    let Value::Object(fields) = new else {
        return Ok(Vec::new());
    };
    let aside: Vec<_> = envelope
        .into_iter()
        .filter_map(|name| fields.remove_entry(name))
        .collect();
    let (mut dropped, mut problems) = (Vec::new(), Vec::new());
    schema::complete(new, schema, "", &mut dropped);
    schema::check(new, schema, "", &mut problems);
    if let Value::Object(fields) = new {
        fields.extend(aside);
    }
    problems.retain(|problem| !envelope.contains(&problem.field.as_str()));
    match problems.is_empty() {
        true => Ok(dropped),
        false => Err(Denied::Invalid(problems)),
    }
}

/// A collection, and the schema of its objects, from a CustomResourceDefinition.
fn collection_of(definition: &Value) -> Option<(&'static Collection, Value)> {
    let spec = &definition["spec"];
    let versions = spec["versions"].as_array()?;
    let version = versions.iter().find(|v| v["storage"] == true)?;
    let names = &spec["names"];
    let (group, plural) = (text(&spec["group"])?, text(&names["plural"])?);
    let number = text(&version["name"])?;
    let fields = version["selectableFields"].as_array();
    let fields = fields.into_iter().flatten();
    let fields = fields.filter_map(|f| Some(leak(text(&f["jsonPath"])?.trim_start_matches('.'))));
    let columns = version["additionalPrinterColumns"].as_array();
    let mut columns: Vec<Column> = columns.into_iter().flatten().filter_map(column).collect();
    if columns.is_empty() {
        columns.push(Column {
            name: "Age",
            kind: ColumnType::Date,
            path: ".metadata.creationTimestamp",
            wide: false,
            description: "Time since it was created.",
        });
    }
    let words = |list: &Value| {
        let list = list.as_array().into_iter().flatten();
        list.filter_map(|word| Some(leak(text(word)?)))
            .collect::<Vec<_>>()
            .leak() as &'static [&'static str]
    };
    let kind = text(&names["kind"])?;
    let singular = text(&names["singular"]).map_or_else(|| kind.to_lowercase(), str::to_owned);
    let collection = Collection {
        group: leak(group),
        version: leak(number),
        api_version: leak(&format!("{group}/{number}")),
        kind: leak(kind),
        plural: leak(plural),
        singular: leak(&singular),
        short_names: words(&names["shortNames"]),
        categories: words(&names["categories"]),
        scope: match text(&spec["scope"])? {
            "Namespaced" => Scope::Namespaced,
            _ => Scope::Cluster,
        },
        columns: columns.leak(),
        selectable: fields.collect::<Vec<_>>().leak(),
        has_status: version["subresources"]["status"].is_object(),
        has_generation: true,
        strategic: false,
        unconditional: false,
        shows_deleted: false,
        stored_as: KindName(leak(&format!("{plural}.{group}"))),
    };
    let schema = version["schema"]["openAPIV3Schema"].clone();
    let schema = if schema.is_object() {
        schema
    } else {
        json!({"x-kubernetes-preserve-unknown-fields": true})
    };
    Some((Box::leak(Box::new(collection)), schema))
}

fn column(value: &Value) -> Option<Column> {
    Some(Column {
        name: leak(text(&value["name"])?),
        kind: match text(&value["type"])? {
            "integer" | "number" => ColumnType::Integer,
            "boolean" => ColumnType::Boolean,
            "date" => ColumnType::Date,
            _ => ColumnType::String,
        },
        path: leak(text(&value["jsonPath"])?),
        wide: value["priority"].as_i64().is_some_and(|p| p > 0),
        description: leak(text(&value["description"]).unwrap_or_default()),
    })
}

fn text(value: &Value) -> Option<&str> {
    value.as_str().filter(|text| !text.is_empty())
}

/// A word for as long as the process lives. Kinds are few, and the same words come again.
fn leak(word: &str) -> &'static str {
    static WORDS: Mutex<BTreeMap<String, &'static str>> = Mutex::new(BTreeMap::new());
    let mut words = WORDS.lock();
    if let Some(known) = words.get(word) {
        return known;
    }
    let leaked: &'static str = Box::leak(word.to_owned().into_boxed_str());
    words.insert(word.to_owned(), leaked);
    leaked
}
