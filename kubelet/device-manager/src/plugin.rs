//! The client of one device plugin.

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::deviceplugin::v1beta1::{
    AllocateRequest, ContainerAllocateRequest, ContainerAllocateResponse,
    ContainerPreferredAllocationRequest, DevicePluginOptions, Empty, ListAndWatchResponse,
    PreStartContainerRequest, PreferredAllocationRequest, device_plugin_client::DevicePluginClient,
};
use kubelet_plugin_manager::{message::shortened, socket};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Response, Status, Streaming, transport::Channel};

use crate::{
    error::{DeviceError, PreferenceRequest},
    response,
};

/// The time limit of a connection, as upstream.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// The pause between attempts to connect: a plugin may register before it listens.
const CONNECT_PAUSE: Duration = Duration::from_millis(250);
/// The time limit before the start of a container, as upstream.
const PRE_START_LIMIT: Duration = Duration::from_secs(30);
/// The time limit of other calls. Upstream has none.
const CALL_LIMIT: Duration = Duration::from_secs(120);

/// A connected plugin. Equal to itself alone: a plugin that connects again is another one.
#[derive(Clone, Debug)]
pub(crate) struct DevicePlugin(Arc<Connection>);

#[derive(Debug)]
struct Connection {
    resource: String,
    /// Its socket.
    path: PathBuf,
    options: DevicePluginOptions,
    client: DevicePluginClient<Channel>,
    /// Cancelled when the plugin is replaced or deregistered.
    ends: CancellationToken,
}

impl PartialEq for DevicePlugin {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl DevicePlugin {
    /// Connects to the plugin of a resource and asks for its options.
    ///
    /// # Errors
    /// A message for the plugin's author.
    pub(crate) async fn connect(
        resource: &str,
        path: &Path,
        ends: CancellationToken,
    ) -> Result<Self, String> {
        let shown = path.display();
        let mut why = format!("no connection to {shown} within {CONNECT_LIMIT:?}");
        let connected = async {
            loop {
                match socket::connect(path).await {
                    Ok(channel) => return channel,
                    Err(error) => why = format!("cannot connect to {shown}: {error}"),
                }
                sleep(CONNECT_PAUSE).await;
            }
        };
        let channel = timeout(CONNECT_LIMIT, connected)
            .await
            .map_err(|_| format!("failed to dial device plugin: {why}"))?;
        let mut client = DevicePluginClient::new(channel);
        let options = timeout(CONNECT_LIMIT, client.get_device_plugin_options(Empty {})).await;
        let options = options
            .map_err(|_| format!("no answer within {CONNECT_LIMIT:?}"))
            .and_then(|options| options.map_err(|status| shortened(status.message().to_owned())))
            .map_err(|error| format!("failed to get device plugin options: {error}"))?;
        Ok(Self(Arc::new(Connection {
            resource: resource.to_owned(),
            path: path.to_owned(),
            options: options.into_inner(),
            client,
            ends,
        })))
    }

    /// A plugin without a server.
    #[cfg(test)]
    pub(crate) fn unserved(resource: &str, options: DevicePluginOptions) -> Self {
        let path = PathBuf::from("/nonexistent");
        let channel = socket::channel(&path);
        Self(Arc::new(Connection {
            resource: resource.to_owned(),
            path,
            options,
            client: DevicePluginClient::new(channel),
            ends: CancellationToken::new(),
        }))
    }

    pub(crate) fn resource(&self) -> &str {
        &self.0.resource
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0.path
    }

    pub(crate) fn options(&self) -> DevicePluginOptions {
        self.0.options
    }

    /// Makes [`until_end`](Self::until_end) return.
    pub(crate) fn end(&self) {
        self.0.ends.cancel();
    }

    /// The result of `work`; `None` if the plugin is replaced or deregistered first.
    pub(crate) async fn until_end<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        self.0.ends.run_until_cancelled(work).await
    }

    /// All devices, now and after each change.
    pub(crate) async fn devices(&self) -> Result<Streaming<ListAndWatchResponse>, Status> {
        let mut client = self.0.client.clone();
        Ok(client.list_and_watch(Empty {}).await?.into_inner())
    }

    /// Which devices the plugin prefers.
    pub(crate) async fn preferred(
        &self,
        request: &PreferenceRequest,
    ) -> Result<BTreeSet<String>, DeviceError> {
        let container = ContainerPreferredAllocationRequest {
            available_device_i_ds: request.available.clone(),
            must_include_device_i_ds: request.must_include.clone(),
            allocation_size: i32::try_from(request.size).unwrap_or(i32::MAX),
        };
        let request = PreferredAllocationRequest {
            container_requests: vec![container],
        };
        let mut client = self.0.client.clone();
        let call = client.get_preferred_allocation(request);
        let response = self
            .call("GetPreferredAllocation", CALL_LIMIT, call)
            .await?;
        let first = response.container_responses.into_iter().next();
        Ok(first.into_iter().flat_map(|it| it.device_i_ds).collect())
    }

    /// What a container needs to use these devices.
    pub(crate) async fn allocate(
        &self,
        devices: Vec<String>,
    ) -> Result<ContainerAllocateResponse, DeviceError> {
        let request = AllocateRequest {
            container_requests: vec![ContainerAllocateRequest {
                devices_ids: devices,
            }],
        };
        let mut client = self.0.client.clone();
        let call = client.allocate(request);
        let response = self.call("Allocate", CALL_LIMIT, call).await?;
        let invalid = |rule| DeviceError::Answer {
            resource: self.0.resource.clone(),
            rule: shortened(rule),
        };
        let first = response.container_responses.into_iter().next();
        let first = first.ok_or_else(|| invalid("container_responses: is empty".to_owned()))?;
        response::check(&first).map_err(invalid)?;
        Ok(first)
    }

    /// Tells the plugin that a container with these devices starts.
    pub(crate) async fn pre_start(&self, devices: Vec<String>) -> Result<(), DeviceError> {
        let request = PreStartContainerRequest {
            devices_ids: devices,
        };
        let mut client = self.0.client.clone();
        let call = client.pre_start_container(request);
        let called = self.call("PreStartContainer", PRE_START_LIMIT, call).await;
        called.map(drop)
    }

    async fn call<T>(
        &self,
        method: &'static str,
        limit: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, DeviceError> {
        let resource = self.0.resource.clone();
        match timeout(limit, call).await {
            Ok(Ok(response)) => Ok(response.into_inner()),
            Ok(Err(status)) => Err(DeviceError::Call {
                resource,
                method,
                message: shortened(status.message().to_owned()),
            }),
            Err(_) => Err(DeviceError::Deadline {
                resource,
                method,
                limit,
            }),
        }
    }
}
