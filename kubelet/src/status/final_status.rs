//! The final status of a pod: all containers have terminated, even if that was not observed.

use k8s_openapi::api::core::v1::{ContainerStatus, PodSpec};
use kubelet_pod_spec::restart_rules;

use super::{
    container_state::{is_running, is_terminated},
    containers::{ended_with_its_pod, never_ran},
};

/// Marks every container that may have run, and is not known to have terminated, as failed, so that
/// the pod never succeeds wrongly.
pub(super) fn fail_unterminated(
    spec: &PodSpec,
    init: &mut [ContainerStatus],
    containers: &mut [ContainerStatus],
) {
    if was_initialized(spec, init, containers) {
        containers.iter_mut().for_each(end);
    }
    // Init containers after the last started one never ran; the first is always tried.
    let tried = init
        .iter()
        .rposition(|status| !never_ran(status))
        .map_or(1, |last| last + 1);
    init.iter_mut().take(tried).for_each(end);
}

fn end(status: &mut ContainerStatus) {
    if !is_terminated(status) {
        status.state = Some(ended_with_its_pod());
        status.ready = false;
        status.started = Some(false);
    }
}

/// Whether regular containers may have been started.
fn was_initialized(
    spec: &PodSpec,
    init: &[ContainerStatus],
    containers: &[ContainerStatus],
) -> bool {
    let specs = spec.init_containers.as_deref().unwrap_or_default();
    let Some(last_spec) = specs.last() else {
        return true;
    };
    if containers.iter().any(|status| !never_ran(status)) {
        return true;
    }
    let Some(last) = init.iter().find(|status| status.name == last_spec.name) else {
        return false;
    };
    if restart_rules::is_sidecar(last_spec) {
        return is_running(last) && last.started == Some(true);
    }
    [&last.state, &last.last_state].into_iter().any(|state| {
        let terminated = state.as_ref().and_then(|s| s.terminated.as_ref());
        terminated.is_some_and(|terminated| terminated.exit_code == 0)
    })
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{
        ContainerState, ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting,
    };

    use super::*;

    fn status(name: &str, state: &str) -> ContainerStatus {
        ContainerStatus {
            name: name.to_owned(),
            state: Some(ContainerState {
                running: (state == "running").then(ContainerStateRunning::default),
                waiting: (state == "waiting").then(ContainerStateWaiting::default),
                terminated: (state == "done").then(ContainerStateTerminated::default),
            }),
            ..ContainerStatus::default()
        }
    }

    /// The exit codes after the pod's end.
    fn exit_codes(init: [&str; 2], main: &str) -> Vec<Option<i32>> {
        let spec: PodSpec = serde_json::from_value(serde_json::json!({
            "initContainers": [{"name": "i"}, {"name": "j"}], "containers": [{"name": "a"}]
        }))
        .unwrap();
        let mut init = [status("i", init[0]), status("j", init[1])];
        let mut containers = [status("a", main)];
        fail_unterminated(&spec, &mut init, &mut containers);
        let all = init.iter().chain(&containers);
        all.map(|s| Some(s.state.as_ref()?.terminated.as_ref()?.exit_code))
            .collect()
    }

    #[test]
    fn what_may_have_run_has_failed_and_what_never_did_still_waits() {
        for (init, main, expected) in [
            (["waiting", "waiting"], "waiting", [Some(137), None, None]),
            (["running", "waiting"], "waiting", [Some(137), None, None]),
            (["done", "running"], "waiting", [Some(0), Some(137), None]),
            (["done", "done"], "waiting", [Some(0), Some(0), Some(137)]),
            (["done", "done"], "running", [Some(0), Some(0), Some(137)]),
            (["done", "done"], "done", [Some(0), Some(0), Some(0)]),
        ] {
            assert_eq!(exit_codes(init, main), expected, "{init:?} {main}");
        }
    }
}
