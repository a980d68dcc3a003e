//! `GetContainerEvents`.

use cri_proto::runtime::v1::ContainerEventResponse;
use futures::{Stream, StreamExt as _};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tonic::Status;

use super::status::status_of;
use crate::{Shim, image::ImageSnapshot, model::Change};

/// What happens to sandboxes and containers from now on, in order, until the shim ends.
/// A listener that does not keep up gets `DATA_LOSS`, and is to list and listen anew.
pub fn events(
    shim: &Shim,
) -> impl Stream<Item = Result<ContainerEventResponse, Status>> + Send + use<> {
    let images = std::sync::Arc::clone(&shim.images);
    BroadcastStream::new(shim.model.changes.listen())
        .map(move |change| match change {
            Ok(change) => Ok(response(&change, &images.snapshot())),
            Err(BroadcastStreamRecvError::Lagged(missed)) => {
                tracing::warn!(missed, "a listener to container events does not keep up");
                Err(Status::data_loss(format!(
                    "{missed} events were missed, as they were not read in time; list, and listen anew"
                )))
            }
        })
        .scan(false, |ended, event| {
            let item = (!*ended).then_some(event);
            *ended |= matches!(item, Some(Err(_)));
            std::future::ready(item)
        })
        .take_until(shim.stop.clone().cancelled_owned())
}

fn response(change: &Change, images: &ImageSnapshot) -> ContainerEventResponse {
    ContainerEventResponse {
        container_id: change.id.to_string(),
        container_event_type: change.kind.into(),
        created_at: change.seen_at,
        pod_sandbox_status: change.sandbox.as_ref().map(|s| s.status.clone()),
        containers_statuses: change
            .containers
            .iter()
            .map(|container| status_of(container, images))
            .collect(),
    }
}
