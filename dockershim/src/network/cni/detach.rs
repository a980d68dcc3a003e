//! Detaches sandboxes from their network, with the configuration that they were attached with. A
//! cached attachment is removed only after its `DEL` has succeeded.

use std::{
    collections::{BTreeSet, HashSet},
    sync::{Arc, atomic::Ordering},
};

use serde_json::Map;

use super::{
    Cni, NetNs, Pod,
    attachments::{Attached, INTERFACE, LOOPBACK_NETWORK},
    cache::{AttachmentKey, LockMode},
    chain::Attachment,
    config::NetworkConfig,
    error::CniError,
};
use crate::model::Model;

impl Cni {
    /// Detaches a sandbox from all its networks. Succeeds if it is not attached. `netns` is `None`
    /// if it is not running.
    ///
    /// # Errors
    /// See [`CniError`]; the caller should retry.
    pub async fn detach(&self, pod: &Pod<'_>, netns: Option<NetNs>) -> Result<(), CniError> {
        let slot = self.attachments.get(pod.id);
        if let Some(slot) = &slot
            && !slot.is_recovered().await
        {
            return self.detach_known(pod.id, netns).await;
        }
        // The sandbox is running but not in the cache, so someone emptied the cache. `DEL` of a
        // missing attachment does nothing.
        self.leftover_plugins.wait_or_kill(pod.id).await?;
        if let (Ok(network), Some(netns)) = (self.network().await, netns) {
            tracing::warn!(
                sandbox_id = pod.id,
                "a running sandbox has no record of its network"
            );
            let attachment = pod.attachment(&netns, INTERFACE, Map::new());
            self.chain(&network).del(&attachment, None).await?;
        }
        if let Some(slot) = slot {
            *slot.network.lock() = None;
        }
        Ok(())
    }

    /// Detaches a sandbox from all its cached attachments. `netns` is its namespace, used if the
    /// one that it was attached in is not held.
    ///
    /// # Errors
    /// See [`CniError`]; the caller should retry.
    pub async fn detach_known(
        &self,
        sandbox_id: &str,
        netns: Option<NetNs>,
    ) -> Result<(), CniError> {
        let Some(slot) = self.attachments.get(sandbox_id) else {
            return Ok(());
        };
        let mut attached = slot.attached.lock().await;
        let Attached { keys, netns: held } = &mut *attached;
        if keys.is_empty() {
            return Ok(());
        }
        if held.is_none() {
            self.leftover_plugins.wait_or_kill(sandbox_id).await?;
        }
        // For later attempts, when the sandbox may be stopped.
        *held = held.take().or(netns);
        let netns = held.clone();
        while let Some(key) = keys.last() {
            match self.del(key, netns.as_ref()).await {
                // A loopback interface leaves nothing behind when its namespace is gone.
                Err(error) if key.network == LOOPBACK_NETWORK => {
                    tracing::warn!(sandbox_id, %error, "cannot tear down the loopback interface");
                }
                done => done?,
            }
            self.cache.remove(key).await?;
            keys.pop();
        }
        *held = None;
        *slot.network.lock() = None;
        tracing::info!(sandbox_id, "detached from the pod network");
        Ok(())
    }

    async fn del(&self, key: &AttachmentKey, netns: Option<&NetNs>) -> Result<(), CniError> {
        let cached = self.cache.get(key).await;
        let as_attached = cached
            .as_ref()
            .and_then(|cached| NetworkConfig::from_list(&cached.config).ok());
        let network = match as_attached {
            Some(network) => Arc::new(network),
            None => match self.network().await {
                Ok(network) if network.name == key.network => network,
                _ => {
                    tracing::warn!(
                        network = key.network,
                        sandbox_id = key.container_id,
                        "the network's configuration no longer exists; skipping the detachment"
                    );
                    return Ok(());
                }
            },
        };
        let (attachment, result) = match &cached {
            Some(cached) => cached.of(netns),
            None => {
                let attachment = Attachment {
                    container_id: key.container_id.clone(),
                    netns: netns.map(NetNs::path).unwrap_or_default(),
                    ifname: key.ifname.clone(),
                    args: vec![("IgnoreUnknown".into(), "1".into())],
                    capability_args: Map::new(),
                };
                (attachment, None)
            }
        };
        let chain = self.chain(&network);
        chain.del(&attachment, result.as_ref()).await
    }

    /// Detaches this engine's sandboxes that were removed. Returns those that could not be
    /// detached.
    pub(super) async fn sweep(&self, model: &Model) -> HashSet<String> {
        let mut left = HashSet::new();
        for id in self.attachments.ids() {
            if model.snapshot().contains(&id) {
                self.adopt(&id).await;
                continue;
            }
            match self.detach_own(&id).await {
                Ok(()) => self.attachments.remove(&id),
                Err(error) => {
                    tracing::warn!(
                        sandbox_id = id,
                        %error,
                        "cannot detach a removed sandbox from its network"
                    );
                    left.insert(id);
                }
            }
        }
        left
    }

    /// Detaches a sandbox only if it is this engine's; other runtimes detach their own.
    async fn detach_own(&self, sandbox_id: &str) -> Result<(), CniError> {
        let Some(slot) = self.attachments.get(sandbox_id) else {
            return Ok(());
        };
        if !slot.own.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.detach_known(sandbox_id, None).await
    }

    /// Records that a sandbox is this engine's, even if another process attached it, so that it is detached after
    /// its removal.
    async fn adopt(&self, sandbox_id: &str) {
        let Some(slot) = self.attachments.get(sandbox_id) else {
            return;
        };
        if slot.own.swap(true, Ordering::Relaxed) {
            return;
        }
        for key in &slot.attached.lock().await.keys {
            let Some(mut cached) = self.cache.get(key).await else {
                continue;
            };
            cached.owner = self.saved_state.owner().map(str::to_owned);
            if let Err(error) = self.cache.put(&cached).await {
                tracing::warn!(
                    sandbox_id,
                    %error,
                    "cannot save an attachment; a restart will not recognize it as this engine's"
                );
            }
        }
    }

    /// Runs `GC`, which removes everything that belongs neither to a cached attachment nor to a
    /// sandbox of this engine.
    pub(super) async fn collect_garbage(&self, model: &Model) {
        let Ok(network) = self.network().await else {
            return;
        };
        if !network.collects_garbage() {
            return;
        }
        let collected = async {
            let _nothing_is_attached = self.cache.lock(LockMode::CollectGarbage).await?;
            let valid: Vec<_> = self.valid(&network, model).await.into_iter().collect();
            Ok::<_, CniError>(self.chain(&network).gc(&valid).await)
        };
        for error in collected.await.unwrap_or_else(|error| vec![error]) {
            tracing::warn!(
                %error,
                "cannot collect garbage; resources of removed sandboxes may be left over"
            );
        }
    }

    /// The attachments to a network that are in use, as pairs of sandbox id and interface.
    async fn valid(&self, network: &NetworkConfig, model: &Model) -> BTreeSet<(String, String)> {
        let cache = self.cache.clone();
        let remembered = tokio::task::spawn_blocking(move || cache.load()).await;
        let remembered = remembered.unwrap_or_default().into_iter();
        let remembered = remembered
            .filter(|cached| cached.network_name == network.name)
            .map(|cached| (cached.container_id, cached.if_name));
        let snapshot = model.snapshot();
        let live = snapshot.sandboxes();
        let live = live
            .filter(|sandbox| sandbox.cni && sandbox.runs())
            .map(|sandbox| (sandbox.id().to_owned(), INTERFACE.to_owned()));
        remembered.chain(live).collect()
    }
}
