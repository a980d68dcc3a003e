//! `ResourceSlice` objects of this node: what its drivers offer to the scheduler. While a driver does not
//! run, pods must not be scheduled for its devices: its slices are deleted, and the driver creates them
//! again.

use std::{fmt, sync::Arc, time::Duration};

use k8s_openapi::api::{core::v1::Node, resource::v1::ResourceSlice};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams},
    core::PartialObjectMeta,
};
use kubelet_api_client::request::ask;
use retry_delay::RetryDelay;
use tokio::{sync::watch, time::sleep};
use tracing::{debug, info};

const FIRST_DELAY: Duration = Duration::from_secs(1);
const LONGEST_DELAY: Duration = Duration::from_secs(300);

/// This node in its cluster.
#[derive(Clone)]
pub struct ClusterNode {
    /// Client of the API server.
    pub client: Client,
    /// The node's name.
    pub name: String,
    /// The node object; `None` until it is known.
    pub object: watch::Receiver<Option<Arc<Node>>>,
}

impl fmt::Debug for ClusterNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterNode").finish_non_exhaustive()
    }
}

impl ClusterNode {
    /// Deletes the slices of a driver, or of all drivers, and retries until that succeeds.
    pub(crate) async fn delete_slices(mut self, driver: Option<&str>) {
        // Fails only if the sender is gone, when the kubelet stops.
        if self.object.wait_for(Option::is_some).await.is_err() {
            return;
        }
        let mut fields = format!("spec.nodeName={}", self.name);
        if let Some(driver) = driver {
            fields += &format!(",spec.driver={driver}");
        }
        let slices: Api<PartialObjectMeta<ResourceSlice>> = Api::all(self.client);
        let (params, which) = (
            DeleteParams::default(),
            ListParams::default().fields(&fields),
        );
        let mut delay = RetryDelay::new(FIRST_DELAY, LONGEST_DELAY);
        loop {
            match ask(slices.delete_collection(&params, &which)).await {
                Ok(_) => {
                    info!(driver, "deleted the node's resource slices");
                    return;
                }
                // This API server has none.
                Err(error) if error.is_not_found() => return,
                Err(error) => debug!(driver, %error, "cannot delete resource slices; retrying"),
            }
            sleep(delay.after_failure()).await;
        }
    }
}
