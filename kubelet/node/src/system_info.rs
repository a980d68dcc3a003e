//! The system information in the node status (`nodeInfo`).

use std::{fs, path::Path};

use k8s_openapi::api::core::v1::{NodeSwapStatus, NodeSystemInfo};
use kubelet_host::{machine::os_image, version};

/// Reads files in `/etc`, `/proc` and `/sys`; blocking. The runtime's version is left empty.
pub fn read(swap_bytes: i64) -> NodeSystemInfo {
    of_root(Path::new("/"), swap_bytes)
}

fn of_root(root: &Path, swap_bytes: i64) -> NodeSystemInfo {
    let first = |paths: &[&str]| {
        paths
            .iter()
            .filter_map(|path| fs::read_to_string(root.join(path)).ok())
            .map(|text| text.trim_matches(['\0', '\n', ' ']).to_owned())
            .find(|text| !text.is_empty())
            .unwrap_or_default()
    };
    NodeSystemInfo {
        architecture: version::go_arch().to_owned(),
        boot_id: first(&["proc/sys/kernel/random/boot_id"]),
        container_runtime_version: String::new(),
        kernel_version: rustix::system::uname()
            .release()
            .to_string_lossy()
            .into_owned(),
        kube_proxy_version: String::new(),
        kubelet_version: version::VERSION.to_owned(),
        machine_id: first(&["etc/machine-id", "var/lib/dbus/machine-id"]),
        operating_system: std::env::consts::OS.to_owned(),
        os_image: os_image(root),
        swap: (swap_bytes > 0).then_some(NodeSwapStatus {
            capacity: Some(swap_bytes),
        }),
        system_uuid: first(&[
            "sys/class/dmi/id/product_uuid",
            "proc/device-tree/system-id",
            "proc/device-tree/vm,uuid",
            "etc/machine-id",
        ]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_say_who_the_machine_is() {
        let root = tempfile::tempdir().unwrap();
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        write("etc/machine-id", "abc\n");
        write("proc/sys/kernel/random/boot_id", "b-1\n");
        write("etc/os-release", "NAME=X\nPRETTY_NAME=\"Some Linux 1\"\n");
        let info = of_root(root.path(), 0);
        assert_eq!(info.machine_id, "abc");
        assert_eq!(info.system_uuid, "abc", "where the firmware has none");
        assert_eq!(info.boot_id, "b-1");
        assert_eq!(info.os_image, "Some Linux 1");
        assert!(info.kubelet_version.starts_with("v1.36."));
        assert_eq!(info.swap, None);
        assert_eq!(of_root(root.path(), 5).swap.unwrap().capacity, Some(5));
    }
}
