//! An immutable state of the model.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
};

use super::record::{Container, Record, Sandbox};
use crate::LookupError;

/// A Docker container id: 64 hexadecimal digits.
pub type Id = Arc<str>;

/// All sandboxes and containers at one point in time. Cloning copies only pointers.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    sandboxes: BTreeMap<Id, Arc<Sandbox>>,
    containers: BTreeMap<Id, Arc<Container>>,
    /// Pairs of sandbox id and container id.
    by_sandbox: BTreeSet<(Id, Id)>,
}

impl Snapshot {
    /// All sandboxes, by id.
    pub fn sandboxes(&self) -> impl Iterator<Item = &Arc<Sandbox>> {
        self.sandboxes.values()
    }

    /// All containers, by id.
    pub fn containers(&self) -> impl Iterator<Item = &Arc<Container>> {
        self.containers.values()
    }

    /// The containers of the sandbox with the full id `sandbox`.
    pub fn containers_of(&self, sandbox: &str) -> impl Iterator<Item = &Arc<Container>> {
        let sandbox: Id = sandbox.into();
        let first = (Arc::clone(&sandbox), Id::from(""));
        self.by_sandbox
            .range(first..)
            .take_while(move |(of, _)| *of == sandbox)
            .filter_map(|(_, id)| self.containers.get(id))
    }

    /// The sandbox with this id, or the only one whose id starts with it.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn sandbox(&self, id: &str) -> Result<Arc<Sandbox>, LookupError> {
        find(&self.sandboxes, id).cloned()
    }

    /// The container with this id, or the only one whose id starts with it.
    ///
    /// # Errors
    /// See [`LookupError`].
    pub fn container(&self, id: &str) -> Result<Arc<Container>, LookupError> {
        find(&self.containers, id).cloned()
    }

    /// All full ids.
    pub fn ids(&self) -> impl Iterator<Item = &Id> {
        self.sandboxes.keys().chain(self.containers.keys())
    }

    /// Checks whether there is a record with this full id.
    pub fn contains(&self, id: &str) -> bool {
        self.sandboxes.contains_key(id) || self.containers.contains_key(id)
    }

    /// Checks whether the record of `id` already equals `record`.
    pub(super) fn holds(&self, id: &str, record: Option<&Record>) -> bool {
        match record {
            Some(Record::Sandbox(new)) => self.sandboxes.get(id).is_some_and(|old| old == new),
            Some(Record::Container(new)) => self.containers.get(id).is_some_and(|old| old == new),
            None => !self.contains(id),
        }
    }

    pub(crate) fn set(&mut self, id: &Id, record: Option<Record>) {
        match record {
            Some(Record::Sandbox(new)) => {
                self.sandboxes.insert(Arc::clone(id), new);
            }
            Some(Record::Container(new)) => {
                self.by_sandbox
                    .insert((new.sandbox_id.as_str().into(), Arc::clone(id)));
                self.containers.insert(Arc::clone(id), new);
            }
            None => {
                self.sandboxes.remove(id);
                if let Some(old) = self.containers.remove(id) {
                    self.by_sandbox
                        .remove(&(old.sandbox_id.as_str().into(), Arc::clone(id)));
                }
            }
        }
    }
}

fn find<'a, T>(map: &'a BTreeMap<Id, T>, id: &str) -> Result<&'a T, LookupError> {
    if let Some(exact) = map.get(id) {
        return Ok(exact);
    }
    if id.is_empty() {
        return Err(LookupError::Missing);
    }
    let mut fitting = map
        .range::<str, _>((Bound::Included(id), Bound::Unbounded))
        .take_while(|(full, _)| full.starts_with(id));
    match (fitting.next(), fitting.next()) {
        (Some((_, only)), None) => Ok(only),
        (Some(_), Some(_)) => Err(LookupError::Ambiguous),
        (None, _) => Err(LookupError::Missing),
    }
}
