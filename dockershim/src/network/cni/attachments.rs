//! The attachments of sandboxes.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::AtomicBool},
};

use cri_proto::runtime::v1::PodSandboxNetworkStatus;
use parking_lot::Mutex;

use super::{
    cache::{AttachmentKey, Cache, CachedAttachment},
    pod::{NetNs, PROCESSES, SANDBOX_ARG},
    result,
};

/// The name of every sandbox's pod network interface.
pub(super) const INTERFACE: &str = "eth0";
/// The loopback network's name in all runtimes.
pub(super) const LOOPBACK_NETWORK: &str = "cni-loopback";

/// The attachments of all sandboxes.
#[derive(Debug, Default)]
pub(super) struct Attachments {
    sandboxes: Mutex<HashMap<String, Arc<SandboxAttachments>>>,
}

/// A sandbox's attachments. A detached sandbox stays in the map until it is removed, so that it is
/// not detached twice.
#[derive(Debug, Default)]
pub(super) struct SandboxAttachments {
    /// Whether the sandbox is known to be this engine's, as others may share the cache.
    pub(super) own: AtomicBool,
    /// Locked while a plugin runs for the sandbox.
    pub(super) attached: tokio::sync::Mutex<Attached>,
    /// The sandbox's addresses, while it is attached.
    pub(super) network: Mutex<Option<PodSandboxNetworkStatus>>,
}

impl SandboxAttachments {
    /// Whether only the addresses are known, because the attachments are no longer in the cache.
    pub(super) async fn is_recovered(&self) -> bool {
        self.attached.lock().await.keys.is_empty() && self.network.lock().is_some()
    }
}

/// The attachments of a sandbox.
#[derive(Debug, Default)]
pub(super) struct Attached {
    /// The cached attachments, in the order of `ADD`.
    pub(super) keys: Vec<AttachmentKey>,
    /// The network namespace that it was attached in; `None` if an earlier shim attached it.
    pub(super) netns: Option<NetNs>,
}

impl Attachments {
    /// Loads the attachments of Docker sandboxes from `cache`; those of `owner` are this engine's.
    pub(super) fn load(cache: &Cache, owner: Option<&str>) -> Self {
        let mut sandboxes: HashMap<String, SandboxAttachments> = HashMap::new();
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
            // `DEL` runs in reverse order, so put the loopback first.
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

    /// Adds a sandbox that is about to be attached.
    pub(super) fn insert(&self, id: &str, slot: &Arc<SandboxAttachments>) {
        let mut sandboxes = self.sandboxes.lock();
        sandboxes.insert(id.to_owned(), Arc::clone(slot));
    }

    /// Removes a sandbox.
    pub(super) fn remove(&self, id: &str) {
        self.sandboxes.lock().remove(id);
    }

    /// The ids of all sandboxes.
    pub(super) fn ids(&self) -> Vec<String> {
        self.sandboxes.lock().keys().cloned().collect()
    }

    /// Whether any sandbox is `wanted`.
    pub(super) fn any(&self, wanted: impl FnMut(&String) -> bool) -> bool {
        self.sandboxes.lock().keys().any(wanted)
    }

    /// The sandbox with this id.
    pub(super) fn get(&self, id: &str) -> Option<Arc<SandboxAttachments>> {
        self.sandboxes.lock().get(id).cloned()
    }
}

fn is_ours(cached: &CachedAttachment) -> bool {
    let args = cached.cni_args.as_deref().unwrap_or_default();
    cached.netns.starts_with(PROCESSES)
        && args
            .iter()
            .any(|(key, value)| key == SANDBOX_ARG && *value == cached.container_id)
}
