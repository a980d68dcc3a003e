//! Each pod's part of a list of the runtime, and the changes between two lists.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
};

use cri_proto::runtime::v1;
use kubelet_cri_client::pod_status::{self, ContainerState};
use kubelet_pod_spec::identity::PodUid;

use super::{ChangeKind, ContainerChange};

/// The pods of one list.
pub type Records = BTreeMap<PodUid, Arc<PodRecord>>;

/// The sandboxes and containers of one pod in a list, sorted by ID.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PodRecord {
    /// Name of the pod; empty when only containers are left.
    pub name: String,
    /// Namespace of the pod; empty when only containers are left.
    pub namespace: String,
    /// ID of each sandbox, and whether it is ready.
    pub sandboxes: Vec<(String, bool)>,
    /// Its containers.
    pub containers: Vec<ContainerRecord>,
    /// Whether a sandbox or container lacks the label with the pod's UID: it was not created by a
    /// kubelet, and a list by label would not include it.
    pub is_foreign: bool,
}

impl PodRecord {
    /// Whether a sandbox is ready, or a container has not exited.
    pub fn runs(&self) -> bool {
        let mut sandboxes = self.sandboxes.iter();
        let mut containers = self.containers.iter();
        sandboxes.any(|(_, is_ready)| *is_ready)
            || containers.any(|container| container.state != ContainerState::Exited)
    }

    /// Whether a container runs.
    pub fn has_running(&self) -> bool {
        let mut containers = self.containers.iter();
        containers.any(|container| container.state == ContainerState::Running)
    }

    /// Whether a sandbox or container of the pod does not run.
    pub fn has_dead(&self) -> bool {
        let mut sandboxes = self.sandboxes.iter();
        let mut containers = self.containers.iter();
        sandboxes.any(|(_, is_ready)| !is_ready)
            || containers.any(|container| container.state != ContainerState::Running)
    }
}

/// A container in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ContainerRecord {
    /// ID in the runtime.
    pub id: String,
    /// Sandbox that it was created in.
    pub sandbox_id: String,
    /// State in the list.
    pub state: ContainerState,
}

/// Groups sandboxes and containers by pod. Those without a pod UID do not belong to the kubelet.
pub fn group(sandboxes: Vec<v1::PodSandbox>, containers: Vec<v1::Container>) -> Records {
    let mut records: BTreeMap<PodUid, PodRecord> = BTreeMap::new();
    let mut owners = HashMap::with_capacity(sandboxes.len());
    for sandbox in sandboxes {
        let ready = sandbox.state() == v1::PodSandboxState::SandboxReady;
        let labelled = pod_status::uid_of(&sandbox.labels);
        let Some(metadata) = sandbox.metadata else {
            continue;
        };
        let Some(uid) = PodUid::parse(&metadata.uid) else {
            continue;
        };
        owners.insert(sandbox.id.clone(), uid.clone());
        let record = records.entry(uid).or_default();
        record.is_foreign |= labelled.is_none_or(|labelled| labelled.as_str() != metadata.uid);
        record.name = metadata.name;
        record.namespace = metadata.namespace;
        record.sandboxes.push((sandbox.id, ready));
    }
    for container in containers {
        let state = container.state().into();
        let labelled = pod_status::uid_of(&container.labels);
        let is_foreign = labelled.is_none();
        let Some(uid) = labelled.or_else(|| owners.get(&container.pod_sandbox_id).cloned()) else {
            continue;
        };
        let record = records.entry(uid).or_default();
        record.is_foreign |= is_foreign;
        record.containers.push(ContainerRecord {
            id: container.id,
            sandbox_id: container.pod_sandbox_id,
            state,
        });
    }
    for record in records.values_mut() {
        record.sandboxes.sort_unstable();
        record.containers.sort_unstable_by(|a, b| a.id.cmp(&b.id));
    }
    let records = records.into_iter();
    records
        .map(|(uid, record)| (uid, Arc::new(record)))
        .collect()
}

impl PodRecord {
    /// Whether the runtime has nothing of the pod.
    pub(super) fn is_empty(&self) -> bool {
        self.sandboxes.is_empty() && self.containers.is_empty()
    }

    /// The changes from `self` to `new`, sandboxes included.
    pub(super) fn changes(&self, new: &Self) -> Vec<ContainerChange> {
        let before: BTreeMap<&str, ContainerState> = self.states().collect();
        let after: BTreeMap<&str, ContainerState> = new.states().collect();
        let changed = after.iter().filter_map(|(id, state)| {
            let old = before.get(id);
            let kind = match state {
                _ if old == Some(state) => return None,
                ContainerState::Running => ChangeKind::Started,
                ContainerState::Exited => ChangeKind::Died,
                ContainerState::Created => ChangeKind::Created,
                ContainerState::Unknown => ChangeKind::Lost,
            };
            Some(ContainerChange {
                id: (*id).to_owned(),
                kind,
            })
        });
        let removed = before
            .keys()
            .filter(|id| !after.contains_key(*id))
            .map(|id| ContainerChange {
                id: (*id).to_owned(),
                kind: ChangeKind::Removed,
            });
        changed.chain(removed).collect()
    }

    fn states(&self) -> impl Iterator<Item = (&str, ContainerState)> {
        let sandboxes = self.sandboxes.iter().map(|(id, ready)| {
            let state = if *ready {
                ContainerState::Running
            } else {
                ContainerState::Exited
            };
            (id.as_str(), state)
        });
        let containers = self.containers.iter().map(|c| (c.id.as_str(), c.state));
        sandboxes.chain(containers)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sandbox(id: &str, uid: &str) -> v1::PodSandbox {
        v1::PodSandbox {
            id: id.to_owned(),
            metadata: Some(v1::PodSandboxMetadata {
                uid: uid.to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }
    }

    fn container(id: &str, sandbox: &str, state: v1::ContainerState) -> v1::Container {
        v1::Container {
            id: id.to_owned(),
            pod_sandbox_id: sandbox.to_owned(),
            state: state.into(),
            labels: BTreeMap::new(),
            ..Default::default()
        }
    }

    #[test]
    fn containers_without_labels_belong_to_the_pod_of_their_sandbox() {
        let records = group(
            vec![sandbox("s", "pod")],
            vec![
                container("c", "s", v1::ContainerState::ContainerRunning),
                container("stray", "gone", v1::ContainerState::ContainerRunning),
            ],
        );
        assert_eq!(records.len(), 1);
        assert_eq!(records[&PodUid::from("pod")].containers.len(), 1);
    }

    #[test]
    fn what_cannot_name_the_directory_of_a_pod_is_no_pod() {
        for uid in ["", ".", "..", "../../etc"] {
            assert!(
                group(vec![sandbox("s", uid)], Vec::new()).is_empty(),
                "{uid}"
            );
        }
    }

    #[test]
    fn changes_name_each_container_once() {
        let list = |state| {
            group(vec![sandbox("s", "pod")], vec![container("c", "s", state)])
                .remove(&PodUid::from("pod"))
                .unwrap()
        };
        let running = list(v1::ContainerState::ContainerRunning);
        assert_eq!(running.changes(&running), []);
        let died = running.changes(&list(v1::ContainerState::ContainerExited));
        assert_eq!(died.len(), 1);
        assert_eq!((died[0].id.as_str(), died[0].kind), ("c", ChangeKind::Died));
        let gone = running.changes(&PodRecord::default());
        assert!(gone.iter().all(|c| c.kind == ChangeKind::Removed));
        assert_eq!(gone.len(), 2);
    }
}
