//! The Container Network Interface. CNI plugins, which are installed by the network add-on, attach
//! each sandbox to the network described by the add-on's configuration file.
//!
//! [`config`] reads configurations, [`plugin`] runs one plugin, [`chain`] runs a network's plugins,
//! and [`cache`] stores the attachments. [`Cni`] combines them: it attaches and detaches sandboxes,
//! and watches for changes.

mod attach;
mod attachments;
pub mod cache;
pub mod capabilities;
pub mod chain;
pub mod config;
mod config_loader;
mod detach;
mod error;
mod leftover_plugins;
pub mod plugin;
mod pod;
pub mod pod_cidr;
mod recover;
pub mod result;
mod saved_state;
pub mod version;
mod watch;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use arc_swap::ArcSwap;
use bollard::models::{ContainerCreateBody, HostConfig};
use cri_proto::runtime::v1::DnsConfig;
use prometheus_client::metrics::counter::Counter;

pub use error::CniError;
pub use pod::{NetNs, Pod};

use super::docker;
use attachments::Attachments;
use cache::Cache;
use chain::Chain;
use config::NetworkConfig;
use config_loader::ConfigLoader;
use leftover_plugins::LeftoverPlugins;
use plugin::Plugins;
use saved_state::SavedState;

use crate::model::convert::sandbox::NO_NETWORK;

/// CNI's directories.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// The directories of plugins, searched in order.
    pub bin: Vec<PathBuf>,
    /// The directory of network configurations.
    pub conf: PathBuf,
    /// The directory of cached attachments.
    pub cache: PathBuf,
}

/// The pod network of the node.
#[derive(Debug)]
pub struct Cni {
    config_loader: Arc<ConfigLoader>,
    cache: Cache,
    saved_state: Arc<SavedState>,
    pod_cidrs: ArcSwap<Vec<String>>,
    attachments: Attachments,
    leftover_plugins: LeftoverPlugins,
}

impl Cni {
    /// Reads the configuration, cached attachments and the state saved below the shim's `root`;
    /// `pod_cidrs` is from the flag. Blocks.
    pub fn new(directories: Directories, pod_cidrs: Vec<String>, root: &Path) -> Self {
        let cache = Cache::new(&directories.cache);
        let saved_state = SavedState::new(root, pod_cidrs);
        let owner = saved_state.owner().map(str::to_owned);
        let plugins = Plugins::new(directories.bin, owner.clone());
        let config_loader = ConfigLoader::new(directories.conf, plugins);
        config_loader.reload();
        Self {
            attachments: Attachments::load(&cache, saved_state.owner()),
            leftover_plugins: LeftoverPlugins::new(owner, config_loader.plugins.killed.clone()),
            config_loader: Arc::new(config_loader),
            cache,
            pod_cidrs: ArcSwap::from_pointee(saved_state.pod_cidrs()),
            saved_state: Arc::new(saved_state),
        }
    }

    /// Checks whether a new sandbox would get a network.
    ///
    /// # Errors
    /// [`CniError::NotReady`] with the reason.
    pub async fn ready(&self) -> Result<(), CniError> {
        self.network().await?;
        match &*self.config_loader.problem() {
            Some(problem) => Err(CniError::NotReady(problem.clone())),
            None => Ok(()),
        }
    }

    /// The network for new sandboxes.
    ///
    /// # Errors
    /// [`CniError::NotReady`] with the reason.
    pub async fn network(&self) -> Result<Arc<NetworkConfig>, CniError> {
        let mut loaded = self.config_loader.loaded();
        if loaded.network.is_err() || loaded.missing.is_some() {
            // An add-on may have installed it just now.
            loaded = self.config_loader.refresh().await;
        }
        let network = loaded.network.clone();
        let network = network
            .map_err(|why| CniError::NotReady(format!("cni config uninitialized: {why}")))?;
        if network.wants(capabilities::IP_RANGES) && self.pod_cidrs.load().is_empty() {
            let reason = "cni config needs ipRanges but no PodCIDR set";
            return Err(CniError::NotReady(reason.into()));
        }
        match &loaded.missing {
            Some(missing) => Err(CniError::NotReady(missing.clone())),
            None => Ok(network),
        }
    }

    /// The node's pod CIDRs; empty until they are known.
    pub fn pod_cidrs(&self) -> Arc<Vec<String>> {
        self.pod_cidrs.load_full()
    }

    /// Sets and saves the pod CIDRs for later sandboxes.
    pub async fn set_pod_cidrs(&self, cidrs: Vec<String>) {
        if **self.pod_cidrs.load() != cidrs {
            tracing::info!(cidrs = cidrs.join(","), "updated the pod CIDR");
            self.pod_cidrs.store(Arc::new(cidrs.clone()));
            let saved_state = Arc::clone(&self.saved_state);
            let task = tokio::task::spawn_blocking(move || saved_state.set_pod_cidrs(cidrs));
            // A panic is a bug and has been logged.
            let _ = task.await;
        }
    }

    /// The number of plugins that were killed because they took too long.
    pub fn killed_plugins(&self) -> Counter {
        self.config_loader.plugins.killed.clone()
    }

    fn chain<'a>(&'a self, network: &'a NetworkConfig) -> Chain<'a> {
        Chain::new(&self.config_loader.plugins, network)
    }
}

/// Disables the engine's network in its create request, but sets the hostname and the DNS
/// configuration.
pub fn apply(
    hostname: String,
    dns: Option<DnsConfig>,
    body: &mut ContainerCreateBody,
    host: &mut HostConfig,
) {
    if let Some(dns) = dns {
        docker::apply_dns(dns, host);
    }
    host.network_mode = Some(NO_NETWORK.into());
    body.hostname = Some(hostname).filter(|name| !name.is_empty());
}

#[cfg(test)]
mod tests;
