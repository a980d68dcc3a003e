//! Changes that events reported and lists do not show yet.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::ContainerEventType;
use kubelet_cri_client::pod_status::ContainerState;
use kubelet_pod_spec::identity::PodUid;

use super::PodRecord;

/// The number of readings of a pod in which a reported change may be missing. After that, the event
/// was wrong or is out of date.
const READINGS: u32 = 10;

/// The change of a container or sandbox that an event reported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ReportedChange {
    /// Its ID in the runtime.
    pub(super) id: String,
    /// What happened to it.
    pub(super) kind: ContainerEventType,
}

/// The changes that lists have yet to show, by pod.
#[derive(Debug, Default)]
pub(super) struct Expectations(BTreeMap<PodUid, Expected>);

#[derive(Debug, Default)]
struct Expected {
    reported: BTreeMap<String, ContainerEventType>,
    readings: u32,
}

impl Expectations {
    /// Adds a reported change, which replaces an earlier one of the same container or sandbox.
    pub(super) fn add(&mut self, uid: &PodUid, reported: ReportedChange) {
        let expected = self.0.entry(uid.clone()).or_default();
        expected.reported.insert(reported.id, reported.kind);
        expected.readings = 0;
    }

    /// Whether lists have yet to show a reported change of a pod.
    pub(super) fn are_there(&self, uid: &PodUid) -> bool {
        self.0.contains_key(uid)
    }

    /// Whether a list that was started after the events misses a reported change, and has to be
    /// repeated.
    pub(super) fn are_missed_by(&mut self, uid: &PodUid, record: &PodRecord) -> bool {
        let Some(expected) = self.0.get_mut(uid) else {
            return false;
        };
        expected
            .reported
            .retain(|id, kind| !shows(record, id, *kind));
        expected.readings += 1;
        let is_missed = !expected.reported.is_empty() && expected.readings < READINGS;
        if !is_missed {
            self.0.remove(uid);
        }
        is_missed
    }
}

/// Whether a list already shows an event's change.
fn shows(record: &PodRecord, id: &str, kind: ContainerEventType) -> bool {
    let container = record.containers.iter().find(|c| c.id == id);
    let container = container.map(|container| container.state);
    let sandbox = record.sandboxes.iter().find(|(other, _)| other == id);
    let sandbox = sandbox.map(|(_, ready)| *ready);
    let is_there = container.is_some() || sandbox.is_some();
    match kind {
        ContainerEventType::ContainerCreatedEvent => is_there,
        ContainerEventType::ContainerStartedEvent => {
            is_there && container != Some(ContainerState::Created)
        }
        ContainerEventType::ContainerStoppedEvent => {
            container != Some(ContainerState::Running) && sandbox != Some(true)
        }
        ContainerEventType::ContainerDeletedEvent => !is_there,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pleg::ContainerRecord;

    #[test]
    fn what_is_told_is_expected_until_it_is_shown_or_was_looked_for_often() {
        use ContainerEventType as Kind;
        let uid = PodUid::from("u");
        let record = |state| PodRecord {
            containers: vec![ContainerRecord {
                id: "c".to_owned(),
                sandbox_id: String::new(),
                state,
            }],
            ..PodRecord::default()
        };
        let none = PodRecord::default();
        let (running, exited) = (
            record(ContainerState::Running),
            record(ContainerState::Exited),
        );
        let mut expected = Expectations::default();
        for (kind, missing, shown) in [
            (Kind::ContainerCreatedEvent, &none, &running),
            (Kind::ContainerStartedEvent, &none, &exited),
            (Kind::ContainerStoppedEvent, &running, &none),
            (Kind::ContainerDeletedEvent, &exited, &none),
        ] {
            let reported = ReportedChange {
                id: "c".to_owned(),
                kind,
            };
            expected.add(&uid, reported.clone());
            assert!(expected.are_missed_by(&uid, missing), "{kind:?}");
            assert!(!expected.are_missed_by(&uid, shown), "{kind:?}");
            assert!(!expected.are_missed_by(&uid, missing), "{kind:?}");

            expected.add(&uid, reported);
            let missed = (0..100).take_while(|_| expected.are_missed_by(&uid, missing));
            assert_eq!(missed.count(), READINGS as usize - 1);
        }
    }
}
