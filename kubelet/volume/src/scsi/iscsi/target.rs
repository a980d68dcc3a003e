//! An iSCSI disk: a logical unit of a target, and how to reach it.

use std::{fs, io, path::Path};

use atomic_file::Durability;
use k8s_openapi::api::core::v1::SecretReference;
use kubelet_pod_spec::{
    field::{self, Faults},
    validation::mounts,
};
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::{VolumeError, scsi::disk_plugin::DiskSource, spec::VolumeSpec};

/// Name of the file with the disk, in the directory of its device. Upstream reads it too.
const FILE: &str = "iscsi.json";
/// Before the name of the interface, in names of directories.
pub(super) const INTERFACE: &str = "iface-";
/// Between the target and the number of the logical unit, in names of directories.
const LUN: &str = "-lun-";
const DEFAULT_PORT: &str = "3260";
const DEFAULT_INTERFACE: &str = "default";

/// A disk, in the form that upstream records.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct IscsiDisk {
    /// Name of the persistent volume, or of the volume in the pod's spec.
    pub(super) vol_name: String,
    /// Addresses of the target, with ports. The first one identifies the disk.
    pub(super) portals: Vec<String>,
    /// Name of the target.
    pub(super) iqn: String,
    /// Number of the logical unit.
    pub(super) lun: String,
    /// The interface that was configured on the node.
    pub(super) init_iface: String,
    /// The interface of the sessions: its copy, if the volume has an initiator name.
    pub(super) iface: String,
    #[serde(default)]
    pub(super) initiator_name: String,
}

/// A disk with what is needed to reach it.
#[derive(Clone, Debug)]
pub(crate) struct IscsiTarget {
    pub(super) disk: IscsiDisk,
    /// The secret with the CHAP credentials.
    pub(super) secret: Option<SecretReference>,
    pub(super) chap: Chap,
}

/// What CHAP is used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Chap {
    pub(super) discovery: bool,
    pub(super) session: bool,
}

/// The source of a volume; `None` if it is of another kind. A secret without a namespace is in that
/// of the pod.
pub(super) fn source(spec: &VolumeSpec, namespace: &str) -> Option<DiskSource<IscsiTarget>> {
    let (portal, portals, lun, interface, initiator, fs_type, iqn);
    let (secret, chap, read_only);
    if let Some(source) = spec.inline().and_then(|volume| volume.iscsi.as_ref()) {
        (portal, portals, lun) = (&source.target_portal, &source.portals, source.lun);
        (interface, initiator) = (&source.iscsi_interface, &source.initiator_name);
        (fs_type, iqn) = (&source.fs_type, &source.iqn);
        secret = source.secret_ref.as_ref().map(|secret| SecretReference {
            name: Some(secret.name.clone()),
            namespace: None,
        });
        chap = (source.chap_auth_discovery, source.chap_auth_session);
        read_only = source.read_only;
    } else {
        let source = spec.persistent()?.spec.as_ref()?.iscsi.as_ref()?;
        (portal, portals, lun) = (&source.target_portal, &source.portals, source.lun);
        (interface, initiator) = (&source.iscsi_interface, &source.initiator_name);
        (fs_type, iqn) = (&source.fs_type, &source.iqn);
        secret = source.secret_ref.clone();
        chap = (source.chap_auth_discovery, source.chap_auth_session);
        read_only = Some(spec.read_only);
    }
    let mut all = vec![with_port(portal)];
    for portal in portals.iter().flatten().map(|portal| with_port(portal)) {
        if !all.contains(&portal) {
            all.push(portal);
        }
    }
    let vol_name = spec.inner_name().to_owned();
    let init_iface = some(interface.as_ref()).unwrap_or(DEFAULT_INTERFACE);
    let initiator_name = some(initiator.as_ref()).unwrap_or_default().to_owned();
    let iface = match initiator_name.is_empty() {
        true => init_iface.to_owned(),
        false => format!("{}:{vol_name}", all[0]),
    };
    let secret = secret.map(|secret| SecretReference {
        namespace: secret
            .namespace
            .filter(|own| !own.is_empty())
            .or_else(|| Some(namespace.to_owned())),
        name: secret.name,
    });
    let disk = IscsiDisk {
        vol_name,
        portals: all,
        iqn: iqn.clone(),
        lun: lun.to_string(),
        init_iface: init_iface.to_owned(),
        iface,
        initiator_name,
    };
    Some(DiskSource {
        device: disk.device(),
        volume: disk.volume(portal),
        fs_type: fs_type.clone(),
        read_only: read_only.unwrap_or_default(),
        disk: IscsiTarget {
            disk,
            secret,
            chap: Chap {
                discovery: chap.0.unwrap_or_default(),
                session: chap.1.unwrap_or_default(),
            },
        },
    })
}

impl IscsiTarget {
    pub(super) fn validate(&self, field: &field::Path, faults: &mut Faults) {
        self.disk.validate(field, faults);
        if (self.chap.discovery || self.chap.session) && self.secret.is_none() {
            faults.required(&field.child("secretRef"), "for CHAP");
        }
    }
}

impl IscsiDisk {
    /// Name of the disk's directory.
    pub(super) fn device(&self) -> String {
        let Self {
            iface, iqn, lun, ..
        } = self;
        format!("{INTERFACE}{iface}/{}-{iqn}{LUN}{lun}", self.portals[0])
    }

    /// What identifies the disk among the node's attached volumes. The portal is as in the spec.
    pub(super) fn volume(&self, portal: &str) -> String {
        format!("{portal}:{}:{}", self.iqn, self.lun)
    }

    /// Whether a device is, or may be, of the same target.
    pub(super) fn is_beside(&self, device: &str) -> bool {
        Self::named(device).is_none_or(|other| other.iqn == self.iqn)
    }

    /// Whether a device is, or may be, of the same disk: by whatever portal and interface.
    pub(super) fn is_same(&self, device: &str) -> bool {
        let is_unit = |other: Self| (other.iqn, other.lun) == (self.iqn.clone(), self.lun.clone());
        Self::named(device).is_none_or(is_unit)
    }

    /// Records the disk in the directory of its device.
    pub(super) fn save(&self, dir: &Path) -> Result<(), VolumeError> {
        let file = dir.join(FILE);
        let failed = |error| VolumeError::io("write", &file, error);
        let json = serde_json::to_vec(self).map_err(|error| failed(error.into()))?;
        atomic_file::replace(&file, &json, 0o640, Durability::Synced).map_err(failed)
    }

    /// The disk of a device, whose directory is not mounted. If its record is damaged, as by a
    /// kubelet that was killed, the name of the device tells the disk.
    ///
    /// # Errors
    /// Neither tells it, or the record cannot be read.
    pub(super) fn load(dir: &Path, device: &str) -> Result<Self, VolumeError> {
        let file = dir.join(FILE);
        let failed = |error| VolumeError::io("read", &file, error);
        let recorded = match fs::read(&file) {
            Ok(json) => serde_json::from_slice(&json).map_err(|error| failed(error.into())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(failed(error)),
            Err(error) => return Err(failed(error)),
        };
        let recorded = recorded.and_then(|disk: Self| disk.checked(&file));
        recorded.or_else(|error| {
            warn!(device, %error, "using the name of an iSCSI disk in place of its record");
            let named = Self::named(device).ok_or(error)?;
            named.checked(&file)
        })
    }

    fn checked(self, file: &Path) -> Result<Self, VolumeError> {
        let mut faults = Faults::default();
        self.validate(&field::Path::new(&file.to_string_lossy()), &mut faults);
        faults.into_result()?;
        Ok(self)
    }

    /// The disk that a device is named after.
    pub(super) fn named(device: &str) -> Option<Self> {
        let (iface, disk) = device.rsplit_once('/')?;
        let iface = iface.rsplit_once('/').map_or(iface, |(_, iface)| iface);
        let iface = iface.strip_prefix(INTERFACE)?;
        let (target, lun) = disk.rsplit_once(LUN)?;
        let kinds = ["iqn.", "eui.", "naa."];
        let iqn = kinds
            .iter()
            .find_map(|kind| target.find(&format!("-{kind}")))?;
        Some(Self {
            vol_name: String::new(),
            portals: vec![target[..iqn].to_owned()],
            iqn: target[iqn + 1..].to_owned(),
            lun: lun.to_owned(),
            init_iface: iface.to_owned(),
            iface: iface.to_owned(),
            initiator_name: String::new(),
        })
    }

    fn validate(&self, field: &field::Path, faults: &mut Faults) {
        if self.portals.is_empty() {
            faults.required(&field.child("targetPortal"), "");
        }
        for (index, portal) in self.portals.iter().enumerate() {
            let field = match index {
                0 => field.child("targetPortal"),
                _ => field.child("portals").index(index - 1),
            };
            faults.required_text(&field, portal, mounts::iscsi_name);
        }
        faults.required_text(&field.child("iqn"), &self.iqn, mounts::iscsi_target);
        let interface = field.child("iscsiInterface");
        faults.required_text(&interface, &self.init_iface, mounts::iscsi_name);
        faults.required_text(&interface, &self.iface, mounts::iscsi_name);
        if !self.initiator_name.is_empty() {
            let field = field.child("initiatorName");
            faults.text(&field, &self.initiator_name, mounts::iscsi_target);
        }
        let lun = self.lun.parse().unwrap_or(-1);
        faults.range(&field.child("lun"), lun, 0, 255);
    }
}

/// A portal with its port.
fn with_port(portal: &str) -> String {
    // As upstream, which knows no IPv6 address without a port.
    if portal.contains(':') || portal.is_empty() {
        portal.to_owned()
    } else {
        format!("{portal}:{DEFAULT_PORT}")
    }
}

fn some(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::{Value, json};

    use super::*;
    use crate::spec::{VolumeMode, VolumeSource};

    fn source_of(source: Value) -> DiskSource<IscsiTarget> {
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"iscsi": source}});
        let volume = serde_json::from_value(volume).unwrap();
        let spec = VolumeSpec {
            name: "v".to_owned(),
            source: VolumeSource::Persistent(Arc::new(volume)),
            read_only: false,
            mode: VolumeMode::Filesystem,
            capacity: None,
            migrated: false,
        };
        super::source(&spec, "shop").unwrap()
    }

    #[test]
    fn a_disk_is_named_as_upstream_names_it() {
        let iqn = "iqn.2003-01.io.k8s:e2e.volume-1";
        let source = json!({
            "targetPortal": "10.0.2.15", "portals": ["10.0.2.16:3261", "10.0.2.15:3260"],
            "iqn": iqn, "lun": 2
        });
        let plain = source_of(source.clone());
        assert_eq!(
            plain.disk.disk.portals,
            ["10.0.2.15:3260", "10.0.2.16:3261"]
        );
        assert_eq!(plain.volume, format!("10.0.2.15:{iqn}:2"));
        assert_eq!(
            plain.device,
            format!("iface-default/10.0.2.15:3260-{iqn}-lun-2")
        );
        let named = IscsiDisk::named(&plain.device).unwrap();
        assert_eq!(named.portals, ["10.0.2.15:3260"]);
        assert_eq!((named.iqn.as_str(), named.lun.as_str()), (iqn, "2"));
        assert_eq!(named.iface, "default");
        assert_eq!(IscsiDisk::named("iface-default/other"), None);
        let device = |lun: u8| format!("iface-x/10.0.2.15:3260-{iqn}-lun-{lun}");
        assert!(named.is_same(&device(2)) && !named.is_same(&device(22)));
        assert!(named.is_beside(&device(22)));
        // The other portal of the same target.
        assert!(named.is_same(&device(2).replace(".15:", ".16:")));
        let other = device(2).replace("volume-1", "volume-2");
        assert!(!named.is_beside(&other) && !named.is_same(&other));
        // Nothing is known of it.
        assert!(named.is_beside("iface-x/10.0.2.15:3260"));

        let mut own = source;
        own["initiatorName"] = json!("iqn.1994-05.com.example:node");
        own["iscsiInterface"] = json!("fast");
        own["secretRef"] = json!({"name": "chap"});
        own["chapAuthSession"] = json!(true);
        let own = source_of(own).disk;
        assert_eq!(own.disk.init_iface, "fast");
        assert_eq!(own.disk.iface, "10.0.2.15:3260:pv");
        assert_eq!(own.secret.unwrap().namespace.as_deref(), Some("shop"));
        assert!(own.chap.session && !own.chap.discovery);
    }

    #[test]
    fn what_could_be_an_option_or_lead_elsewhere_is_refused() {
        let faults = |source: Value| {
            let mut faults = Faults::default();
            let disk = source_of(source).disk;
            disk.validate(&field::Path::new("iscsi"), &mut faults);
            faults.into_result()
        };
        let good = json!({"targetPortal": "h", "iqn": "iqn.2003-01.io.k8s:d", "lun": 0});
        faults(good.clone()).unwrap();
        for (field, value, wanted) in [
            ("targetPortal", json!(""), "iscsi.targetPortal"),
            ("targetPortal", json!("-h"), "iscsi.targetPortal"),
            ("targetPortal", json!("h/../x"), "iscsi.targetPortal"),
            ("portals", json!(["i", "a b"]), "iscsi.portals[1]"),
            ("iqn", json!("iqn.2003-01.io.k8s:../d"), "iscsi.iqn"),
            ("iqn", json!("disk"), "iscsi.iqn"),
            ("iscsiInterface", json!("../x"), "iscsi.iscsiInterface"),
            ("initiatorName", json!("--x"), "iscsi.initiatorName"),
            ("lun", json!(256), "iscsi.lun"),
            ("lun", json!(-1), "iscsi.lun"),
            ("chapAuthDiscovery", json!(true), "iscsi.secretRef"),
        ] {
            let mut bad = good.clone();
            bad[field] = value;
            let error = faults(bad).unwrap_err().to_string();
            assert!(error.contains(wanted), "{error}");
        }
    }

    #[test]
    fn a_disk_is_found_by_its_record_or_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let source = json!({
            "targetPortal": "h", "portals": ["i"], "iqn": "iqn.2003-01.io.k8s:d", "lun": 1
        });
        let DiskSource { disk, device, .. } = source_of(source);
        let disk = disk.disk;
        let named = IscsiDisk::load(dir.path(), &device).unwrap();
        assert_eq!((named.portals.len(), &named.iqn), (1, &disk.iqn));
        let bad = device.replace("h:3260", "--h");
        IscsiDisk::load(dir.path(), &bad).unwrap_err();
        disk.save(dir.path()).unwrap();
        assert_eq!(IscsiDisk::load(dir.path(), &device).unwrap(), disk);
        // As upstream records it.
        let theirs = r#"{"VolName":"pv","Portals":["h:3260","i:3260"],"Iqn":"iqn.2003-01.io.k8s:d","Lun":"1","InitIface":"default","Iface":"default","InitiatorName":"","MetricsProvider":null}"#;
        fs::write(dir.path().join(FILE), theirs).unwrap();
        assert_eq!(IscsiDisk::load(dir.path(), &device).unwrap(), disk);
        // A record that was not written to its end, and one that could be options.
        for damaged in [&theirs[..40], &theirs.replace("h:3260", "--h"), ""] {
            fs::write(dir.path().join(FILE), damaged).unwrap();
            assert_eq!(IscsiDisk::load(dir.path(), &device).unwrap(), named);
        }
        let error = IscsiDisk::load(&dir.path().join("none"), "x/y").unwrap_err();
        assert!(error.to_string().contains("iscsi.json"), "{error}");
    }
}
