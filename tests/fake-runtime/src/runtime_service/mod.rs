//! The fake runtime's `RuntimeService`: the verbs, each subject to its fault.

mod containers;
mod runtime;
mod sandboxes;
mod stats;

use std::time::Duration;

use cri_proto::runtime::v1::{self as cri, runtime_service_server::RuntimeService};
use tonic::{Request, Response, Status};

use super::{FakeRuntime, Verb, history::ContainerEvent, lists::ResponseStream, world::World};

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(
        &self,
        request: Request<cri::VersionRequest>,
    ) -> Result<Response<cri::VersionResponse>, Status> {
        self.respond(Verb::Version, request, runtime::version).await
    }

    // === sandboxes ===

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Result<Response<cri::RunPodSandboxResponse>, Status> {
        self.respond(Verb::RunPodSandbox, request, sandboxes::run)
            .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Result<Response<cri::StopPodSandboxResponse>, Status> {
        self.respond(Verb::StopPodSandbox, request, sandboxes::stop)
            .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Result<Response<cri::RemovePodSandboxResponse>, Status> {
        self.respond(Verb::RemovePodSandbox, request, sandboxes::remove)
            .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Result<Response<cri::PodSandboxStatusResponse>, Status> {
        self.respond(Verb::PodSandboxStatus, request, sandboxes::status)
            .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Result<Response<cri::ListPodSandboxResponse>, Status> {
        self.respond(Verb::ListPodSandbox, request, sandboxes::list)
            .await
    }

    type StreamPodSandboxesStream = ResponseStream<cri::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> Result<Response<Self::StreamPodSandboxesStream>, Status> {
        self.respond(Verb::StreamPodSandboxes, request, sandboxes::stream)
            .await
    }

    // === containers ===

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Result<Response<cri::CreateContainerResponse>, Status> {
        let created = self.respond(Verb::CreateContainer, request, containers::create);
        let created = created.await?;
        self.note(
            &created.get_ref().container_id,
            ContainerEvent::CreateReturned,
        );
        Ok(created)
    }

    async fn start_container(
        &self,
        request: Request<cri::StartContainerRequest>,
    ) -> Result<Response<cri::StartContainerResponse>, Status> {
        let id = request.into_inner().container_id;
        self.note(&id, ContainerEvent::StartCalled);
        let this = self.clone();
        self.call(Verb::StartContainer, |world| {
            let container = world.container(&id)?;
            let (id, attempt) = (container.id.clone(), container.attempt());
            let behaviour = world.start_container(&id)?;
            this.run_behaviour(id, attempt, &behaviour);
            Ok(cri::StartContainerResponse {})
        })
        .await
    }

    async fn stop_container(
        &self,
        request: Request<cri::StopContainerRequest>,
    ) -> Result<Response<cri::StopContainerResponse>, Status> {
        let cri::StopContainerRequest {
            container_id,
            timeout,
        } = request.into_inner();
        let timeout = Duration::from_secs(u64::try_from(timeout).unwrap_or_default());
        self.note(&container_id, ContainerEvent::StopCalled(timeout));
        let answer = self.0.faults.meet(Verb::StopContainer).await?;
        let id = self.0.world.lock().container_id(&container_id);
        if let Some(id) = id {
            self.stop(&id, timeout).await;
        }
        let served = Ok(Response::new(cri::StopContainerResponse {}));
        answer.to(served).await
    }

    async fn remove_container(
        &self,
        request: Request<cri::RemoveContainerRequest>,
    ) -> Result<Response<cri::RemoveContainerResponse>, Status> {
        self.respond(Verb::RemoveContainer, request, containers::remove)
            .await
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Result<Response<cri::ListContainersResponse>, Status> {
        self.respond(Verb::ListContainers, request, containers::list)
            .await
    }

    type StreamContainersStream = ResponseStream<cri::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> Result<Response<Self::StreamContainersStream>, Status> {
        self.respond(Verb::StreamContainers, request, containers::stream)
            .await
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Result<Response<cri::ContainerStatusResponse>, Status> {
        self.respond(Verb::ContainerStatus, request, containers::status)
            .await
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Result<Response<cri::UpdateContainerResourcesResponse>, Status> {
        self.respond(
            Verb::UpdateContainerResources,
            request,
            containers::update_resources,
        )
        .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Result<Response<cri::ReopenContainerLogResponse>, Status> {
        self.respond(Verb::ReopenContainerLog, request, containers::reopen_log)
            .await
    }

    // === exec and streaming ===

    async fn exec_sync(
        &self,
        request: Request<cri::ExecSyncRequest>,
    ) -> Result<Response<cri::ExecSyncResponse>, Status> {
        let ran = self.run_command(request.into_inner());
        ran.await.map(Response::new)
    }

    async fn exec(
        &self,
        request: Request<cri::ExecRequest>,
    ) -> Result<Response<cri::ExecResponse>, Status> {
        let request = request.into_inner();
        let id = request.container_id;
        *self.0.streamed.lock() = request.cmd;
        let base = self.0.streaming_url.lock().clone();
        self.call(Verb::Exec, |world| {
            world.running(&id)?;
            Ok(cri::ExecResponse {
                url: streaming_url(base, "exec", &id)?,
            })
        })
        .await
    }

    async fn attach(
        &self,
        request: Request<cri::AttachRequest>,
    ) -> Result<Response<cri::AttachResponse>, Status> {
        let id = request.into_inner().container_id;
        let base = self.0.streaming_url.lock().clone();
        self.call(Verb::Attach, |world| {
            world.running(&id)?;
            Ok(cri::AttachResponse {
                url: streaming_url(base, "attach", &id)?,
            })
        })
        .await
    }

    async fn port_forward(
        &self,
        request: Request<cri::PortForwardRequest>,
    ) -> Result<Response<cri::PortForwardResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        let base = self.0.streaming_url.lock().clone();
        self.call(Verb::PortForward, |world| {
            world.sandbox(&id)?;
            Ok(cri::PortForwardResponse {
                url: streaming_url(base, "portforward", &id)?,
            })
        })
        .await
    }

    // === stats ===

    async fn container_stats(
        &self,
        request: Request<cri::ContainerStatsRequest>,
    ) -> Result<Response<cri::ContainerStatsResponse>, Status> {
        self.respond(Verb::ContainerStats, request, stats::container)
            .await
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Result<Response<cri::ListContainerStatsResponse>, Status> {
        self.respond(Verb::ListContainerStats, request, stats::list_containers)
            .await
    }

    type StreamContainerStatsStream = ResponseStream<cri::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> Result<Response<Self::StreamContainerStatsStream>, Status> {
        self.respond(
            Verb::StreamContainerStats,
            request,
            stats::stream_containers,
        )
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Result<Response<cri::PodSandboxStatsResponse>, Status> {
        self.respond(Verb::PodSandboxStats, request, stats::sandbox)
            .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Result<Response<cri::ListPodSandboxStatsResponse>, Status> {
        self.respond(Verb::ListPodSandboxStats, request, stats::list_sandboxes)
            .await
    }

    type StreamPodSandboxStatsStream = ResponseStream<cri::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Result<Response<Self::StreamPodSandboxStatsStream>, Status> {
        self.respond(
            Verb::StreamPodSandboxStats,
            request,
            stats::stream_sandboxes,
        )
        .await
    }

    async fn list_metric_descriptors(
        &self,
        request: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Result<Response<cri::ListMetricDescriptorsResponse>, Status> {
        self.respond(
            Verb::ListMetricDescriptors,
            request,
            stats::list_metric_descriptors,
        )
        .await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        request: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Result<Response<cri::ListPodSandboxMetricsResponse>, Status> {
        self.respond(Verb::ListPodSandboxMetrics, request, stats::list_metrics)
            .await
    }

    type StreamPodSandboxMetricsStream = ResponseStream<cri::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        request: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Result<Response<Self::StreamPodSandboxMetricsStream>, Status> {
        self.respond(
            Verb::StreamPodSandboxMetrics,
            request,
            stats::stream_metrics,
        )
        .await
    }

    // === events, checkpoints, configuration ===

    type GetContainerEventsStream = ResponseStream<cri::ContainerEventResponse>;

    async fn get_container_events(
        &self,
        request: Request<cri::GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        self.respond(Verb::GetContainerEvents, request, runtime::events)
            .await
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> Result<Response<cri::CheckpointContainerResponse>, Status> {
        self.respond(Verb::CheckpointContainer, request, containers::checkpoint)
            .await
    }

    async fn checkpoint_pod(
        &self,
        request: Request<cri::CheckpointPodRequest>,
    ) -> Result<Response<cri::CheckpointPodResponse>, Status> {
        self.respond(Verb::CheckpointPod, request, World::checkpoint_pod)
            .await
    }

    async fn restore_pod(
        &self,
        request: Request<cri::RestorePodRequest>,
    ) -> Result<Response<cri::RestorePodResponse>, Status> {
        self.respond(Verb::RestorePod, request, World::restore_pod)
            .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Result<Response<cri::UpdateRuntimeConfigResponse>, Status> {
        self.respond(Verb::UpdateRuntimeConfig, request, runtime::update_config)
            .await
    }

    async fn status(
        &self,
        request: Request<cri::StatusRequest>,
    ) -> Result<Response<cri::StatusResponse>, Status> {
        self.respond(Verb::Status, request, runtime::status).await
    }

    async fn runtime_config(
        &self,
        request: Request<cri::RuntimeConfigRequest>,
    ) -> Result<Response<cri::RuntimeConfigResponse>, Status> {
        self.respond(Verb::RuntimeConfig, request, runtime::config)
            .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Result<Response<cri::UpdatePodSandboxResourcesResponse>, Status> {
        self.respond(
            Verb::UpdatePodSandboxResources,
            request,
            sandboxes::update_resources,
        )
        .await
    }
}

fn streaming_url(base: Option<String>, verb: &str, id: &str) -> Result<String, Status> {
    base.map(|base| format!("{}/{verb}/{id}", base.trim_end_matches('/')))
        .ok_or_else(|| Status::failed_precondition("the fake runtime has no streaming server"))
}
