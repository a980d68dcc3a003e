//! Hostnames, DNS, ports and namespaces.

use std::fs;

use super::row::{Row, contains, row};

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = names();
    rows.extend(dns());
    rows.extend(ports());
    rows.extend(namespaces());
    rows
}

fn names() -> Vec<Row> {
    vec![
        row(
            "hostname",
            "the pod's name is its hostname, in /etc/hosts too",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'hostname; cat /etc/hosts']}]",
        )
        .phase("Succeeded")
        .log("c", contains("hostname-node\n# Kubernetes-managed hosts file.\n"))
        .log("c", contains("\thostname-node\n")),
        row(
            "subdomain",
            "hostname and subdomain: the full name in /etc/hosts",
            "restartPolicy: Never
hostname: web-0
subdomain: web
containers: [{name: c, image: IMAGE, command: [sh, -c, 'hostname; cat /etc/hosts']}]",
        )
        .phase("Succeeded")
        .log(
            "c",
            contains("\tweb-0.web.default.svc.cluster.local\tweb-0\n"),
        ),
        row(
            "fqdn",
            "setHostnameAsFQDN",
            "restartPolicy: Never
hostname: web-0
subdomain: web
setHostnameAsFQDN: true
containers: [{name: c, image: IMAGE, command: [hostname]}]",
        )
        .log("c", "web-0.web.default.svc.cluster.local\n"),
        row(
            "hostname-override",
            "hostnameOverride",
            "restartPolicy: Never
hostnameOverride: my.own.name
containers: [{name: c, image: IMAGE, command: [hostname]}]",
        )
        .log("c", "my.own.name\n"),
        row(
            "host-aliases",
            "hostAliases",
            "restartPolicy: Never
hostAliases: [{ip: 192.0.2.7, hostnames: [seven, sept]}]
containers: [{name: c, image: IMAGE, command: [cat, /etc/hosts]}]",
        )
        .log(
            "c",
            contains("\n# Entries added by HostAliases.\n192.0.2.7\tseven\tsept\n"),
        ),
        row(
            "own-hosts",
            "a pod that mounts its own /etc/hosts keeps it",
            "restartPolicy: Never
containers:
- {name: c, image: IMAGE, command: [cat, /etc/hosts], volumeMounts: [{name: h, mountPath: /etc/hosts}]}
volumes: [{name: h, hostPath: {path: DIR/hosts}}]",
        )
        .before(|dir| Ok(fs::write(dir.join("hosts"), "mine\n")?))
        .log("c", "mine\n"),
    ]
}

fn dns() -> Vec<Row> {
    vec![
        row(
            "dns-cluster",
            "dnsPolicy ClusterFirst: the cluster's server, searches and ndots",
            "restartPolicy: Never
dnsPolicy: ClusterFirst
containers: [{name: c, image: IMAGE, command: [cat, /etc/resolv.conf]}]",
        )
        .phase("Succeeded")
        .log("c", contains("nameserver 10.96.0.10\n"))
        .log("c", contains("default.svc.cluster.local svc.cluster.local cluster.local"))
        .log("c", contains("options ndots:5")),
        row(
            "dns-none",
            "dnsPolicy None: what dnsConfig says and no more",
            "restartPolicy: Never
dnsPolicy: None
dnsConfig:
  nameservers: [192.0.2.53]
  searches: [example.org, example.net]
  options: [{name: ndots, value: '2'}, {name: rotate}]
containers: [{name: c, image: IMAGE, command: [cat, /etc/resolv.conf]}]",
        )
        .phase("Succeeded")
        .until("resolv.conf is as dnsConfig says", |subject| {
            let log = subject.log("c");
            let mut lines: Vec<&str> = log.lines().filter(|l| !l.starts_with('#')).collect();
            lines.sort_unstable();
            Ok(lines
                == [
                    "nameserver 192.0.2.53",
                    "options ndots:2 rotate",
                    "search example.org example.net",
                ])
        }),
        row(
            "dns-config",
            "dnsConfig is added to the policy's",
            "restartPolicy: Never
dnsPolicy: ClusterFirst
dnsConfig: {searches: [example.org], options: [{name: ndots, value: '1'}]}
containers: [{name: c, image: IMAGE, command: [cat, /etc/resolv.conf]}]",
        )
        .phase("Succeeded")
        .log("c", contains("cluster.local example.org"))
        .log("c", contains("options ndots:1")),
        row(
            "dns-host-network",
            "on the node's network ClusterFirst is the node's resolv.conf",
            "restartPolicy: Never
hostNetwork: true
dnsPolicy: ClusterFirst
containers: [{name: c, image: IMAGE, command: [sh, -c, 'busybox grep -c 10.96.0.10 /etc/resolv.conf']}]",
        )
        .log("c", "0\n"),
        row(
            "dns-host-network-cluster",
            "ClusterFirstWithHostNet",
            "restartPolicy: Never
hostNetwork: true
dnsPolicy: ClusterFirstWithHostNet
containers: [{name: c, image: IMAGE, command: [sh, -c, 'busybox grep -c 10.96.0.10 /etc/resolv.conf']}]",
        )
        .log("c", "1\n"),
    ]
}

fn ports() -> Vec<Row> {
    vec![
        row(
            "serves",
            "a container's port at the pod's address",
            "containers: [{name: c, image: IMAGE, command: [httpd, -f, -p, '80', -h, /www], ports: [{containerPort: 80}]}]",
        )
        .phase("Running")
        .until("the page is served", |subject| {
            let page = subject.fetch(&format!("http://{}/", subject.ip()))?;
            Ok(page.as_deref() == Some("hello from the pod\n"))
        }),
        row(
            "host-port",
            "a host port leads to the container's",
            "containers: [{name: c, image: IMAGE, command: [httpd, -f, -p, '80', -h, /www], ports: [{containerPort: 80, hostPort: 18080, hostIP: 127.0.0.1}]}]",
        )
        .phase("Running")
        .until("the page is served", |subject| {
            let page = subject.fetch("http://127.0.0.1:18080/")?;
            Ok(page.as_deref() == Some("hello from the pod\n"))
        }),
        row(
            "one-network",
            "containers of a pod reach each other on localhost",
            "restartPolicy: Never
containers:
- {name: web, image: IMAGE, command: [sh, -c, 'httpd -p 8080 -h /www; until [ -e /s/done ]; do sleep 0.1; done'], volumeMounts: [{name: s, mountPath: /s}]}
- {name: c, image: IMAGE, command: [sh, -c, 'until wget -q -O - http://127.0.0.1:8080/; do sleep 0.1; done; touch /s/done'], volumeMounts: [{name: s, mountPath: /s}]}
volumes: [{name: s, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .log("c", contains("hello from the pod\n")),
        row(
            "host-network",
            "hostNetwork: the node's address and name",
            "restartPolicy: Never
hostNetwork: true
containers: [{name: c, image: IMAGE, command: [sh, -c, 'hostname > /tmp/n; sleep 1000']}]",
        )
        .phase("Running")
        .until("the pod's address is the node's", |subject| {
            let status = &subject.pod["status"];
            Ok(status["podIP"] == status["hostIP"])
        }),
    ]
}

fn namespaces() -> Vec<Row> {
    vec![
        row(
            "share-processes",
            "shareProcessNamespace: containers see each other's processes",
            "shareProcessNamespace: true
containers:
- {name: other, image: IMAGE, command: [sleep, '4321']}
- {name: c, image: IMAGE, command: [sh, -c, 'until ps | busybox grep -q \"[s]leep 4321\"; do sleep 0.1; done; echo seen; sleep 1000']}",
        )
        .phase("Running")
        .log("c", "seen\n"),
        row(
            "own-processes",
            "without it a container's program is its process 1",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'echo $$$$']}]",
        )
        .log("c", "1\n"),
        row(
            "host-pid",
            "hostPID: the node's processes",
            "restartPolicy: Never
hostPID: true
containers: [{name: c, image: IMAGE, command: [sh, -c, '[ $$$$ -ne 1 ] && echo elsewhere']}]",
        )
        .log("c", "elsewhere\n"),
        row(
            "host-ipc",
            "hostIPC: the node's message queues",
            "restartPolicy: Never
hostIPC: true
containers: [{name: c, image: IMAGE, command: [busybox, readlink, /proc/self/ns/ipc]}]",
        )
        .phase("Succeeded")
        .until("it is the node's namespace", |subject| {
            let own = fs::read_link("/proc/self/ns/ipc")?;
            Ok(subject.log("c").trim() == own.display().to_string())
        }),
        row(
            "own-users",
            "hostUsers false on a runtime without user namespaces: the pod waits, and says why",
            "hostUsers: false
containers: [{name: c, image: IMAGE, command: [sleep, '1000']}]",
        )
        .phase("Pending")
        .container("c", "/state/waiting/reason", "ContainerCreating")
        .container("c", "/state/waiting/message", contains("user namespace")),
        row(
            "host-users",
            "hostUsers true is what every pod has",
            "restartPolicy: Never
hostUsers: true
containers: [{name: c, image: IMAGE, command: [busybox, readlink, /proc/self/ns/user]}]",
        )
        .phase("Succeeded")
        .until("it is the node's namespace", |subject| {
            let own = fs::read_link("/proc/self/ns/user")?;
            Ok(subject.log("c").trim() == own.display().to_string())
        }),
    ]
}
