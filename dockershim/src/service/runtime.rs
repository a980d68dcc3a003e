//! `RuntimeService`.

use cri_proto::runtime::v1::{
    AttachRequest, AttachResponse, CheckpointContainerRequest, CheckpointContainerResponse,
    CheckpointPodRequest, CheckpointPodResponse, ContainerEventResponse, ContainerStatsRequest,
    ContainerStatsResponse, ContainerStatusRequest, ContainerStatusResponse,
    CreateContainerRequest, CreateContainerResponse, ExecRequest, ExecResponse, ExecSyncRequest,
    ExecSyncResponse, GetEventsRequest, ListContainerStatsRequest, ListContainerStatsResponse,
    ListContainersRequest, ListContainersResponse, ListMetricDescriptorsRequest,
    ListMetricDescriptorsResponse, ListPodSandboxMetricsRequest, ListPodSandboxMetricsResponse,
    ListPodSandboxRequest, ListPodSandboxResponse, ListPodSandboxStatsRequest,
    ListPodSandboxStatsResponse, PodSandboxStatsRequest, PodSandboxStatsResponse,
    PodSandboxStatusRequest, PodSandboxStatusResponse, PortForwardRequest, PortForwardResponse,
    RemoveContainerRequest, RemoveContainerResponse, RemovePodSandboxRequest,
    RemovePodSandboxResponse, ReopenContainerLogRequest, ReopenContainerLogResponse,
    RestorePodRequest, RestorePodResponse, RunPodSandboxRequest, RunPodSandboxResponse,
    RuntimeConfigRequest, RuntimeConfigResponse, StartContainerRequest, StartContainerResponse,
    StatusRequest, StatusResponse, StopContainerRequest, StopContainerResponse,
    StopPodSandboxRequest, StopPodSandboxResponse, StreamContainerStatsRequest,
    StreamContainerStatsResponse, StreamContainersRequest, StreamContainersResponse,
    StreamPodSandboxMetricsRequest, StreamPodSandboxMetricsResponse, StreamPodSandboxStatsRequest,
    StreamPodSandboxStatsResponse, StreamPodSandboxesRequest, StreamPodSandboxesResponse,
    UpdateContainerResourcesRequest, UpdateContainerResourcesResponse,
    UpdatePodSandboxResourcesRequest, UpdatePodSandboxResourcesResponse,
    UpdateRuntimeConfigRequest, UpdateRuntimeConfigResponse, VersionRequest, VersionResponse,
    runtime_service_server::RuntimeService,
};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status};

use super::{ResponseStream, Service, chunks::in_chunks, node, unimplemented};
use crate::{container, sandbox, stats};

type RpcResult<T> = Result<Response<T>, Status>;

#[tonic::async_trait]
impl RuntimeService for Service {
    async fn version(&self, _: Request<VersionRequest>) -> RpcResult<VersionResponse> {
        Ok(Response::new(node::version(&self.shim)))
    }

    async fn status(&self, request: Request<StatusRequest>) -> RpcResult<StatusResponse> {
        let verbose = request.into_inner().verbose;
        Ok(Response::new(node::status(&self.shim, verbose).await))
    }

    async fn runtime_config(
        &self,
        _: Request<RuntimeConfigRequest>,
    ) -> RpcResult<RuntimeConfigResponse> {
        Ok(Response::new(node::runtime_config(&self.shim)?))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<ListPodSandboxRequest>,
    ) -> RpcResult<ListPodSandboxResponse> {
        let answer = sandbox::list::list(&self.shim, request.into_inner())?;
        Ok(Response::new(answer))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<PodSandboxStatusRequest>,
    ) -> RpcResult<PodSandboxStatusResponse> {
        let answer = sandbox::status::status(&self.shim, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<RunPodSandboxRequest>,
    ) -> RpcResult<RunPodSandboxResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { sandbox::run::run(&shim, request).await };
        let answer = self.shim.complete("RunPodSandbox", work).await?;
        Ok(Response::new(answer))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<StopPodSandboxRequest>,
    ) -> RpcResult<StopPodSandboxResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { sandbox::stop::stop(&shim, request).await };
        let answer = self.shim.complete("StopPodSandbox", work).await?;
        Ok(Response::new(answer))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<RemovePodSandboxRequest>,
    ) -> RpcResult<RemovePodSandboxResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { sandbox::remove::remove(&shim, request).await };
        let answer = self.shim.complete("RemovePodSandbox", work).await?;
        Ok(Response::new(answer))
    }

    async fn list_containers(
        &self,
        request: Request<ListContainersRequest>,
    ) -> RpcResult<ListContainersResponse> {
        let answer = container::list::list(&self.shim, request.into_inner())?;
        Ok(Response::new(answer))
    }

    async fn container_status(
        &self,
        request: Request<ContainerStatusRequest>,
    ) -> RpcResult<ContainerStatusResponse> {
        let answer = container::status::status(&self.shim, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn create_container(
        &self,
        request: Request<CreateContainerRequest>,
    ) -> RpcResult<CreateContainerResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { container::create::create(&shim, request).await };
        let answer = self.shim.complete("CreateContainer", work).await?;
        Ok(Response::new(answer))
    }

    async fn start_container(
        &self,
        request: Request<StartContainerRequest>,
    ) -> RpcResult<StartContainerResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { container::start::start(&shim, request).await };
        let answer = self.shim.complete("StartContainer", work).await?;
        Ok(Response::new(answer))
    }

    async fn stop_container(
        &self,
        request: Request<StopContainerRequest>,
    ) -> RpcResult<StopContainerResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { container::stop::stop(&shim, request).await };
        let answer = self.shim.complete("StopContainer", work).await?;
        Ok(Response::new(answer))
    }

    async fn remove_container(
        &self,
        request: Request<RemoveContainerRequest>,
    ) -> RpcResult<RemoveContainerResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { container::remove::remove(&shim, request).await };
        let answer = self.shim.complete("RemoveContainer", work).await?;
        Ok(Response::new(answer))
    }

    async fn exec_sync(&self, request: Request<ExecSyncRequest>) -> RpcResult<ExecSyncResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        // The work continues when the client disconnects, but the guard is dropped.
        let gone = CancellationToken::new();
        let _waiting = gone.clone().drop_guard();
        let work = async move { container::exec_sync::exec_sync(&shim, request, gone).await };
        let answer = self.shim.complete("ExecSync", work).await?;
        Ok(Response::new(answer))
    }

    async fn update_container_resources(
        &self,
        request: Request<UpdateContainerResourcesRequest>,
    ) -> RpcResult<UpdateContainerResourcesResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work =
            async move { container::update_resources::update_resources(&shim, request).await };
        let answer = self.shim.complete("UpdateContainerResources", work).await?;
        Ok(Response::new(answer))
    }

    async fn reopen_container_log(
        &self,
        request: Request<ReopenContainerLogRequest>,
    ) -> RpcResult<ReopenContainerLogResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { container::reopen_log::reopen_log(&shim, request).await };
        let answer = self.shim.complete("ReopenContainerLog", work).await?;
        Ok(Response::new(answer))
    }

    async fn exec(&self, request: Request<ExecRequest>) -> RpcResult<ExecResponse> {
        let request = request.into_inner();
        let answer = container::exec::exec(&self.shim, &self.streaming, request).await?;
        Ok(Response::new(answer))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> RpcResult<AttachResponse> {
        let request = request.into_inner();
        let answer = container::attach::attach(&self.shim, &self.streaming, request).await?;
        Ok(Response::new(answer))
    }

    async fn port_forward(
        &self,
        request: Request<PortForwardRequest>,
    ) -> RpcResult<PortForwardResponse> {
        let request = request.into_inner();
        let answer =
            sandbox::port_forward::port_forward(&self.shim, &self.streaming, request).await?;
        Ok(Response::new(answer))
    }

    async fn container_stats(
        &self,
        request: Request<ContainerStatsRequest>,
    ) -> RpcResult<ContainerStatsResponse> {
        let answer = container::stats::stats(&self.shim, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn list_container_stats(
        &self,
        request: Request<ListContainerStatsRequest>,
    ) -> RpcResult<ListContainerStatsResponse> {
        let stats = container::list_stats::list(&self.shim, request.into_inner().filter).await?;
        Ok(Response::new(ListContainerStatsResponse { stats }))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<PodSandboxStatsRequest>,
    ) -> RpcResult<PodSandboxStatsResponse> {
        let answer = sandbox::stats::stats(&self.shim, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<ListPodSandboxStatsRequest>,
    ) -> RpcResult<ListPodSandboxStatsResponse> {
        let stats = sandbox::list_stats::list(&self.shim, request.into_inner().filter).await?;
        Ok(Response::new(ListPodSandboxStatsResponse { stats }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<UpdateRuntimeConfigRequest>,
    ) -> RpcResult<UpdateRuntimeConfigResponse> {
        let answer = node::update_runtime_config(&self.shim, request.into_inner()).await?;
        Ok(Response::new(answer))
    }

    async fn checkpoint_container(
        &self,
        request: Request<CheckpointContainerRequest>,
    ) -> RpcResult<CheckpointContainerResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { container::checkpoint::checkpoint(&shim, request).await };
        let answer = self.shim.complete("CheckpointContainer", work).await?;
        Ok(Response::new(answer))
    }

    async fn checkpoint_pod(
        &self,
        _: Request<CheckpointPodRequest>,
    ) -> RpcResult<CheckpointPodResponse> {
        Err(unimplemented("CheckpointPod"))
    }

    async fn restore_pod(&self, _: Request<RestorePodRequest>) -> RpcResult<RestorePodResponse> {
        Err(unimplemented("RestorePod"))
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<ListMetricDescriptorsRequest>,
    ) -> RpcResult<ListMetricDescriptorsResponse> {
        let descriptors = stats::families::descriptors();
        Ok(Response::new(ListMetricDescriptorsResponse { descriptors }))
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<ListPodSandboxMetricsRequest>,
    ) -> RpcResult<ListPodSandboxMetricsResponse> {
        let pod_metrics = sandbox::metrics::list(&self.shim).await?;
        Ok(Response::new(ListPodSandboxMetricsResponse { pod_metrics }))
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<UpdatePodSandboxResourcesRequest>,
    ) -> RpcResult<UpdatePodSandboxResourcesResponse> {
        let (shim, request) = (self.shim.clone(), request.into_inner());
        let work = async move { sandbox::update_resources::update_resources(&shim, request).await };
        let answer = self
            .shim
            .complete("UpdatePodSandboxResources", work)
            .await?;
        Ok(Response::new(answer))
    }

    type StreamPodSandboxesStream = ResponseStream<StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<StreamPodSandboxesRequest>,
    ) -> RpcResult<Self::StreamPodSandboxesStream> {
        let filter = request.into_inner().filter;
        let listed = sandbox::list::list(&self.shim, ListPodSandboxRequest { filter })?;
        let chunks = in_chunks(listed.items, |pod_sandboxes| StreamPodSandboxesResponse {
            pod_sandboxes,
        });
        Ok(Response::new(chunks))
    }

    type StreamContainersStream = ResponseStream<StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<StreamContainersRequest>,
    ) -> RpcResult<Self::StreamContainersStream> {
        let filter = request.into_inner().filter;
        let listed = container::list::list(&self.shim, ListContainersRequest { filter })?;
        let chunks = in_chunks(listed.containers, |containers| StreamContainersResponse {
            containers,
        });
        Ok(Response::new(chunks))
    }

    type StreamContainerStatsStream = ResponseStream<StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<StreamContainerStatsRequest>,
    ) -> RpcResult<Self::StreamContainerStatsStream> {
        let stats = container::list_stats::list(&self.shim, request.into_inner().filter).await?;
        let chunks = in_chunks(stats, |container_stats| StreamContainerStatsResponse {
            container_stats,
        });
        Ok(Response::new(chunks))
    }

    type StreamPodSandboxStatsStream = ResponseStream<StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<StreamPodSandboxStatsRequest>,
    ) -> RpcResult<Self::StreamPodSandboxStatsStream> {
        let stats = sandbox::list_stats::list(&self.shim, request.into_inner().filter).await?;
        let chunks = in_chunks(stats, |pod_sandbox_stats| StreamPodSandboxStatsResponse {
            pod_sandbox_stats,
        });
        Ok(Response::new(chunks))
    }

    type GetContainerEventsStream = ResponseStream<ContainerEventResponse>;

    async fn get_container_events(
        &self,
        _: Request<GetEventsRequest>,
    ) -> RpcResult<Self::GetContainerEventsStream> {
        Ok(Response::new(Box::pin(crate::events::events(&self.shim))))
    }

    type StreamPodSandboxMetricsStream = ResponseStream<StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<StreamPodSandboxMetricsRequest>,
    ) -> RpcResult<Self::StreamPodSandboxMetricsStream> {
        let metrics = sandbox::metrics::list(&self.shim).await?;
        let chunks = in_chunks(metrics, |pod_sandbox_metrics| {
            StreamPodSandboxMetricsResponse {
                pod_sandbox_metrics,
            }
        });
        Ok(Response::new(chunks))
    }
}
