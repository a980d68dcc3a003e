//! Which sandboxes are attached to what.

use std::{collections::HashMap, sync::Arc};

use cri_proto::runtime::v1::PodSandboxNetworkStatus;
use parking_lot::Mutex;

use super::{
    cache::{Cache, Cached, Key},
    pod::{PROCESSES, SANDBOX_ARG},
    result,
};

/// The interface of every sandbox on the pod network.
pub(super) const INTERFACE: &str = "eth0";
/// The name that every runtime has for it.
pub(super) const LOOPBACK_NETWORK: &str = "cni-loopback";

/// What is attached.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    pub(super) sandboxes: Mutex<HashMap<String, Arc<Slot>>>,
}

/// A sandbox that was attached; one that is not any more stays known until it is gone, so
/// that it is not detached twice.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// What it is attached to, in the order of the `ADD`s. Locked while a plugin runs for
    /// the sandbox.
    pub(super) keys: tokio::sync::Mutex<Vec<Key>>,
    /// Its addresses, while it has any.
    pub(super) network: Mutex<Option<PodSandboxNetworkStatus>>,
}

impl Attachments {
    /// What is remembered of sandboxes of Docker engines: others may remember theirs in the
    /// same place.
    pub(super) fn remembered(cache: &Cache) -> Self {
        let mut found: HashMap<String, (Vec<Key>, Option<PodSandboxNetworkStatus>)> =
            HashMap::new();
        cache.remove_unfinished();
        for cached in cache.load() {
            if !is_ours(&cached) {
                continue;
            }
            let (keys, network) = found.entry(cached.container_id.clone()).or_default();
            if let Some(result) = &cached.result
                && cached.if_name == INTERFACE
                && cached.network_name != LOOPBACK_NETWORK
                && let Ok(addresses) = result::addresses(result, INTERFACE)
                && !addresses.is_empty()
            {
                *network = Some(result::to_status(&addresses));
            }
            // `DEL` goes the other way round, and the loopback is last.
            let at = if cached.network_name == LOOPBACK_NETWORK {
                0
            } else {
                keys.len()
            };
            keys.insert(at, cached.key());
        }
        let mut sandboxes = HashMap::with_capacity(found.len());
        for (id, (keys, network)) in found {
            let (keys, network) = (keys.into(), Mutex::new(network));
            sandboxes.insert(id, Arc::new(Slot { keys, network }));
        }
        Self {
            sandboxes: Mutex::new(sandboxes),
        }
    }

    /// Has a sandbox known that is about to be attached.
    pub(super) fn insert(&self, id: &str, slot: &Arc<Slot>) {
        let mut sandboxes = self.sandboxes.lock();
        sandboxes.insert(id.to_owned(), Arc::clone(slot));
    }

    /// The sandbox with this id.
    pub(super) fn get(&self, id: &str) -> Option<Arc<Slot>> {
        self.sandboxes.lock().get(id).cloned()
    }
}

fn is_ours(cached: &Cached) -> bool {
    let args = cached.cni_args.as_deref().unwrap_or_default();
    cached.netns.starts_with(PROCESSES)
        && args
            .iter()
            .any(|(key, value)| key == SANDBOX_ARG && *value == cached.container_id)
}
