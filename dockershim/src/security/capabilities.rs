//! Capabilities in the engine's terms.

use bollard::models::HostConfig;
use cri_proto::runtime::v1::Capability;
use rustix::process::Pid;

use crate::{Error, engine::Connection};

const FIELD: &str = "config.linux.security_context.capabilities";
const ALL: &str = "ALL";
const PREFIX: &str = "CAP_";
/// The bit of `PERFMON`, the first of the capabilities that the engine knows only since Docker 23.
const FIRST_UNKNOWN_TO_OLD: u32 = 38;

/// Capability names by bit number, as in `capabilities(7)` and the kernel's headers.
const NAMES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// Sets the capabilities in the engine's create request. `ALL` is applied before single names, and
/// drops after adds. Adding `ALL` adds only what is [`available`]: the engine cannot grant
/// capabilities that it lacks, and would fail the start.
///
/// # Errors
/// `InvalidArgument` for an unknown name, `Unsupported` for ambient capabilities.
pub(super) fn apply(
    capabilities: Option<&Capability>,
    available: u64,
    host: &mut HostConfig,
) -> Result<(), Error> {
    let Some(capabilities) = capabilities else {
        return Ok(());
    };
    if !capabilities.add_ambient_capabilities.is_empty() {
        return Err(Error::unsupported(
            format!("{FIELD}.add_ambient_capabilities"),
            "not supported by the Docker engine",
        ));
    }
    let names = |field: &str, given: &[String]| {
        let check = |(index, name): (usize, &String)| {
            normal(name).ok_or_else(|| {
                let field = format!("{FIELD}.{field}[{index}]");
                Error::invalid(field, format!("{name:?} is not a capability"))
            })
        };
        given
            .iter()
            .enumerate()
            .map(check)
            .collect::<Result<Vec<_>, _>>()
    };
    let mut add = names("add_capabilities", &capabilities.add_capabilities)?;
    let mut drop = names("drop_capabilities", &capabilities.drop_capabilities)?;
    let all_added = add.contains(&ALL);
    let all_dropped = drop.contains(&ALL);
    add.retain(|name| *name != ALL);
    if all_added && !all_dropped {
        let has = |bit: &usize| available & (1 << bit) != 0;
        add.extend((0..NAMES.len()).filter(has).map(|bit| NAMES[bit]));
    }
    add.retain(|name| !drop.contains(name));
    add.sort_unstable();
    add.dedup();
    if all_dropped {
        drop = vec![ALL];
    }
    let owned = |names: Vec<&str>| Some(names.into_iter().map(str::to_owned).collect());
    (host.cap_add, host.cap_drop) = (owned(add), owned(drop));
    Ok(())
}

/// The capabilities that an engine can grant, as a bit set: those that it has itself and knows by
/// name.
pub fn available(engine: &Connection) -> u64 {
    let known = if engine.serves(1, 42) {
        u64::MAX
    } else {
        (1 << FIRST_UNKNOWN_TO_OLD) - 1
    };
    known & engine.pid.and_then(effective).unwrap_or(u64::MAX)
}

fn normal(name: &str) -> Option<&'static str> {
    let upper = name.to_ascii_uppercase();
    let bare = upper.strip_prefix(PREFIX).unwrap_or(&upper);
    NAMES
        .iter()
        .chain([&ALL])
        .find(|known| **known == bare)
        .copied()
}

/// A process's effective capabilities, as a bit set.
pub(crate) fn effective(pid: Pid) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).ok()?;
    let set = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(set.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn applied(add: &[&str], drop: &[&str]) -> Result<(Vec<String>, Vec<String>), Error> {
        let owned = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let capabilities = Capability {
            add_capabilities: owned(add),
            drop_capabilities: owned(drop),
            ..Default::default()
        };
        let mut host = HostConfig::default();
        apply(Some(&capabilities), u64::MAX, &mut host)?;
        Ok((host.cap_add.unwrap(), host.cap_drop.unwrap()))
    }

    #[test]
    fn all_comes_first_and_drops_last() {
        let (add, drop) = applied(&["all"], &["cap_net_raw"]).unwrap();
        assert_eq!(add.len(), NAMES.len() - 1);
        assert_eq!(drop, ["NET_RAW"]);
        let (add, drop) = applied(&["ALL", "CAP_CHOWN"], &["ALL"]).unwrap();
        assert_eq!((add, drop), (vec!["CHOWN".into()], vec!["ALL".into()]));
        let (add, _) = applied(&["SYS_TIME", "KILL"], &["KILL"]).unwrap();
        assert_eq!(add, ["SYS_TIME"]);
    }

    #[test]
    fn all_is_what_the_engine_has() {
        let all = Capability {
            add_capabilities: vec!["ALL".to_owned()],
            ..Default::default()
        };
        let mut host = HostConfig::default();
        apply(Some(&all), 0b101, &mut host).unwrap();
        assert_eq!(host.cap_add.unwrap(), [NAMES[0], NAMES[2]]);
    }

    #[test]
    fn ambient_capabilities_are_refused_by_name() {
        let ambient = Capability {
            add_ambient_capabilities: vec!["CHOWN".to_owned()],
            ..Default::default()
        };
        let error = apply(Some(&ambient), u64::MAX, &mut HostConfig::default()).unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unimplemented);
        let field = "add_ambient_capabilities";
        assert!(error.to_string().contains(field), "{error}");
    }

    #[test]
    fn an_unknown_name_is_named() {
        let error = applied(&["CHOWN", "FLY"], &[]).unwrap_err();
        assert_eq!(error.code(), tonic::Code::InvalidArgument);
        assert!(error.to_string().contains("add_capabilities[1]"), "{error}");
    }
}
