//! The pod's cgroup as the engine wants it named.

use cri_proto::runtime::v1::CgroupDriver;

use crate::Error;

const SLICE: &str = ".slice";

/// The engine's `CgroupParent` for CRI's `cgroup_parent`: under cgroupfs the path as it
/// is, under systemd the name of the last slice, which implies those above it.
///
/// # Errors
/// `InvalidArgument` when the engine's driver is systemd and the path ends in no slice:
/// the kubelet runs with another driver than the engine then.
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
            format!("{parent:?} is no systemd slice, but systemd is the engine's cgroup driver"),
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
