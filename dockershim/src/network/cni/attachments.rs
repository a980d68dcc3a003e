//! Which sandboxes are attached to what.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};

use cri_proto::runtime::v1::PodSandboxNetworkStatus;
use parking_lot::Mutex;

use super::{
    cache::{Cache, Cached, Key},
    pod::{NetNs, PROCESSES, SANDBOX_ARG},
    result,
};

/// The interface of every sandbox on the pod network.
pub(super) const INTERFACE: &str = "eth0";
/// The name that every runtime has for it.
pub(super) const LOOPBACK_NETWORK: &str = "cni-loopback";

/// What is attached.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    sandboxes: Mutex<HashMap<String, Arc<Slot>>>,
}

/// A sandbox that was attached; one that is not any more stays known until it is gone, so
/// that it is not detached twice.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Whether the sandbox is known to be this engine's: others may remember theirs in the
    /// same place.
    pub(super) own: AtomicBool,
    /// Locked while a plugin runs for the sandbox.
    pub(super) attached: tokio::sync::Mutex<Attached>,
    /// Its addresses, while it has any.
    pub(super) network: Mutex<Option<PodSandboxNetworkStatus>>,
}

/// What a sandbox is attached to.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// In the order of the `ADD`s.
    pub(super) keys: Vec<Key>,
    /// The network namespace that it is attached in; none where an earlier shim attached it.
    pub(super) netns: Option<NetNs>,
}

impl Attachments {
    /// The sandboxes of Docker engines that `cache` remembers; those of `owner` are this engine's.
    pub(super) fn remembered(cache: &Cache, owner: Option<&str>) -> Self {
        let mut sandboxes: HashMap<String, Slot> = HashMap::new();
        cache.remove_unfinished();
        for cached in cache.load() {
            if !is_ours(&cached) {
                continue;
            }
            let slot = sandboxes.entry(cached.container_id.clone()).or_default();
            *slot.own.get_mut() |= owner.is_some() && cached.owner.as_deref() == owner;
            if let Some(result) = &cached.result
                && cached.if_name == INTERFACE
                && cached.network_name != LOOPBACK_NETWORK
                && let Ok(addresses) = result::addresses(result, INTERFACE)
                && !addresses.is_empty()
            {
                *slot.network.get_mut() = Some(result::to_status(&addresses));
            }
            // `DEL` goes the other way round, and the loopback is last.
            let keys = &mut slot.attached.get_mut().keys;
            let at = if cached.network_name == LOOPBACK_NETWORK {
                0
            } else {
                keys.len()
            };
            keys.insert(at, cached.key());
        }
        let sandboxes = sandboxes.into_iter();
        let sandboxes = sandboxes.map(|(id, slot)| (id, Arc::new(slot))).collect();
        Self {
            sandboxes: Mutex::new(sandboxes),
        }
    }

    /// Has a sandbox known that is about to be attached.
    pub(super) fn insert(&self, id: &str, slot: &Arc<Slot>) {
        let mut sandboxes = self.sandboxes.lock();
        sandboxes.insert(id.to_owned(), Arc::clone(slot));
    }

    /// Forgets a sandbox.
    pub(super) fn remove(&self, id: &str) {
        self.sandboxes.lock().remove(id);
    }

    /// The ids of the sandboxes that are known.
    pub(super) fn ids(&self) -> Vec<String> {
        self.sandboxes.lock().keys().cloned().collect()
    }

    /// Whether a sandbox is known that `wanted` accepts.
    pub(super) fn any(&self, wanted: impl FnMut(&String) -> bool) -> bool {
        self.sandboxes.lock().keys().any(wanted)
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
