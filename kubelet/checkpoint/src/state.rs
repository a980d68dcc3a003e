//! The state of a checkpoint: its entries, and pending writes and removals.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use kubelet_pod_spec::{
    identity::{self, PodUid},
    known_status,
};
use tracing::warn;

use super::{
    entry::{Entry, EntryKind},
    fingerprint::{self, Fingerprint},
    references,
};

/// The pending operation of each file: a write of this content, or a removal.
pub(super) type Due = BTreeMap<Entry, Option<Vec<u8>>>;

/// The state of a checkpoint.
///
/// Invariant: once all pending operations are done, exactly the kept entries have a file.
#[derive(Debug, Default)]
pub(super) struct CheckpointState {
    kept: BTreeMap<Entry, KeptEntry>,
    /// The kept pods, except those whose file is corrupt.
    pods: BTreeMap<Entry, KeptPod>,
    /// The objects that are needed by pods which have not ended.
    named: BTreeSet<Entry>,
    due: Due,
    /// Operations that failed.
    failed: Due,
    /// Secrets are not kept because there is no key.
    is_keyless: bool,
    /// Whether the API server has listed the pods. Nothing is removed before.
    has_pod_list: bool,
}

#[derive(Debug, Default)]
struct KeptEntry {
    /// The version that was written; `None` if the next one must be written in any case.
    version: Option<String>,
    /// The entries that it refers to.
    names: BTreeSet<Entry>,
}

#[derive(Debug)]
struct KeptPod {
    pod: Arc<Pod>,
    /// The fingerprint of the written pod.
    fingerprint: Option<Fingerprint>,
    names: BTreeSet<Entry>,
}

/// An object from the API server.
pub(super) struct FetchedObject {
    pub(super) entry: Entry,
    /// Changes with the object; `None` if the object has no version.
    pub(super) version: Option<String>,
    pub(super) text: Vec<u8>,
    /// The entries that it refers to.
    pub(super) names: BTreeSet<Entry>,
}

impl CheckpointState {
    /// An empty state. Secrets are kept only if `keeps_secrets` is set.
    pub(super) fn new(keeps_secrets: bool) -> Self {
        Self {
            is_keyless: !keeps_secrets,
            ..Self::default()
        }
    }

    /// Adds an entry from an existing file, with its references.
    pub(super) fn found(&mut self, entry: Entry, names: BTreeSet<Entry>) {
        let kept = KeptEntry {
            version: None,
            names,
        };
        self.kept.insert(entry, kept);
    }

    /// Adds a pod that was read from its file.
    pub(super) fn found_pod(&mut self, entry: Entry, pod: Pod) {
        let kept = KeptPod {
            names: references::of_pod(&pod),
            fingerprint: fingerprint::fingerprint(&pod).ok(),
            pod: Arc::new(pod),
        };
        self.pods.insert(entry, kept);
    }

    /// The known pods.
    pub(super) fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods
            .values()
            .map(|kept| Arc::clone(&kept.pod))
            .collect()
    }

    /// Takes the pending operations.
    pub(super) fn take_due(&mut self) -> Due {
        mem::take(&mut self.due)
    }

    /// The pending or failed operation of an entry.
    pub(super) fn due(&self, entry: &Entry) -> Option<&Option<Vec<u8>>> {
        self.due.get(entry).or_else(|| self.failed.get(entry))
    }

    fn set_due(&mut self, entry: Entry, text: Option<Vec<u8>>) {
        self.failed.remove(&entry);
        self.due.insert(entry, text);
    }

    /// Records that an operation failed. It is dropped if another one is pending for the entry.
    pub(super) fn failed(&mut self, entry: &Entry, text: &Option<Vec<u8>>) {
        if !self.due.contains_key(entry) {
            self.failed.insert(entry.clone(), text.clone());
        }
    }

    /// Makes failed operations pending again.
    pub(super) fn retry(&mut self) {
        self.due.append(&mut self.failed);
    }

    /// Whether the API server has listed the pods.
    pub(super) const fn has_pod_list(&self) -> bool {
        self.has_pod_list
    }

    /// Records the complete list of pods.
    pub(super) fn set_pods(&mut self, pods: &[Arc<Pod>]) {
        let now: BTreeSet<Entry> = pods.iter().filter_map(|pod| self.write_pod(pod)).collect();
        let known = self
            .kept
            .keys()
            .filter(|entry| entry.kind() == EntryKind::Pod);
        let gone: Vec<Entry> = known
            .filter(|entry| !now.contains(*entry))
            .cloned()
            .collect();
        for entry in gone {
            self.forget(&entry);
        }
        self.has_pod_list = true;
        self.settle();
    }

    /// Records a pod that was added or modified.
    pub(super) fn put_pod(&mut self, pod: &Arc<Pod>) {
        self.write_pod(pod);
        self.settle();
    }

    /// Records that a pod was deleted.
    pub(super) fn remove_pod(&mut self, pod: &Pod) {
        let Some(entry) = Entry::of_pod(pod) else {
            return;
        };
        let known = self.pods.get(&entry);
        if known.is_none_or(|known| PodUid::of(&known.pod) == PodUid::of(pod)) {
            self.forget(&entry);
            self.settle();
        }
    }

    /// Records ended pods and started containers. The API server may learn of them only after a
    /// reboot.
    pub(super) fn note(&mut self, status: impl Fn(&PodUid) -> Option<Arc<PodStatus>>) {
        let running = self
            .pods
            .values()
            .filter(|k| !known_status::has_ended(&k.pod));
        let changed: Vec<Arc<Pod>> = running
            .filter_map(|kept| {
                let status = status(&PodUid::of(&kept.pod))?;
                with_progress(&kept.pod, &status)
            })
            .collect();
        for pod in &changed {
            self.write_pod(pod);
        }
        if !changed.is_empty() {
            self.settle();
        }
    }

    /// Schedules the write of a pod if it is kept and differs in what matters. Returns its entry.
    fn write_pod(&mut self, pod: &Arc<Pod>) -> Option<Entry> {
        if identity::is_mirror(pod) {
            return None;
        }
        let entry = Entry::of_pod(pod)?;
        let known = self.pods.get(&entry);
        let known = known.filter(|known| PodUid::of(&known.pod) == PodUid::of(pod));
        // A pod that has ended here stays so, even if the API server does not know it yet.
        let status = known.and_then(|known| known.pod.status.as_ref());
        let news = status.and_then(|status| with_progress(pod, status));
        let pod = news.unwrap_or_else(|| Arc::clone(pod));
        let written = fingerprint::fingerprint(&pod)
            .and_then(|fingerprint| Ok((fingerprint, serde_json::to_vec(&*pod)?)));
        let (fingerprint, text) = match written {
            Ok(written) => written,
            Err(error) => {
                warn!(
                    pod = identity::full_name(&pod), %error,
                    "cannot add a pod to the checkpoint"
                );
                return Some(entry);
            }
        };
        if known.is_some_and(|known| known.fingerprint == Some(fingerprint)) {
            return Some(entry);
        }
        let kept = KeptPod {
            names: references::of_pod(&pod),
            fingerprint: Some(fingerprint),
            pod,
        };
        self.pods.insert(entry.clone(), kept);
        self.kept.insert(entry.clone(), KeptEntry::default());
        self.set_due(entry.clone(), Some(text));
        Some(entry)
    }

    /// Whether the object is needed and its version is not written yet.
    pub(super) fn wants(&self, entry: &Entry, version: Option<&str>) -> bool {
        let kept = self.kept.get(entry);
        let kept = kept.and_then(|kept| kept.version.as_deref());
        self.is_needed(entry) && (version.is_none() || kept != version)
    }

    /// Schedules the write of an object.
    pub(super) fn keep(&mut self, fetched: FetchedObject) {
        let kept = KeptEntry {
            version: fetched.version,
            names: fetched.names,
        };
        let entry = fetched.entry;
        self.set_due(entry.clone(), Some(fetched.text));
        let before = self.kept.insert(entry.clone(), kept);
        let names = self.kept.get(&entry).map(|kept| &kept.names);
        if before.as_ref().map(|before| &before.names) != names {
            self.settle();
        }
    }

    /// Schedules the removal of a file.
    pub(super) fn forget(&mut self, entry: &Entry) {
        self.pods.remove(entry);
        if self.kept.remove(entry).is_some() {
            self.set_due(entry.clone(), None);
        }
    }

    /// Determines the needed entries, and removes all others once the API server has listed the
    /// pods.
    pub(super) fn settle(&mut self) {
        let going_on = self
            .pods
            .values()
            .filter(|k| !known_status::has_ended(&k.pod));
        let mut next: Vec<Entry> = going_on.flat_map(|kept| kept.names.clone()).collect();
        self.named.clear();
        while let Some(entry) = next.pop() {
            if let Some(kept) = self.kept.get(&entry) {
                let names = kept.names.iter();
                next.extend(names.filter(|name| !self.named.contains(*name)).cloned());
            }
            self.named.insert(entry);
        }
        if !self.has_pod_list {
            return;
        }
        let kept = self.kept.keys();
        let stale: Vec<Entry> = kept.filter(|e| !self.is_needed(e)).cloned().collect();
        for entry in stale {
            self.forget(&entry);
        }
    }

    fn is_needed(&self, entry: &Entry) -> bool {
        match entry.kind() {
            kind if kind.is_secret() && self.is_keyless => false,
            EntryKind::Node | EntryKind::Pod => true,
            EntryKind::Token => {
                let uid = entry.name().rsplit_once('.').map(|(uid, _)| uid);
                let mut pods = self.pods.values().map(|kept| &kept.pod);
                pods.any(|pod| pod.metadata.uid.as_deref() == uid && !known_status::has_ended(pod))
            }
            _ => self.named.contains(entry),
        }
    }
}

/// The pod with the changes of `known` that its own status lacks; `None` if there are none.
fn with_progress(pod: &Pod, known: &PodStatus) -> Option<Arc<Pod>> {
    let none = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&none);
    known_status::lacks_progress(status, known).then(|| {
        let status = known_status::with_progress_of(status.clone(), known);
        Arc::new(Pod {
            status: Some(status),
            ..pod.clone()
        })
    })
}

#[cfg(test)]
mod tests;
