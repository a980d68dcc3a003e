//! Deletion: immediate, after a pod's grace period, or after the removal of the last finalizer.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    Server,
    clock::after,
    errors::ApiError,
    event_versions::to_shown,
    pods,
    request::{Query, Target},
    resources,
    storage::{Key, Storage},
    strategy::{remove, text},
    verbs::is_finished,
};

/// `DeleteOptions`, from the body and the query.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct DeleteOptions {
    grace: Option<i64>,
    uid: String,
    revision: String,
    dry_run: bool,
}

impl DeleteOptions {
    /// Reads the options from a body and a query.
    pub(super) fn read(body: &Value, query: &Query) -> Self {
        let grace = body["gracePeriodSeconds"].as_i64();
        let dry_run = query.dry_run()
            || body["dryRun"]
                .as_array()
                .is_some_and(|list| list.iter().any(|one| one == "All"));
        Self {
            grace: grace.or_else(|| query.number("gracePeriodSeconds")),
            uid: text(body, "/preconditions/uid").to_owned(),
            revision: text(body, "/preconditions/resourceVersion").to_owned(),
            dry_run,
        }
    }
}

impl Server {
    /// Deletes an object or starts its deletion. Returns the object; if it was removed, a `Status`
    /// for most kinds.
    pub(super) fn delete(
        &self,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<Value, ApiError> {
        let mut storage = self.storage.lock();
        let deleted = self.delete_in(&mut storage, target, options)?;
        self.publish();
        Ok(deleted)
    }

    /// Deletes the objects that a list with this query returns.
    pub(super) fn delete_collection(
        &self,
        target: &Target,
        query: &Query,
        options: &DeleteOptions,
    ) -> Result<Value, ApiError> {
        let selectors = target.selectors(query)?;
        let mut storage = self.storage.lock();
        let selected = storage.list(target.resource, target.namespace.as_deref());
        let mut items = Vec::new();
        for (key, object) in selected {
            if selectors.match_object(&object) {
                let mut one = target.clone();
                one.name = Some(key.name.clone());
                one.namespace = Some(key.namespace.clone());
                self.delete_in(&mut storage, &one, options)?;
                items.push(to_shown(target.resource, &object));
            }
        }
        self.publish();
        Ok(json!({
            "kind": format!("{}List", target.resource.kind),
            "apiVersion": target.resource.api_version(),
            "metadata": {"resourceVersion": storage.revision().to_string()},
            "items": items,
        }))
    }

    fn delete_in(
        &self,
        storage: &mut Storage,
        target: &Target,
        options: &DeleteOptions,
    ) -> Result<Value, ApiError> {
        let resource = target.resource;
        let key = target.key()?;
        let old = storage
            .get(&key)
            .ok_or_else(|| ApiError::not_found(resource, &key.name))?;
        let uid = text(&old, "/metadata/uid");
        if !options.uid.is_empty() && options.uid != uid {
            let why = format!(
                "the UID in the precondition ({}) does not match the UID in record ({uid}). The object might have been deleted and then recreated",
                options.uid
            );
            return Err(ApiError::other_object(resource, &key.name, &why));
        }
        let revision = text(&old, "/metadata/resourceVersion");
        if !options.revision.is_empty() && options.revision != revision {
            let why = format!(
                "the ResourceVersion in the precondition ({}) does not match the ResourceVersion in record ({revision}). The object might have been modified",
                options.revision
            );
            return Err(ApiError::other_object(resource, &key.name, &why));
        }
        let mut next = Value::clone(&old);
        self.mark(resource.kind, &mut next, options.grace);
        if options.dry_run {
            return Ok(to_shown(resource, &next));
        }
        if is_finished(&next) {
            let gone = storage.remove(&key);
            self.after_write(storage, resource, &key);
            let gone = gone.ok_or_else(|| ApiError::not_found(resource, &key.name))?;
            // Upstream returns the object for these kinds and a `Status` for most others.
            return Ok(match resource.kind {
                "Pod"
                | "PersistentVolume"
                | "PersistentVolumeClaim"
                | "ServiceAccount"
                | "Service" => to_shown(resource, &next),
                _ => json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success",
                    "details": {
                        "name": key.name, "group": resource.group, "kind": resource.plural,
                        "uid": gone["metadata"]["uid"],
                    },
                }),
            });
        }
        if next == *old {
            return Ok(to_shown(resource, &old));
        }
        let stored = storage.put(key.clone(), next);
        let shown = to_shown(resource, &stored);
        if resource.kind == "Namespace" {
            self.empty_namespace(storage, &key.name)?;
        }
        Ok(shown)
    }

    /// Marks an object as being deleted. A repeated deletion can only shorten the grace period.
    fn mark(&self, kind: &str, object: &mut Value, asked: Option<i64>) {
        let pod = kind == "Pod";
        let metadata = &object["metadata"];
        if let Ok(deadline) = text(metadata, "/deletionTimestamp").parse::<Timestamp>() {
            let had = metadata["deletionGracePeriodSeconds"].as_i64();
            if let (Some(had), Some(asked)) = (had, asked)
                && asked < had
            {
                let asked = if asked < 0 { 1 } else { asked };
                object["metadata"]["deletionTimestamp"] = json!(after(deadline, asked - had));
                object["metadata"]["deletionGracePeriodSeconds"] = json!(asked);
            }
            return;
        }
        let grace = if pod { pods::grace(object, asked) } else { 0 };
        object["metadata"]["deletionTimestamp"] = json!(self.clock.text_after(grace));
        object["metadata"]["deletionGracePeriodSeconds"] = json!(grace);
        if let Some(generation) = object["metadata"]["generation"].as_i64() {
            object["metadata"]["generation"] = json!(generation + 1);
        }
        if kind == "Namespace" {
            object["status"]["phase"] = json!("Terminating");
            remove(&mut object["metadata"], "deletionGracePeriodSeconds");
        }
    }

    /// Deletes all objects in a namespace, and the namespace if none is left.
    fn empty_namespace(&self, storage: &mut Storage, namespace: &str) -> Result<(), ApiError> {
        for key in storage.in_namespace(namespace) {
            let Some(resource) = resources::RESOURCES
                .iter()
                .find(|resource| resource.qualified() == key.resource)
            else {
                continue;
            };
            let target = Target {
                resource,
                namespace: Some(key.namespace),
                name: Some(key.name),
                subresource: String::new(),
            };
            self.delete_in(storage, &target, &DeleteOptions::default())?;
        }
        self.finish_namespace(storage, namespace);
        Ok(())
    }

    /// Removes a namespace that is being deleted if it is empty.
    pub(super) fn finish_namespace(&self, storage: &mut Storage, namespace: &str) {
        let Some(resource) = resources::find("", "v1", "namespaces") else {
            return;
        };
        let key = Key::new(resource, "", namespace);
        let ending = storage
            .get(&key)
            .is_some_and(|one| one["metadata"]["deletionTimestamp"].is_string());
        if ending && !storage.holds_any(namespace) {
            storage.remove(&key);
        }
    }
}
