//! Attaches sandboxes to their network, and reports their attachments.
//!
//! An attachment is cached before the first plugin runs, so that it can be detached after a crash
//! in the middle.

use std::sync::{Arc, atomic::Ordering};

use cri_proto::runtime::v1::PodSandboxNetworkStatus;
use serde_json::{Map, Value};

use super::{
    Cni, NetNs, Pod,
    attachments::{INTERFACE, SandboxAttachments},
    cache::{AttachmentKey, CachedAttachment, LockMode},
    capabilities,
    chain::Attachment,
    config::NetworkConfig,
    error::CniError,
    leftover_plugins::NO_SANDBOX,
    result,
};
use crate::model::Sandbox;

const LOOPBACK_INTERFACE: &str = "lo";
const LOOPBACK: &str = "loopback";
const LOOPBACK_CONFIG: &str =
    r#"{"cniVersion":"0.3.1","name":"cni-loopback","plugins":[{"type":"loopback"}]}"#;

impl Cni {
    /// The addresses of a sandbox; `None` if it is not attached.
    pub fn network_status(&self, sandbox_id: &str) -> Option<PodSandboxNetworkStatus> {
        self.attachments.get(sandbox_id)?.network.lock().clone()
    }

    /// Whether a running sandbox has no network, because it was being attached when the shim last
    /// stopped.
    pub fn lacks_network(&self, sandbox: &Sandbox) -> bool {
        sandbox.cni && sandbox.pid != 0 && self.network_status(sandbox.id()).is_none()
    }

    /// Attaches a newly started sandbox; detaches it again on failure.
    ///
    /// # Errors
    /// See [`CniError`].
    pub async fn attach(
        &self,
        pod: &Pod<'_>,
        netns: &NetNs,
        capability_args: Map<String, Value>,
    ) -> Result<(), CniError> {
        let network = self.network().await?;
        if capability_args.contains_key(capabilities::PORT_MAPPINGS)
            && !network.wants(capabilities::PORT_MAPPINGS)
        {
            tracing::warn!(
                pod = pod.name,
                sandbox_id = pod.id,
                network = network.name,
                "the pod requests host ports, but no plugin of the network has the capability \
                 portMappings"
            );
        }
        let slot = Arc::new(SandboxAttachments::default());
        let attached = {
            let _no_garbage_is_collected = self.cache.lock(LockMode::Attach).await?;
            self.leftover_plugins.wait_or_kill(NO_SANDBOX).await?;
            let mut attached = slot.attached.lock().await;
            // Locked before it is visible to others, so that it cannot be detached before it is
            // attached.
            self.attachments.insert(pod.id, &slot);
            slot.own.store(true, Ordering::Relaxed);
            attached.netns = Some(netns.clone());
            let keys = &mut attached.keys;
            let attached = self
                .attach_all(keys, pod, netns, &network, capability_args)
                .await;
            *slot.network.lock() = attached.as_ref().ok().cloned();
            attached
        };
        match attached {
            Ok(status) => {
                tracing::info!(
                    pod = pod.name,
                    pod_uid = pod.uid,
                    sandbox_id = pod.id,
                    network = network.name,
                    ip = status.ip,
                    "attached to the pod network"
                );
                Ok(())
            }
            Err(error) => {
                if let Err(error) = self.detach_known(pod.id, None).await {
                    tracing::warn!(sandbox_id = pod.id, %error, "cannot undo a failed attachment");
                }
                Err(error)
            }
        }
    }

    async fn attach_all(
        &self,
        keys: &mut Vec<AttachmentKey>,
        pod: &Pod<'_>,
        netns: &NetNs,
        network: &NetworkConfig,
        capability_args: Map<String, Value>,
    ) -> Result<PodSandboxNetworkStatus, CniError> {
        // If the plugin is missing, the interface is up anyway, because the engine sets it up.
        if self.config_loader.plugins.find(LOOPBACK).await.is_ok()
            && let Ok(loopback) = NetworkConfig::from_list(LOOPBACK_CONFIG.as_bytes())
        {
            let attachment = pod.attachment(netns, LOOPBACK_INTERFACE, Map::new());
            self.add(keys, &loopback, &attachment).await?;
        }
        let attachment = pod.attachment(netns, INTERFACE, capability_args);
        let result = self.add(keys, network, &attachment).await?;
        let unusable = |reason| CniError::Result {
            network: network.name.clone(),
            reason,
        };
        let addresses = result::addresses(&result, INTERFACE).map_err(unusable)?;
        if addresses.is_empty() {
            return Err(unusable(format!("no address for {INTERFACE}")));
        }
        Ok(result::to_status(&addresses))
    }

    async fn add(
        &self,
        keys: &mut Vec<AttachmentKey>,
        network: &NetworkConfig,
        attachment: &Attachment,
    ) -> Result<Value, CniError> {
        let mut cached = CachedAttachment::new(&network.name, &network.bytes, attachment);
        cached.owner = self.saved_state.owner().map(str::to_owned);
        self.cache.put(&cached).await?;
        keys.push(cached.key());
        let result = self.chain(network).add(attachment).await?;
        cached.result = Some(result.clone());
        self.cache.put(&cached).await?;
        Ok(result)
    }

    /// The attachments of a sandbox, and the result of `CHECK` for each; `netns` is `None` if it is
    /// not running.
    pub async fn describe(&self, sandbox_id: &str, netns: Option<&NetNs>) -> Value {
        let Some(slot) = self.attachments.get(sandbox_id) else {
            return Value::Array(Vec::new());
        };
        let mut described = Vec::new();
        for key in &slot.attached.lock().await.keys {
            let Some(cached) = self.cache.get(key).await else {
                continue;
            };
            let check = match (NetworkConfig::from_list(&cached.config), netns) {
                (Err(error), _) => error.to_string(),
                (Ok(_), None) => "the sandbox is not running".into(),
                (Ok(network), Some(netns)) => {
                    let chain = self.chain(&network);
                    let (attachment, result) = cached.of(Some(netns));
                    match chain.check(&attachment, result.as_ref()).await {
                        Ok(true) => "ok".into(),
                        Ok(false) => "CHECK is disabled or not supported by the network".into(),
                        Err(error) => error.to_string(),
                    }
                }
            };
            described.push(serde_json::json!({
                "network": key.network,
                "ifName": key.ifname,
                "result": cached.result,
                "check": check,
            }));
        }
        Value::Array(described)
    }
}
