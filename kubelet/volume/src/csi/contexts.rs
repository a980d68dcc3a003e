//! What a driver gets in addition to the volume: the result of attaching it, its secrets, and the
//! pod with its tokens.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Pod, SecretReference};
use kubelet_pod_spec::identity::{self, PodUid};

use super::{
    Csi,
    policy::Policy,
    source::{self, Lifecycle, Source, attachment_name, unique_name},
};
use crate::{VolumeError, attachment, spec::VolumeSpec};

/// gRPC's code, as recorded by the controller that attaches volumes.
const RESOURCE_EXHAUSTED: i32 = tonic::Code::ResourceExhausted as i32;

/// A string map, as used throughout CSI.
pub(super) type Texts = BTreeMap<String, String>;

impl Csi {
    /// The metadata from attaching the volume to this node; empty if it is not attached by a
    /// controller.
    pub(super) async fn publish_context(
        &self,
        source: &Source,
        policy: &Policy,
    ) -> Result<Texts, VolumeError> {
        if source.lifecycle == Lifecycle::Ephemeral || !policy.attach_required() {
            return Ok(Texts::new());
        }
        let not_attached = |why: &str| VolumeError::NotAttached {
            volume: source.handle.clone(),
            driver: source.driver.clone(),
            why: why.to_owned(),
        };
        let unique_name = unique_name(&source.driver, &source.handle);
        let objects = &*self.host.objects;
        if let Some(why) = attachment::missing_in_node(objects, &unique_name).await? {
            return Err(not_attached(why));
        }
        let name = attachment_name(&source.handle, &source.driver, &self.host.node_name);
        let attachment = objects.volume_attachment(&name).await;
        let attachment = attachment.map_err(|error| match error.is_not_found() {
            true => not_attached("there is no volume attachment"),
            false => error.into(),
        })?;
        if attachment.metadata.deletion_timestamp.is_some() {
            return Err(not_attached("volume attachment is being deleted"));
        }
        match &attachment.status {
            Some(status) if status.attached => {
                Ok(status.attachment_metadata.clone().unwrap_or_default())
            }
            Some(status) => {
                let error = status.attach_error.as_ref();
                let why = error.and_then(|error| error.message.as_deref());
                Err(not_attached(why.unwrap_or("the attachment is pending")))
            }
            None => Err(not_attached("the attachment is pending")),
        }
    }

    /// Whether the volume cannot be attached because the node has no place for it. Then the driver
    /// is asked again how many volumes fit, if it may be.
    pub(super) async fn has_no_place(&self, spec: &VolumeSpec) -> Result<bool, VolumeError> {
        let Some(source) = source::persistent(spec) else {
            return Ok(false);
        };
        let (driver, objects) = (source.driver.as_str(), &*self.host.objects);
        if Policy::of(driver, objects)
            .await?
            .allocatable_period()
            .is_none()
        {
            return Ok(false);
        }
        let name = attachment_name(&source.volume_handle, driver, &self.host.node_name);
        let attachment = objects.volume_attachment(&name).await?;
        let status = attachment.status.as_ref().filter(|status| !status.attached);
        let error = status.and_then(|status| status.attach_error.as_ref());
        let is_full = error.and_then(|error| error.error_code) == Some(RESOURCE_EXHAUSTED);
        if is_full {
            // The scheduler knows it before the pod's replacement comes.
            self.drivers.ask_again(driver).await;
        }
        Ok(is_full)
    }

    /// The contents of the secret that a field of the volume refers to.
    pub(super) async fn secrets(
        &self,
        field: &'static str,
        reference: Option<&SecretReference>,
    ) -> Result<Texts, VolumeError> {
        let Some(reference) = reference else {
            return Ok(Texts::new());
        };
        let namespace = reference.namespace.as_deref().unwrap_or_default();
        let name = reference.name.as_deref().unwrap_or_default();
        let secret = self.host.objects.secret(namespace, name).await;
        let secret = secret.map_err(|error| {
            let error = format!("fetching {field} {namespace}/{name} failed: {error}");
            VolumeError::Other(error.into())
        })?;
        let values = secret.data.iter().flatten().map(|(key, value)| {
            // Something else than the secret would be the key of an encrypted disk.
            let text = String::from_utf8(value.0.clone()).map_err(|_| {
                let error = format!("{field}: secret {namespace}/{name}: {key}: it is not UTF-8");
                VolumeError::Other(error.into())
            })?;
            Ok((key.clone(), text))
        });
        values.collect()
    }

    /// The tokens of the pod's service account that the driver requests.
    pub(super) async fn tokens(&self, pod: &Pod, policy: &Policy) -> Result<Texts, VolumeError> {
        let mut tokens = BTreeMap::new();
        for request in policy.token_requests() {
            let audiences: &[String] = match request.audience.as_str() {
                "" => &[],
                _ => std::slice::from_ref(&request.audience),
            };
            let objects = &*self.host.objects;
            let expiration = request.expiration_seconds;
            let token = self.tokens.get(objects, pod, audiences, expiration).await?;
            tokens.insert(request.audience.as_str(), token);
        }
        if tokens.is_empty() {
            return Ok(Texts::new());
        }
        let tokens =
            serde_json::to_string(&tokens).map_err(|error| VolumeError::Other(error.into()))?;
        let key = "csi.storage.k8s.io/serviceAccount.tokens".to_owned();
        Ok(Texts::from([(key, tokens)]))
    }
}

/// The information about a pod for a driver.
pub(super) fn pod_info(pod: &Pod, lifecycle: Lifecycle) -> Texts {
    let account = pod.spec.as_ref();
    let account = account.and_then(|spec| spec.service_account_name.clone());
    let ephemeral = lifecycle == Lifecycle::Ephemeral;
    [
        ("pod.name", identity::name(pod).to_owned()),
        ("pod.namespace", identity::namespace(pod).to_owned()),
        ("pod.uid", PodUid::of(pod).to_string()),
        ("serviceAccount.name", account.unwrap_or_default()),
        ("ephemeral", ephemeral.to_string()),
    ]
    .into_iter()
    .map(|(key, value)| (format!("csi.storage.k8s.io/{key}"), value))
    .collect()
}
