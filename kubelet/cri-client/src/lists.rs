//! Lists of the runtime's objects. With `CRIListStreaming` they are read as streams of parts, so
//! that a list may be larger than one response can be.

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicBool, Ordering},
};

use cri_proto::runtime::v1::{
    Container, ContainerFilter, ContainerStats, Image, ListContainerStatsRequest,
    ListContainersRequest, ListImagesRequest, ListPodSandboxRequest, ListPodSandboxStatsRequest,
    PodSandbox, PodSandboxFilter, PodSandboxStats, StreamContainerStatsRequest,
    StreamContainersRequest, StreamImagesRequest, StreamPodSandboxStatsRequest,
    StreamPodSandboxesRequest,
};
use kubelet_pod_spec::identity::PodUid;
use prost::Message;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Response, Status, Streaming};
use tracing::info;

use super::{CriClient, CriError, MAX_MESSAGE_SIZE, deadline::failed};
use crate::labels;

/// The largest list that is read from a stream: as large as 16 responses.
const MAX_LIST_SIZE: usize = 16 * MAX_MESSAGE_SIZE;

/// Which services' lists are streamed. A service that does not implement one of its streams is not
/// asked for any again.
#[derive(Debug, Default)]
pub(super) struct ListStreams {
    runtime: AtomicBool,
    image: AtomicBool,
}

impl ListStreams {
    pub(super) fn on() -> Self {
        Self {
            runtime: AtomicBool::new(true),
            image: AtomicBool::new(true),
        }
    }
}

/// A list by its streaming and its unary verb, and the object that the call concerns.
#[derive(Clone, Copy)]
struct List<'a> {
    streaming: &'static str,
    unary: &'static str,
    object: &'a str,
}

const SANDBOXES: List<'_> = List {
    streaming: "StreamPodSandboxes",
    unary: "ListPodSandbox",
    object: "",
};
const CONTAINERS: List<'_> = List {
    streaming: "StreamContainers",
    unary: "ListContainers",
    object: "",
};
const SANDBOX_STATS: List<'_> = List {
    streaming: "StreamPodSandboxStats",
    unary: "ListPodSandboxStats",
    object: "",
};
const CONTAINER_STATS: List<'_> = List {
    streaming: "StreamContainerStats",
    unary: "ListContainerStats",
    object: "",
};
const IMAGES: List<'_> = List {
    streaming: "StreamImages",
    unary: "ListImages",
    object: "",
};

impl CriClient {
    /// All sandboxes of the runtime.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_pod_sandboxes(&self) -> Result<Vec<PodSandbox>, CriError> {
        self.sandboxes(SANDBOXES, None).await
    }

    /// The sandboxes whose labels name the pod.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_pod_sandboxes_of(&self, uid: &PodUid) -> Result<Vec<PodSandbox>, CriError> {
        let filter = PodSandboxFilter {
            label_selector: of_pod(uid),
            ..PodSandboxFilter::default()
        };
        let object = uid.as_str();
        let list = List {
            object,
            ..SANDBOXES
        };
        self.sandboxes(list, Some(filter)).await
    }

    /// All containers of the runtime, in any state.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_containers(&self) -> Result<Vec<Container>, CriError> {
        self.containers(CONTAINERS, None).await
    }

    /// The containers whose labels name the pod, in any state.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_containers_of(&self, uid: &PodUid) -> Result<Vec<Container>, CriError> {
        let filter = ContainerFilter {
            label_selector: of_pod(uid),
            ..ContainerFilter::default()
        };
        let object = uid.as_str();
        let list = List {
            object,
            ..CONTAINERS
        };
        self.containers(list, Some(filter)).await
    }

    async fn sandboxes(
        &self,
        list: List<'_>,
        filter: Option<PodSandboxFilter>,
    ) -> Result<Vec<PodSandbox>, CriError> {
        let mut client = self.runtime.clone();
        let request = StreamPodSandboxesRequest {
            filter: filter.clone(),
        };
        let stream = client.stream_pod_sandboxes(request);
        let streams = &self.list_streams.runtime;
        let parts = self.streamed(streams, list, stream, |part| part.pod_sandboxes);
        if let Some(sandboxes) = parts.await? {
            return Ok(sandboxes);
        }
        let call = client.list_pod_sandbox(ListPodSandboxRequest { filter });
        Ok(self.call(list.unary, list.object, call).await?.items)
    }

    async fn containers(
        &self,
        list: List<'_>,
        filter: Option<ContainerFilter>,
    ) -> Result<Vec<Container>, CriError> {
        let mut client = self.runtime.clone();
        let request = StreamContainersRequest {
            filter: filter.clone(),
        };
        let stream = client.stream_containers(request);
        let streams = &self.list_streams.runtime;
        let parts = self.streamed(streams, list, stream, |part| part.containers);
        if let Some(containers) = parts.await? {
            return Ok(containers);
        }
        let call = client.list_containers(ListContainersRequest { filter });
        Ok(self.call(list.unary, list.object, call).await?.containers)
    }

    /// All images of the runtime.
    ///
    /// # Errors
    /// The call failed.
    pub async fn list_images(&self) -> Result<Vec<Image>, CriError> {
        let mut client = self.image.clone();
        let stream = client.stream_images(StreamImagesRequest::default());
        let streams = &self.list_streams.image;
        let parts = self.streamed(streams, IMAGES, stream, |part| part.images);
        if let Some(images) = parts.await? {
            return Ok(images);
        }
        let call = client.list_images(ListImagesRequest::default());
        Ok(self.call(IMAGES.unary, "", call).await?.images)
    }

    /// What every container uses, its writable layer included.
    ///
    /// # Errors
    /// The call failed.
    pub async fn container_stats(&self) -> Result<Vec<ContainerStats>, CriError> {
        let mut client = self.runtime.clone();
        let stream = client.stream_container_stats(StreamContainerStatsRequest::default());
        let streams = &self.list_streams.runtime;
        let parts = self.streamed(streams, CONTAINER_STATS, stream, |part| {
            part.container_stats
        });
        if let Some(stats) = parts.await? {
            return Ok(stats);
        }
        let call = client.list_container_stats(ListContainerStatsRequest::default());
        Ok(self.call(CONTAINER_STATS.unary, "", call).await?.stats)
    }

    /// What every pod uses.
    pub(super) async fn list_pod_sandbox_stats(&self) -> Result<Vec<PodSandboxStats>, CriError> {
        let mut client = self.runtime.clone();
        let stream = client.stream_pod_sandbox_stats(StreamPodSandboxStatsRequest::default());
        let streams = &self.list_streams.runtime;
        let parts = self.streamed(streams, SANDBOX_STATS, stream, |part| {
            part.pod_sandbox_stats
        });
        if let Some(stats) = parts.await? {
            return Ok(stats);
        }
        let call = client.list_pod_sandbox_stats(ListPodSandboxStatsRequest::default());
        Ok(self.call(SANDBOX_STATS.unary, "", call).await?.stats)
    }

    /// A list from its stream, within the usual deadline; `None` if the service's lists are not
    /// streamed. In metrics it counts as the unary call, as upstream.
    fn streamed<'a, Part: Message, Item: Send>(
        &'a self,
        streams: &'a AtomicBool,
        list: List<'a>,
        stream: impl Future<Output = Result<Response<Streaming<Part>>, Status>> + Send,
        items: impl Fn(Part) -> Vec<Item> + Send,
    ) -> impl Future<Output = Result<Option<Vec<Item>>, CriError>> + Send {
        // Boxed, like all calls.
        let stream = streams.load(Ordering::Relaxed).then(|| Box::pin(stream));
        async move {
            let Some(stream) = stream else {
                return Ok(None);
            };
            let read = Box::pin(self.read(list, stream, items));
            match self.metrics.measure(list.unary, read).await {
                Err(error) if has_no_stream(&error) => {
                    streams.store(false, Ordering::Relaxed);
                    info!(%error, "the runtime does not stream its lists; they are read whole");
                    Ok(None)
                }
                read => read.map(Some),
            }
        }
    }

    async fn read<Part: Message, Item>(
        &self,
        list: List<'_>,
        stream: impl Future<Output = Result<Response<Streaming<Part>>, Status>>,
        items: impl Fn(Part) -> Vec<Item>,
    ) -> Result<Vec<Item>, CriError> {
        let verb = list.streaming;
        let late = |_| CriError::Deadline {
            verb,
            object: list.object.to_owned(),
            after: self.timeout,
        };
        let answered = |status| failed(verb, list.object, status);
        let deadline = Instant::now() + self.timeout;
        let opened = timeout_at(deadline, stream).await.map_err(late)?;
        let parts = opened.map_err(answered)?.into_inner();
        let all = timeout_at(deadline, read_all(parts, items)).await;
        let all = all.map_err(late).and_then(|all| all.map_err(answered));
        all.map_err(|cause| CriError::Interrupted {
            verb,
            cause: Box::new(cause),
        })
    }
}

async fn read_all<Part: Message, Item>(
    mut parts: Streaming<Part>,
    items: impl Fn(Part) -> Vec<Item>,
) -> Result<Vec<Item>, Status> {
    let (mut all, mut size) = (Vec::new(), 0_usize);
    while let Some(part) = parts.message().await? {
        let encoded = part.encoded_len();
        let read = items(part);
        // Empty items take far less space encoded than in memory.
        size = size.saturating_add(encoded.max(size_of_val(&*read)));
        if size > MAX_LIST_SIZE {
            let message = format!("the list is larger than {MAX_LIST_SIZE} bytes");
            return Err(Status::resource_exhausted(message));
        }
        all.extend(read);
    }
    Ok(all)
}

/// Whether the service does not implement the stream. An error about one of the objects does not
/// mean that, whatever it says.
pub(super) fn has_no_stream(error: &CriError) -> bool {
    match error {
        CriError::Status { status, .. } => status.code() == Code::Unimplemented,
        CriError::Interrupted { cause, .. } => has_no_stream(cause),
        _ => false,
    }
}

fn of_pod(uid: &PodUid) -> BTreeMap<String, String> {
    BTreeMap::from([(labels::POD_UID.to_owned(), uid.as_str().to_owned())])
}
