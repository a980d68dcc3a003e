//! The cluster's settings for a driver: its `CSIDriver` object, which is optional.

use std::time::Duration;

use k8s_openapi::api::storage::v1::{CSIDriver, CSIDriverSpec, TokenRequest};
use kubelet_api_client::objects::Objects;

use super::source::{Lifecycle, Source};
use crate::VolumeError;

/// The API server accepts any number of seconds; instants have an end.
const LONGEST_PERIOD: Duration = Duration::from_secs(365 * 24 * 3600);

/// The volumes of a driver whose files the kubelet gives to a pod's `fsGroup`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GroupPolicy {
    /// Volumes with a file system type, which only one node may write to.
    ReadWriteOnceWithFsType,
    /// All volumes.
    File,
    /// No volumes.
    None,
}

/// The settings for a driver's volumes.
#[derive(Clone, Debug, Default)]
pub(super) struct Policy {
    spec: CSIDriverSpec,
    is_known: bool,
}

impl Policy {
    /// The settings for a driver; the defaults if it has no `CSIDriver` object.
    pub(super) async fn of(driver: &str, objects: &dyn Objects) -> Result<Self, VolumeError> {
        match objects.csi_driver(driver).await {
            Ok(object) => Ok(Self::from(&*object)),
            Err(error) if error.is_not_found() => Ok(Self::default()),
            Err(error) => Err(error.into()),
        }
    }

    /// Whether a controller has to attach volumes to the node first.
    pub(super) fn attach_required(&self) -> bool {
        self.spec.attach_required != Some(false)
    }

    /// Whether the driver gets information about the pod.
    pub(super) fn pod_info_on_mount(&self) -> bool {
        self.spec.pod_info_on_mount == Some(true)
    }

    /// Whether the driver mounts volumes with `-o context=`.
    pub(super) fn takes_selinux_label(&self) -> bool {
        self.spec.se_linux_mount == Some(true)
    }

    /// Whether mounted volumes are published again with each sync of the pod.
    pub(super) fn requires_republish(&self) -> bool {
        self.spec.requires_republish == Some(true)
    }

    /// The tokens of the pod's service account that the driver gets.
    pub(super) fn token_requests(&self) -> &[TokenRequest] {
        self.spec.token_requests.as_deref().unwrap_or_default()
    }

    /// Whether the driver gets these tokens among the secrets.
    pub(super) fn tokens_in_secrets(&self) -> bool {
        self.spec.service_account_token_in_secrets == Some(true)
    }

    /// How often the driver is asked how many volumes the node can have; never if unset.
    pub(super) fn allocatable_period(&self) -> Option<Duration> {
        let seconds = self.spec.node_allocatable_update_period_seconds?;
        let seconds = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0)?;
        Some(Duration::from_secs(seconds).min(LONGEST_PERIOD))
    }

    /// Checks whether the driver supports volumes with this lifecycle.
    pub(super) fn check(&self, driver: &str, lifecycle: Lifecycle) -> Result<(), VolumeError> {
        let modes = self.spec.volume_lifecycle_modes.as_deref();
        let modes = modes.unwrap_or_default();
        let mode = lifecycle.as_str();
        let why = match (self.is_known, lifecycle) {
            (_, Lifecycle::Persistent) if modes.is_empty() => return Ok(()),
            (false, _) => "no CSIDriver object".to_owned(),
            (true, _) if modes.iter().any(|supported| supported == mode) => return Ok(()),
            (true, _) => format!("only supports {modes:?}"),
        };
        let error = format!("volume mode {mode:?} not supported by driver {driver} ({why})");
        Err(VolumeError::Other(error.into()))
    }

    /// Whether the kubelet gives the volume's files to the pod's `fsGroup`.
    pub(super) fn changes_group(&self, source: &Source) -> bool {
        let policy = match self.spec.fs_group_policy.as_deref() {
            Some("None") => GroupPolicy::None,
            Some("File") => GroupPolicy::File,
            _ => GroupPolicy::ReadWriteOnceWithFsType,
        };
        match policy {
            _ if source.read_only => false,
            GroupPolicy::None => false,
            GroupPolicy::File => true,
            GroupPolicy::ReadWriteOnceWithFsType => {
                !source.fs_type.is_empty() && source.is_read_write_once()
            }
        }
    }
}

impl From<&CSIDriver> for Policy {
    fn from(object: &CSIDriver) -> Self {
        Self {
            spec: object.spec.clone(),
            is_known: true,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::*;
    use crate::spec::VolumeMode;

    fn policy(spec: Value) -> Policy {
        let object: CSIDriver =
            serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap();
        Policy::from(&object)
    }

    fn source(fs_type: &str, mode: &str, read_only: bool) -> Source {
        Source {
            migrated: false,
            driver: "d".to_owned(),
            handle: "h".to_owned(),
            lifecycle: Lifecycle::Persistent,
            mode: VolumeMode::Filesystem,
            read_only,
            attributes: BTreeMap::new(),
            fs_type: fs_type.to_owned(),
            access_modes: vec![mode.to_owned()],
            mount_options: Vec::new(),
            stage_secret: None,
            publish_secret: None,
            expand_secret: None,
        }
    }

    #[test]
    fn ephemeral_volumes_need_a_driver_that_says_it_has_them() {
        let error = Policy::default()
            .check("d", Lifecycle::Ephemeral)
            .unwrap_err();
        assert_eq!(
            error.to_string(),
            "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)"
        );
        Policy::default().check("d", Lifecycle::Persistent).unwrap();
        policy(json!({})).check("d", Lifecycle::Persistent).unwrap();
        let both = policy(json!({"volumeLifecycleModes": ["Persistent", "Ephemeral"]}));
        both.check("d", Lifecycle::Ephemeral).unwrap();
        let one = policy(json!({"volumeLifecycleModes": ["Ephemeral"]}));
        let error = one.check("d", Lifecycle::Persistent).unwrap_err();
        assert!(error.to_string().contains("only supports"), "{error}");
    }

    #[test]
    fn who_gives_files_to_the_group() {
        let rwo = source("ext4", "ReadWriteOnce", false);
        let by_default = Policy::default();
        assert!(by_default.changes_group(&rwo));
        assert!(by_default.changes_group(&source("ext4", "ReadWriteOncePod", false)));
        assert!(!by_default.changes_group(&source("", "ReadWriteOnce", false)));
        assert!(!by_default.changes_group(&source("ext4", "ReadWriteMany", false)));
        let file = policy(json!({"fsGroupPolicy": "File"}));
        assert!(file.changes_group(&source("", "ReadWriteMany", false)));
        assert!(!file.changes_group(&source("", "ReadWriteMany", true)));
        assert!(!policy(json!({"fsGroupPolicy": "None"})).changes_group(&rwo));
    }

    #[test]
    fn volumes_are_attached_unless_the_driver_says_otherwise() {
        assert!(Policy::default().attach_required());
        assert!(policy(json!({})).attach_required());
        assert!(!policy(json!({"attachRequired": false})).attach_required());
    }
}
