//! The spec of a volume, as its driver gets it.

use std::collections::BTreeMap;

use cri_proto::csi::v1::{
    VolumeCapability,
    node_service_capability::rpc::Type as Capability,
    volume_capability::{
        AccessMode, AccessType, BlockVolume, MountVolume, access_mode::Mode as Access,
    },
};
use k8s_openapi::api::core::v1::{CSIPersistentVolumeSource, SecretReference};
use kubelet_pod_spec::{field::Faults, identity, validation::mounts};
use sha2::{Digest as _, Sha256};

use super::{NAME, client::Capabilities};
use crate::{
    VolumeError,
    plugin::MountRequest,
    selinux,
    spec::{VolumeMode, VolumeSpec},
};

const READ_WRITE_ONCE: &str = "ReadWriteOnce";
const READ_WRITE_ONCE_POD: &str = "ReadWriteOncePod";

/// The lifecycle of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lifecycle {
    /// A persistent volume of the cluster.
    Persistent,
    /// A volume that is created and deleted with its pod.
    Ephemeral,
}

impl Lifecycle {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::Persistent => "Persistent",
            Self::Ephemeral => "Ephemeral",
        }
    }
}

/// A volume from its driver's point of view.
#[derive(Clone, Debug)]
pub(super) struct Source {
    pub(super) driver: String,
    /// The volume was translated to CSI from a kind that Kubernetes had built in.
    pub(super) migrated: bool,
    /// The driver's handle of the volume.
    pub(super) handle: String,
    pub(super) lifecycle: Lifecycle,
    pub(super) mode: VolumeMode,
    pub(super) read_only: bool,
    pub(super) attributes: BTreeMap<String, String>,
    pub(super) fs_type: String,
    pub(super) access_modes: Vec<String>,
    pub(super) mount_options: Vec<String>,
    pub(super) stage_secret: Option<SecretReference>,
    pub(super) publish_secret: Option<SecretReference>,
    pub(super) expand_secret: Option<SecretReference>,
}

impl Source {
    /// The source in a request.
    ///
    /// # Errors
    /// This is not a CSI volume, or a field is not safe for drivers to pass to `mount`.
    pub(super) fn of(request: &MountRequest) -> Result<Self, VolumeError> {
        let source = Self::unchecked(request)?;
        if !source.fs_type.is_empty() {
            let field = request.field().child("csi").child("fsType");
            let mut faults = Faults::default();
            faults.text(&field, &source.fs_type, mounts::file_system_type);
            faults.into_result()?;
        }
        Ok(source)
    }

    fn unchecked(request: &MountRequest) -> Result<Self, VolumeError> {
        let spec = &request.spec;
        if let Some(source) = spec.inline().and_then(|volume| volume.csi.as_ref()) {
            let secret = source.node_publish_secret_ref.as_ref();
            return Ok(Self {
                driver: source.driver.clone(),
                migrated: false,
                handle: inline_handle(request.volume.uid.as_str(), &spec.name),
                lifecycle: Lifecycle::Ephemeral,
                mode: spec.mode,
                read_only: source.read_only.unwrap_or_default(),
                attributes: source.volume_attributes.clone().unwrap_or_default(),
                fs_type: source.fs_type.clone().unwrap_or_default(),
                access_modes: vec![READ_WRITE_ONCE.to_owned()],
                mount_options: Vec::new(),
                stage_secret: None,
                publish_secret: secret.map(|secret| SecretReference {
                    name: Some(secret.name.clone()),
                    namespace: Some(identity::namespace(&request.pod).to_owned()),
                }),
                expand_secret: None,
            });
        }
        let source = persistent(spec).ok_or_else(|| VolumeError::Unsupported(spec.name.clone()))?;
        let volume = spec.persistent().and_then(|volume| volume.spec.as_ref());
        // Unchanged, as upstream: the driver parses them, and some are no options of mount(8).
        let mount_options = volume.and_then(|volume| volume.mount_options.clone());
        let mut mount_options = mount_options.unwrap_or_default();
        let label = request.selinux_label.as_deref();
        mount_options.extend(label.map(selinux::mount_option));
        Ok(Self {
            driver: source.driver.clone(),
            migrated: spec.migrated,
            handle: source.volume_handle.clone(),
            lifecycle: Lifecycle::Persistent,
            mode: spec.mode,
            read_only: spec.read_only,
            attributes: source.volume_attributes.clone().unwrap_or_default(),
            fs_type: source.fs_type.clone().unwrap_or_default(),
            access_modes: volume
                .and_then(|volume| volume.access_modes.clone())
                .unwrap_or_default(),
            mount_options,
            stage_secret: source.node_stage_secret_ref.clone(),
            publish_secret: source.node_publish_secret_ref.clone(),
            expand_secret: source.node_expand_secret_ref.clone(),
        })
    }

    /// The capability that the volume is used with. If there is a `group`, the driver gives it the
    /// files.
    pub(super) fn capability(
        &self,
        capabilities: &Capabilities,
        group: Option<u32>,
    ) -> VolumeCapability {
        let access_type = match self.mode {
            VolumeMode::Block => AccessType::Block(BlockVolume {}),
            VolumeMode::Filesystem => AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.map(|group| group.to_string()).unwrap_or_default(),
            }),
        };
        let tells_writers = capabilities.has(Capability::SingleNodeMultiWriter);
        let mode = self.access_modes.first().map(String::as_str);
        let access = access(mode.unwrap_or(READ_WRITE_ONCE), tells_writers);
        VolumeCapability {
            access_type: Some(access_type),
            access_mode: Some(AccessMode {
                mode: access.into(),
            }),
        }
    }

    /// Whether only one node may write to the volume.
    pub(super) fn is_read_write_once(&self) -> bool {
        let mut modes = self.access_modes.iter();
        modes.any(|mode| mode == READ_WRITE_ONCE || mode == READ_WRITE_ONCE_POD)
    }
}

/// The CSI source of a persistent volume.
pub(super) fn persistent(spec: &VolumeSpec) -> Option<&CSIPersistentVolumeSource> {
    spec.persistent()?.spec.as_ref()?.csi.as_ref()
}

/// Handle of an ephemeral volume.
fn inline_handle(uid: &str, name: &str) -> String {
    format!("csi-{}", sha256(&[uid, name]))
}

/// Name under which the node's status lists a volume as attached and in use.
pub(super) fn unique_name(driver: &str, handle: &str) -> String {
    format!("{NAME}/{driver}^{handle}")
}

/// Name of the `VolumeAttachment` of a volume and a node.
pub(super) fn attachment_name(handle: &str, driver: &str, node: &str) -> String {
    format!("csi-{}", sha256(&[handle, driver, node]))
}

/// Hash of the concatenated texts, in hexadecimal digits.
pub(super) fn sha256(texts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for text in texts {
        hash.update(text.as_bytes());
    }
    format!("{:x}", hash.finalize())
}

/// Whether this may be a result of [`sha256`].
pub(super) fn is_sha256(text: &str) -> bool {
    let is_digit = |byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    text.len() == 64 && text.bytes().all(is_digit)
}

/// The CSI access mode for one of Kubernetes. It depends on whether the driver distinguishes single
/// and multiple writers on a node.
fn access(mode: &str, tells_writers: bool) -> Access {
    match (mode, tells_writers) {
        (READ_WRITE_ONCE, true) => Access::SingleNodeMultiWriter,
        (READ_WRITE_ONCE_POD, true) => Access::SingleNodeSingleWriter,
        (READ_WRITE_ONCE | READ_WRITE_ONCE_POD, false) => Access::SingleNodeWriter,
        ("ReadOnlyMany", _) => Access::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Access::MultiNodeMultiWriter,
        _ => Access::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handles_and_names_are_those_of_upstream() {
        assert!(is_sha256(&sha256(&["h"])));
        assert!(!is_sha256("mountinfo"));
        // printf h | sha256sum
        assert_eq!(
            sha256(&["h"]),
            "aaa9402664f1a41f40ebbc52c9993eb66aeb366602958fdfaa283b71e64db123"
        );
        assert_eq!(
            inline_handle("uid", "v"),
            format!("csi-{}", sha256(&["uidv"]))
        );
        assert_eq!(
            attachment_name("h", "d", "n"),
            format!("csi-{}", sha256(&["hdn"]))
        );
    }

    #[test]
    fn access_modes_depend_on_what_the_driver_tells() {
        assert_eq!(access("ReadWriteOnce", false), Access::SingleNodeWriter);
        assert_eq!(access("ReadWriteOncePod", false), Access::SingleNodeWriter);
        assert_eq!(access("ReadWriteOnce", true), Access::SingleNodeMultiWriter);
        assert_eq!(
            access("ReadWriteOncePod", true),
            Access::SingleNodeSingleWriter
        );
        assert_eq!(access("ReadOnlyMany", true), Access::MultiNodeReaderOnly);
        assert_eq!(access("ReadWriteMany", false), Access::MultiNodeMultiWriter);
        assert_eq!(access("", false), Access::Unknown);
    }
}
