//! The parts of the engine's description that the shim needs.

use bollard::models::{SystemInfo, SystemInfoCgroupDriverEnum};
use cri_proto::runtime::v1::CgroupDriver;

use super::oci_runtimes::OciRuntimes;

/// The engine's description of itself, read at every connect.
#[derive(Debug, Clone)]
pub struct EngineInfo {
    /// The engine's version, such as `28.3.0`.
    pub version: String,
    /// The release of the engine's kernel.
    pub kernel: Option<String>,
    /// The driver that creates the containers' cgroups.
    pub cgroup_driver: CgroupDriver,
    /// The engine's data directory.
    pub root_dir: String,
    /// The storage driver, such as `overlay2`.
    pub storage_driver: String,
    /// The low-level runtimes that sandboxes can request.
    pub runtimes: OciRuntimes,
    /// The enabled security features: `seccomp`, `apparmor`, `selinux`, ...
    pub security: Vec<String>,
    /// The engine's clock, as Unix time in nanoseconds.
    pub time: i128,
    /// Whether containers keep running while the engine is restarted.
    pub live_restore: bool,
}

impl From<SystemInfo> for EngineInfo {
    fn from(info: SystemInfo) -> Self {
        let default = info.default_runtime.unwrap_or_default();
        let runtimes = OciRuntimes::new(default, &info.runtimes.unwrap_or_default());
        Self {
            version: info.server_version.unwrap_or_default(),
            kernel: info.kernel_version.filter(|release| !release.is_empty()),
            cgroup_driver: match info.cgroup_driver {
                Some(SystemInfoCgroupDriverEnum::SYSTEMD) => CgroupDriver::Systemd,
                _ => CgroupDriver::Cgroupfs,
            },
            root_dir: info.docker_root_dir.unwrap_or_default(),
            storage_driver: info.driver.unwrap_or_default(),
            runtimes,
            security: info
                .security_options
                .unwrap_or_default()
                .iter()
                .filter_map(|option| {
                    let name = option
                        .split(',')
                        .find_map(|pair| pair.strip_prefix("name="))?;
                    Some(name.to_owned())
                })
                .collect(),
            time: info
                .system_time
                .and_then(|time| time.parse::<jiff::Timestamp>().ok())
                .unwrap_or_else(jiff::Timestamp::now)
                .as_nanosecond(),
            live_restore: info.live_restore_enabled.unwrap_or_default(),
        }
    }
}
