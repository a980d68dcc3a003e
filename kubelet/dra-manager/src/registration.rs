//! Registration of drivers by the plugin watcher, and their connections.

use std::time::Duration;

use cri_proto::dra_health::v1alpha1::{
    NodeWatchResourcesRequest, NodeWatchResourcesResponse,
    dra_resource_health_client::DraResourceHealthClient,
};
use futures::future::{BoxFuture, FutureExt as _, ready};
use kubelet_host::clock;
use kubelet_plugin_manager::{Plugin, PluginHandler, socket};
use kubelet_pod_spec::names::dns1123_subdomain;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::{Code, Status, Streaming, transport::Channel};
use tracing::{debug, info, warn};

use crate::{
    driver::{Driver, Service},
    health::DeviceName,
    manager::DraManager,
};

/// The time limit of a connection.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);
/// Between attempts to connect.
const CONNECT_PERIOD: Duration = Duration::from_secs(1);
/// Between attempts to watch the health of devices, as upstream.
const HEALTH_PERIOD: Duration = Duration::from_secs(5);

impl DraManager {
    /// Keeps a connection to a driver until it is deregistered.
    async fn follow(self, driver: Driver) {
        let connections = async {
            loop {
                let ended = CancellationToken::new();
                let connecting = socket::connect_until(driver.path(), ended.clone());
                if let Ok(Ok(channel)) = timeout(CONNECT_LIMIT, connecting).await {
                    driver.set_channel(Some(channel.clone()));
                    self.note_usable(driver.name());
                    info!(driver = driver.name(), "connected to DRA driver");
                    ended
                        .run_until_cancelled(self.follow_health(&driver, channel))
                        .await;
                    driver.set_channel(None);
                    warn!(
                        driver = driver.name(),
                        "lost the connection to DRA driver; retrying"
                    );
                    self.note_usable(driver.name());
                    self.clear_health(&driver).await;
                }
                sleep(CONNECT_PERIOD).await;
            }
        };
        driver.until_end(connections).await;
        // The next kubelet may still read it.
        if !self.stops() {
            self.clear_health(&driver).await;
        }
    }

    /// Follows the health of a driver's devices for as long as it is connected.
    async fn follow_health(&self, driver: &Driver, channel: Channel) {
        let mut client = DraResourceHealthClient::new(channel);
        loop {
            let watching = client.node_watch_resources(NodeWatchResourcesRequest {});
            let ended = match watching.await {
                Ok(reports) => self.health_reports(driver, reports.into_inner()).await,
                Err(status) => Err(status),
            };
            match ended {
                // The driver does not know the health.
                Err(status) if status.code() == Code::Unimplemented => {
                    return std::future::pending().await;
                }
                ended => debug!(
                    driver = driver.name(), status = ?ended.err(),
                    "the watch of the health of devices ended; retrying"
                ),
            }
            self.clear_health(driver).await;
            sleep(HEALTH_PERIOD).await;
        }
    }

    async fn health_reports(
        &self,
        driver: &Driver,
        mut reports: Streaming<NodeWatchResourcesResponse>,
    ) -> Result<(), Status> {
        loop {
            let holds = self.health().hold_for(driver.name(), clock::now());
            let changed = match holds {
                Some(holds) => match timeout(holds, reports.message()).await {
                    Ok(report) => self.reported(driver, report?)?,
                    Err(_) => {
                        // The last instant of a report still counts.
                        let now = clock::now() + Duration::from_millis(1);
                        self.health().expire(driver.name(), now)
                    }
                },
                None => self.reported(driver, reports.message().await?)?,
            };
            self.health_changed(driver.name(), &changed).await;
        }
    }

    fn reported(
        &self,
        driver: &Driver,
        report: Option<NodeWatchResourcesResponse>,
    ) -> Result<Vec<DeviceName>, Status> {
        let report = report.ok_or_else(|| Status::unavailable("the driver ended it"))?;
        let devices = report.devices;
        Ok(self.health().report(driver.name(), devices, clock::now()))
    }

    async fn clear_health(&self, driver: &Driver) {
        let changed = self.health().clear(driver.name());
        self.health_changed(driver.name(), &changed).await;
    }
}

fn check(plugin: &Plugin) -> Result<&'static Service, String> {
    let name = &plugin.name;
    if let Err(rule) = dns1123_subdomain(name) {
        return Err(format!("DRA driver name {name:?}: {rule}"));
    }
    Service::choose(&plugin.versions).map_err(|error| {
        let endpoint = plugin.endpoint.display();
        format!(
            "invalid supported gRPC versions of DRA driver plugin {name} at endpoint {endpoint}: \
             {error}"
        )
    })
}

impl PluginHandler for DraManager {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        check(plugin).map(drop)
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        let registered = check(plugin).and_then(|service| {
            let ends = self.ends();
            let driver = Driver::new(&plugin.name, &plugin.endpoint, service, ends);
            self.drivers().add(driver.clone())?;
            self.note_usable(&plugin.name);
            tokio::spawn(self.clone().follow(driver));
            Ok(())
        });
        ready(registered).boxed()
    }

    fn deregister(&self, plugin: &Plugin) {
        let removed = self.drivers().remove(&plugin.name, &plugin.endpoint);
        if let Some(removed) = removed {
            removed.end();
            self.note_usable(&plugin.name);
        }
    }
}
