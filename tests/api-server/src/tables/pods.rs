//! The table row of a pod: how many containers are ready, and the state in one word.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::duration::{of, since};
use crate::strategy::text;

/// The cells of a pod.
pub(super) fn cells(pod: &Value, now: Timestamp) -> Vec<Value> {
    let summary = Summary::of(pod);
    let or_none = |pointer: &str| match text(pod, pointer) {
        "" => json!("<none>"),
        said => json!(said),
    };
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts != 0 => {
            let ago = of(now.as_second() - last.as_second());
            format!("{} ({ago} ago)", summary.restarts)
        }
        _ => summary.restarts.to_string(),
    };
    vec![
        pod["metadata"]["name"].clone(),
        json!(format!("{}/{}", summary.ready, summary.total)),
        json!(summary.reason),
        json!(restarts),
        json!(since(text(pod, "/metadata/creationTimestamp"), now)),
        or_none("/status/podIPs/0/ip"),
        or_none("/spec/nodeName"),
        or_none("/status/nominatedNodeName"),
        json!(gates(pod)),
    ]
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

fn has_condition(pod: &Value, kind: &str) -> bool {
    list(&pod["status"], "conditions")
        .iter()
        .any(|condition| condition["type"] == kind && condition["status"] == "True")
}

fn gates(pod: &Value) -> String {
    let gates = list(&pod["spec"], "readinessGates");
    if gates.is_empty() {
        return "<none>".to_owned();
    }
    let open = gates
        .iter()
        .filter(|gate| has_condition(pod, text(gate, "/conditionType")))
        .count();
    format!("{open}/{}", gates.len())
}

/// The summary of the container statuses.
#[derive(Debug, Default)]
struct Summary {
    reason: String,
    ready: usize,
    total: usize,
    restarts: i64,
    last_restart: Option<Timestamp>,
}

impl Summary {
    fn of(pod: &Value) -> Self {
        let status = &pod["status"];
        let phase = text(status, "/phase");
        let mut summary = Self {
            reason: match text(status, "/reason") {
                "" => phase.to_owned(),
                reason => reason.to_owned(),
            },
            total: list(&pod["spec"], "containers").len()
                + list(&pod["spec"], "initContainers")
                    .iter()
                    .filter(|container| container["restartPolicy"] == "Always")
                    .count(),
            ..Self::default()
        };
        let gated = list(status, "conditions").iter().any(|condition| {
            condition["type"] == "PodScheduled" && condition["reason"] == "SchedulingGated"
        });
        if gated {
            "SchedulingGated".clone_into(&mut summary.reason);
        }
        let mut sidecars = Self::default();
        let initializing = summary.add_init_containers(pod, &mut sidecars);
        if !initializing || has_condition(pod, "Initialized") {
            summary.restarts = sidecars.restarts;
            summary.last_restart = sidecars.last_restart;
            summary.add_containers(pod);
        }
        if !text(&pod["metadata"], "/deletionTimestamp").is_empty() {
            if status["reason"] == "NodeLost" {
                "Unknown".clone_into(&mut summary.reason);
            } else if !matches!(phase, "Succeeded" | "Failed") {
                "Terminating".clone_into(&mut summary.reason);
            }
        }
        summary
    }

    fn add_restarts(&mut self, container: &Value) {
        self.restarts += container["restartCount"].as_i64().unwrap_or(0);
        let ended = text(container, "/lastState/terminated/finishedAt");
        self.last_restart = self.last_restart.max(ended.parse().ok());
    }

    /// Returns whether the pod is still initializing; the init containers then determine the
    /// reason.
    fn add_init_containers(&mut self, pod: &Value, sidecars: &mut Self) -> bool {
        let specs = list(&pod["spec"], "initContainers");
        let statuses = list(&pod["status"], "initContainerStatuses");
        for (index, container) in statuses.iter().enumerate() {
            let sidecar = specs
                .iter()
                .any(|spec| spec["name"] == container["name"] && spec["restartPolicy"] == "Always");
            self.add_restarts(container);
            if sidecar {
                sidecars.add_restarts(container);
            }
            let ended = &container["state"]["terminated"];
            if ended["exitCode"] == 0 {
                continue;
            }
            if sidecar && container["started"] == true {
                self.ready += usize::from(container["ready"] == true);
                continue;
            }
            let waiting = text(container, "/state/waiting/reason");
            self.reason = if ended.is_object() {
                format!("Init:{}", end_of(ended))
            } else if !matches!(waiting, "" | "PodInitializing") {
                format!("Init:{waiting}")
            } else {
                format!("Init:{index}/{}", specs.len())
            };
            return true;
        }
        false
    }

    fn add_containers(&mut self, pod: &Value) {
        let mut running = false;
        let mut failure = None;
        for container in list(&pod["status"], "containerStatuses").iter().rev() {
            self.add_restarts(container);
            let ended = &container["state"]["terminated"];
            let waiting = text(container, "/state/waiting/reason");
            if !waiting.is_empty() {
                waiting.clone_into(&mut self.reason);
            } else if ended.is_object() {
                self.reason = end_of(ended);
                if ended["exitCode"] != 0 {
                    failure = Some(self.reason.clone());
                }
            } else if container["ready"] == true && container["state"]["running"].is_object() {
                running = true;
                self.ready += 1;
            }
        }
        if self.reason == "Completed" {
            if running && has_condition(pod, "Ready") {
                "Running".clone_into(&mut self.reason);
            } else if let Some(failure) = failure {
                self.reason = failure;
            } else if running {
                "NotReady".clone_into(&mut self.reason);
            }
        }
    }
}

fn end_of(ended: &Value) -> String {
    let signal = ended["signal"].as_i64().unwrap_or(0);
    match text(ended, "/reason") {
        "" if signal != 0 => format!("Signal:{signal}"),
        "" => format!("ExitCode:{}", ended["exitCode"].as_i64().unwrap_or(0)),
        reason => reason.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(spec: Value, status: Value) -> (String, String, String) {
        let pod = json!({"metadata": {"name": "p"}, "spec": spec, "status": status});
        let cells = cells(&pod, "2026-11-01T00:10:00Z".parse().unwrap());
        let cell = |index: usize| cells[index].as_str().unwrap().to_owned();
        (cell(1), cell(2), cell(3))
    }

    fn row(ready: &str, status: &str, restarts: &str) -> (String, String, String) {
        (ready.to_owned(), status.to_owned(), restarts.to_owned())
    }

    #[test]
    fn one_word_says_what_a_pod_does() {
        let one = || json!({"containers": [{"name": "a"}]});
        let status = |phase: &str, container: Value| {
            json!({"phase": phase, "containerStatuses": [container],
                "conditions": [{"type": "Ready", "status": "True"}]})
        };
        assert_eq!(
            shown(one(), json!({"phase": "Pending"})),
            row("0/1", "Pending", "0")
        );
        let running = json!({"ready": true, "restartCount": 2, "state": {"running": {}},
            "lastState": {"terminated": {"finishedAt": "2026-11-01T00:09:00Z"}}});
        assert_eq!(
            shown(one(), status("Running", running)),
            row("1/1", "Running", "2 (60s ago)")
        );
        let waits =
            json!({"restartCount": 0, "state": {"waiting": {"reason": "ImagePullBackOff"}}});
        assert_eq!(
            shown(one(), status("Pending", waits)),
            row("0/1", "ImagePullBackOff", "0")
        );
        let failed = json!({"restartCount": 0, "state": {"terminated": {"exitCode": 3}}});
        assert_eq!(
            shown(one(), status("Failed", failed)),
            row("0/1", "ExitCode:3", "0")
        );
        let evicted = json!({"phase": "Failed", "reason": "Evicted"});
        assert_eq!(shown(one(), evicted), row("0/1", "Evicted", "0"));
    }

    #[test]
    fn init_containers_come_first_and_sidecars_count() {
        let spec = json!({"containers": [{"name": "a"}], "initContainers": [
            {"name": "s", "restartPolicy": "Always"}, {"name": "i"},
        ]});
        let started = json!({"name": "s", "started": true, "ready": true, "restartCount": 1,
            "state": {"running": {}}});
        let init = json!({"phase": "Pending", "initContainerStatuses": [
            started, {"name": "i", "restartCount": 4, "state": {"running": {}}},
        ]});
        assert_eq!(shown(spec.clone(), init), row("1/2", "Init:1/2", "5"));
        let done = json!({"name": "i", "restartCount": 4,
            "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}});
        let running = json!({"phase": "Running", "initContainerStatuses": [started, done],
            "containerStatuses": [{"name": "a", "ready": true, "restartCount": 0, "state": {"running": {}}}]});
        assert_eq!(shown(spec.clone(), running), row("2/2", "Running", "1"));
        let failing = json!({"phase": "Pending", "initContainerStatuses": [
            {"name": "s", "restartCount": 0, "state": {"waiting": {"reason": "CrashLoopBackOff"}}},
        ]});
        assert_eq!(
            shown(spec, failing),
            row("0/2", "Init:CrashLoopBackOff", "0")
        );
    }
}
