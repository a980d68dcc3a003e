//! The supported kinds of volumes.

use std::{path::Path, sync::Arc};

use kubelet_api_client::tokens::TokenCache;

use super::{
    VolumeHost,
    config_map::ConfigMap,
    csi::{Csi, DriverStore},
    downward_api::DownwardApi,
    empty_dir::EmptyDir,
    flex_volume::FlexVolume,
    host_path::HostPath,
    image::Image,
    local::Local,
    nfs::Nfs,
    plugin::VolumePlugin,
    projected::Projected,
    scsi::{DiskPlugin, FibreChannel, Iscsi},
    secret::Secret,
    trust_bundles::Order,
};

/// One plugin per kind; CSI volumes use the registered `drivers`, and FlexVolumes the programs in
/// `plugin_dir`.
pub fn all(
    host: &VolumeHost,
    drivers: Arc<DriverStore>,
    plugin_dir: &Path,
) -> Vec<Arc<dyn VolumePlugin>> {
    let host = || host.clone();
    let tokens = Arc::<TokenCache>::default();
    vec![
        Arc::new(EmptyDir { host: host() }),
        Arc::new(HostPath),
        Arc::new(ConfigMap { host: host() }),
        Arc::new(Secret { host: host() }),
        Arc::new(DownwardApi { host: host() }),
        Arc::new(Projected {
            host: host(),
            tokens: Arc::clone(&tokens),
            order: Order::of_this_run(),
        }),
        Arc::new(Image),
        Arc::new(Local { host: host() }),
        Arc::new(Nfs { host: host() }),
        Arc::new(DiskPlugin::<Iscsi>::new(host())),
        Arc::new(DiskPlugin::<FibreChannel>::new(host())),
        Arc::new(Csi {
            host: host(),
            tokens,
            drivers,
        }),
        Arc::new(FlexVolume::new(host(), plugin_dir)),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        plugin::tests::{host, request},
        spec::{VolumeMode, VolumeSource, VolumeSpec},
    };

    /// How a volume is measured, with its directory `/dir`.
    fn measured(source: VolumeSource, mode: VolumeMode) -> String {
        let spec = VolumeSpec {
            name: "v".to_owned(),
            source,
            read_only: false,
            mode,
            capacity: None,
            migrated: false,
        };
        let plugins = all(&host(Path::new("/r")), Arc::default(), Path::new("/d"));
        let plugin = plugins.iter().find(|plugin| plugin.supports(&spec));
        let plugin = plugin.unwrap();
        let request = request(Arc::default(), spec, plugin.name());
        format!("{:?}", plugin.usage(&request))
    }

    fn inline(kind: &str, source: Value) -> String {
        let volume = serde_json::from_value(json!({"name": "v", kind: source})).unwrap();
        measured(VolumeSource::Inline(volume), VolumeMode::Filesystem)
    }

    fn persistent(mode: VolumeMode, source: Value) -> String {
        let volume = json!({"metadata": {"name": "pv"}, "spec": source});
        let volume = serde_json::from_value(volume).unwrap();
        measured(VolumeSource::Persistent(Arc::new(volume)), mode)
    }

    #[test]
    fn each_kind_is_measured_in_its_way() {
        let directory = "Directory(\"/dir\")";
        let file_system = "FileSystem(\"/dir\")";
        let nfs = json!({"server": "s", "path": "/"});
        let local = json!({"local": {"path": "/data"}});
        let iscsi = json!({"targetPortal": "p", "iqn": "iqn.2003-01.com.example:d", "lun": 0});
        for (kind, source, expected) in [
            ("emptyDir", json!({}), directory),
            ("emptyDir", json!({"medium": "Memory"}), file_system),
            ("emptyDir", json!({"medium": "HugePages-2Mi"}), directory),
            ("configMap", json!({"name": "c"}), directory),
            ("secret", json!({"secretName": "s"}), directory),
            ("downwardAPI", json!({}), directory),
            ("projected", json!({}), directory),
            ("hostPath", json!({"path": "/"}), "None"),
            ("image", json!({"reference": "i"}), "None"),
            ("flexVolume", json!({"driver": "d"}), "None"),
            ("nfs", nfs.clone(), file_system),
            ("iscsi", iscsi.clone(), file_system),
            ("fc", json!({"wwids": ["w"]}), file_system),
        ] {
            assert_eq!(inline(kind, source), expected, "{kind}");
        }
        let driver = inline("csi", json!({"driver": "d.example.com"}));
        assert!(driver.contains("path: \"/dir/mount\""), "{driver}");

        let (mounted, block) = (VolumeMode::Filesystem, VolumeMode::Block);
        assert_eq!(persistent(mounted, json!({"nfs": nfs})), file_system);
        assert_eq!(persistent(mounted, local.clone()), file_system);
        assert_eq!(persistent(block, local), "Device(\"/dir\")");
        assert_eq!(
            persistent(block, json!({"iscsi": iscsi})),
            "Device(\"/dir\")"
        );
        let csi = json!({"csi": {"driver": "d", "volumeHandle": "h"}});
        let device = persistent(block, csi);
        let path = "/r/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u";
        assert!(device.contains(path) && device.contains("handle: \"h\""));
    }
}
