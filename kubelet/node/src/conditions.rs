//! The node conditions that the kubelet owns.

use k8s_openapi::{api::core::v1::NodeCondition, apimachinery::pkg::apis::meta::v1::Time};
use kubelet_api_client::events::reason;
use tracing::info;

use super::status_source::Pressure;

/// Reason, message and event of a pressure condition when it is true (`some`) and false (`none`).
struct Words {
    kind: &'static str,
    some: (&'static str, &'static str, &'static str),
    none: (&'static str, &'static str, &'static str),
}

const MEMORY: Words = Words {
    kind: "MemoryPressure",
    some: (
        "KubeletHasInsufficientMemory",
        "kubelet has insufficient memory available",
        "NodeHasInsufficientMemory",
    ),
    none: (
        "KubeletHasSufficientMemory",
        "kubelet has sufficient memory available",
        "NodeHasSufficientMemory",
    ),
};
const DISK: Words = Words {
    kind: "DiskPressure",
    some: (
        "KubeletHasDiskPressure",
        "kubelet has disk pressure",
        "NodeHasDiskPressure",
    ),
    none: (
        "KubeletHasNoDiskPressure",
        "kubelet has no disk pressure",
        "NodeHasNoDiskPressure",
    ),
};
const PID: Words = Words {
    kind: "PIDPressure",
    some: (
        "KubeletHasInsufficientPID",
        "kubelet has insufficient PID available",
        "NodeHasInsufficientPID",
    ),
    none: (
        "KubeletHasSufficientPID",
        "kubelet has sufficient PID available",
        "NodeHasSufficientPID",
    ),
};

/// Sets the pressure conditions and then `Ready`; conditions of other owners are kept. The node is
/// ready if `problems` is empty. Returns the reasons of the events to record.
pub fn set(
    conditions: &mut Vec<NodeCondition>,
    pressure: Pressure,
    problems: &[String],
    now: &Time,
) -> Vec<&'static str> {
    let mut events = Vec::new();
    for (words, is_under) in [
        (&MEMORY, pressure.memory),
        (&DISK, pressure.disk),
        (&PID, pressure.pid),
    ] {
        let (reason, message, event) = if is_under { words.some } else { words.none };
        let before = update(conditions, words.kind, is_under, reason, message, now);
        if !matches!(before, Before::Same) {
            events.push(event);
        }
    }
    let message = joined(problems);
    let (is_ready, why, message) = match message.as_str() {
        "" => (true, "KubeletReady", "kubelet is posting ready status"),
        problems => (false, "KubeletNotReady", problems),
    };
    let before = update(conditions, "Ready", is_ready, why, message, now);
    if matches!(before, Before::Different) {
        events.push(if is_ready {
            reason::NODE_READY
        } else {
            reason::NODE_NOT_READY
        });
    }
    events
}

/// A condition's state before the update.
enum Before {
    /// The condition did not exist.
    Unset,
    /// The condition had another status.
    Different,
    Same,
}

/// Formats problems as upstream: one as it is, several in brackets, without duplicates.
fn joined(problems: &[String]) -> String {
    let mut unique: Vec<&str> = Vec::new();
    for problem in problems {
        if !unique.contains(&problem.as_str()) {
            unique.push(problem);
        }
    }
    match unique.as_slice() {
        [] => String::new(),
        [one] => (*one).to_owned(),
        more => format!("[{}]", more.join(", ")),
    }
}

fn update(
    conditions: &mut Vec<NodeCondition>,
    kind: &str,
    holds: bool,
    reason: &str,
    message: &str,
    now: &Time,
) -> Before {
    let status = if holds { "True" } else { "False" };
    let known = conditions.iter().position(|known| known.type_ == kind);
    let before = known.map(|at| &conditions[at]);
    let transition = before
        .filter(|before| before.status == status)
        .and_then(|before| before.last_transition_time.clone());
    if before.is_some_and(|before| before.status != status) {
        info!(
            condition = kind,
            status, reason, message, "node condition changed"
        );
    }
    let condition = NodeCondition {
        type_: kind.to_owned(),
        status: status.to_owned(),
        reason: Some(reason.to_owned()),
        message: Some(message.to_owned()),
        last_heartbeat_time: Some(now.clone()),
        last_transition_time: transition.or_else(|| Some(now.clone())),
    };
    match known {
        Some(at) => {
            let before = std::mem::replace(&mut conditions[at], condition);
            if before.status == status {
                Before::Same
            } else {
                Before::Different
            }
        }
        None => {
            conditions.push(condition);
            Before::Unset
        }
    }
}

/// Whether two lists are equal apart from order and heartbeat times.
pub fn are_same(old: &[NodeCondition], new: &[NodeCondition]) -> bool {
    let sorted = |conditions: &[NodeCondition]| {
        let mut conditions = conditions.to_vec();
        for condition in &mut conditions {
            condition.last_heartbeat_time = None;
        }
        conditions.sort_by(|a, b| a.type_.cmp(&b.type_));
        conditions
    };
    sorted(old) == sorted(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use jiff::Timestamp;

    fn at(seconds: i64) -> Time {
        Time(Timestamp::from_second(seconds).unwrap())
    }

    #[test]
    fn transitions_are_timed_and_heartbeats_are_no_change() {
        let mut conditions = vec![NodeCondition {
            type_: "NetworkUnavailable".to_owned(),
            status: "False".to_owned(),
            ..NodeCondition::default()
        }];
        let events = set(&mut conditions, Pressure::default(), &[], &at(1));
        assert_eq!(
            events,
            [
                "NodeHasSufficientMemory",
                "NodeHasNoDiskPressure",
                "NodeHasSufficientPID"
            ]
        );
        let kinds: Vec<&str> = conditions.iter().map(|c| c.type_.as_str()).collect();
        assert_eq!(
            kinds,
            [
                "NetworkUnavailable",
                "MemoryPressure",
                "DiskPressure",
                "PIDPressure",
                "Ready"
            ]
        );
        let first = conditions.clone();
        let events = set(&mut conditions, Pressure::default(), &[], &at(2));
        assert!(events.is_empty());
        assert!(are_same(&first, &conditions) && first != conditions);

        let problems = ["a".to_owned(), "b".to_owned(), "a".to_owned()];
        let pressure = Pressure {
            disk: true,
            ..Pressure::default()
        };
        let events = set(&mut conditions, pressure, &problems, &at(3));
        assert_eq!(events, ["NodeHasDiskPressure", "NodeNotReady"]);
        assert!(!are_same(&first, &conditions));
        let ready = conditions.last().unwrap();
        assert_eq!(ready.status, "False");
        assert_eq!(ready.reason.as_deref(), Some("KubeletNotReady"));
        assert_eq!(ready.message.as_deref(), Some("[a, b]"));
        assert_eq!(ready.last_transition_time, Some(at(3)));
        assert_eq!(conditions[1].last_transition_time, Some(at(1)));
        assert_eq!(
            conditions[2].reason.as_deref(),
            Some("KubeletHasDiskPressure")
        );
    }
}
