//! The store: objects by resource, namespace and name, a common revision counter, and recent
//! changes for watches.

use std::{
    collections::{BTreeMap, VecDeque},
    ops::Bound,
    sync::Arc,
};

use serde_json::{Value, json};

use super::resources::Resource;

/// The number of changes that are kept for watches that resume.
const KEPT_CHANGES: usize = 20_000;

/// The key of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    /// [`Resource::qualified`] of the stored resource.
    pub resource: String,
    /// The namespace; empty for cluster-scoped objects.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl Key {
    /// Creates the key of an object.
    pub(super) fn new(resource: &'static Resource, namespace: &str, name: &str) -> Self {
        let resource = resource.stored();
        Self {
            resource: resource.qualified(),
            namespace: if resource.namespaced { namespace } else { "" }.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// The type of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChangeType {
    /// The object was created.
    Added,
    /// The object was modified.
    Modified,
    /// The object was deleted.
    Deleted,
}

/// A change, for watches.
#[derive(Debug, Clone)]
pub(super) struct Change {
    /// The revision of the change.
    pub revision: u64,
    /// The type of the change.
    pub change_type: ChangeType,
    /// The key of the object.
    pub key: Key,
    /// The object after the change; the last state of a deleted object.
    pub object: Arc<Value>,
    /// The object before the change.
    pub previous: Option<Arc<Value>>,
}

/// The error for a revision that has been compacted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Compacted {
    /// The oldest revision from which a watch can resume.
    pub oldest: u64,
}

/// The objects and their changes.
#[derive(Debug, Default)]
pub(super) struct Storage {
    revision: u64,
    compacted: u64,
    objects: BTreeMap<Key, Arc<Value>>,
    changes: VecDeque<Change>,
}

impl Storage {
    /// The revision of the latest change.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The oldest revision from which a watch can resume.
    pub(super) fn compacted(&self) -> u64 {
        self.compacted
    }

    /// Discards all changes up to now: watches from earlier revisions expire.
    pub(super) fn compact(&mut self) {
        self.changes.clear();
        self.compacted = self.revision;
    }

    /// The object at a key.
    pub(super) fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.objects.get(key).cloned()
    }

    /// The objects of a resource in key order, in one namespace or in all.
    pub(super) fn list(
        &self,
        resource: &'static Resource,
        namespace: Option<&str>,
    ) -> Vec<(Key, Arc<Value>)> {
        let first = Key::new(resource, namespace.unwrap_or_default(), "");
        self.objects
            .range((Bound::Included(first.clone()), Bound::Unbounded))
            .take_while(|(key, _)| {
                key.resource == first.resource
                    && namespace.is_none_or(|_| key.namespace == first.namespace)
            })
            .map(|(key, object)| (key.clone(), Arc::clone(object)))
            .collect()
    }

    /// Whether a namespace contains objects.
    pub(super) fn holds_any(&self, namespace: &str) -> bool {
        self.objects.keys().any(|key| key.namespace == namespace)
    }

    /// The keys of all objects in a namespace.
    pub(super) fn in_namespace(&self, namespace: &str) -> Vec<Key> {
        self.objects
            .keys()
            .filter(|key| key.namespace == namespace)
            .cloned()
            .collect()
    }

    /// Stores an object with the next revision.
    pub(super) fn put(&mut self, key: Key, mut object: Value) -> Arc<Value> {
        self.revision += 1;
        stamp(&mut object, self.revision);
        let object = Arc::new(object);
        let previous = self.objects.insert(key.clone(), Arc::clone(&object));
        let change_type = if previous.is_some() {
            ChangeType::Modified
        } else {
            ChangeType::Added
        };
        self.record(change_type, key, Arc::clone(&object), previous);
        object
    }

    /// Removes an object. Returns its last state with the revision of the removal.
    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<Value>> {
        let previous = self.objects.remove(key)?;
        self.revision += 1;
        let mut object = Value::clone(&previous);
        stamp(&mut object, self.revision);
        let object = Arc::new(object);
        self.record(
            ChangeType::Deleted,
            key.clone(),
            Arc::clone(&object),
            Some(previous),
        );
        Some(object)
    }

    /// The changes after `revision`, in order.
    pub(super) fn changes_after(
        &self,
        revision: u64,
    ) -> Result<impl Iterator<Item = &Change>, Compacted> {
        if revision < self.compacted {
            return Err(Compacted {
                oldest: self.compacted,
            });
        }
        let first = self
            .changes
            .partition_point(|change| change.revision <= revision);
        Ok(self.changes.range(first..))
    }

    fn record(
        &mut self,
        change_type: ChangeType,
        key: Key,
        object: Arc<Value>,
        previous: Option<Arc<Value>>,
    ) {
        self.changes.push_back(Change {
            revision: self.revision,
            change_type,
            key,
            object,
            previous,
        });
        if self.changes.len() > KEPT_CHANGES
            && let Some(oldest) = self.changes.pop_front()
        {
            self.compacted = oldest.revision;
        }
    }
}

fn stamp(object: &mut Value, revision: u64) {
    object["metadata"]["resourceVersion"] = json!(revision.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::find;

    fn key(namespace: &str, name: &str) -> Key {
        Key::new(find("", "v1", "pods").unwrap(), namespace, name)
    }

    #[test]
    fn every_write_takes_a_revision_of_its_own() {
        let mut storage = Storage::default();
        storage.put(key("a", "x"), json!({"metadata": {}}));
        storage.put(key("b", "x"), json!({"metadata": {}}));
        let gone = storage.remove(&key("a", "x")).unwrap();
        assert_eq!(gone["metadata"]["resourceVersion"], "3");
        let change_type: Vec<_> = storage
            .changes_after(1)
            .unwrap()
            .map(|change| (change.revision, change.change_type))
            .collect();
        assert_eq!(
            change_type,
            [(2, ChangeType::Added), (3, ChangeType::Deleted)]
        );
        let pods = find("", "v1", "pods").unwrap();
        assert_eq!(storage.list(pods, None).len(), 1);
        assert_eq!(storage.list(pods, Some("a")).len(), 0);
    }

    #[test]
    fn what_was_compacted_cannot_be_resumed_from() {
        let mut storage = Storage::default();
        storage.put(key("a", "x"), json!({"metadata": {}}));
        storage.put(key("a", "y"), json!({"metadata": {}}));
        storage.compact();
        assert!(storage.changes_after(1).is_err());
        assert_eq!(storage.changes_after(2).unwrap().count(), 0);
    }
}
