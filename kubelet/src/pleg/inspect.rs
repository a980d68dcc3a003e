//! Reads the details of one pod from the runtime.

use kubelet_cri_client::{
    CriClient, CriError,
    pod_status::{ContainerState, ContainerStatus, PodStatus},
};
use kubelet_runtime::termination_message::TerminationMessageSource;

use super::{ContainerRecord, PodRecord};

/// The status of every sandbox and container in `record`. The status of an ended container does not
/// change, so it is taken from `known`. Containers and sandboxes that vanished since the list are
/// omitted.
///
/// # Errors
/// A CRI call failed.
pub(super) async fn inspect(
    cri: &CriClient,
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
        match inspect_container(cri, container).await {
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
    record: &ContainerRecord,
) -> Result<ContainerStatus, CriError> {
    let cri_status = cri.container_status(&record.id).await?;
    let source = TerminationMessageSource::of(&cri_status);
    let mut status = ContainerStatus::from_cri(cri_status, &record.sandbox_id);
    if status.state == ContainerState::Exited {
        if status.reason.is_empty() {
            let reason = if status.exit_code == 0 {
                "Completed"
            } else {
                "Error"
            };
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
