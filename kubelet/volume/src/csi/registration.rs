//! Registration of CSI drivers with the plugin manager.

use std::{path::Path, sync::Arc};

use futures::future::{BoxFuture, FutureExt as _};
use kubelet_plugin_manager::{Plugin, PluginHandler};
use tracing::info;

use super::driver_store::{Driver, DriverStore, Version};
use crate::csi::csi_node::{CsiNodeKeeper, DriverInfo};

/// Plugin type of CSI drivers.
pub const PLUGIN_TYPE: &str = "CSIPlugin";

/// Adds drivers that register to the store, and publishes them in the cluster.
#[derive(Debug)]
pub struct CsiRegistration {
    /// The store.
    pub drivers: Arc<DriverStore>,
    /// Publishes the drivers; `None` without a cluster.
    pub node: Option<Arc<CsiNodeKeeper>>,
}

impl CsiRegistration {
    /// The driver that a plugin describes.
    fn driver(&self, plugin: &Plugin) -> Result<Driver, String> {
        let name = &plugin.name;
        if name.is_empty() {
            return Err("CSI driver name is empty".to_owned());
        }
        if plugin.versions.is_empty() {
            return Err(format!(
                "CSI driver {name:?}: it returned an empty list for supported versions"
            ));
        }
        let version = Version::newest_supported(&plugin.versions).map_err(|error| {
            format!(
                "CSI driver {name:?}: none of the versions specified {:?} are supported: {error}",
                plugin.versions
            )
        })?;
        let endpoint = socket(&plugin.endpoint).to_owned();
        Ok(Driver { endpoint, version })
    }

    fn refusal(name: &str, known: &Version) -> String {
        format!(
            "CSI driver {name:?}: another driver with the same name is already registered with a higher supported version: {known}"
        )
    }
}

impl PluginHandler for CsiRegistration {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        let driver = self.driver(plugin)?;
        match self.drivers.version(&plugin.name) {
            Some(known) if known >= driver.version => Err(Self::refusal(&plugin.name, &known)),
            _ => Ok(()),
        }
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let driver = self.driver(plugin)?;
            let client = self.drivers.client_of(&plugin.name, &driver);
            let node = client.info().await.map_err(|error| error.to_string())?;
            let version = driver.version.clone();
            // Another driver may have registered during the call.
            let put = self.drivers.put(&plugin.name, driver.clone());
            put.map_err(|known| Self::refusal(&plugin.name, &known))?;
            let node = DriverInfo::new(&plugin.name, node);
            if let Some(keeper) = &self.node
                && let Err(error) = keeper.install(&node).await
            {
                self.drivers.remove(&plugin.name, &driver);
                return Err(error.to_string());
            }
            info!(
                driver = plugin.name,
                %version,
                node_id = node.node_id,
                "registered CSI driver"
            );
            Ok(())
        }
        .boxed()
    }

    fn deregister(&self, plugin: &Plugin) {
        if let Ok(driver) = self.driver(plugin) {
            self.drivers.remove(&plugin.name, &driver);
        }
        // Another driver may have replaced it.
        if let Some(keeper) = &self.node
            && self.drivers.version(&plugin.name).is_none()
        {
            keeper.uninstall(&plugin.name);
        }
    }
}

/// The socket of an endpoint, which some drivers give as a URL.
fn socket(endpoint: &Path) -> &Path {
    let url = endpoint
        .to_str()
        .and_then(|text| text.strip_prefix("unix://"));
    url.map_or(endpoint, Path::new)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use fake_csi::FakeCsi;
    use serde_json::json;
    use test_api_server::by_path::{ByPath, Health};
    use tokio::sync::watch;
    use tokio_util::sync::CancellationToken;
    use tonic::Status;

    use super::*;

    fn plugin(endpoint: PathBuf, versions: &[&str]) -> Plugin {
        Plugin {
            name: "d.example.com".to_owned(),
            endpoint,
            versions: versions.iter().map(|v| (*v).to_owned()).collect(),
        }
    }

    #[tokio::test]
    async fn a_driver_is_had_as_long_as_it_is_registered() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = dir.path().join("csi.sock");
        let driver = FakeCsi::new("d.example.com");
        let _serving = driver.serve(&dir.path().join("reg.sock"), &endpoint);
        let drivers = Arc::<DriverStore>::default();
        let handler = CsiRegistration {
            drivers: Arc::clone(&drivers),
            node: None,
        };
        let missing = drivers.client("d.example.com").unwrap_err();
        assert_eq!(
            missing.to_string(),
            "driver name d.example.com not found in the list of registered CSI drivers"
        );

        let first = plugin(endpoint.clone(), &["1.1.0"]);
        driver.fail("GetNodeInfo", Status::internal("no node"));
        let error = handler.register(&first).await.unwrap_err();
        assert!(error.contains("no node"), "{error}");
        assert!(drivers.client("d.example.com").is_err());
        driver.clear_faults();
        handler.validate(&first).unwrap();
        handler.register(&first).await.unwrap();
        drivers.client("d.example.com").unwrap();

        // A replacement has to be newer.
        let other = PathBuf::from(format!("unix://{}", endpoint.display()));
        for (versions, why) in [
            (&["1.0.0"][..], "higher supported version: 1.1.0"),
            (&["1.1.0"], "higher supported version: 1.1.0"),
            (&[], "empty list"),
            (&["2.0.0"], "none of the versions"),
        ] {
            let error = handler.validate(&plugin(other.clone(), versions));
            let error = error.unwrap_err();
            assert!(error.contains(why), "{error}");
        }
        let mut nameless = first.clone();
        nameless.name.clear();
        let error = handler.validate(&nameless).unwrap_err();
        assert!(error.contains("name is empty"), "{error}");
        let newer = plugin(other, &["1.2.0"]);
        handler.register(&newer).await.unwrap();
        // A driver that was validated before the newer one came does not replace it. Its
        // deregistration does not affect the newer one, although both use the same socket.
        let error = handler.register(&first).await.unwrap_err();
        assert!(error.contains("higher supported version: 1.2.0"), "{error}");
        handler.deregister(&first);
        drivers.client("d.example.com").unwrap();
        handler.deregister(&newer);
        assert!(drivers.client("d.example.com").is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn the_cluster_is_told_of_a_driver_or_it_is_not_had() {
        let dir = tempfile::tempdir().unwrap();
        let endpoint = dir.path().join("csi.sock");
        let driver = FakeCsi::new("d.example.com");
        let _serving = driver.serve(&dir.path().join("reg.sock"), &endpoint);
        let server = ByPath::new();
        server.put("/api/v1/nodes", json!({"metadata": {"name": "n"}}));
        let node = server.object("/api/v1/nodes", "n").unwrap();
        let node = watch::Sender::new(serde_json::from_value(node).ok().map(Arc::new));
        let keeper = CsiNodeKeeper::new(server.client_of("n"), "n", node.subscribe());
        let keeper = Arc::new(keeper);
        let drivers = Arc::<DriverStore>::default();
        let handler = CsiRegistration {
            drivers: Arc::clone(&drivers),
            node: Some(Arc::clone(&keeper)),
        };
        let known = || {
            let csi_node = server.object("/apis/storage.k8s.io/v1/csinodes", "n");
            let drivers = csi_node.and_then(|one| one["spec"]["drivers"].as_array().cloned());
            json!(drivers.unwrap_or_default())
        };

        let plugin = plugin(endpoint, &["1.0.0"]);
        server.set_health(Health::Forbidding);
        let error = handler.register(&plugin).await.unwrap_err();
        assert!(error.contains("not for this node"), "{error}");
        drivers.client("d.example.com").unwrap_err();
        server.set_health(Health::Up);
        handler.validate(&plugin).unwrap();
        handler.register(&plugin).await.unwrap();
        drivers.client("d.example.com").unwrap();
        assert_eq!(
            known(),
            json!([{"name": "d.example.com", "nodeID": "fake-node"}])
        );

        tokio::spawn(async move { keeper.run(CancellationToken::new()).await });
        handler.deregister(&plugin);
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        assert_eq!(known(), json!([]));
    }
}
