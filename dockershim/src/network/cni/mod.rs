//! The Container Network Interface: plugins that other people write give each sandbox its
//! network, as a configuration says that an add-on drops into a directory.
//!
//! [`config`] reads configurations, [`plugin`] runs one plugin, [`chain`] runs those of a
//! network, and [`cache`] remembers what was attached. [`Cni`] is the whole: it attaches
//! sandboxes and detaches them, and follows what changes by itself.

mod attach;
mod attachments;
mod bandwidth;
pub mod cache;
pub mod capabilities;
pub mod chain;
pub mod config;
mod detach;
mod error;
pub mod plugin;
mod pod;
pub mod pod_cidr;
pub mod result;
pub mod version;
mod watch;

use std::{path::PathBuf, sync::Arc};

use arc_swap::ArcSwap;
use bollard::models::{ContainerCreateBody, HostConfig};
use cri_proto::runtime::v1::DnsConfig;
use parking_lot::Mutex;
use tokio::sync::{Notify, RwLock};

pub use error::CniError;
pub use pod::Pod;

use super::docker;
use attachments::Attachments;
use cache::Cache;
use chain::Chain;
use config::NetworkConfig;
use plugin::Plugins;
use watch::Loaded;

/// The engine's network of a sandbox that gets its own from plugins: a loopback alone.
pub const ENGINE_NETWORK: &str = "none";

/// Where CNI keeps what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directories {
    /// With plugins; the first that has one is taken.
    pub bin: Vec<PathBuf>,
    /// With configurations.
    pub conf: PathBuf,
    /// For what is remembered of attachments.
    pub cache: PathBuf,
}

/// The network of a node's sandboxes.
#[derive(Debug)]
pub struct Cni {
    conf_dir: PathBuf,
    plugins: Plugins,
    cache: Cache,
    loaded: ArcSwap<Loaded>,
    /// Wakes who asks the plugins for their status when the configuration has changed.
    reloaded: Notify,
    reloading: Mutex<()>,
    /// What the plugins' `STATUS` said last, if it was no.
    problem: ArcSwap<Option<String>>,
    pod_cidrs: ArcSwap<Vec<String>>,
    attachments: Attachments,
    /// Held by each `ADD`; a `GC` waits for them, and they for it.
    adding: RwLock<()>,
}

impl Cni {
    /// Reads the configuration, and what is remembered of earlier attachments. Blocks.
    pub fn new(directories: Directories, pod_cidrs: Vec<String>) -> Self {
        let cache = Cache::new(&directories.cache);
        let cni = Self {
            attachments: Attachments::remembered(&cache),
            conf_dir: directories.conf,
            plugins: Plugins::new(directories.bin),
            cache,
            loaded: ArcSwap::default(),
            reloaded: Notify::new(),
            reloading: Mutex::default(),
            problem: ArcSwap::default(),
            pod_cidrs: ArcSwap::from_pointee(pod_cidrs),
            adding: RwLock::default(),
        };
        cni.reload();
        cni
    }

    /// Whether a sandbox that is made now would get a network.
    ///
    /// # Errors
    /// [`CniError::NotReady`] with the reason.
    pub fn ready(&self) -> Result<(), CniError> {
        self.network()?;
        match &**self.problem.load() {
            Some(problem) => Err(CniError::NotReady(problem.clone())),
            None => Ok(()),
        }
    }

    /// The network that a sandbox is attached to now.
    ///
    /// # Errors
    /// [`CniError::NotReady`] with the reason.
    pub fn network(&self) -> Result<Arc<NetworkConfig>, CniError> {
        if self.loaded.load().network.is_err() {
            // An add-on may have dropped it just now.
            self.reload();
        }
        let network = self.loaded.load().network.clone();
        let network = network
            .map_err(|why| CniError::NotReady(format!("cni config uninitialized: {why}")))?;
        if network.wants(capabilities::IP_RANGES) && self.pod_cidrs.load().is_empty() {
            let reason = "cni config needs ipRanges but no PodCIDR set";
            return Err(CniError::NotReady(reason.into()));
        }
        for plugin in &network.plugins {
            if let Err(why) = self.plugins.find(&plugin.kind) {
                let (name, kind) = (&network.name, &plugin.kind);
                return Err(CniError::NotReady(format!(
                    "plugin {kind:?} of network {name:?} {why}"
                )));
            }
        }
        Ok(network)
    }

    /// The ranges that the node's pods get their addresses from; empty until they are known.
    pub fn pod_cidrs(&self) -> Arc<Vec<String>> {
        self.pod_cidrs.load_full()
    }

    /// Sets the ranges that later sandboxes get their addresses from.
    pub fn set_pod_cidrs(&self, cidrs: Vec<String>) {
        if **self.pod_cidrs.load() != cidrs {
            tracing::info!(cidrs = cidrs.join(","), "pod CIDR");
            self.pod_cidrs.store(Arc::new(cidrs));
        }
    }

    fn chain<'a>(&'a self, network: &'a NetworkConfig) -> Chain<'a> {
        Chain::new(&self.plugins, network)
    }
}

/// Puts into what the engine is asked to create that the sandbox's network is none of the
/// engine's. Names and their servers are still.
pub fn apply(
    hostname: String,
    dns: Option<DnsConfig>,
    body: &mut ContainerCreateBody,
    host: &mut HostConfig,
) {
    if let Some(dns) = dns {
        docker::apply_dns(dns, host);
    }
    host.network_mode = Some(ENGINE_NETWORK.into());
    body.hostname = Some(hostname).filter(|name| !name.is_empty());
}

#[cfg(test)]
mod tests;
