//! Server-side apply: what one manager wants to be so, and nothing about the rest.
//!
//! Who applied which fields is kept in `managedFields`. Fields that a manager no longer names go,
//! unless another applied them too; fields that another applied with another value are a conflict,
//! unless the manager insists. Writes that are not applies are not kept track of.

use model::{
    Key, Timestamp,
    validate::{Cause, Problem},
};
use serde_json::{Value, json};

use crate::{
    collection::Collection,
    lists,
    params::Params,
    patch::Patch,
    refusal::{About, Refusal},
    resource_api::ResourceApi,
};

/// Who applies what.
pub(crate) struct Manager {
    name: String,
    force: bool,
    wanted: Value,
}

impl Manager {
    /// The manager of a request, if it is an apply.
    pub(crate) fn new(patch: &Patch, params: &Params) -> Result<Option<Self>, Refusal> {
        let Patch::Apply(wanted) = patch else {
            return Ok(None);
        };
        let Some(name) = params.get("fieldManager") else {
            let problem = Problem {
                field: "fieldManager".into(),
                cause: Cause::Required,
                reason: "is required for apply patch".into(),
                remedy: "say who applies".into(),
            };
            let about = About {
                group: "meta.k8s.io",
                plural: "patchoptions",
                kind: "PatchOptions",
                name: String::new(),
            };
            return Err(Refusal::invalid(about, &[problem]));
        };
        if !wanted.is_object() {
            return Err(Refusal::bad_field(".", "the body is not an object"));
        }
        let metadata = wanted.get("metadata");
        if metadata.is_some_and(|metadata| !metadata.is_object()) {
            return Err(Refusal::bad_field("metadata", "it is not an object"));
        }
        if wanted
            .pointer("/metadata/managedFields")
            .is_some_and(|m| !m.is_null())
        {
            return Err(Refusal::bad_field("metadata.managedFields", "must be nil"));
        }
        Ok(Some(Self {
            name: name.to_owned(),
            force: params.is_on("force")?,
            wanted: wanted.clone(),
        }))
    }

    /// The object, where there is none yet.
    pub(crate) fn first(
        &self,
        api: &ResourceApi,
        key: &Key,
        collection: &Collection,
    ) -> Result<Value, Refusal> {
        let mut object = self.wanted.clone();
        object["metadata"]["name"] = key.name.as_str().into();
        object["metadata"]["managedFields"] = json!([self.entry(api, collection)]);
        Ok(object)
    }

    /// Puts what is wanted over what there is.
    pub(crate) fn merge(
        &self,
        api: &ResourceApi,
        object: &mut Value,
        collection: &Collection,
        about: About,
    ) -> Result<(), Refusal> {
        let before = object.clone();
        let entries = object["metadata"]["managedFields"].as_array().cloned();
        let mut entries = entries.unwrap_or_default();
        let mine = entries.iter().position(|e| e["manager"] == *self.name);
        let old = mine.map(|at| entries.remove(at));
        let new = self.entry(api, collection);
        let has = &new["fieldsV1"];
        lists::merge_applied(object, &self.wanted);
        self.settle(&mut entries, has, &before, object, about)?;
        if let Some(old) = &old {
            let others: Vec<&Value> = entries.iter().map(|e| &e["fieldsV1"]).collect();
            lists::remove_dropped(object, &old["fieldsV1"], has, &others);
        }
        // Asking for the same again changes nothing, not even when it was asked for.
        match old {
            Some(old) if old["fieldsV1"] == *has => entries.push(old),
            Some(_) | None => entries.push(new),
        }
        object["metadata"]["managedFields"] = entries.into();
        Ok(())
    }

    /// Finds fields that others applied and that would change: a conflict, or theirs no longer.
    fn settle(
        &self,
        entries: &mut Vec<Value>,
        has: &Value,
        before: &Value,
        after: &Value,
        about: About,
    ) -> Result<(), Refusal> {
        let mut conflicts = Vec::new();
        for entry in entries.iter() {
            let mut shared = Vec::new();
            lists::common(has, &entry["fieldsV1"], "", &mut shared);
            let manager = entry["manager"].as_str().unwrap_or_default();
            let changed = shared.into_iter().filter(|path| {
                let pointer = path.replace('.', "/");
                // Items of lists have no pointer: they count as changed if the list did.
                path.contains('[') && before != after
                    || before.pointer(&pointer) != after.pointer(&pointer)
            });
            conflicts.extend(changed.map(|path| (manager.to_owned(), path)));
        }
        if conflicts.is_empty() {
            return Ok(());
        }
        if !self.force {
            return Err(Refusal::owned_by_others(about, &conflicts));
        }
        entries.retain(|entry| {
            !conflicts
                .iter()
                .any(|(manager, _)| entry["manager"] == **manager)
        });
        Ok(())
    }

    fn entry(&self, api: &ResourceApi, collection: &Collection) -> Value {
        let mut fields = self.wanted.clone();
        if let Value::Object(all) = &mut fields {
            all.remove("apiVersion");
            all.remove("kind");
            if let Some(Value::Object(meta)) = all.get_mut("metadata") {
                for name in [
                    "name",
                    "namespace",
                    "uid",
                    "resourceVersion",
                    "creationTimestamp",
                ] {
                    meta.remove(name);
                }
            }
        }
        json!({
            "manager": self.name,
            "operation": "Apply",
            "apiVersion": collection.api_version,
            "time": seconds(api.now()),
            "fieldsType": "FieldsV1",
            "fieldsV1": lists::field_set("", &fields),
        })
    }
}

fn seconds(now: Timestamp) -> String {
    let text = now.to_string();
    format!("{}Z", text.get(..19).unwrap_or(&text))
}
