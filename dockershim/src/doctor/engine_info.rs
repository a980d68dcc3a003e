//! Checks of the engine's configuration, from its description of itself.

use bollard::models::{SystemInfo, SystemInfoCgroupDriverEnum, SystemInfoCgroupVersionEnum};

use super::Check;
use crate::config::LogDriver;

/// The engine's configuration file, for remedies.
const SETTINGS: &str = "/etc/docker/daemon.json";
/// The log driver that the shim sets for every container, unless `--log-driver=engine` is set.
const LOG_DRIVER: &str = "json-file";
/// Drivers that can be read back; the engine may cache the logs of others.
const READABLE: [&str; 3] = [LOG_DRIVER, "journald", "local"];

/// The properties of the host that the checks depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Host {
    /// Whether systemd is the init process.
    pub systemd: bool,
    /// `--log-driver`.
    pub log_driver: LogDriver,
}

/// Runs all checks of a description.
pub(super) fn check(info: &SystemInfo, host: &Host) -> Vec<Check> {
    vec![
        version(info),
        storage(info),
        cgroups(info, host),
        logging(info, host.log_driver),
        live_restore(info),
        seccomp(info),
    ]
}

fn version(info: &SystemInfo) -> Check {
    let version = info.server_version.as_deref().unwrap_or("unknown");
    Check::ok("engine", format!("version {version}"))
}

fn storage(info: &SystemInfo) -> Check {
    let name = "storage driver";
    let remedy = format!("use overlay2: set {{\"storage-driver\": \"overlay2\"}} in {SETTINGS}");
    match info.driver.as_deref().unwrap_or_default() {
        driver @ ("overlay2" | "overlayfs" | "btrfs" | "zfs") => Check::ok(name, driver),
        "vfs" => Check::warn(
            name,
            "vfs: every container is a full copy of its image",
            remedy,
        ),
        driver => Check::warn(
            name,
            format!("{driver:?}: slow or no longer maintained"),
            remedy,
        ),
    }
}

fn cgroups(info: &SystemInfo, host: &Host) -> Check {
    let name = "cgroups";
    let version = match info.cgroup_version {
        Some(SystemInfoCgroupVersionEnum::_2) => 2,
        _ => 1,
    };
    let driver = match info.cgroup_driver {
        Some(SystemInfoCgroupDriverEnum::SYSTEMD) => "systemd",
        Some(SystemInfoCgroupDriverEnum::NONE) => {
            return Check::fail(
                name,
                "driver none: the engine cannot limit or measure a container",
                "delegate cgroup v2 to the engine's user, or run the engine as root",
            );
        }
        _ => "cgroupfs",
    };
    let detail = format!(
        "v{version}, driver {driver}: the kubelet must use the same; if it does not ask the \
         runtime, set its cgroupDriver: {driver}"
    );
    if host.systemd && driver == "cgroupfs" {
        return Check::warn(
            name,
            format!("{detail}; this host runs systemd, and two managers may conflict under load"),
            format!(
                "set {{\"exec-opts\": [\"native.cgroupdriver=systemd\"]}} in {SETTINGS} while the \
                 node has no pods"
            ),
        );
    }
    if version == 1 {
        return Check::warn(
            name,
            format!("{detail}; Kubernetes no longer adds features for cgroup v1"),
            "boot with systemd.unified_cgroup_hierarchy=1",
        );
    }
    Check::ok(name, detail)
}

fn logging(info: &SystemInfo, wanted: LogDriver) -> Check {
    let name = "log driver";
    let default = info.logging_driver.as_deref().unwrap_or("unknown");
    if wanted == LogDriver::Engine {
        let detail = format!("{default}, the engine's default, for pods too");
        return match default {
            driver if READABLE.contains(&driver) => Check::ok(name, detail),
            "none" => Check::warn(
                name,
                format!("{detail}: their output is discarded, and they have no logs"),
                "--log-driver=json-file",
            ),
            _ => Check::ok(
                name,
                format!("{detail}: they have logs unless \"cache-disabled\" is set in its options"),
            ),
        };
    }
    let known = info
        .plugins
        .as_ref()
        .and_then(|plugins| plugins.log.as_ref());
    if known.is_some_and(|drivers| drivers.iter().all(|driver| driver != LOG_DRIVER)) {
        return Check::fail(
            name,
            format!("the engine has no {LOG_DRIVER} driver, which pod logs are read from"),
            "use an engine with its built-in log drivers",
        );
    }
    Check::ok(
        name,
        format!("{LOG_DRIVER} for pods; {default} for other containers"),
    )
}

fn live_restore(info: &SystemInfo) -> Check {
    let name = "live-restore";
    if info.live_restore_enabled.unwrap_or_default() {
        return Check::ok(name, "on: pods survive a restart of the engine");
    }
    Check::warn(
        name,
        "off: a restart of the engine kills every pod",
        format!("set {{\"live-restore\": true}} in {SETTINGS}, then systemctl reload docker"),
    )
}

fn seccomp(info: &SystemInfo) -> Check {
    let name = "seccomp";
    let options = info.security_options.as_deref().unwrap_or_default();
    let has = |wanted: &str| {
        options
            .iter()
            .any(|option| option.split(',').any(|pair| pair == wanted))
    };
    if !has("name=seccomp") {
        return Check::warn(
            name,
            "the engine applies no profiles: pods can make any system call",
            "run a kernel with CONFIG_SECCOMP_FILTER and an engine built with seccomp",
        );
    }
    Check::ok(name, "the engine applies profiles")
}

#[cfg(test)]
mod tests {
    use bollard::models::PluginsInfo;

    use super::{super::Verdict, *};

    fn good() -> SystemInfo {
        SystemInfo {
            driver: Some("overlay2".into()),
            cgroup_version: Some(SystemInfoCgroupVersionEnum::_2),
            cgroup_driver: Some(SystemInfoCgroupDriverEnum::SYSTEMD),
            logging_driver: Some("journald".into()),
            live_restore_enabled: Some(true),
            security_options: Some(vec!["name=seccomp,profile=builtin".into()]),
            ..Default::default()
        }
    }

    /// The checks that are not ok.
    fn findings(info: &SystemInfo, systemd: bool) -> Vec<(&'static str, Verdict)> {
        let log_driver = LogDriver::JsonFile;
        check(
            info,
            &Host {
                systemd,
                log_driver,
            },
        )
        .into_iter()
        .filter(|check| check.verdict != Verdict::Ok)
        .inspect(|check| assert!(check.remedy.is_some(), "{check:?}"))
        .map(|check| (check.name, check.verdict))
        .collect()
    }

    #[test]
    fn a_good_engine_has_no_findings() {
        assert_eq!(findings(&good(), true), []);
    }

    #[test]
    fn each_setting_is_found() {
        let finding = |change: fn(&mut SystemInfo)| {
            let mut info = good();
            change(&mut info);
            findings(&info, true)
        };
        let vfs = finding(|info| info.driver = Some("vfs".into()));
        assert_eq!(vfs, [("storage driver", Verdict::Warn)]);
        let off = finding(|info| info.live_restore_enabled = Some(false));
        assert_eq!(off, [("live-restore", Verdict::Warn)]);
        let open = finding(|info| info.security_options = None);
        assert_eq!(open, [("seccomp", Verdict::Warn)]);
        let v1 = finding(|info| info.cgroup_version = Some(SystemInfoCgroupVersionEnum::_1));
        assert_eq!(v1, [("cgroups", Verdict::Warn)]);
        let none = finding(|info| info.cgroup_driver = Some(SystemInfoCgroupDriverEnum::NONE));
        assert_eq!(none, [("cgroups", Verdict::Fail)]);
        let no_logs = finding(|info| {
            info.plugins = Some(PluginsInfo {
                log: Some(vec!["syslog".into()]),
                ..Default::default()
            });
        });
        assert_eq!(no_logs, [("log driver", Verdict::Fail)]);
    }

    #[test]
    fn an_engines_own_log_driver_is_told_and_none_is_a_finding() {
        let row = |driver: &str| {
            let info = SystemInfo {
                logging_driver: Some(driver.into()),
                ..good()
            };
            logging(&info, LogDriver::Engine)
        };
        assert_eq!(row("journald").verdict, Verdict::Ok);
        let shipped = row("awslogs");
        assert_eq!(shipped.verdict, Verdict::Ok);
        assert!(shipped.detail.contains("cache-disabled"), "{shipped:?}");
        assert_eq!(row("none").verdict, Verdict::Warn);
    }

    #[test]
    fn cgroupfs_is_no_finding_without_systemd() {
        let mut info = good();
        info.cgroup_driver = Some(SystemInfoCgroupDriverEnum::CGROUPFS);
        assert_eq!(findings(&info, false), []);
        assert_eq!(findings(&info, true), [("cgroups", Verdict::Warn)]);
    }
}
