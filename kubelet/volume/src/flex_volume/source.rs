//! The source of a FlexVolume, and the options that its driver gets.

use std::collections::BTreeMap;

use base64::{Engine as _, prelude::BASE64_STANDARD};
use kubelet_api_client::objects::Objects;
use kubelet_pod_spec::{
    field::{self, Faults},
    identity,
    validation::mounts,
};

use crate::{
    VolumeError,
    plugin::MountRequest,
    spec::{VolumeMode, VolumeSource, VolumeSpec},
};

/// The source of a volume in a pod or in a persistent volume.
pub(super) struct FlexSource<'a> {
    spec: &'a VolumeSpec,
    /// Name of the driver.
    pub(super) driver: &'a str,
    pub(super) fs_type: &'a str,
    pub(super) read_only: bool,
    options: Option<&'a BTreeMap<String, String>>,
    /// Namespace, or that of the pod if empty, and name of the secret.
    secret: Option<(&'a str, &'a str)>,
}

impl<'a> FlexSource<'a> {
    /// The source of a volume; `None` if it is of another kind, or wanted as a device: drivers
    /// mount directories only.
    pub(super) fn of(spec: &'a VolumeSpec) -> Option<Self> {
        if spec.mode == VolumeMode::Block {
            return None;
        }
        match &spec.source {
            VolumeSource::Inline(volume) => {
                let source = volume.flex_volume.as_ref()?;
                let secret = source.secret_ref.as_ref();
                Some(Self {
                    spec,
                    driver: &source.driver,
                    fs_type: source.fs_type.as_deref().unwrap_or_default(),
                    read_only: source.read_only.unwrap_or_default(),
                    options: source.options.as_ref(),
                    secret: secret.map(|secret| ("", &*secret.name)),
                })
            }
            VolumeSource::Persistent(volume) => {
                let source = volume.spec.as_ref()?.flex_volume.as_ref()?;
                let secret = source.secret_ref.as_ref();
                let text = |field: &'a Option<String>| field.as_deref().unwrap_or_default();
                Some(Self {
                    spec,
                    driver: &source.driver,
                    fs_type: text(&source.fs_type),
                    read_only: spec.read_only,
                    options: source.options.as_ref(),
                    secret: secret.map(|secret| (text(&secret.namespace), text(&secret.name))),
                })
            }
        }
    }

    /// The source of a volume of this kind, with a valid driver and valid options.
    pub(super) fn valid(spec: &'a VolumeSpec) -> Result<Self, VolumeError> {
        let unsupported = || VolumeError::Unsupported(spec.name.clone());
        let source = Self::of(spec).ok_or_else(unsupported)?;
        let mut faults = Faults::default();
        mounts::validate_flex_volume(source.driver, source.options, &source.field(), &mut faults);
        faults.into_result()?;
        Ok(source)
    }

    /// Path of the field with the source.
    pub(super) fn field(&self) -> field::Path {
        match self.spec.persistent() {
            Some(_) => {
                let name = self.spec.inner_name();
                field::Path::new(&format!("PersistentVolume {name}: spec.flexVolume"))
            }
            None => field::Path::new(&format!("volume {}: flexVolume", self.spec.name)),
        }
    }

    /// The options for all calls, as JSON.
    pub(super) fn json(&self) -> Result<String, VolumeError> {
        self.json_with(BTreeMap::new())
    }

    /// The options for a mount, as JSON: with the pod and the secret.
    pub(super) async fn mount_json(
        &self,
        request: &MountRequest,
        objects: &dyn Objects,
    ) -> Result<String, VolumeError> {
        let pod = &*request.pod;
        let mut more = self.secrets(identity::namespace(pod), objects).await?;
        let account = pod.spec.as_ref();
        let account = account.and_then(|spec| spec.service_account_name.as_deref());
        for (key, value) in [
            ("kubernetes.io/pod.name", identity::name(pod)),
            ("kubernetes.io/pod.namespace", identity::namespace(pod)),
            ("kubernetes.io/pod.uid", request.volume.uid.as_str()),
            (
                "kubernetes.io/serviceAccount.name",
                account.unwrap_or_default(),
            ),
        ] {
            more.insert(key.to_owned(), value.to_owned());
        }
        if let Some(group) = request.fs_group {
            let key = "kubernetes.io/mounterArgs.FsGroup";
            more.insert(key.to_owned(), group.gid.to_string());
        }
        self.json_with(more)
    }

    fn json_with(&self, more: BTreeMap<String, String>) -> Result<String, VolumeError> {
        let mut options = self.options.cloned().unwrap_or_default();
        let access = if self.read_only { "ro" } else { "rw" };
        for (key, value) in [
            ("kubernetes.io/fsType", self.fs_type),
            ("kubernetes.io/readwrite", access),
            ("kubernetes.io/pvOrVolumeName", self.spec.inner_name()),
        ] {
            options.insert(key.to_owned(), value.to_owned());
        }
        options.extend(more);
        serde_json::to_string(&options).map_err(|error| VolumeError::Other(error.into()))
    }

    /// The secret's data as options. Its type must be the driver's name, as upstream, so that a
    /// volume does not pass other secrets to a driver.
    async fn secrets(
        &self,
        pod_namespace: &str,
        objects: &dyn Objects,
    ) -> Result<BTreeMap<String, String>, VolumeError> {
        let Some((namespace, name)) = self.secret.filter(|(_, name)| !name.is_empty()) else {
            return Ok(BTreeMap::new());
        };
        let namespace = match namespace {
            "" => pod_namespace,
            namespace => namespace,
        };
        let secret = objects.secret(namespace, name).await?;
        let kind = secret.type_.as_deref().unwrap_or_default();
        if kind != self.driver {
            let mut faults = Faults::default();
            let driver = self.driver;
            let rule = format!("the type of the secret is {kind:?}, and must be {driver:?}");
            let secret = format!("{namespace}/{name}");
            faults.invalid(&self.field().child("secretRef"), secret, rule);
            faults.into_result()?;
        }
        let data = secret.data.iter().flatten().map(|(key, value)| {
            let key = format!("kubernetes.io/secret/{key}");
            (key, BASE64_STANDARD.encode(&value.0))
        });
        Ok(data.collect())
    }
}
