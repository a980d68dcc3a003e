//! Checks of kernel features, read in this process's own namespaces, which must be the node's.

use std::{fs, path::Path};

use super::Check;

/// Runs all kernel checks, with procfs mounted at `proc`.
pub(super) fn check(proc: &Path) -> Vec<Check> {
    vec![
        overlay(proc),
        bridge_netfilter(proc),
        ip_forward(proc),
        user_namespaces(proc),
    ]
}

fn read(proc: &Path, file: &str) -> Option<String> {
    let text = fs::read_to_string(proc.join(file)).ok()?;
    Some(text.trim().to_owned())
}

fn overlay(proc: &Path) -> Check {
    let name = "kernel overlay";
    let known = read(proc, "filesystems").unwrap_or_default();
    if known
        .lines()
        .any(|line| line.split_whitespace().next_back() == Some("overlay"))
    {
        return Check::ok(name, "available");
    }
    Check::warn(
        name,
        "not loaded: images use more disk space and time",
        "modprobe overlay; echo overlay > /etc/modules-load.d/kubernetes.conf",
    )
}

fn bridge_netfilter(proc: &Path) -> Check {
    let name = "bridge netfilter";
    match read(proc, "sys/net/bridge/bridge-nf-call-iptables").as_deref() {
        Some("1") => Check::ok(name, "net.bridge.bridge-nf-call-iptables is 1"),
        Some(_) => Check::warn(
            name,
            "net.bridge.bridge-nf-call-iptables is 0: Services may not work between pods of \
             this node",
            "sysctl -w net.bridge.bridge-nf-call-iptables=1, and the same in /etc/sysctl.d",
        ),
        None => Check::warn(
            name,
            "br_netfilter is not loaded: Services may not work between pods of this node",
            "modprobe br_netfilter; echo br_netfilter > /etc/modules-load.d/kubernetes.conf",
        ),
    }
}

fn ip_forward(proc: &Path) -> Check {
    let name = "ip_forward";
    if read(proc, "sys/net/ipv4/ip_forward").as_deref() == Some("1") {
        return Check::ok(name, "net.ipv4.ip_forward is 1");
    }
    Check::fail(
        name,
        "net.ipv4.ip_forward is not 1: pods cannot reach anything outside this node",
        "sysctl -w net.ipv4.ip_forward=1, and the same in /etc/sysctl.d",
    )
}

fn user_namespaces(proc: &Path) -> Check {
    let name = "user namespaces";
    let most = read(proc, "sys/user/max_user_namespaces").and_then(|text| text.parse().ok());
    match most {
        Some(1_u64..) => Check::ok(name, "available"),
        Some(0) => Check::warn(
            name,
            "user.max_user_namespaces is 0: an engine with userns-remap cannot start pods",
            "sysctl -w user.max_user_namespaces=15000, and the same in /etc/sysctl.d",
        ),
        None => Check::warn(
            name,
            "not supported by the kernel: an engine with userns-remap cannot start pods",
            "run a kernel with CONFIG_USER_NS",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Verdict, *};

    #[test]
    fn each_feature_is_read_from_its_file() {
        let proc = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = proc.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let verdicts = || {
            let checks = check(proc.path());
            checks.iter().map(|c| c.verdict).collect::<Vec<_>>()
        };
        use Verdict::{Fail, Ok, Warn};
        assert_eq!(verdicts(), [Warn, Warn, Fail, Warn]);
        put("filesystems", "nodev\toverlay\n\text4\n");
        put("sys/net/bridge/bridge-nf-call-iptables", "0\n");
        put("sys/net/ipv4/ip_forward", "0\n");
        put("sys/user/max_user_namespaces", "0\n");
        assert_eq!(verdicts(), [Ok, Warn, Fail, Warn]);
        put("sys/net/bridge/bridge-nf-call-iptables", "1\n");
        put("sys/net/ipv4/ip_forward", "1\n");
        put("sys/user/max_user_namespaces", "96365\n");
        assert_eq!(verdicts(), [Ok, Ok, Ok, Ok]);
    }
}
