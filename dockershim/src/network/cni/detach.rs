//! Detaches sandboxes from their network: as they were attached, whatever has changed
//! since. What a sandbox is attached to is forgotten when its `DEL` has succeeded, not
//! before.

use std::{collections::HashSet, path::Path, sync::Arc};

use serde_json::Map;

use super::{
    Cni, Pod,
    attachments::{INTERFACE, LOOPBACK_NETWORK},
    cache::Key,
    chain::Attachment,
    config::NetworkConfig,
    error::CniError,
};
use crate::model::Model;

impl Cni {
    /// Detaches a sandbox from all that it is attached to. One that is attached to nothing
    /// is detached.
    ///
    /// # Errors
    /// See [`CniError`]; to be tried again.
    pub async fn detach(&self, pod: &Pod<'_>) -> Result<(), CniError> {
        if self.attachments.get(pod.id).is_some() {
            return self.detach_known(pod.id, &pod.netns).await;
        }
        // It runs, and nothing is remembered: someone has emptied the cache. A `DEL` of what
        // is not there does nothing.
        let attachment = pod.attachment(INTERFACE, Map::new());
        match self.network().await {
            Ok(network) if !attachment.netns.is_empty() => {
                tracing::warn!(
                    sandbox_id = pod.id,
                    "nothing is remembered of a running sandbox's network"
                );
                self.chain(&network).del(&attachment, None).await
            }
            _ => Ok(()),
        }
    }

    /// Detaches a sandbox from what is known that it is attached to; `netns` is empty when it
    /// does not run.
    ///
    /// # Errors
    /// See [`CniError`]; to be tried again.
    pub async fn detach_known(&self, sandbox_id: &str, netns: &str) -> Result<(), CniError> {
        let Some(slot) = self.attachments.get(sandbox_id) else {
            return Ok(());
        };
        let mut keys = slot.keys.lock().await;
        if keys.is_empty() {
            return Ok(());
        }
        while let Some(key) = keys.last() {
            match self.del(key, netns).await {
                // There is nothing in a loopback that would outlive its namespace.
                Err(error) if key.network == LOOPBACK_NETWORK => {
                    tracing::warn!(sandbox_id, %error, "the loopback is not taken down");
                }
                done => done?,
            }
            self.cache.remove(key).await?;
            keys.pop();
        }
        *slot.network.lock() = None;
        tracing::info!(sandbox_id, "detached from the pod network");
        Ok(())
    }

    async fn del(&self, key: &Key, netns: &str) -> Result<(), CniError> {
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
                        "nobody knows the network's configuration any more; it is not detached"
                    );
                    return Ok(());
                }
            },
        };
        let mut attachment = match &cached {
            Some(cached) => cached.attachment(netns),
            None => Attachment {
                container_id: key.container_id.clone(),
                netns: netns.to_owned(),
                ifname: key.ifname.clone(),
                args: vec![("IgnoreUnknown".into(), "1".into())],
                capability_args: Map::new(),
            },
        };
        let result = cached.as_ref().and_then(|cached| cached.result.as_ref());
        let deleted = self.chain(&network).del(&attachment, result).await;
        if deleted.is_err() && !netns.is_empty() && !Path::new(netns).exists() {
            // The sandbox ended in the middle of it.
            attachment.netns.clear();
            return self.chain(&network).del(&attachment, result).await;
        }
        deleted
    }

    /// Detaches what is left of sandboxes that are gone.
    pub(super) async fn sweep(&self, model: &Model) {
        let known: Vec<String> = self.attachments.sandboxes.lock().keys().cloned().collect();
        for id in known {
            if model.snapshot().contains(&id) {
                continue;
            }
            match self.detach_known(&id, "").await {
                Ok(()) => drop(self.attachments.sandboxes.lock().remove(&id)),
                Err(error) => {
                    tracing::warn!(
                        sandbox_id = id,
                        %error,
                        "the network of a sandbox that is gone is left over"
                    );
                }
            }
        }
    }

    /// Has the plugins remove what is of no attachment that anyone remembers.
    pub(super) async fn collect_garbage(&self) {
        let Ok(network) = self.network().await else { return };
        let _nobody_adds = self.adding.write().await;
        let cache = self.cache.clone();
        let Ok(remembered) = tokio::task::spawn_blocking(move || cache.load()).await else {
            return;
        };
        let valid: HashSet<(String, String)> = remembered
            .into_iter()
            .filter(|cached| cached.network_name == network.name)
            .map(|cached| (cached.container_id, cached.if_name))
            .collect();
        let valid: Vec<_> = valid.into_iter().collect();
        for error in self.chain(&network).gc(&valid).await {
            tracing::warn!(%error, "what is of no sandbox may be left over");
        }
    }
}
