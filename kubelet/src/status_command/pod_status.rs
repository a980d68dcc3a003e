//! Summarises a pod's status like kubectl.

use k8s_openapi::{
    api::core::v1::{ContainerStateTerminated, ContainerStatus, Pod, PodSpec, PodStatus},
    jiff::Timestamp,
};

/// The summary of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// Ready containers, sidecars included.
    pub ready: usize,
    /// All containers, sidecars included.
    pub total: usize,
    /// The phase, or why the pod is not as it should be.
    pub status: String,
    /// Total restarts of its containers.
    pub restarts: i32,
    /// When a container last ended before a restart.
    pub last_restart: Option<Timestamp>,
}

/// Summarises a pod.
pub(super) fn summary(pod: &Pod) -> Summary {
    let no_spec = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&no_spec);
    let no_status = PodStatus::default();
    let status = pod.status.as_ref().unwrap_or(&no_status);

    let sidecars = spec
        .init_containers
        .iter()
        .flatten()
        .filter(|container| container.restart_policy.as_deref() == Some("Always"))
        .count();
    let mut summary = Summary {
        ready: 0,
        total: spec.containers.len() + sidecars,
        status: non_empty(&status.reason)
            .or(status.phase.as_deref())
            .unwrap_or("Unknown")
            .to_owned(),
        restarts: 0,
        last_restart: None,
    };
    let initializing = summarize_init(spec, status, &mut summary);
    if !initializing || has_condition(status, "Initialized") {
        summarize_main(status, &mut summary);
    }
    if pod.metadata.deletion_timestamp.is_some() {
        if status.reason.as_deref() == Some("NodeLost") {
            "Unknown".clone_into(&mut summary.status);
        } else if !matches!(status.phase.as_deref(), Some("Succeeded" | "Failed")) {
            "Terminating".clone_into(&mut summary.status);
        }
    }
    summary
}

/// Adds the init containers. Returns whether the pod is still initialising.
fn summarize_init(spec: &PodSpec, status: &PodStatus, summary: &mut Summary) -> bool {
    let init_containers = spec.init_containers.as_deref().unwrap_or_default();
    let mut of_sidecars = (0, None);
    let mut at = None;
    for (index, container) in status.init_container_statuses.iter().flatten().enumerate() {
        let sidecar = init_containers
            .iter()
            .find(|spec| spec.name == container.name)
            .is_some_and(|spec| spec.restart_policy.as_deref() == Some("Always"));
        summary.restarts += container.restart_count;
        summary.last_restart = summary.last_restart.max(last_end(container));
        if sidecar {
            of_sidecars.0 += container.restart_count;
            of_sidecars.1 = of_sidecars.1.max(last_end(container));
            if container.started == Some(true) && container.ready {
                summary.ready += 1;
            }
        }
        let state = container.state.as_ref();
        let terminated = state.and_then(|state| state.terminated.as_ref());
        let waiting = state
            .and_then(|state| state.waiting.as_ref())
            .and_then(|waiting| non_empty(&waiting.reason));
        let status = match (terminated, waiting) {
            (Some(terminated), _) if terminated.exit_code == 0 => continue,
            _ if sidecar && container.started == Some(true) => continue,
            (Some(terminated), _) => format!("Init:{}", end(terminated)),
            (None, Some(reason)) if reason != "PodInitializing" => format!("Init:{reason}"),
            _ => format!("Init:{index}/{}", init_containers.len()),
        };
        at = Some(status);
        break;
    }
    match at {
        Some(status) => {
            summary.status = status;
            true
        }
        None => {
            // Restarts of completed init containers do not count any more.
            (summary.restarts, summary.last_restart) = of_sidecars;
            false
        }
    }
}

fn summarize_main(status: &PodStatus, summary: &mut Summary) {
    let mut running = false;
    for container in status.container_statuses.iter().flatten().rev() {
        summary.restarts += container.restart_count;
        summary.last_restart = summary.last_restart.max(last_end(container));
        let Some(state) = &container.state else {
            continue;
        };
        let waiting = state
            .waiting
            .as_ref()
            .and_then(|waiting| non_empty(&waiting.reason));
        if let Some(reason) = waiting {
            reason.clone_into(&mut summary.status);
        } else if let Some(terminated) = &state.terminated {
            summary.status = end(terminated);
        } else if container.ready && state.running.is_some() {
            running = true;
            summary.ready += 1;
        }
    }
    if summary.status == "Completed" && running {
        let status = if has_condition(status, "Ready") {
            "Running"
        } else {
            "NotReady"
        };
        status.clone_into(&mut summary.status);
    }
}

/// How a container ended.
fn end(terminated: &ContainerStateTerminated) -> String {
    match (non_empty(&terminated.reason), terminated.signal) {
        (Some(reason), _) => reason.to_owned(),
        (None, Some(signal)) if signal != 0 => format!("Signal:{signal}"),
        (None, _) => format!("ExitCode:{}", terminated.exit_code),
    }
}

fn last_end(container: &ContainerStatus) -> Option<Timestamp> {
    let terminated = container.last_state.as_ref()?.terminated.as_ref()?;
    terminated.finished_at.as_ref().map(|time| time.0)
}

fn has_condition(status: &PodStatus, type_: &str) -> bool {
    status
        .conditions
        .iter()
        .flatten()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

fn non_empty(text: &Option<String>) -> Option<&str> {
    text.as_deref().filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn of(spec: Value, status: Value) -> (String, String, i32) {
        let pod = serde_json::from_value(json!({"spec": spec, "status": status})).unwrap();
        let summary = summary(&pod);
        (
            summary.status,
            format!("{}/{}", summary.ready, summary.total),
            summary.restarts,
        )
    }

    fn one(state: Value, ready: bool) -> (String, String, i32) {
        of(
            json!({"containers": [{"name": "a"}]}),
            json!({"phase": "Running", "containerStatuses": [
                {"name": "a", "image": "", "imageID": "", "ready": ready, "restartCount": 3, "state": state},
            ]}),
        )
    }

    #[test]
    fn containers_speak_for_the_pod() {
        for (state, ready, status, count) in [
            (json!({"running": {}}), true, "Running", "1/1"),
            (json!({"running": {}}), false, "Running", "0/1"),
            (
                json!({"waiting": {"reason": "CrashLoopBackOff"}}),
                false,
                "CrashLoopBackOff",
                "0/1",
            ),
            (
                json!({"waiting": {"reason": "ImagePullBackOff"}}),
                false,
                "ImagePullBackOff",
                "0/1",
            ),
            (
                json!({"terminated": {"exitCode": 0, "reason": "Completed"}}),
                false,
                "Completed",
                "0/1",
            ),
            (
                json!({"terminated": {"exitCode": 1, "reason": "Error"}}),
                false,
                "Error",
                "0/1",
            ),
            (
                json!({"terminated": {"exitCode": 137}}),
                false,
                "ExitCode:137",
                "0/1",
            ),
            (
                json!({"terminated": {"exitCode": 0, "signal": 9}}),
                false,
                "Signal:9",
                "0/1",
            ),
        ] {
            assert_eq!(one(state, ready), (status.to_owned(), count.to_owned(), 3));
        }
    }

    #[test]
    fn init_containers_come_first() {
        let status = |state: Value| {
            json!({"phase": "Pending", "initContainerStatuses": [
                {"name": "i", "image": "", "imageID": "", "ready": false, "restartCount": 2, "state": state},
            ]})
        };
        let spec = json!({"initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]});
        for (state, expected) in [
            (json!({"running": {}}), "Init:0/2"),
            (
                json!({"terminated": {"exitCode": 1, "reason": "Error"}}),
                "Init:Error",
            ),
            (
                json!({"waiting": {"reason": "CrashLoopBackOff"}}),
                "Init:CrashLoopBackOff",
            ),
        ] {
            assert_eq!(
                of(spec.clone(), status(state)),
                (expected.to_owned(), "0/1".to_owned(), 2)
            );
        }
    }

    #[test]
    fn a_sidecar_counts_as_a_container() {
        let spec = json!({"initContainers": [{"name": "s", "restartPolicy": "Always"}], "containers": [{"name": "a"}]});
        let status = json!({"phase": "Running",
            "initContainerStatuses": [{"name": "s", "image": "", "imageID": "", "ready": true, "started": true, "restartCount": 1, "state": {"running": {}}}],
            "containerStatuses": [{"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        assert_eq!(
            of(spec, status),
            ("Running".to_owned(), "2/2".to_owned(), 1)
        );
    }

    #[test]
    fn a_pod_that_ends_says_so() {
        let pod = serde_json::from_value(json!({
            "metadata": {"deletionTimestamp": "2024-01-01T00:00:00Z"},
            "status": {"phase": "Running"},
        }))
        .unwrap();
        assert_eq!(summary(&pod).status, "Terminating");
        let (status, ..) = of(json!({}), json!({"phase": "Failed", "reason": "Evicted"}));
        assert_eq!(status, "Evicted");
    }
}
