//! What is kept, and what is to be written of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::Arc,
};

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use tracing::warn;

use super::{
    entry::{Entry, Kind},
    matters::{self, Fingerprint},
    references,
};
use crate::pod::identity::{self, PodUid};

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
        self.due.get(entry)
    }

    /// The file of an entry is not as it is to be.
    pub(super) fn failed(&mut self, entry: &Entry) {
        if let Some(kept) = self.kept.get_mut(entry) {
            kept.version = None;
        }
        if let Some(kept) = self.pods.get_mut(entry) {
            kept.fingerprint = None;
        }
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

    /// Has the pods that have ended by now kept as such: the API server may hear of it only
    /// after a reboot.
    pub(super) fn note_ends(&mut self, status: impl Fn(&PodUid) -> Option<Arc<PodStatus>>) {
        let running = self.pods.values().filter(|k| !matters::has_ended(&k.pod));
        let ended: Vec<Arc<Pod>> = running
            .filter_map(|kept| {
                let status = status(&PodUid::of(&kept.pod))?;
                matters::is_end(&status).then(|| with_status(&kept.pod, &status))
            })
            .collect();
        for pod in &ended {
            self.write_pod(pod);
        }
        if !ended.is_empty() {
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
        let pod = match known.and_then(|known| known.pod.status.as_ref()) {
            Some(status) if matters::is_end(status) && !matters::has_ended(pod) => {
                with_status(pod, status)
            }
            _ => Arc::clone(pod),
        };
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
        self.due.insert(entry.clone(), Some(text));
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
        self.due.insert(entry.clone(), Some(answered.text));
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
            self.due.insert(entry.clone(), None);
        }
    }

    /// Finds what is needed, and has everything else removed.
    pub(super) fn settle(&mut self) {
        let going_on = self.pods.values().filter(|k| !matters::has_ended(&k.pod));
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
            Kind::Node | Kind::Pod => true,
            Kind::Token => {
                let uid = entry.name().rsplit_once('.').map(|(uid, _)| uid);
                let mut pods = self.pods.values().map(|kept| &kept.pod);
                pods.any(|pod| pod.metadata.uid.as_deref() == uid && !matters::has_ended(pod))
            }
            _ => self.named.contains(entry),
        }
    }
}

fn with_status(pod: &Pod, status: &PodStatus) -> Arc<Pod> {
    let mut pod = pod.clone();
    pod.status = Some(status.clone());
    Arc::new(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, uid: &str, config_map: &str, status: Value) -> Arc<Pod> {
        let pod = json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": {"containers": [], "volumes": [{"name": "v", "configMap": {"name": config_map}}]},
            "status": status
        });
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn entry(kind: Kind, name: &str) -> Entry {
        let namespace = if kind.is_namespaced() { "default" } else { "" };
        Entry::new(kind, namespace, name).unwrap()
    }

    fn answered(entry: &Entry, version: &str, names: &[Entry]) -> Answered {
        Answered {
            entry: entry.clone(),
            version: Some(version.to_owned()),
            text: version.as_bytes().to_vec(),
            names: names.iter().cloned().collect(),
        }
    }

    /// What was due: `true` for what is written.
    fn due(state: &mut State) -> Vec<(String, bool)> {
        let due = state.take_due().into_iter();
        due.map(|(entry, text)| (entry.to_string(), text.is_some()))
            .collect()
    }

    #[test]
    fn a_pod_is_written_when_it_changes_and_removed_with_what_it_named() {
        let mut state = State::default();
        let web = pod("web", "1", "settings", json!({"phase": "Pending"}));
        state.set_pods(std::slice::from_ref(&web));
        assert_eq!(due(&mut state), [("pods/default/web".to_owned(), true)]);
        let settings = entry(Kind::ConfigMap, "settings");
        assert!(state.wants(&settings, Some("1")));
        assert!(!state.wants(&entry(Kind::ConfigMap, "other"), Some("1")));
        state.keep(answered(&settings, "1", &[]));
        assert_eq!(due(&mut state), [(settings.to_string(), true)]);
        assert!(!state.wants(&settings, Some("1")));
        assert!(state.wants(&settings, Some("2")));

        state.put_pod(&pod("web", "1", "settings", json!({"phase": "Running"})));
        assert_eq!(due(&mut state), []);
        state.remove_pod(&pod("web", "another", "settings", json!({})));
        assert_eq!(due(&mut state), []);
        state.put_pod(&pod("web", "1", "others", json!({"phase": "Running"})));
        assert_eq!(
            due(&mut state),
            [
                ("pods/default/web".to_owned(), true),
                (settings.to_string(), false)
            ]
        );
        state.remove_pod(&web);
        assert_eq!(due(&mut state), [("pods/default/web".to_owned(), false)]);
    }

    #[test]
    fn an_end_stays_whatever_the_server_has() {
        let mut state = State::default();
        let running = pod("job", "1", "settings", json!({"phase": "Running"}));
        state.set_pods(std::slice::from_ref(&running));
        let succeeded = json!({"phase": "Succeeded"});
        let status: Arc<PodStatus> = Arc::new(serde_json::from_value(succeeded).unwrap());
        state.note_ends(|_| Some(Arc::clone(&status)));
        assert!(matters::has_ended(&state.pods()[0]));
        assert!(!state.wants(&entry(Kind::ConfigMap, "settings"), None));
        due(&mut state);
        state.set_pods(std::slice::from_ref(&running));
        assert_eq!(due(&mut state), []);
        assert!(matters::has_ended(&state.pods()[0]));
        // Another one of the name is another one.
        let next = pod("job", "2", "settings", json!({"phase": "Pending"}));
        state.set_pods(std::slice::from_ref(&next));
        assert!(!matters::has_ended(&state.pods()[0]));
    }

    #[test]
    fn nothing_goes_until_the_server_has_spoken() {
        let mut state = State::default();
        let (claim, volume) = (entry(Kind::Claim, "data"), entry(Kind::Volume, "pv"));
        let (token, corrupt) = (entry(Kind::Token, "1.ab"), entry(Kind::Pod, "corrupt"));
        let web = entry(Kind::Pod, "web");
        for entry in [&volume, &token, &corrupt, &web] {
            state.found(entry.clone(), BTreeSet::new());
        }
        state.found(claim.clone(), [volume.clone()].into());
        let mut spec = Pod::clone(&pod("web", "1", "settings", json!({})));
        let claims = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
        spec.spec.get_or_insert_default().volumes = serde_json::from_value(claims).unwrap();
        state.found_pod(web, spec.clone());
        state.settle();
        assert_eq!(due(&mut state), []);

        state.set_pods(&[Arc::new(spec)]);
        assert_eq!(due(&mut state), [(corrupt.to_string(), false)]);
        assert!(state.wants(&volume, Some("1")) && state.wants(&token, None));
        state.set_pods(&[]);
        let gone: Vec<String> = due(&mut state).into_iter().map(|(name, _)| name).collect();
        assert_eq!(
            gone,
            [
                "pods/default/web",
                "tokens/default/1.ab",
                "persistentvolumeclaims/default/data",
                "persistentvolumes/pv",
            ]
        );
    }

    #[test]
    fn what_failed_to_be_written_is_written_again() {
        let mut state = State::default();
        let web = pod("web", "1", "settings", json!({}));
        state.set_pods(std::slice::from_ref(&web));
        due(&mut state);
        state.put_pod(&web);
        assert_eq!(due(&mut state), []);
        state.failed(&entry(Kind::Pod, "web"));
        state.put_pod(&web);
        assert_eq!(due(&mut state).len(), 1);
    }
}
