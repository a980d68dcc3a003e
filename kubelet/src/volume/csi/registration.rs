//! Drivers that register, by the plugin manager.

use std::{path::Path, sync::Arc};

use futures::future::{BoxFuture, FutureExt as _};
use tracing::info;

use super::{
    client::NodeClient,
    driver_store::{Driver, DriverStore, Version},
};
use crate::plugin_manager::{Plugin, PluginHandler};

/// Type that CSI drivers register as.
pub const PLUGIN_TYPE: &str = "CSIPlugin";

/// Puts the drivers that register into the store.
#[derive(Debug)]
pub struct CsiRegistration(pub Arc<DriverStore>);

impl CsiRegistration {
    fn version(&self, plugin: &Plugin) -> Result<Version, String> {
        let name = &plugin.name;
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
        match self.0.version(name) {
            Some(known) if known >= version => Err(format!(
                "CSI driver {name:?}: another driver with the same name is already registered with a higher supported version: {known}"
            )),
            _ => Ok(version),
        }
    }
}

impl PluginHandler for CsiRegistration {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        self.version(plugin).map(drop)
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        async move {
            let version = self.version(plugin)?;
            let endpoint = socket(&plugin.endpoint);
            let client = NodeClient::new(endpoint);
            let node = client.info().await.map_err(|error| error.to_string())?;
            info!(
                driver = plugin.name,
                %version,
                node_id = node.node_id,
                "CSI driver is there"
            );
            let endpoint = endpoint.to_owned();
            self.0.put(&plugin.name, Driver { endpoint, version });
            Ok(())
        }
        .boxed()
    }

    fn deregister(&self, plugin: &Plugin) {
        self.0.remove(&plugin.name, socket(&plugin.endpoint));
    }
}

/// Some drivers give their endpoint as a URL.
fn socket(endpoint: &Path) -> &Path {
    let url = endpoint
        .to_str()
        .and_then(|text| text.strip_prefix("unix://"));
    url.map_or(endpoint, Path::new)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use e2e::fake_csi::FakeCsi;
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
        let handler = CsiRegistration(Arc::clone(&drivers));
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

        // Another one has to be newer.
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
        let newer = plugin(other, &["1.2.0"]);
        handler.register(&newer).await.unwrap();
        handler.deregister(&newer);
        assert!(drivers.client("d.example.com").is_err());
    }
}
