//! Invariants of every run.

use std::{cell::Cell, collections::BTreeMap, fmt::Write as _, sync::Once};

use cri_proto::runtime::v1::{ContainerState, PodSandboxState};
use fake_runtime::{Container, ContainerEvent, ContainerHistory, Sandbox};
use k8s_openapi::api::core::v1::{self, ContainerStatus, PodStatus};
use kubelet_pod_spec::identity::PodUid;

use crate::{
    driver::Simulation,
    history,
    pods::{self, Expect},
    simulated_pod::SimulatedPod,
};

/// The sandboxes and containers of one pod in the runtime.
#[derive(Default)]
struct Found {
    sandboxes: Vec<Sandbox>,
    containers: Vec<Container>,
}

impl Found {
    fn ready_sandboxes(&self) -> usize {
        let ready = self
            .sandboxes
            .iter()
            .filter(|s| s.state == PodSandboxState::SandboxReady);
        ready.count()
    }

    fn running(&self) -> Vec<&Container> {
        let running = self.containers.iter();
        running
            .filter(|c| c.state == ContainerState::ContainerRunning)
            .collect()
    }
}

/// The first difference from the expected final state.
pub(crate) fn problem(simulation: &Simulation) -> Option<String> {
    let runtime = &simulation.node.runtime;
    let twice = runtime.started_twice();
    assert!(twice.is_empty(), "started while it was running: {twice:#?}");
    let mut found: BTreeMap<String, Found> = BTreeMap::new();
    let mut owners = BTreeMap::new();
    for sandbox in runtime.sandboxes() {
        owners.insert(sandbox.id.clone(), sandbox.pod_uid().to_owned());
        found
            .entry(sandbox.pod_uid().to_owned())
            .or_default()
            .sandboxes
            .push(sandbox);
    }
    for container in runtime.containers() {
        let Some(uid) = owners.get(&container.sandbox_id) else {
            return Some(format!("container {} has no sandbox", container.name()));
        };
        found
            .entry(uid.clone())
            .or_default()
            .containers
            .push(container);
    }
    for subject in &simulation.subjects {
        let found = found.remove(&subject.uid).unwrap_or_default();
        let uid = PodUid::from(subject.uid.as_str());
        let status = simulation.kubelet.kubelet.status(&uid);
        let problem = if subject.present {
            problem_of_present(simulation, subject, &found, status.as_deref())
        } else {
            problem_of_gone(simulation, subject, &found, status.as_deref())
        };
        if let Some(problem) = problem {
            let status = status.as_deref().map(summary);
            return Some(format!(
                "{}, which {:?} ({}): {problem}; its status: {status:?}, before:\n{}",
                subject.uid,
                subject.expect,
                if subject.disturbed {
                    "disturbed"
                } else {
                    "undisturbed"
                },
                history::describe(simulation, subject)
            ));
        }
    }
    let of_nobody = found.into_keys().next();
    of_nobody.map(|uid| format!("pod {uid} was never asked for"))
}

fn problem_of_gone(
    simulation: &Simulation,
    subject: &SimulatedPod,
    found: &Found,
    status: Option<&PodStatus>,
) -> Option<String> {
    if !found.sandboxes.is_empty() || !found.containers.is_empty() {
        let (sandboxes, containers) = (found.sandboxes.len(), found.containers.len());
        return Some(format!(
            "gone, and has {sandboxes} sandboxes and {containers} containers"
        ));
    }
    if status.is_some() {
        return Some("gone, and has a status".to_owned());
    }
    let node = &simulation.node.options.node;
    let name = subject.pod.metadata.name.as_deref().unwrap();
    let dirs = [
        node.root_dir.join("pods").join(&subject.uid),
        node.pod_logs_dir
            .join(format!("default_{name}_{}", subject.uid)),
    ];
    let left = dirs.iter().find(|dir| dir.exists())?;
    Some(format!("gone, and has {}", left.display()))
}

fn problem_of_present(
    simulation: &Simulation,
    subject: &SimulatedPod,
    found: &Found,
    status: Option<&PodStatus>,
) -> Option<String> {
    let running = found.running();
    if subject.deleting {
        let runs = found.ready_sandboxes() > 0 || !running.is_empty();
        return runs.then(|| "marked for deletion, and runs".to_owned());
    }
    let spec = subject.pod.spec.as_ref().unwrap();
    let phase = status
        .and_then(|status| status.phase.as_deref())
        .unwrap_or_default();
    let reason = status.and_then(|status| status.reason.as_deref());
    if reason == Some(kubelet_eviction::REASON) && simulation.node.memory.was_scarce() {
        let runs = found.ready_sandboxes() > 0 || !running.is_empty();
        return runs.then(|| "evicted, and runs".to_owned());
    }
    let is_done = matches!(phase, "Succeeded" | "Failed");
    let never_restarts = spec.restart_policy.as_deref() == Some("Never");
    let wanted = match subject.expect {
        // Pods that never restart keep the outcome of a disturbance. All other pods recover.
        _ if subject.disturbed && never_restarts => fate(simulation, subject, found),
        Expect::Runs | Expect::Loops => "Running",
        Expect::Succeeds => "Succeeded",
        Expect::Fails => "Failed",
    };
    if phase != wanted {
        return Some(format!("{phase:?} instead of {wanted:?}"));
    }
    let ready = found.ready_sandboxes();
    if phase == "Pending" {
        return (ready > 0 || !running.is_empty()).then(|| "over, and something runs".to_owned());
    }
    if ready != usize::from(!is_done) {
        return Some(format!("{phase} with {ready} ready sandboxes"));
    }
    if is_done {
        let runs = (!running.is_empty()).then(|| format!("{phase}, and something runs"));
        return runs.or_else(|| miscounted(simulation, subject, found, status?));
    }
    let sidecars = spec.init_containers.iter().flatten();
    let sidecars = sidecars.filter(|container| pods::is_sidecar(container));
    for container in sidecars.chain(&spec.containers) {
        let of_name = running.iter().filter(|c| c.name() == container.name);
        let of_name: Vec<&&Container> = of_name.collect();
        if of_name.len() > 1 {
            return Some(format!("{} runs {} times", container.name, of_name.len()));
        }
        let Some(run) = of_name.first() else {
            let has_run = found.containers.iter().any(|c| c.name() == container.name);
            let may_be_over = never_restarts && has_run && !pods::is_sidecar(container);
            if subject.expect == Expect::Runs && !may_be_over {
                return Some(format!("{} does not run", container.name));
            }
            continue;
        };
        let image = run
            .config
            .image
            .as_ref()
            .map(|image| &image.user_specified_image);
        if image != container.image.as_ref() {
            return Some(format!("{} runs {image:?}", container.name));
        }
    }
    if subject.expect == Expect::Runs
        && let Some(problem) = miscounted(simulation, subject, found, status?)
    {
        return Some(problem);
    }
    let restarts = spec.restart_policy.as_deref() == Some("Always");
    if subject.expect == Expect::Runs && restarts && !status.is_some_and(is_ready) {
        return Some("not ready".to_owned());
    }
    None
}

/// Reported for containers that ended with their pod.
const EXIT_CODE: i32 = 137;

/// The expected phase of a pod whose containers run once, derived from how they ended.
fn fate(simulation: &Simulation, subject: &SimulatedPod, found: &Found) -> &'static str {
    let spec = subject.spec();
    let lives = simulation.node.runtime.histories();
    // A kubelet does not know what was removed before its start.
    let begun = simulation.kills.last().copied();
    let is_known = |life: &ContainerHistory| {
        let mut events = life.events.iter();
        let removed = events.find(|(_, event)| *event == ContainerEvent::Removed);
        removed.is_none_or(|(at, _)| begun.is_none_or(|begun| *at > begun))
    };
    let has_ended = |name: &str| {
        let mut lives = lives.iter().filter(|life| life.pod_uid == subject.uid);
        lives.any(|life| life.name == name && life.ended().is_some() && is_known(life))
    };
    let code = |container: &v1::Container| {
        let runs = found.containers.iter();
        let runs = runs.filter(|run| run.name() == container.name);
        let last = runs.max_by_key(|run| (run.created_at, run.attempt()))?;
        match last.state {
            ContainerState::ContainerExited => Some(last.exit_code),
            // The container was to replace one that ended, but did not start. This counts as a
            // failed container, as upstream.
            ContainerState::ContainerCreated if has_ended(&container.name) => Some(EXIT_CODE),
            _ => None,
        }
    };
    let init = spec.init_containers.iter().flatten();
    let mut init = init.filter(|container| !pods::is_sidecar(container));
    let codes: Vec<Option<i32>> = spec.containers.iter().map(code).collect();
    if init.any(|container| code(container).is_some_and(|code| code != 0)) {
        "Failed"
    } else if codes.iter().any(Option::is_none) {
        // The pod has lost its sandbox. It gets no new one, as upstream, and does not terminate
        // either.
        if found.ready_sandboxes() > 0 {
            "Running"
        } else {
            "Pending"
        }
    } else if codes.iter().all(|code| *code == Some(0)) {
        "Succeeded"
    } else {
        "Failed"
    }
}

/// Every run after the first is a restart. If the pod came back, only the runs of its last life
/// count. Init containers that run again after a new sandbox restart their count, as upstream, but
/// a kubelet never reports a smaller count than before.
fn miscounted(
    simulation: &Simulation,
    subject: &SimulatedPod,
    found: &Found,
    status: &PodStatus,
) -> Option<String> {
    container_statuses(status).find_map(|status| {
        let name = &status.name;
        let runs = found.containers.iter().filter(|c| c.name() == name);
        let last = runs.max_by_key(|c| (c.created_at, c.attempt()))?.attempt();
        let created = simulation.node.runtime.creations(&subject.uid, name);
        let all = created.saturating_sub(1);
        let (place, _) = subject.container(name)?;
        let wanted = match (subject.came_back, place < subject.init_containers()) {
            (true, false) => last..=last,
            (false, false) => all..=all,
            (_, true) => last..=all,
        };
        let reported = u32::try_from(status.restart_count).ok();
        let is_wanted = reported.is_some_and(|reported| wanted.contains(&reported));
        (!is_wanted).then(|| {
            format!("{name}: {reported:?} restarts of {created} runs, the last attempt {last}")
        })
    })
}

fn is_ready(status: &PodStatus) -> bool {
    let mut conditions = status.conditions.iter().flatten();
    conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True")
}

fn container_statuses(status: &PodStatus) -> impl Iterator<Item = &ContainerStatus> {
    let init = status.init_container_statuses.iter().flatten();
    init.chain(status.container_statuses.iter().flatten())
}

/// The status in one line, without times.
pub(crate) fn summary(status: &PodStatus) -> String {
    let mut line = status.phase.clone().unwrap_or_default();
    for container in container_statuses(status) {
        let (name, restarts, state) = (&container.name, container.restart_count, state(container));
        let _ = write!(line, ", {name} {restarts} {state}");
    }
    line
}

fn state(container: &ContainerStatus) -> String {
    let Some(state) = &container.state else {
        return String::new();
    };
    if state.running.is_some() {
        return "running".to_owned();
    }
    match (&state.waiting, &state.terminated) {
        (Some(waiting), _) => {
            let message = waiting.message.as_deref().unwrap_or_default();
            let reason = waiting.reason.as_deref().unwrap_or_default();
            format!("{reason} ({message})")
        }
        (_, Some(terminated)) => format!("ended {}", terminated.exit_code),
        _ => String::new(),
    }
}

thread_local! {
    static PANICS: Cell<usize> = const { Cell::new(0) };
}

/// Counts panics on this thread, because panics of tasks are otherwise lost.
pub(crate) struct Panics(usize);

impl Panics {
    pub(crate) fn watch() -> Self {
        static HOOK: Once = Once::new();
        HOOK.call_once(|| {
            let before = std::panic::take_hook();
            std::panic::set_hook(Box::new(move |info| {
                PANICS.set(PANICS.get() + 1);
                before(info);
            }));
        });
        Self(PANICS.get())
    }

    pub(crate) fn assert_none(&self) {
        assert_eq!(PANICS.get(), self.0, "tasks panicked");
    }
}
