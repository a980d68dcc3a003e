//! Client of a CSI driver's node service, for one operation on one volume.

use std::{path::Path, sync::Arc, time::Duration};

use cri_proto::csi::v1::{
    NodeExpandVolumeRequest, NodeGetCapabilitiesRequest, NodeGetInfoRequest, NodeGetInfoResponse,
    NodeGetVolumeStatsRequest, NodeGetVolumeStatsResponse, NodePublishVolumeRequest,
    NodeStageVolumeRequest, NodeUnpublishVolumeRequest, NodeUnstageVolumeRequest, node_client,
    node_service_capability::{Type, rpc::Type as Capability},
};
use kubelet_plugin_manager::socket;
use tokio::time::{Instant, timeout_at};
use tonic::{Code, Response, Status, transport::Channel};

use super::{
    driver_channel::{DriverChannel, Refusal},
    metrics::CsiMetrics,
};
use crate::VolumeError;

/// The deadline of an operation, which may consist of several calls, as upstream.
const OPERATION_LIMIT: Duration = Duration::from_secs(2 * 60);

/// Why a request to a driver failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CsiError {
    /// The driver has not registered, or is gone.
    #[error("driver name {0} not found in the list of registered CSI drivers")]
    NotRegistered(String),
    /// The driver returned an error, or did not answer.
    #[error("{rpc}: rpc error: code = {:?} desc = {}", status.code(), status.message())]
    Call {
        /// Name of the call.
        rpc: &'static str,
        /// Its status, possibly generated on the kubelet's side.
        status: Box<Status>,
        /// The status was sent by the driver itself.
        is_refusal: bool,
    },
}

impl CsiError {
    /// The status code, if the driver itself sent it.
    fn refusal(&self) -> Option<Code> {
        match self {
            Self::Call {
                status,
                is_refusal: true,
                ..
            } => Some(status.code()),
            _ => None,
        }
    }

    /// Whether the operation is certainly not in progress. After any other error, the driver may
    /// still be working on it or may have completed it.
    pub(super) fn is_final(&self) -> bool {
        self.refusal().is_some_and(|code| {
            !matches!(
                code,
                Code::Cancelled
                    | Code::DeadlineExceeded
                    | Code::Unavailable
                    | Code::ResourceExhausted
                    | Code::Aborted
            )
        })
    }

    /// Whether the state of the volume does not allow the operation.
    pub(super) fn is_failed_precondition(&self) -> bool {
        self.refusal() == Some(Code::FailedPrecondition)
    }

    /// Whether the driver does not know the volume.
    pub(super) fn is_not_found(&self) -> bool {
        self.refusal() == Some(Code::NotFound)
    }

    /// Whether the request can never succeed.
    pub(super) fn is_infeasible(&self) -> bool {
        matches!(
            self.refusal(),
            Some(Code::InvalidArgument | Code::OutOfRange | Code::NotFound)
        )
    }
}

impl From<CsiError> for VolumeError {
    fn from(error: CsiError) -> Self {
        Self::Other(Box::new(error))
    }
}

/// The capabilities of a driver's node service.
#[derive(Clone, Debug)]
pub(super) struct Capabilities(Vec<Capability>);

impl Capabilities {
    pub(super) fn has(&self, capability: Capability) -> bool {
        self.0.contains(&capability)
    }
}

/// A client with one deadline for all of its calls.
#[derive(Clone, Debug)]
pub(super) struct NodeClient {
    driver: String,
    channel: Channel,
    metrics: Arc<CsiMetrics>,
    deadline: Instant,
    migrated: bool,
}

impl NodeClient {
    pub(super) fn new(driver: &str, endpoint: &Path, metrics: Arc<CsiMetrics>) -> Self {
        Self {
            driver: driver.to_owned(),
            channel: socket::channel(endpoint),
            metrics,
            deadline: Instant::now() + OPERATION_LIMIT,
            migrated: false,
        }
    }

    /// The client, for a volume that may have been translated to CSI.
    pub(super) fn of_volume(mut self, migrated: bool) -> Self {
        self.migrated = migrated;
        self
    }

    pub(super) async fn info(&self) -> Result<NodeGetInfoResponse, CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_get_info(NodeGetInfoRequest {});
        self.call("NodeGetInfo", refusal, call).await
    }

    pub(super) async fn capabilities(&self) -> Result<Capabilities, CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_get_capabilities(NodeGetCapabilitiesRequest {});
        let answer = self.call("NodeGetCapabilities", refusal, call).await?;
        let capabilities = answer.capabilities.into_iter();
        let known = capabilities.filter_map(|capability| match capability.r#type? {
            Type::Rpc(rpc) => Some(rpc.r#type()),
        });
        Ok(Capabilities(known.collect()))
    }

    pub(super) async fn stage(&self, request: NodeStageVolumeRequest) -> Result<(), CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_stage_volume(request);
        self.call("NodeStageVolume", refusal, call).await.map(drop)
    }

    pub(super) async fn unstage(&self, request: NodeUnstageVolumeRequest) -> Result<(), CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_unstage_volume(request);
        self.call("NodeUnstageVolume", refusal, call)
            .await
            .map(drop)
    }

    pub(super) async fn publish(&self, request: NodePublishVolumeRequest) -> Result<(), CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_publish_volume(request);
        self.call("NodePublishVolume", refusal, call)
            .await
            .map(drop)
    }

    pub(super) async fn unpublish(
        &self,
        request: NodeUnpublishVolumeRequest,
    ) -> Result<(), CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_unpublish_volume(request);
        self.call("NodeUnpublishVolume", refusal, call)
            .await
            .map(drop)
    }

    pub(super) async fn expand(&self, request: NodeExpandVolumeRequest) -> Result<(), CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_expand_volume(request);
        self.call("NodeExpandVolume", refusal, call).await.map(drop)
    }

    pub(super) async fn stats(
        &self,
        request: NodeGetVolumeStatsRequest,
    ) -> Result<NodeGetVolumeStatsResponse, CsiError> {
        let (mut client, refusal) = self.client();
        let call = client.node_get_volume_stats(request);
        self.call("NodeGetVolumeStats", refusal, call).await
    }

    /// A client for one call, and a flag for whether the driver refuses it.
    fn client(&self) -> (node_client::NodeClient<DriverChannel>, Refusal) {
        let refusal = Refusal::default();
        let channel = DriverChannel::new(self.channel.clone(), refusal.clone());
        (node_client::NodeClient::new(channel), refusal)
    }

    async fn call<T>(
        &self,
        rpc: &'static str,
        refusal: Refusal,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Result<T, CsiError> {
        let begun = Instant::now();
        let answer = timeout_at(self.deadline, call).await;
        let answer =
            answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("context deadline exceeded")));
        let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
        let took = begun.elapsed();
        self.metrics
            .called(&self.driver, self.migrated, rpc, code, took);
        let status = match answer {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => status,
        };
        Err(CsiError::Call {
            rpc,
            status: Box::new(status),
            is_refusal: refusal.came(),
        })
    }
}

/// A path as a string, which gRPC requires.
pub(super) fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use kubelet_metrics::Exposition;

    use super::*;

    #[test]
    fn some_errors_leave_it_open_what_was_done() {
        let error = |code, is_refusal| CsiError::Call {
            rpc: "NodeStageVolume",
            status: Box::new(Status::new(code, "x")),
            is_refusal,
        };
        let is_final = |code| error(code, true).is_final();
        for code in [
            Code::Internal,
            Code::InvalidArgument,
            Code::Unknown,
            Code::NotFound,
        ] {
            assert!(is_final(code), "{code:?}");
            assert!(!error(code, false).is_final(), "{code:?}");
        }
        for code in [Code::Unavailable, Code::Aborted, Code::DeadlineExceeded] {
            assert!(!is_final(code), "{code:?}");
        }
        assert!(!CsiError::NotRegistered("x".to_owned()).is_final());
    }

    #[tokio::test(start_paused = true)]
    async fn a_driver_that_does_not_answer_is_given_up() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("csi.sock");
        // Nothing accepts connections.
        let listener = tokio::net::UnixListener::bind(&path).unwrap();
        let begun = Instant::now();
        let metrics = Arc::<CsiMetrics>::default();
        let client = |path: &Path| NodeClient::new("d", path, Arc::clone(&metrics));
        let error = client(&path).info().await.unwrap_err();
        assert_eq!(begun.elapsed(), OPERATION_LIMIT);
        assert_eq!(
            error.to_string(),
            "NodeGetInfo: rpc error: code = DeadlineExceeded desc = context deadline exceeded"
        );
        drop(listener);
        let error = client(&dir.path().join("none")).info().await;
        assert!(!error.unwrap_err().is_final());
        let mut page = Exposition::default();
        metrics.collect(&mut page);
        let labels = "driver_name=\"d\",method_name=\"/csi.v1.Node/NodeGetInfo\",\
                      grpc_status_code=\"DeadlineExceeded\",migrated=\"false\"";
        let text = page.into_text();
        for sample in [
            format!("csi_operations_seconds_bucket{{{labels},le=\"50\"}} 0\n"),
            format!("csi_operations_seconds_bucket{{{labels},le=\"120\"}} 1\n"),
            format!("csi_operations_seconds_sum{{{labels}}} 120\n"),
        ] {
            assert!(text.contains(&sample), "{sample}: {text}");
        }
    }
}
