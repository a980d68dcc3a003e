//! Differences between the engine's list and the model, which occur when events are lost.

use std::{
    collections::HashSet,
    sync::atomic::{AtomicU64, Ordering},
};

use bollard::models::{ContainerSummary, ContainerSummaryStateEnum as Listed};
use cri_proto::runtime::v1::{ContainerState, PodSandboxState};

use super::{Id, Record, Sandbox, Snapshot};

/// A kind of difference between the model and the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The engine has a container that the model does not.
    Unknown,
    /// The model has a container that the engine does not.
    Gone,
    /// The states differ.
    State,
    /// The Docker names differ.
    Name,
    /// The first process has changed.
    Process,
}

/// How often each [`Difference`] was found.
#[derive(Debug, Default)]
pub struct Differences([AtomicU64; Difference::ALL.len()]);

// === impl Difference ===

impl Difference {
    const ALL: [Self; 5] = [
        Self::Unknown,
        Self::Gone,
        Self::State,
        Self::Name,
        Self::Process,
    ];

    /// The kind's name in metrics and logs.
    pub const fn kind(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Gone => "gone",
            Self::State => "state",
            Self::Name => "name",
            Self::Process => "process",
        }
    }
}

// === impl Differences ===

impl Differences {
    pub(crate) fn count(&self, difference: Difference) {
        self.0[difference as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The counts by kind.
    pub fn counts(&self) -> [(&'static str, u64); Difference::ALL.len()] {
        Difference::ALL.map(|difference| {
            let count = &self.0[difference as usize];
            (difference.kind(), count.load(Ordering::Relaxed))
        })
    }
}

/// The differences between `snapshot` and the engine's list.
pub(crate) fn differences(
    snapshot: &Snapshot,
    listed: &[ContainerSummary],
) -> Vec<(Id, Difference)> {
    let mut found = Vec::new();
    let mut ids = HashSet::with_capacity(listed.len());
    for summary in listed {
        let Some(id) = summary.id.as_deref() else {
            continue;
        };
        ids.insert(id);
        let name = summary.names.as_ref().and_then(|names| names.first());
        let is_other = |known: &str| name.is_some_and(|name| !name.is_empty() && name != known);
        let difference = if let Ok(sandbox) = snapshot.sandbox(id) {
            if !fits_sandbox(summary.state, &sandbox) {
                Some(Difference::State)
            } else {
                is_other(&sandbox.docker_name).then_some(Difference::Name)
            }
        } else if let Ok(container) = snapshot.container(id) {
            if !fits_container(summary.state, container.status.state()) {
                Some(Difference::State)
            } else {
                is_other(&container.docker_name).then_some(Difference::Name)
            }
        } else {
            let ours = Record::from_summary(summary.clone()).is_some();
            ours.then_some(Difference::Unknown)
        };
        found.extend(difference.map(|difference| (Id::from(id), difference)));
    }
    let gone = snapshot.ids().filter(|id| !ids.contains(&***id));
    found.extend(gone.map(|id| (Id::clone(id), Difference::Gone)));
    found
}

fn fits_sandbox(listed: Option<Listed>, known: &Sandbox) -> bool {
    let ready = known.status.state() == PodSandboxState::SandboxReady;
    match listed {
        // A running sandbox may be not ready because it has lost its network.
        Some(Listed::RUNNING | Listed::PAUSED | Listed::RESTARTING) => ready || known.pid != 0,
        Some(Listed::CREATED | Listed::EXITED | Listed::DEAD) => !ready,
        _ => true,
    }
}

fn fits_container(listed: Option<Listed>, known: ContainerState) -> bool {
    match listed {
        Some(Listed::RUNNING | Listed::PAUSED | Listed::RESTARTING) => {
            known == ContainerState::ContainerRunning
        }
        // A container that the engine failed to start is listed as created, but has exited.
        Some(Listed::CREATED) => known != ContainerState::ContainerRunning,
        Some(Listed::EXITED | Listed::DEAD) => known == ContainerState::ContainerExited,
        // The container is being removed, and an inspect may report either state.
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::labels;

    fn listed(id: &str, name: &str, state: Listed) -> ContainerSummary {
        let kind = (labels::TYPE.to_owned(), labels::TYPE_CONTAINER.to_owned());
        ContainerSummary {
            id: Some(id.into()),
            names: Some(vec![format!("/k8s_{name}_pod_default_uid_0")]),
            labels: Some(HashMap::from([kind])),
            state: Some(state),
            ..Default::default()
        }
    }

    #[test]
    fn each_difference_is_found() {
        let mut snapshot = Snapshot::default();
        for (id, name, state) in [
            ("same", "a", Listed::RUNNING),
            ("paused", "b", Listed::RUNNING),
            ("ended", "c", Listed::RUNNING),
            ("renamed", "d", Listed::EXITED),
            ("gone", "e", Listed::EXITED),
        ] {
            let record = Record::from_summary(listed(id, name, state));
            snapshot.set(&id.into(), record);
        }
        let mut foreign = listed("foreign", "f", Listed::RUNNING);
        foreign.names = Some(vec!["/somebody".into()]);
        let listed = [
            listed("same", "a", Listed::RUNNING),
            listed("paused", "b", Listed::PAUSED),
            listed("ended", "c", Listed::EXITED),
            listed("renamed", "other", Listed::EXITED),
            listed("new", "f", Listed::CREATED),
            foreign,
        ];
        let found = differences(&snapshot, &listed);
        let found: Vec<_> = found.iter().map(|(id, kind)| (&**id, *kind)).collect();
        assert_eq!(
            found,
            [
                ("ended", Difference::State),
                ("renamed", Difference::Name),
                ("new", Difference::Unknown),
                ("gone", Difference::Gone),
            ]
        );
    }
}
