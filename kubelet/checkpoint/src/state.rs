//! What is kept, and what is to be written of it.

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
    entry::{Entry, Kind},
    matters::{self, Fingerprint},
    references,
};

/// What is to be done with each file: it is written, or removed.
pub(super) type Due = BTreeMap<Entry, Option<Vec<u8>>>;

/// What is kept.
///
/// Invariant: once all that is due is done, there is a file of each entry that is kept, and
/// of no other.
#[derive(Debug, Default)]
pub(super) struct State {
    kept: BTreeMap<Entry, Kept>,
    /// Those of the kept pods that are known; a corrupt file's is not.
    pods: BTreeMap<Entry, KeptPod>,
    /// What pods that are not over need beside themselves.
    named: BTreeSet<Entry>,
    due: Due,
    /// What was due, and could not be done.
    failed: Due,
    /// There is no key to what is secret: that is of no use to anybody.
    is_keyless: bool,
    /// Whether the API server has said which pods there are. Nothing goes before.
    is_told: bool,
}

#[derive(Debug, Default)]
struct Kept {
    /// The version that was written; `None` if whatever comes is to be written.
    version: Option<String>,
    /// What it leads to.
    names: BTreeSet<Entry>,
}

#[derive(Debug)]
struct KeptPod {
    pod: Arc<Pod>,
    /// Of what was written.
    fingerprint: Option<Fingerprint>,
    names: BTreeSet<Entry>,
}

/// An object that the API server gave.
pub(super) struct Answered {
    pub(super) entry: Entry,
    /// Changes with it; `None` if it has no version.
    pub(super) version: Option<String>,
    pub(super) text: Vec<u8>,
    /// What it leads to.
    pub(super) names: BTreeSet<Entry>,
}

impl State {
    /// Nothing is kept yet; nor will be what is secret, unless `keeps_secrets`.
    pub(super) fn new(keeps_secrets: bool) -> Self {
        Self {
            is_keyless: !keeps_secrets,
            ..Self::default()
        }
    }

    /// There is a file of this entry, which leads to `names`.
    pub(super) fn found(&mut self, entry: Entry, names: BTreeSet<Entry>) {
        let kept = Kept {
            version: None,
            names,
        };
        self.kept.insert(entry, kept);
    }

    /// There is a file of this pod, which is good.
    pub(super) fn found_pod(&mut self, entry: Entry, pod: Pod) {
        let kept = KeptPod {
            names: references::of_pod(&pod),
            fingerprint: matters::fingerprint(&pod).ok(),
            pod: Arc::new(pod),
        };
        self.pods.insert(entry, kept);
    }

    /// The pods that are known.
    pub(super) fn pods(&self) -> Vec<Arc<Pod>> {
        self.pods
            .values()
            .map(|kept| Arc::clone(&kept.pod))
            .collect()
    }

    /// What is to be done with files.
    pub(super) fn take_due(&mut self) -> Due {
        mem::take(&mut self.due)
    }

    /// What is still to be done with a file.
    pub(super) fn due(&self, entry: &Entry) -> Option<&Option<Vec<u8>>> {
        self.due.get(entry).or_else(|| self.failed.get(entry))
    }

    fn set_due(&mut self, entry: Entry, text: Option<Vec<u8>>) {
        self.failed.remove(&entry);
        self.due.insert(entry, text);
    }

    /// What was due of an entry could not be done. It is forgotten if something else is due
    /// by now.
    pub(super) fn failed(&mut self, entry: &Entry, text: &Option<Vec<u8>>) {
        if !self.due.contains_key(entry) {
            self.failed.insert(entry.clone(), text.clone());
        }
    }

    /// Has done what could not be done before.
    pub(super) fn retry(&mut self) {
        self.due.append(&mut self.failed);
    }

    /// Whether the API server has said which pods there are.
    pub(super) const fn is_told(&self) -> bool {
        self.is_told
    }

    /// These are all pods.
    pub(super) fn set_pods(&mut self, pods: &[Arc<Pod>]) {
        let now: BTreeSet<Entry> = pods.iter().filter_map(|pod| self.write_pod(pod)).collect();
        let known = self.kept.keys().filter(|entry| entry.kind() == Kind::Pod);
        let gone: Vec<Entry> = known
            .filter(|entry| !now.contains(*entry))
            .cloned()
            .collect();
        for entry in gone {
            self.forget(&entry);
        }
        self.is_told = true;
        self.settle();
    }

    /// This pod is new, or another than before.
    pub(super) fn put_pod(&mut self, pod: &Arc<Pod>) {
        self.write_pod(pod);
        self.settle();
    }

    /// This pod is gone.
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

    /// Has the pods that have ended by now kept as such, and the containers that were
    /// started: the API server may hear of it only after a reboot.
    pub(super) fn note(&mut self, status: impl Fn(&PodUid) -> Option<Arc<PodStatus>>) {
        let running = self
            .pods
            .values()
            .filter(|k| !known_status::has_ended(&k.pod));
        let changed: Vec<Arc<Pod>> = running
            .filter_map(|kept| {
                let status = status(&PodUid::of(&kept.pod))?;
                with_news(&kept.pod, &status)
            })
            .collect();
        for pod in &changed {
            self.write_pod(pod);
        }
        if !changed.is_empty() {
            self.settle();
        }
    }

    /// Has a pod written, if it is to be kept and another in what matters.
    fn write_pod(&mut self, pod: &Arc<Pod>) -> Option<Entry> {
        if identity::is_mirror(pod) {
            return None;
        }
        let entry = Entry::of_pod(pod)?;
        let known = self.pods.get(&entry);
        let known = known.filter(|known| PodUid::of(&known.pod) == PodUid::of(pod));
        // What has ended here has, though the API server does not know yet.
        let status = known.and_then(|known| known.pod.status.as_ref());
        let news = status.and_then(|status| with_news(pod, status));
        let pod = news.unwrap_or_else(|| Arc::clone(pod));
        let written = matters::fingerprint(&pod)
            .and_then(|fingerprint| Ok((fingerprint, serde_json::to_vec(&*pod)?)));
        let (fingerprint, text) = match written {
            Ok(written) => written,
            Err(error) => {
                warn!(pod = identity::full_name(&pod), %error, "a pod cannot be kept");
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
        self.kept.insert(entry.clone(), Kept::default());
        self.set_due(entry.clone(), Some(text));
        Some(entry)
    }

    /// Whether an object is to be kept that is not kept as it is now.
    pub(super) fn wants(&self, entry: &Entry, version: Option<&str>) -> bool {
        let kept = self.kept.get(entry);
        let kept = kept.and_then(|kept| kept.version.as_deref());
        self.is_needed(entry) && (version.is_none() || kept != version)
    }

    /// Has an object written.
    pub(super) fn keep(&mut self, answered: Answered) {
        let kept = Kept {
            version: answered.version,
            names: answered.names,
        };
        let entry = answered.entry;
        self.set_due(entry.clone(), Some(answered.text));
        let before = self.kept.insert(entry.clone(), kept);
        let names = self.kept.get(&entry).map(|kept| &kept.names);
        if before.as_ref().map(|before| &before.names) != names {
            self.settle();
        }
    }

    /// Has a file removed.
    pub(super) fn forget(&mut self, entry: &Entry) {
        self.pods.remove(entry);
        if self.kept.remove(entry).is_some() {
            self.set_due(entry.clone(), None);
        }
    }

    /// Finds what is needed, and has everything else removed.
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
        if !self.is_told {
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
            Kind::Node | Kind::Pod => true,
            Kind::Token => {
                let uid = entry.name().rsplit_once('.').map(|(uid, _)| uid);
                let mut pods = self.pods.values().map(|kept| &kept.pod);
                pods.any(|pod| pod.metadata.uid.as_deref() == uid && !known_status::has_ended(pod))
            }
            _ => self.named.contains(entry),
        }
    }
}

/// The pod with what `known` says of it that its own status does not; `None` if that is
/// nothing.
fn with_news(pod: &Pod, known: &PodStatus) -> Option<Arc<Pod>> {
    let none = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&none);
    known_status::is_news(status, known).then(|| {
        let status = known_status::with_known(status.clone(), known);
        Arc::new(Pod {
            status: Some(status),
            ..pod.clone()
        })
    })
}

#[cfg(test)]
mod tests;
