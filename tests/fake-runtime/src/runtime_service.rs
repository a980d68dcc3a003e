//! The fake runtime's `RuntimeService`.

use std::time::Duration;

use cri_proto::runtime::v1::{self as cri, runtime_service_server::RuntimeService};
use tokio_stream::{StreamExt as _, wrappers::BroadcastStream};
use tonic::{Request, Response, Status};

use super::{
    FakeRuntime, Verb, convert,
    history::{ContainerEvent, EndCause},
    lists::{
        ResponseStream, chunks, container_stats, containers, metrics, sandbox_stats,
        sandbox_stats_of, sandboxes,
    },
    world::{Checkpoint, World},
};

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(
        &self,
        _: Request<cri::VersionRequest>,
    ) -> Result<Response<cri::VersionResponse>, Status> {
        self.call(Verb::Version, |_| {
            Ok(cri::VersionResponse {
                version: "0.1.0".to_owned(),
                runtime_name: "fake".to_owned(),
                runtime_version: "1.0.0".to_owned(),
                runtime_api_version: "v1".to_owned(),
            })
        })
        .await
    }

    // === sandboxes ===

    async fn run_pod_sandbox(
        &self,
        request: Request<cri::RunPodSandboxRequest>,
    ) -> Result<Response<cri::RunPodSandboxResponse>, Status> {
        let request = request.into_inner();
        self.call(Verb::RunPodSandbox, |world| {
            let config = request
                .config
                .ok_or_else(|| Status::invalid_argument("config is not set"))?;
            Ok(cri::RunPodSandboxResponse {
                pod_sandbox_id: world.run_sandbox(config, request.runtime_handler)?,
            })
        })
        .await
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<cri::StopPodSandboxRequest>,
    ) -> Result<Response<cri::StopPodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(Verb::StopPodSandbox, |world| {
            if let Some(id) = world.sandbox_id(&id) {
                world.stop_sandbox(&id, EndCause::SandboxStop);
            }
            Ok(cri::StopPodSandboxResponse {})
        })
        .await
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<cri::RemovePodSandboxRequest>,
    ) -> Result<Response<cri::RemovePodSandboxResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(Verb::RemovePodSandbox, |world| {
            if let Some(id) = world.sandbox_id(&id) {
                world.remove_sandbox(&id);
            }
            Ok(cri::RemovePodSandboxResponse {})
        })
        .await
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<cri::PodSandboxStatusRequest>,
    ) -> Result<Response<cri::PodSandboxStatusResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(Verb::PodSandboxStatus, |world| {
            let sandbox = sandbox(world, &id)?;
            Ok(cri::PodSandboxStatusResponse {
                status: Some(convert::sandbox_status(sandbox)),
                containers_statuses: world.container_statuses(&sandbox.id),
                timestamp: world.now(),
                ..cri::PodSandboxStatusResponse::default()
            })
        })
        .await
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<cri::ListPodSandboxRequest>,
    ) -> Result<Response<cri::ListPodSandboxResponse>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::ListPodSandbox, |world| {
            Ok(cri::ListPodSandboxResponse {
                items: sandboxes(world, filter),
            })
        })
        .await
    }

    type StreamPodSandboxesStream = ResponseStream<cri::StreamPodSandboxesResponse>;

    async fn stream_pod_sandboxes(
        &self,
        request: Request<cri::StreamPodSandboxesRequest>,
    ) -> Result<Response<Self::StreamPodSandboxesStream>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::StreamPodSandboxes, |world| {
            Ok(chunks(&sandboxes(world, filter), |pod_sandboxes| {
                cri::StreamPodSandboxesResponse { pod_sandboxes }
            }))
        })
        .await
    }

    // === containers ===

    async fn create_container(
        &self,
        request: Request<cri::CreateContainerRequest>,
    ) -> Result<Response<cri::CreateContainerResponse>, Status> {
        let request = request.into_inner();
        let created = self.call(Verb::CreateContainer, |world| {
            let config = request
                .config
                .ok_or_else(|| Status::invalid_argument("config is not set"))?;
            Ok(cri::CreateContainerResponse {
                container_id: world.create_container(&request.pod_sandbox_id, config)?,
            })
        });
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
        let id = request.into_inner().container_id;
        self.call(Verb::RemoveContainer, |world| {
            if let Some(id) = world.container_id(&id) {
                world.remove_container(&id);
            }
            Ok(cri::RemoveContainerResponse {})
        })
        .await
    }

    async fn list_containers(
        &self,
        request: Request<cri::ListContainersRequest>,
    ) -> Result<Response<cri::ListContainersResponse>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::ListContainers, |world| {
            Ok(cri::ListContainersResponse {
                containers: containers(world, filter),
            })
        })
        .await
    }

    type StreamContainersStream = ResponseStream<cri::StreamContainersResponse>;

    async fn stream_containers(
        &self,
        request: Request<cri::StreamContainersRequest>,
    ) -> Result<Response<Self::StreamContainersStream>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::StreamContainers, |world| {
            Ok(chunks(&containers(world, filter), |containers| {
                cri::StreamContainersResponse { containers }
            }))
        })
        .await
    }

    async fn container_status(
        &self,
        request: Request<cri::ContainerStatusRequest>,
    ) -> Result<Response<cri::ContainerStatusResponse>, Status> {
        let id = request.into_inner().container_id;
        self.call(Verb::ContainerStatus, |world| {
            Ok(cri::ContainerStatusResponse {
                status: Some(world.container_status(world.container(&id)?)),
                ..cri::ContainerStatusResponse::default()
            })
        })
        .await
    }

    async fn update_container_resources(
        &self,
        request: Request<cri::UpdateContainerResourcesRequest>,
    ) -> Result<Response<cri::UpdateContainerResourcesResponse>, Status> {
        let request = request.into_inner();
        self.call(Verb::UpdateContainerResources, |world| {
            let container = world.container_mut(&request.container_id)?;
            let linux = container.config.linux.get_or_insert_default();
            let now = linux.resources.get_or_insert_default();
            super::updates::update(now, request.linux.unwrap_or_default());
            Ok(cri::UpdateContainerResourcesResponse {})
        })
        .await
    }

    async fn reopen_container_log(
        &self,
        request: Request<cri::ReopenContainerLogRequest>,
    ) -> Result<Response<cri::ReopenContainerLogResponse>, Status> {
        let id = request.into_inner().container_id;
        self.call(Verb::ReopenContainerLog, |world| {
            let id = world.running(&id)?.id.clone();
            world.open_log(&id);
            Ok(cri::ReopenContainerLogResponse {})
        })
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
        let id = request.into_inner().container_id;
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
            sandbox(world, &id)?;
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
        let id = request.into_inner().container_id;
        self.call(Verb::ContainerStats, |world| {
            Ok(cri::ContainerStatsResponse {
                stats: Some(convert::container_stats(world.container(&id)?, world.now())),
            })
        })
        .await
    }

    async fn list_container_stats(
        &self,
        request: Request<cri::ListContainerStatsRequest>,
    ) -> Result<Response<cri::ListContainerStatsResponse>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::ListContainerStats, |world| {
            Ok(cri::ListContainerStatsResponse {
                stats: container_stats(world, filter),
            })
        })
        .await
    }

    type StreamContainerStatsStream = ResponseStream<cri::StreamContainerStatsResponse>;

    async fn stream_container_stats(
        &self,
        request: Request<cri::StreamContainerStatsRequest>,
    ) -> Result<Response<Self::StreamContainerStatsStream>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::StreamContainerStats, |world| {
            Ok(chunks(&container_stats(world, filter), |container_stats| {
                cri::StreamContainerStatsResponse { container_stats }
            }))
        })
        .await
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<cri::PodSandboxStatsRequest>,
    ) -> Result<Response<cri::PodSandboxStatsResponse>, Status> {
        let id = request.into_inner().pod_sandbox_id;
        self.call(Verb::PodSandboxStats, |world| {
            Ok(cri::PodSandboxStatsResponse {
                stats: Some(sandbox_stats_of(world, sandbox(world, &id)?)),
            })
        })
        .await
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<cri::ListPodSandboxStatsRequest>,
    ) -> Result<Response<cri::ListPodSandboxStatsResponse>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::ListPodSandboxStats, |world| {
            Ok(cri::ListPodSandboxStatsResponse {
                stats: sandbox_stats(world, filter),
            })
        })
        .await
    }

    type StreamPodSandboxStatsStream = ResponseStream<cri::StreamPodSandboxStatsResponse>;

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<cri::StreamPodSandboxStatsRequest>,
    ) -> Result<Response<Self::StreamPodSandboxStatsStream>, Status> {
        let filter = request.into_inner().filter;
        self.call(Verb::StreamPodSandboxStats, |world| {
            Ok(chunks(&sandbox_stats(world, filter), |pod_sandbox_stats| {
                cri::StreamPodSandboxStatsResponse { pod_sandbox_stats }
            }))
        })
        .await
    }

    async fn list_metric_descriptors(
        &self,
        _: Request<cri::ListMetricDescriptorsRequest>,
    ) -> Result<Response<cri::ListMetricDescriptorsResponse>, Status> {
        self.call(Verb::ListMetricDescriptors, |_| {
            Ok(cri::ListMetricDescriptorsResponse {
                descriptors: vec![cri::MetricDescriptor {
                    name: convert::METRIC.to_owned(),
                    help: "Working set in bytes.".to_owned(),
                    label_keys: vec!["container".to_owned()],
                }],
            })
        })
        .await
    }

    async fn list_pod_sandbox_metrics(
        &self,
        _: Request<cri::ListPodSandboxMetricsRequest>,
    ) -> Result<Response<cri::ListPodSandboxMetricsResponse>, Status> {
        self.call(Verb::ListPodSandboxMetrics, |world| {
            Ok(cri::ListPodSandboxMetricsResponse {
                pod_metrics: metrics(world),
            })
        })
        .await
    }

    type StreamPodSandboxMetricsStream = ResponseStream<cri::StreamPodSandboxMetricsResponse>;

    async fn stream_pod_sandbox_metrics(
        &self,
        _: Request<cri::StreamPodSandboxMetricsRequest>,
    ) -> Result<Response<Self::StreamPodSandboxMetricsStream>, Status> {
        self.call(Verb::StreamPodSandboxMetrics, |world| {
            Ok(chunks(&metrics(world), |pod_sandbox_metrics| {
                cri::StreamPodSandboxMetricsResponse {
                    pod_sandbox_metrics,
                }
            }))
        })
        .await
    }

    // === events, checkpoints, configuration ===

    type GetContainerEventsStream = ResponseStream<cri::ContainerEventResponse>;

    async fn get_container_events(
        &self,
        _: Request<cri::GetEventsRequest>,
    ) -> Result<Response<Self::GetContainerEventsStream>, Status> {
        self.call(Verb::GetContainerEvents, |world| {
            let events = BroadcastStream::new(world.events.subscribe()).map(|event| {
                event.map_err(|lagged| Status::resource_exhausted(format!("too slow: {lagged}")))
            });
            Ok(Box::pin(events) as Self::GetContainerEventsStream)
        })
        .await
    }

    async fn checkpoint_container(
        &self,
        request: Request<cri::CheckpointContainerRequest>,
    ) -> Result<Response<cri::CheckpointContainerResponse>, Status> {
        let request = request.into_inner();
        self.call(Verb::CheckpointContainer, |world| {
            let config = world.running(&request.container_id)?.config.clone();
            let checkpoint = Checkpoint {
                containers: vec![config],
            };
            world.checkpoints.insert(request.location, checkpoint);
            Ok(cri::CheckpointContainerResponse {})
        })
        .await
    }

    async fn checkpoint_pod(
        &self,
        request: Request<cri::CheckpointPodRequest>,
    ) -> Result<Response<cri::CheckpointPodResponse>, Status> {
        let request = request.into_inner();
        self.call(Verb::CheckpointPod, |world| world.checkpoint_pod(request))
            .await
    }

    async fn restore_pod(
        &self,
        request: Request<cri::RestorePodRequest>,
    ) -> Result<Response<cri::RestorePodResponse>, Status> {
        let request = request.into_inner();
        self.call(Verb::RestorePod, |world| world.restore_pod(request))
            .await
    }

    async fn update_runtime_config(
        &self,
        request: Request<cri::UpdateRuntimeConfigRequest>,
    ) -> Result<Response<cri::UpdateRuntimeConfigResponse>, Status> {
        let network = request
            .into_inner()
            .runtime_config
            .and_then(|config| config.network_config);
        self.call(Verb::UpdateRuntimeConfig, |world| {
            if let Some(network) = network {
                world.pod_cidr = network.pod_cidr;
            }
            Ok(cri::UpdateRuntimeConfigResponse {})
        })
        .await
    }

    async fn status(
        &self,
        _: Request<cri::StatusRequest>,
    ) -> Result<Response<cri::StatusResponse>, Status> {
        self.call(Verb::Status, |world| Ok(status(world))).await
    }

    async fn runtime_config(
        &self,
        _: Request<cri::RuntimeConfigRequest>,
    ) -> Result<Response<cri::RuntimeConfigResponse>, Status> {
        self.call(Verb::RuntimeConfig, |_| {
            Ok(cri::RuntimeConfigResponse {
                linux: Some(cri::LinuxRuntimeConfiguration {
                    cgroup_driver: cri::CgroupDriver::Cgroupfs.into(),
                }),
            })
        })
        .await
    }

    async fn update_pod_sandbox_resources(
        &self,
        request: Request<cri::UpdatePodSandboxResourcesRequest>,
    ) -> Result<Response<cri::UpdatePodSandboxResourcesResponse>, Status> {
        let request = request.into_inner();
        self.call(Verb::UpdatePodSandboxResources, |world| {
            let id = sandbox(world, &request.pod_sandbox_id)?.id.clone();
            if let Some(sandbox) = world.sandboxes.get_mut(&id) {
                let linux = sandbox.config.linux.get_or_insert_with(Default::default);
                linux.overhead = request.overhead;
                linux.resources = request.resources;
            }
            Ok(cri::UpdatePodSandboxResourcesResponse {})
        })
        .await
    }
}

// === shared by several verbs ===

fn sandbox<'a>(world: &'a World, id: &str) -> Result<&'a super::Sandbox, Status> {
    world
        .sandbox_id(id)
        .and_then(|id| world.sandboxes.get(&id))
        .ok_or_else(|| Status::not_found(format!("no sandbox {id}")))
}

fn streaming_url(base: Option<String>, verb: &str, id: &str) -> Result<String, Status> {
    base.map(|base| format!("{}/{verb}/{id}", base.trim_end_matches('/')))
        .ok_or_else(|| Status::failed_precondition("the fake runtime has no streaming server"))
}

fn status(world: &World) -> cri::StatusResponse {
    let ready = |kind: &str| cri::RuntimeCondition {
        r#type: kind.to_owned(),
        status: !world.unready.contains(kind),
        ..cri::RuntimeCondition::default()
    };
    cri::StatusResponse {
        status: Some(cri::RuntimeStatus {
            conditions: vec![ready("RuntimeReady"), ready("NetworkReady")],
        }),
        runtime_handlers: vec![cri::RuntimeHandler {
            name: String::new(),
            features: Some(cri::RuntimeHandlerFeatures {
                user_namespaces: world.user_namespaces,
                ..cri::RuntimeHandlerFeatures::default()
            }),
        }],
        features: Some(cri::RuntimeFeatures {
            supplemental_groups_policy: world.group_policies,
            ..cri::RuntimeFeatures::default()
        }),
        ..cri::StatusResponse::default()
    }
}
