//! The pod's cgroup parent in the engine's notation.

use cri_proto::runtime::v1::CgroupDriver;

use crate::Error;

const SLICE: &str = ".slice";

/// The engine's `CgroupParent` for CRI's `cgroup_parent`: the unchanged path with the cgroupfs
/// driver; with the systemd driver, the name of the last slice, which implies those above it.
///
/// # Errors
/// `InvalidArgument` if the engine's driver is systemd and the path does not end in a slice, which
/// means that the kubelet and the engine use different cgroup drivers.
pub fn cgroup_parent(driver: CgroupDriver, parent: &str) -> Result<Option<String>, Error> {
    let last = parent
        .trim_end_matches('/')
        .rsplit('/')
        .next()
        .unwrap_or_default();
    match driver {
        _ if last.is_empty() => Ok(None),
        CgroupDriver::Cgroupfs => Ok(Some(parent.to_owned())),
        CgroupDriver::Systemd if last.ends_with(SLICE) => Ok(Some(last.to_owned())),
        CgroupDriver::Systemd => Err(Error::invalid(
            "linux.cgroup_parent",
            format!("{parent:?} is not a systemd slice; the engine's cgroup driver is systemd"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_has_its_form() {
        let cgroupfs = |p| cgroup_parent(CgroupDriver::Cgroupfs, p).unwrap();
        let systemd = |p| cgroup_parent(CgroupDriver::Systemd, p);
        assert_eq!(cgroupfs(""), None);
        assert_eq!(
            cgroupfs("/kubepods/podx").as_deref(),
            Some("/kubepods/podx")
        );
        let slice = "/kubepods.slice/kubepods-podx.slice";
        assert_eq!(
            systemd(slice).unwrap().as_deref(),
            Some("kubepods-podx.slice")
        );
        assert_eq!(systemd("").unwrap(), None);
        assert!(systemd("/kubepods/podx").is_err());
    }
}
