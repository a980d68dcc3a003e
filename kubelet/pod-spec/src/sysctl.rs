//! Sysctls that pods may set: the safe ones, which a namespace isolates from the node and other
//! pods, and those that the node's administrator allows in addition.

use std::fmt;

use tracing::info;

use crate::names;

/// A kernel namespace with its own sysctls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespace {
    /// Semaphores, shared memory, message queues.
    Ipc,
    /// The network.
    Net,
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ipc => "IPC",
            Self::Net => "Net",
        })
    }
}

impl Namespace {
    /// The namespace of a sysctl, or of a pattern with a `*` after a prefix; `None` for a sysctl
    /// that applies to the whole node.
    pub fn of(name: &str) -> Option<Self> {
        const IPC: [&str; 10] = [
            "kernel.sem",
            "kernel.shmall",
            "kernel.shmmax",
            "kernel.shmmni",
            "kernel.shm_rmid_forced",
            "kernel.shm",
            "kernel.msgmax",
            "kernel.msgmnb",
            "kernel.msgmni",
            "kernel.msg",
        ];
        let name = with_dots(name);
        let start = name.split('*').next().unwrap_or_default();
        if start.starts_with("net.") {
            Some(Self::Net)
        } else if start.starts_with("fs.mqueue.") || IPC.contains(&start) {
            Some(Self::Ipc)
        } else {
            None
        }
    }
}

/// Converts a name to dots as separators; a dot within a part of a name with slashes becomes a
/// slash.
pub fn with_dots(name: &str) -> String {
    let first = name.find(['.', '/']);
    if first.is_none_or(|at| name.as_bytes().get(at) == Some(&b'.')) {
        return name.to_owned();
    }
    let swapped = name.chars().map(|c| match c {
        '.' => '/',
        '/' => '.',
        other => other,
    });
    swapped.collect()
}

/// Safe sysctls, which do not affect other pods or the node, each with the first kernel version
/// that namespaces it.
const SAFE: [(&str, (u32, u32)); 12] = [
    ("kernel.shm_rmid_forced", (0, 0)),
    ("net.ipv4.ip_local_port_range", (0, 0)),
    ("net.ipv4.tcp_syncookies", (0, 0)),
    ("net.ipv4.ping_group_range", (0, 0)),
    ("net.ipv4.ip_unprivileged_port_start", (0, 0)),
    ("net.ipv4.ip_local_reserved_ports", (3, 16)),
    ("net.ipv4.tcp_keepalive_time", (4, 5)),
    ("net.ipv4.tcp_fin_timeout", (4, 6)),
    ("net.ipv4.tcp_keepalive_intvl", (4, 5)),
    ("net.ipv4.tcp_keepalive_probes", (4, 5)),
    ("net.ipv4.tcp_rmem", (4, 15)),
    ("net.ipv4.tcp_wmem", (4, 15)),
];

/// Why a pod may not set a sysctl.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SysctlError {
    /// The sysctl is not on the allowlist.
    #[error("forbidden sysctl: {0:?} not allowlisted")]
    NotAllowed(String),
    /// The pod shares the sysctl's namespace with the node.
    #[error("forbidden sysctl: {name:?} not allowed with host {namespace} enabled")]
    Shared {
        /// The sysctl.
        name: String,
        /// The namespace that the pod shares with the node.
        namespace: Namespace,
    },
}

/// The sysctls that pods may set on this node.
#[derive(Clone, Debug)]
pub struct Allowlist {
    names: Vec<String>,
    /// Prefixes of names.
    prefixes: Vec<String>,
}

impl Allowlist {
    /// The sysctls that are safe on the running kernel, and those that match `unsafe_patterns`.
    pub fn new(unsafe_patterns: &[String]) -> Self {
        let release = rustix::system::uname();
        let kernel = version(&release.release().to_string_lossy());
        Self::on(kernel, unsafe_patterns)
    }

    fn on(kernel: (u32, u32), unsafe_patterns: &[String]) -> Self {
        let mut list = Self {
            names: Vec::new(),
            prefixes: Vec::new(),
        };
        for (name, since) in SAFE {
            if kernel >= since {
                list.names.push(name.to_owned());
            } else {
                info!(
                    sysctl = name,
                    ?kernel,
                    "the kernel is too old for pods to set this sysctl"
                );
            }
        }
        for pattern in unsafe_patterns {
            let pattern = with_dots(pattern);
            match pattern.split_once('*') {
                Some((prefix, _)) => list.prefixes.push(prefix.to_owned()),
                None => list.names.push(pattern),
            }
        }
        list
    }

    /// Checks whether a pod may set a sysctl. `host_network` and `host_ipc` tell whether the pod
    /// shares these namespaces with the node.
    ///
    /// # Errors
    /// See [`SysctlError`].
    pub fn check(&self, name: &str, host_network: bool, host_ipc: bool) -> Result<(), SysctlError> {
        let name = with_dots(name);
        let listed = self.names.contains(&name);
        let pattern = if listed {
            Some(name.as_str())
        } else {
            let mut prefixes = self.prefixes.iter();
            prefixes
                .find(|prefix| name.starts_with(prefix.as_str()))
                .map(String::as_str)
        };
        let Some(pattern) = pattern else {
            return Err(SysctlError::NotAllowed(name));
        };
        let shared = match Namespace::of(pattern) {
            Some(Namespace::Net) if host_network => Namespace::Net,
            Some(Namespace::Ipc) if host_ipc => Namespace::Ipc,
            _ => return Ok(()),
        };
        Err(SysctlError::Shared {
            name,
            namespace: shared,
        })
    }
}

/// Checks whether a pattern can be allowed: the name of a namespaced sysctl, or a prefix of such
/// names and `*`.
///
/// # Errors
/// What is wrong with it.
pub fn check_pattern(pattern: &str) -> names::Rule {
    // The `*` is checked as if it were a character of the name.
    let text = match pattern.strip_suffix('*') {
        Some(start) => format!("{start}x"),
        None => pattern.to_owned(),
    };
    names::sysctl_name(&text)?;
    match Namespace::of(pattern) {
        Some(_) => Ok(()),
        None => Err("is not known to be namespaced"),
    }
}

/// Major and minor version of a kernel release.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release
        .split(|c: char| !c.is_ascii_digit())
        .map(|number| number.parse().unwrap_or_default());
    (
        numbers.next().unwrap_or_default(),
        numbers.next().unwrap_or_default(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn safe_and_allowed_sysctls_are_let_through() {
        let patterns = ["kernel.msg*", "net/core/somaxconn", "net.ipv6.*"].map(str::to_owned);
        let list = Allowlist::on((6, 1), &patterns);
        let not_allowed = |name: &str| Err(SysctlError::NotAllowed(name.to_owned()));
        let shared = |name: &str, namespace| {
            let name = name.to_owned();
            Err(SysctlError::Shared { name, namespace })
        };
        for (name, host_network, host_ipc, expected) in [
            ("net.ipv4.tcp_syncookies", false, false, Ok(())),
            ("net/ipv4/tcp_syncookies", false, true, Ok(())),
            ("kernel.shm_rmid_forced", true, false, Ok(())),
            ("kernel.msgmax", false, false, Ok(())),
            ("net.core.somaxconn", false, false, Ok(())),
            ("net.ipv6.a.b", false, false, Ok(())),
            (
                "net.ipv4.tcp_rmem",
                true,
                false,
                shared("net.ipv4.tcp_rmem", Namespace::Net),
            ),
            (
                "kernel.msgmax",
                false,
                true,
                shared("kernel.msgmax", Namespace::Ipc),
            ),
            ("kernel.shmmax", false, false, not_allowed("kernel.shmmax")),
            ("vm.swappiness", false, false, not_allowed("vm.swappiness")),
        ] {
            assert_eq!(list.check(name, host_network, host_ipc), expected, "{name}");
        }
        let error = list.check("vm.swappiness", false, false).unwrap_err();
        assert_eq!(
            error.to_string(),
            "forbidden sysctl: \"vm.swappiness\" not allowlisted"
        );
    }

    #[test]
    fn an_old_kernel_shares_some_with_all_pods() {
        let list = Allowlist::on(version("4.4.0-generic"), &[]);
        assert!(list.check("net.ipv4.tcp_syncookies", false, false).is_ok());
        assert!(list.check("net.ipv4.tcp_rmem", false, false).is_err());
        assert_eq!(version("6.18.44-x"), (6, 18));
    }

    #[test]
    fn only_namespaced_sysctls_can_be_allowed() {
        for pattern in [
            "net.core.*",
            "kernel.msg*",
            "kernel.sem",
            "fs.mqueue.msg_max",
            "net/a*",
        ] {
            assert_eq!(check_pattern(pattern), Ok(()), "{pattern}");
        }
        for pattern in [
            "vm.swappiness",
            "kernel.*",
            "*",
            "",
            "net.*.x",
            "Net.x",
            "net",
        ] {
            assert!(check_pattern(pattern).is_err(), "{pattern}");
        }
    }

    #[test]
    fn slashes_and_dots_change_places() {
        for (name, dots) in [
            ("net.ipv4.a", "net.ipv4.a"),
            ("net.ipv4.conf.eno2/100.x", "net.ipv4.conf.eno2/100.x"),
            ("net/ipv4/conf/eno2.100/x", "net.ipv4.conf.eno2/100.x"),
            ("sem", "sem"),
        ] {
            assert_eq!(with_dots(name), dots);
        }
    }
}
