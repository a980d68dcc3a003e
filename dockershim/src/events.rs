//! `GetContainerEvents`.

use std::sync::Arc;

use cri_proto::runtime::v1::ContainerEventResponse;
use futures::{Stream, StreamExt as _};
use tokio::sync::broadcast::Receiver;
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};
use tonic::Status;

use crate::{
    Shim,
    container::status::status_of,
    images::Images,
    model::{ContainerEvent, Model},
    network::cni::Cni,
    sandbox::status::current,
};

/// Streams events of sandboxes and containers from now on, in order, until the shim stops. A
/// listener that falls behind gets `DATA_LOSS`, and must list again and reconnect.
pub fn events(
    shim: &Shim,
) -> impl Stream<Item = Result<ContainerEventResponse, Status>> + Send + use<> {
    let events = shim.model.events.listen();
    let context = EventContext {
        model: Arc::clone(&shim.model),
        images: Arc::clone(&shim.images),
        cni: shim.cni.clone(),
    };
    responses(events, context).take_until(shim.stop.clone().cancelled_owned())
}

/// The data that completes an event's statuses.
#[derive(Clone)]
struct EventContext {
    model: Arc<Model>,
    images: Arc<Images>,
    cni: Option<Arc<Cni>>,
}

fn responses(
    events: Receiver<Arc<ContainerEvent>>,
    context: EventContext,
) -> impl Stream<Item = Result<ContainerEventResponse, Status>> + Send {
    BroadcastStream::new(events)
        .map(move |event| match event {
            Ok(event) => Ok(response(&event, &context)),
            Err(BroadcastStreamRecvError::Lagged(missed)) => {
                context.model.events.count_missed(missed);
                tracing::warn!(
                    missed,
                    "a container event listener is too slow and missed events"
                );
                Err(Status::data_loss(format!(
                    "{missed} events were dropped because they were not read in time; list the \
                     containers and listen again"
                )))
            }
        })
        .scan(false, |ended, event| {
            let item = (!*ended).then_some(event);
            *ended |= matches!(item, Some(Err(_)));
            std::future::ready(item)
        })
}

fn response(event: &ContainerEvent, context: &EventContext) -> ContainerEventResponse {
    let images = context.images.snapshot();
    let cni = context.cni.as_deref();
    ContainerEventResponse {
        container_id: event.id.to_string(),
        container_event_type: event.kind.into(),
        created_at: event.seen_at,
        pod_sandbox_status: event.sandbox.as_ref().map(|s| current(cni, s)),
        containers_statuses: event
            .containers
            .iter()
            .map(|container| status_of(container, &images))
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::ContainerEventType as Kind;
    use tokio::sync::broadcast;

    use super::*;

    fn event(n: usize) -> Arc<ContainerEvent> {
        Arc::new(ContainerEvent {
            kind: Kind::ContainerStartedEvent,
            id: n.to_string().into(),
            seen_at: 0,
            sandbox: None,
            containers: Vec::new(),
        })
    }

    #[tokio::test]
    async fn a_listener_that_does_not_keep_up_is_told_and_dropped() {
        let context = EventContext {
            model: Arc::new(Model::new()),
            images: Arc::new(Images::new("pause:1".parse().unwrap())),
            cni: None,
        };
        let events = broadcast::Sender::new(4);
        let mut quick = Box::pin(responses(events.subscribe(), context.clone()));
        let slow = responses(events.subscribe(), context.clone());
        for n in 0..10 {
            events.send(event(n)).unwrap();
            let event = quick.next().await.unwrap().unwrap();
            assert_eq!(event.container_id, n.to_string());
        }
        let told: Vec<_> = slow.take(2).collect().await;
        assert_eq!(told.len(), 1);
        let error = told[0].as_ref().unwrap_err();
        assert_eq!(error.code(), tonic::Code::DataLoss);
        assert_eq!(context.model.events.missed(), 6);
    }
}
