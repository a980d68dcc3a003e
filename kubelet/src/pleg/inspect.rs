//! Reads the details of one pod from the runtime.

use kubelet_cri_client::{
    CriClient, CriError,
    pod_status::{ContainerState, ContainerStatus, PodStatus},
};
use kubelet_runtime::termination_message::TerminationMessageSource;

use super::{ContainerRecord, PodRecord};
use crate::oom_watcher::OomWatcher;

/// The reason of containers that ended after an OOM kill, in the runtime's words.
const OOM_KILLED: &str = "OOMKilled";

/// The status of every sandbox and container in `record`. The status of an ended container does not
/// change, so it is taken from `known`. Containers and sandboxes that vanished since the list are
/// omitted.
///
/// # Errors
/// A CRI call failed.
pub(super) async fn inspect(
    cri: &CriClient,
    oom_watcher: &OomWatcher,
    record: &PodRecord,
    known: &PodStatus,
) -> Result<PodStatus, CriError> {
    let mut status = PodStatus::default();
    for (id, _) in &record.sandboxes {
        match cri.pod_sandbox_status(id).await {
            Ok(sandbox) => status.sandboxes.push(sandbox.into()),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    for container in &record.containers {
        let ended = known
            .containers
            .iter()
            .find(|c| c.id == container.id && c.state == ContainerState::Exited);
        if let Some(ended) = ended {
            status.containers.push(ended.clone());
            continue;
        }
        match inspect_container(cri, oom_watcher, container).await {
            Ok(container) => status.containers.push(container),
            Err(error) if error.is_not_found() => {}
            Err(error) => return Err(error),
        }
    }
    status.sort();
    Ok(status)
}

async fn inspect_container(
    cri: &CriClient,
    oom_watcher: &OomWatcher,
    record: &ContainerRecord,
) -> Result<ContainerStatus, CriError> {
    let cri_status = cri.container_status(&record.id).await?;
    let source = TerminationMessageSource::of(&cri_status);
    let mut status = ContainerStatus::from_cri(cri_status, &record.sandbox_id);
    if status.state == ContainerState::Exited {
        if let Some(reason) = corrected_reason(&status, oom_watcher) {
            reason.clone_into(&mut status.reason);
        }
        let message = source.read().await;
        if !message.is_empty() && !status.message.is_empty() {
            status.message.push_str(": ");
        }
        status.message.push_str(&message);
    }
    Ok(status)
}

/// The reason of an ended container, if the runtime's is incomplete.
fn corrected_reason(status: &ContainerStatus, oom_watcher: &OomWatcher) -> Option<&'static str> {
    let ran_and_failed = status.exit_code != 0 && status.started_at > 0;
    // Reads the log only now: the container has ended, so a kill that ended it is in there.
    if ran_and_failed
        && status.reason != OOM_KILLED
        && oom_watcher.has_killed(&status.id, status.started_at)
    {
        return Some(OOM_KILLED);
    }
    if !status.reason.is_empty() {
        return None;
    }
    Some(if status.exit_code == 0 {
        "Completed"
    } else {
        "Error"
    })
}
