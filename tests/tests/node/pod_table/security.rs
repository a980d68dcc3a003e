//! Security contexts and sysctls.

use std::fs;

use super::row::{Need, Row, contains, row};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = users();
    rows.extend(privileges());
    rows.extend(sysctls());
    rows
}

fn users() -> Vec<Row> {
    vec![
        row(
            "run-as",
            "runAsUser and runAsGroup of the pod, and a container's own",
            "restartPolicy: Never
securityContext: {runAsUser: 1000, runAsGroup: 2000}
containers:
- {name: c, image: IMAGE, command: [sh, -c, 'id -u; id -g']}
- {name: d, image: IMAGE, securityContext: {runAsUser: 1001}, command: [sh, -c, 'id -u; id -g']}",
        )
        .phase("Succeeded")
        .log("c", "1000\n2000\n")
        .log("d", "1001\n2000\n"),
        row(
            "groups",
            "supplementalGroups and fsGroup are the container's groups",
            "restartPolicy: Never
securityContext: {runAsUser: 1000, runAsGroup: 2000, supplementalGroups: [3000], fsGroup: 4000}
containers: [{name: c, image: IMAGE, command: [sh, -c, 'for g in $(id -G); do echo $g; done | busybox sort']}]",
        )
        .log("c", contains("2000\n3000\n4000\n")),
        row(
            "non-root",
            "runAsNonRoot refuses an image that runs as root",
            "securityContext: {runAsNonRoot: true}
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Pending")
        .container("c", "/state/waiting/reason", "CreateContainerConfigError")
        .container(
            "c",
            "/state/waiting/message",
            contains("container has runAsNonRoot and image will run as root"),
        ),
        row(
            "non-root-user",
            "runAsNonRoot with a user of its own",
            "restartPolicy: Never
securityContext: {runAsNonRoot: true, runAsUser: 1000}
containers: [{name: c, image: IMAGE, command: [id, -u]}]",
        )
        .log("c", "1000\n"),
        row(
            "non-root-zero",
            "runAsNonRoot refuses user 0",
            "securityContext: {runAsNonRoot: true, runAsUser: 0}
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .container("c", "/state/waiting/reason", "CreateContainerConfigError")
        .container(
            "c",
            "/state/waiting/message",
            contains("container's runAsUser breaks non-root policy"),
        ),
    ]
}

fn privileges() -> Vec<Row> {
    vec![
        row(
            "read-only-root",
            "readOnlyRootFilesystem",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, securityContext: {readOnlyRootFilesystem: true}, command: [sh, -c, 'touch /f || echo refused']}]",
        )
        .phase("Succeeded")
        .log("c", contains("refused\n")),
        row(
            "capabilities",
            "capabilities dropped and added",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, securityContext: {capabilities: {drop: [ALL], add: [NET_ADMIN]}}, command: [busybox, grep, CapEff, /proc/self/status]}]",
        )
        .log("c", "CapEff:\t0000000000001000\n"),
        row(
            "no-new-privileges",
            "allowPrivilegeEscalation: false",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, securityContext: {allowPrivilegeEscalation: false}, command: [busybox, grep, NoNewPrivs, /proc/self/status]}]",
        )
        .log("c", "NoNewPrivs:\t1\n"),
        row(
            "seccomp-default",
            "seccompProfile RuntimeDefault: a filter",
            "restartPolicy: Never
securityContext: {seccompProfile: {type: RuntimeDefault}}
containers: [{name: c, image: IMAGE, command: [busybox, grep, 'Seccomp:', /proc/self/status]}]",
        )
        .log("c", "Seccomp:\t2\n"),
        row(
            "seccomp-none",
            "without a seccompProfile: no filter, as upstream",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [busybox, grep, 'Seccomp:', /proc/self/status]}]",
        )
        .log("c", "Seccomp:\t0\n"),
        row(
            "seccomp-localhost",
            "seccompProfile Localhost: a profile of the node's",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, securityContext: {seccompProfile: {type: Localhost, localhostProfile: no-mkdir.json}}, command: [sh, -c, 'busybox mkdir /tmp/d || echo refused']}]",
        )
        .before(|dir| {
            let kubelet = dir.ancestors().nth(2).map(|node| node.join("kubelet/seccomp"));
            let seccomp = kubelet.unwrap_or_default();
            fs::create_dir_all(&seccomp)?;
            let profile = r#"{"defaultAction": "SCMP_ACT_ALLOW", "architectures":
                ["SCMP_ARCH_X86_64", "SCMP_ARCH_AARCH64"], "syscalls":
                [{"names": ["mkdir", "mkdirat"], "action": "SCMP_ACT_ERRNO"}]}"#;
            Ok(fs::write(seccomp.join("no-mkdir.json"), profile)?)
        })
        .phase("Succeeded")
        .log("c", contains("refused\n")),
        row(
            "privileged",
            "a privileged container has every capability",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, securityContext: {privileged: true}, command: [sh, -c, 'busybox mknod /tmp/null c 1 3 && mount -t tmpfs none /tmp && echo mounted']}]",
        )
        .needs(Need::SysResource)
        .phase("Succeeded")
        .log("c", "mounted\n"),
        row(
            "read-only-proc",
            "what the runtime protects of /proc",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'echo x > /proc/sys/kernel/domainname || echo refused']}]",
        )
        .phase("Succeeded")
        .log("c", contains("refused\n")),
    ]
}

fn sysctls() -> Vec<Row> {
    vec![
        row(
            "sysctl",
            "a safe sysctl",
            "restartPolicy: Never
securityContext: {sysctls: [{name: net.ipv4.ip_unprivileged_port_start, value: '81'}]}
containers: [{name: c, image: IMAGE, command: [cat, /proc/sys/net/ipv4/ip_unprivileged_port_start]}]",
        )
        .log("c", "81\n"),
        row(
            "sysctl-allowed",
            "an unsafe sysctl that the node allows",
            "restartPolicy: Never
securityContext: {sysctls: [{name: net.core.somaxconn, value: '321'}]}
containers: [{name: c, image: IMAGE, command: [cat, /proc/sys/net/core/somaxconn]}]",
        )
        .log("c", "321\n"),
        row(
            "sysctl-forbidden",
            "an unsafe sysctl that the node does not allow: SysctlForbidden",
            "securityContext: {sysctls: [{name: net.ipv4.tcp_max_syn_backlog, value: '321'}]}
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Failed")
        .pod("/status/reason", "SysctlForbidden"),
    ]
}
