//! Volumes and their mounts.

use std::{fs, os::unix::fs::symlink};

use anyhow::Result;
use e2e::node::Node;

use super::row::{Need, Row, contains, one_of, row};

/// Mounts a tmpfs with the options of the volume.
const DRIVER: &str = r#"success() { echo '{"status": "Success", "capabilities": {"attach": false}}'; }
case $1 in
init) success ;;
mount) mount -t tmpfs flex "$2" && printf '%s' "$3" > "$2/options" && success ;;
unmount) umount "$2" && success ;;
*) echo '{"status": "Not supported"}'; exit 1 ;;
esac"#;

/// Installs the driver `example.com/table` of FlexVolumes.
pub(crate) fn install_driver(node: &Node) -> Result<()> {
    node.install_driver("table", DRIVER)
}

pub(crate) fn rows() -> Vec<Row> {
    let mut rows = empty_dirs();
    rows.extend(host_paths());
    rows.extend(data());
    rows.extend(flex_volumes());
    rows.extend(mounts());
    rows
}

fn empty_dirs() -> Vec<Row> {
    vec![
        row(
            "empty-dir",
            "an emptyDir is shared, writable by all, and outlives a container",
            "restartPolicy: OnFailure
containers:
- name: c
  image: IMAGE
  securityContext: {runAsUser: 1000}
  command: [sh, -c, 'echo x >> /v/f; [ $(wc -l < /v/f) -ge 2 ]']
  volumeMounts: [{name: v, mountPath: /v}]
- {name: d, image: IMAGE, command: [sh, -c, 'until [ -s /v/f ]; do sleep 0.1; done; stat -c %a /v'], volumeMounts: [{name: v, mountPath: /v}]}
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .container("c", "/restartCount", 1)
        .log("d", "777\n"),
        row(
            "empty-dir-memory",
            "medium Memory: a tmpfs of the size limit",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'busybox df -T -k /v | busybox tail -1 | while read fs type size rest; do echo $type $size; done'], volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, emptyDir: {medium: Memory, sizeLimit: 8Mi}}]",
        )
        .log("c", "tmpfs 8192\n"),
        row(
            "empty-dir-limit",
            "a size limit on disk is accepted",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [touch, /v/f], volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, emptyDir: {sizeLimit: 8Mi}}]",
        )
        .phase("Succeeded"),
        row(
            "fs-group",
            "fsGroup owns the volume, and what is made in it",
            "restartPolicy: Never
securityContext: {runAsUser: 1000, fsGroup: 4000}
containers: [{name: c, image: IMAGE, command: [sh, -c, 'touch /v/f; stat -c %g /v /v/f'], volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, emptyDir: {}}]",
        )
        .log("c", "4000\n4000\n"),
    ]
}

fn host_paths() -> Vec<Row> {
    vec![
        row(
            "host-path",
            "a directory of the node, both ways",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'cat /v/in; echo out > /v/out'], volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, hostPath: {path: DIR, type: Directory}}]",
        )
        .before(|dir| Ok(fs::write(dir.join("in"), "in\n")?))
        .phase("Succeeded")
        .log("c", "in\n")
        .until("the node has the other", |subject| Ok(subject.file("out") == "out\n")),
        row(
            "host-path-create",
            "DirectoryOrCreate and FileOrCreate",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, '[ -d /d ] && [ -f /f ] && echo both'], volumeMounts: [{name: d, mountPath: /d}, {name: f, mountPath: /f}]}]
volumes: [{name: d, hostPath: {path: DIR/d, type: DirectoryOrCreate}}, {name: f, hostPath: {path: DIR/f, type: FileOrCreate}}]",
        )
        .log("c", "both\n"),
        row(
            "host-path-missing",
            "a missing host path keeps the pod waiting until it exists",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [cat, /f], volumeMounts: [{name: f, mountPath: /f}]}]
volumes: [{name: f, hostPath: {path: DIR/f, type: File}}]",
        )
        .phase("Pending")
        .container("c", "/state/waiting/reason", "ContainerCreating")
        .stays(2)
        .then(|subject| Ok(fs::write(subject.dir.join("f"), "late\n")?))
        .phase("Succeeded")
        .log("c", "late\n"),
        row(
            "host-path-device",
            "a character device of the node",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, '[ -c /dev/nothing ] && echo device'], volumeMounts: [{name: d, mountPath: /dev/nothing}]}]
volumes: [{name: d, hostPath: {path: /dev/null, type: CharDevice}}]",
        )
        .log("c", "device\n"),
    ]
}

fn data() -> Vec<Row> {
    vec![
        row(
            "downward-api",
            "a downwardAPI volume: fields, labels, resources, modes",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  resources: {limits: {cpu: '2', memory: 64Mi}}
  command: [sh, -c, 'cat /v/name; echo; cat /v/labels; echo; cat /v/cpu /v/sub/memory; echo; stat -L -c %a /v/name /v/labels']
  volumeMounts: [{name: v, mountPath: /v}]
volumes:
- name: v
  downwardAPI:
    defaultMode: 0440
    items:
    - {path: name, fieldRef: {fieldPath: metadata.name}}
    - {path: labels, fieldRef: {fieldPath: metadata.labels}, mode: 0400}
    - {path: cpu, resourceFieldRef: {containerName: c, resource: limits.cpu}}
    - {path: sub/memory, resourceFieldRef: {containerName: c, resource: limits.memory, divisor: 1Mi}}",
        )
        .metadata("labels: {b: two, a: one}\n")
        .phase("Succeeded")
        .log("c", "downward-api-node\na=\"one\"\nb=\"two\"\n264\n440\n400\n"),
        row(
            "projected",
            "a projected volume of several sources",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'cat /v/name; echo; cat /v/more/namespace; echo; [ -L /v/..data ] && echo atomic']
  volumeMounts: [{name: v, mountPath: /v}]
volumes:
- name: v
  projected:
    sources:
    - downwardAPI: {items: [{path: name, fieldRef: {fieldPath: metadata.name}}]}
    - downwardAPI: {items: [{path: more/namespace, fieldRef: {fieldPath: metadata.namespace}}]}",
        )
        .log("c", "projected-node\ndefault\natomic\n"),
        row(
            "image-volume",
            "an image as a volume, read-only",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  command: [sh, -c, 'cat /v/www/index.html; touch /v/f || echo refused']
  volumeMounts: [{name: v, mountPath: /v}]
volumes: [{name: v, image: {reference: IMAGE, pullPolicy: Never}}]",
        )
        .needs(Need::ImageVolumes)
        .phase("Succeeded")
        .log("c", contains("hello from the pod\n"))
        .log("c", contains("refused\n")),
    ]
}

fn flex_volumes() -> Vec<Row> {
    vec![
        row(
            "flex-volume",
            "a driver mounts a volume with its options and the fsGroup",
            "restartPolicy: Never
securityContext: {runAsUser: 1000, fsGroup: 4000}
containers: [{name: c, image: IMAGE, command: [sh, -c, 'cat /v/options; echo; stat -c %g /v/options'], volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, flexVolume: {driver: example.com/table, options: {share: s}}}]",
        )
        .phase("Succeeded")
        .log("c", contains(r#""share":"s""#))
        .log("c", contains(r#""kubernetes.io/pod.name":"flex-volume-node""#))
        .log("c", contains("}\n4000\n")),
        row(
            "flex-volume-missing",
            "without its driver, a volume keeps the pod waiting",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [cat, /v/options], volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, flexVolume: {driver: example.com/missing}}]",
        )
        .phase("Pending")
        .container("c", "/state/waiting/reason", "ContainerCreating")
        .said("example.com~missing/missing"),
    ]
}

fn mounts() -> Vec<Row> {
    vec![
        row(
            "read-only",
            "a read-only mount",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'touch /v/f || echo refused'], volumeMounts: [{name: v, mountPath: /v, readOnly: true}]}]
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .container("c", "/volumeMounts/0/readOnly", true)
        .log("c", contains("refused\n")),
        row(
            "sub-path",
            "subPath, made where it is missing",
            "restartPolicy: Never
initContainers: [{name: i, image: IMAGE, command: [sh, -c, 'echo a > /a/f; echo whole > /v/f'], volumeMounts: [{name: v, mountPath: /a, subPath: sub/a}, {name: v, mountPath: /v}]}]
containers: [{name: c, image: IMAGE, command: [sh, -c, 'cat /v/sub/a/f /f'], volumeMounts: [{name: v, mountPath: /v}, {name: v, mountPath: /f, subPath: f}]}]
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .log("c", "a\nwhole\n"),
        row(
            "sub-path-expr",
            "subPathExpr with a variable",
            "restartPolicy: Never
containers:
- name: c
  image: IMAGE
  env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]
  command: [touch, /v/f]
  volumeMounts: [{name: v, mountPath: /v, subPathExpr: 'of/$(POD)'}]
volumes: [{name: v, hostPath: {path: DIR}}]",
        )
        .phase("Succeeded")
        .until("the file is where the name says", |subject| {
            Ok(subject.dir.join("of/sub-path-expr-node/f").exists())
        }),
        row(
            "sub-path-unknown",
            "subPathExpr with a missing variable",
            "containers:
- name: c
  image: IMAGE
  command: [touch, /v/f]
  volumeMounts: [{name: v, mountPath: /v, subPathExpr: '$(NONE)'}]
volumes: [{name: v, emptyDir: {}}]",
        )
        .container("c", "/state/waiting/reason", "CreateContainerConfigError"),
        row(
            "sub-path-escape",
            "a subPath that leads out of its volume by a symlink is refused",
            "containers:
- name: c
  image: IMAGE
  command: [cat, /v/secret]
  volumeMounts: [{name: v, mountPath: /v, subPath: out}]
volumes: [{name: v, hostPath: {path: DIR/volume}}]",
        )
        .before(|dir| {
            fs::create_dir_all(dir.join("volume"))?;
            fs::create_dir_all(dir.join("elsewhere"))?;
            fs::write(dir.join("elsewhere/secret"), "secret")?;
            Ok(symlink("../elsewhere", dir.join("volume/out"))?)
        })
        .phase("Pending")
        .container("c", "/state/waiting/reason", "CreateContainerConfigError")
        .stays(2),
        row(
            "recursive-read-only",
            "recursiveReadOnly IfPossible: the status says whether it was",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1000'], volumeMounts: [{name: v, mountPath: /v, readOnly: true, recursiveReadOnly: IfPossible}]}]
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Running")
        .container("c", "/volumeMounts/0/recursiveReadOnly", one_of(&["Disabled", "Enabled"])),
        row(
            "propagation-none",
            "mount propagation None is a private mount",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'busybox grep \" /v \" /proc/self/mountinfo | busybox grep -c -E \"shared|master\"'], volumeMounts: [{name: v, mountPath: /v, mountPropagation: None}]}]
volumes: [{name: v, emptyDir: {}}]",
        )
        .log("c", "0\n"),
        row(
            "propagation-from-host",
            "HostToContainer, whether or not the machine's mounts are shared",
            "restartPolicy: Never
containers: [{name: c, image: IMAGE, command: [sh, -c, 'busybox grep \" /v \" /proc/self/mountinfo | busybox grep -c master:'], volumeMounts: [{name: v, mountPath: /v, mountPropagation: HostToContainer}]}]
volumes: [{name: v, emptyDir: {}}]",
        )
        .phase("Succeeded")
        .log("c", "1\n"),
        row(
            "unknown-volume",
            "a kind of volume that is not built is refused by name",
            "containers: [{name: c, image: IMAGE, command: [sleep, '1000'], volumeMounts: [{name: v, mountPath: /v}]}]
volumes: [{name: v, gitRepo: {repository: 'https://example.org/x.git'}}]",
        )
        .phase("Failed")
        .pod("/status/reason", "UnsupportedPodSpec")
        .pod("/status/message", contains("spec.volumes[0].gitRepo")),
    ]
}
