//! Shorthands for CRI calls that many tests make.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result};
use cri_proto::runtime::v1::{
    self as cri, image_service_client::ImageServiceClient,
    runtime_service_client::RuntimeServiceClient,
};
use cri_streaming::{
    Reader, RequestedStreams,
    client::{Client, Command, Forwarder, Transport},
};
use tokio::io::AsyncReadExt as _;
use tonic::{
    Status,
    transport::{Channel, Endpoint},
};

use crate::{images::BUSYBOX, node::Node};

/// The shim's CRI services, with shorthands that return the values that tests need.
#[derive(Clone, Debug)]
pub struct Cri {
    /// The generated client, for calls without a shorthand.
    pub runtime: RuntimeServiceClient<Channel>,
    /// The generated client, for calls without a shorthand.
    pub images: ImageServiceClient<Channel>,
}

/// What a client received from a command that has ended.
#[derive(Clone, Debug)]
pub struct CommandResult {
    /// Its standard output.
    pub out: String,
    /// Its standard error.
    pub err: String,
    /// Its exit code, if it has one.
    pub code: Option<i32>,
    /// The message of its status.
    pub message: String,
}

impl CommandResult {
    /// Reads the output of a command until it ends. Both streams are read concurrently: over
    /// WebSocket, an unread stream blocks the other.
    pub async fn of(command: Command) -> Result<Self> {
        let read = async |stream: Option<Reader>| -> Result<String> {
            let mut text = String::new();
            if let Some(mut stream) = stream {
                stream.read_to_string(&mut text).await?;
            }
            Ok(text)
        };
        let (out, err) = tokio::try_join!(read(command.stdout), read(command.stderr))?;
        let status = command.status.wait().await?;
        Ok(Self {
            out,
            err,
            code: status.exit_code(),
            message: status.message,
        })
    }
}

impl Cri {
    /// Connects to the shim of a node.
    pub async fn of(node: &Node) -> Result<Self> {
        Self::at(&node.cri_endpoint()).await
    }

    /// Connects to an endpoint: `unix://...`.
    pub async fn at(endpoint: &str) -> Result<Self> {
        let channel = Endpoint::new(endpoint.to_owned())?.connect().await?;
        Ok(Self {
            runtime: RuntimeServiceClient::new(channel.clone()),
            images: ImageServiceClient::new(channel),
        })
    }

    /// `RunPodSandbox`.
    pub async fn run(&mut self, config: &cri::PodSandboxConfig) -> Result<String, Status> {
        let request = cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            ..Default::default()
        };
        let response = self.runtime.run_pod_sandbox(request).await?;
        Ok(response.into_inner().pod_sandbox_id)
    }

    /// `CreateContainer`.
    pub async fn create(
        &mut self,
        pod_sandbox_id: &str,
        config: cri::ContainerConfig,
        sandbox: &cri::PodSandboxConfig,
    ) -> Result<String, Status> {
        let request = cri::CreateContainerRequest {
            pod_sandbox_id: pod_sandbox_id.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox.clone()),
        };
        let response = self.runtime.create_container(request).await?;
        Ok(response.into_inner().container_id)
    }

    /// `StartContainer`.
    pub async fn start(&mut self, id: &str) -> Result<(), Status> {
        let container_id = id.to_owned();
        let request = cri::StartContainerRequest { container_id };
        self.runtime.start_container(request).await?;
        Ok(())
    }

    /// `StopContainer`.
    pub async fn stop(&mut self, id: &str, timeout: i64) -> Result<(), Status> {
        let container_id = id.to_owned();
        let request = cri::StopContainerRequest {
            container_id,
            timeout,
        };
        self.runtime.stop_container(request).await?;
        Ok(())
    }

    /// `RemoveContainer`.
    pub async fn remove(&mut self, id: &str) -> Result<(), Status> {
        let container_id = id.to_owned();
        let request = cri::RemoveContainerRequest { container_id };
        self.runtime.remove_container(request).await?;
        Ok(())
    }

    /// `StopPodSandbox`.
    pub async fn stop_pod(&mut self, id: &str) -> Result<(), Status> {
        let pod_sandbox_id = id.to_owned();
        let request = cri::StopPodSandboxRequest { pod_sandbox_id };
        self.runtime.stop_pod_sandbox(request).await?;
        Ok(())
    }

    /// `RemovePodSandbox`.
    pub async fn remove_pod(&mut self, id: &str) -> Result<(), Status> {
        let pod_sandbox_id = id.to_owned();
        let request = cri::RemovePodSandboxRequest { pod_sandbox_id };
        self.runtime.remove_pod_sandbox(request).await?;
        Ok(())
    }

    /// `ListPodSandbox`.
    pub async fn pods(
        &mut self,
        filter: cri::PodSandboxFilter,
    ) -> Result<Vec<cri::PodSandbox>, Status> {
        let filter = Some(filter);
        let request = cri::ListPodSandboxRequest { filter };
        Ok(self
            .runtime
            .list_pod_sandbox(request)
            .await?
            .into_inner()
            .items)
    }

    /// `ListContainers`.
    pub async fn containers(
        &mut self,
        filter: cri::ContainerFilter,
    ) -> Result<Vec<cri::Container>, Status> {
        let filter = Some(filter);
        let request = cri::ListContainersRequest { filter };
        let response = self.runtime.list_containers(request).await?;
        Ok(response.into_inner().containers)
    }

    /// `PodSandboxStatus`.
    pub async fn pod_status(&mut self, id: &str) -> Result<cri::PodSandboxStatus, Status> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: id.to_owned(),
            verbose: false,
        };
        let response = self.runtime.pod_sandbox_status(request).await?;
        Ok(response.into_inner().status.unwrap_or_default())
    }

    /// `ContainerStatus`.
    pub async fn status(&mut self, id: &str) -> Result<cri::ContainerStatus, Status> {
        let request = cri::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let response = self.runtime.container_status(request).await?;
        Ok(response.into_inner().status.unwrap_or_default())
    }

    /// `ExecSync`.
    pub async fn exec(
        &mut self,
        id: &str,
        command: &[&str],
        timeout: i64,
    ) -> Result<cri::ExecSyncResponse, Status> {
        let request = cri::ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|&word| word.to_owned()).collect(),
            timeout,
        };
        Ok(self.runtime.exec_sync(request).await?.into_inner())
    }

    /// `Exec`, with a client for its streams.
    pub async fn exec_streams(
        &mut self,
        id: &str,
        command: &[&str],
        requested: RequestedStreams,
        transport: Transport,
    ) -> Result<Command> {
        let url = self.exec_url(id, command, requested).await?;
        let client = Client::default();
        Ok(client.command(&url, transport, requested).await?)
    }

    /// `Exec`.
    pub async fn exec_url(
        &mut self,
        id: &str,
        command: &[&str],
        requested: RequestedStreams,
    ) -> Result<String, Status> {
        let request = cri::ExecRequest {
            container_id: id.to_owned(),
            cmd: command.iter().map(|&word| word.to_owned()).collect(),
            tty: requested.tty,
            stdin: requested.stdin,
            stdout: requested.stdout,
            stderr: requested.stderr,
        };
        Ok(self.runtime.exec(request).await?.into_inner().url)
    }

    /// `Attach`, with a client for its streams.
    pub async fn attach_streams(
        &mut self,
        id: &str,
        requested: RequestedStreams,
        transport: Transport,
    ) -> Result<Command> {
        let request = cri::AttachRequest {
            container_id: id.to_owned(),
            tty: requested.tty,
            stdin: requested.stdin,
            stdout: requested.stdout,
            stderr: requested.stderr,
        };
        let url = self.runtime.attach(request).await?.into_inner().url;
        let client = Client::default();
        Ok(client.command(&url, transport, requested).await?)
    }

    /// `PortForward`, with a client for it.
    pub async fn port_forward(&mut self, pod: &str, transport: Transport) -> Result<Forwarder> {
        let request = cri::PortForwardRequest {
            pod_sandbox_id: pod.to_owned(),
            port: vec![],
        };
        let url = self.runtime.port_forward(request).await?.into_inner().url;
        Ok(Client::default().port_forward(&url, transport).await?)
    }

    /// `PullImage`. Returns the image's id.
    pub async fn pull(
        &mut self,
        image: &str,
        auth: Option<cri::AuthConfig>,
    ) -> Result<String, Status> {
        let request = cri::PullImageRequest {
            image: Some(image_spec(image)),
            auth,
            sandbox_config: None,
        };
        let response = self.images.pull_image(request).await?;
        Ok(response.into_inner().image_ref)
    }

    /// `ImageStatus`. Returns `None` if the image does not exist.
    pub async fn image(&mut self, image: &str) -> Result<Option<cri::Image>, Status> {
        let request = cri::ImageStatusRequest {
            image: Some(image_spec(image)),
            verbose: false,
        };
        Ok(self.images.image_status(request).await?.into_inner().image)
    }

    /// `RemoveImage`.
    pub async fn remove_image(&mut self, image: &str) -> Result<(), Status> {
        let request = cri::RemoveImageRequest {
            image: Some(image_spec(image)),
        };
        self.images.remove_image(request).await?;
        Ok(())
    }

    /// Runs a sandbox with one started container. Returns their ids.
    pub async fn run_pod(&mut self, name: &str, command: &[&str]) -> Result<(String, String)> {
        let config = sandbox(name);
        let pod = self.run(&config).await.context("RunPodSandbox")?;
        let container = self
            .create(&pod, container("main", command), &config)
            .await
            .context("CreateContainer")?;
        self.start(&container).await.context("StartContainer")?;
        Ok((pod, container))
    }
}

/// A sandbox on the pod network.
pub fn sandbox(name: &str) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: name.to_owned(),
            uid: format!("uid-{name}"),
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        hostname: name.to_owned(),
        labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
        linux: Some(cri::LinuxPodSandboxConfig::default()),
        ..Default::default()
    }
}

/// A container of the test image.
pub fn container(name: &str, command: &[&str]) -> cri::ContainerConfig {
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata {
            name: name.to_owned(),
            attempt: 0,
        }),
        image: Some(image_spec(BUSYBOX)),
        command: command.iter().map(|&word| word.to_owned()).collect(),
        labels: BTreeMap::from([("app".to_owned(), name.to_owned())]),
        linux: Some(cri::LinuxContainerConfig::default()),
        ..Default::default()
    }
}

/// An image reference as a CRI message.
pub fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: image.to_owned(),
        ..Default::default()
    }
}

/// A sandbox on the host network.
pub fn host_sandbox(name: &str) -> cri::PodSandboxConfig {
    let mut config = sandbox(name);
    config.linux = Some(cri::LinuxPodSandboxConfig {
        security_context: Some(cri::LinuxSandboxSecurityContext {
            namespace_options: Some(host_network()),
            ..Default::default()
        }),
        ..Default::default()
    });
    config
}

/// A container of the test image in a [`host_sandbox`].
pub fn host_container(name: &str, command: &[&str]) -> cri::ContainerConfig {
    let mut config = container(name, command);
    config.linux = Some(cri::LinuxContainerConfig {
        security_context: Some(cri::LinuxContainerSecurityContext {
            namespace_options: Some(host_network()),
            ..Default::default()
        }),
        ..Default::default()
    });
    config
}

fn host_network() -> cri::NamespaceOption {
    cri::NamespaceOption {
        network: cri::NamespaceMode::Node.into(),
        ..Default::default()
    }
}
