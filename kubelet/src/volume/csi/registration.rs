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
