//! Invalid pods are rejected in the API server's words; valid pods are accepted.

mod restarts;
mod static_pods;
mod volume_programs;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{static_pod::validate_references, validate_pod};
use crate::defaults::set_defaults;

/// The errors of a pod after changes to its spec or metadata, given by JSON pointers.
fn faults(changes: &[(&str, Value)]) -> Vec<String> {
    let mut pod = json!({
        "metadata": {"name": "web-node", "namespace": "default"},
        "spec": {
            "volumes": [{"name": "data"}],
            "containers": [{"name": "web", "image": "web:1"}],
        },
    });
    for (pointer, value) in changes {
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let parent = if parent.is_empty() {
            &mut pod
        } else {
            pod.pointer_mut(parent).unwrap()
        };
        match parent {
            Value::Object(fields) => {
                fields.insert(key.to_owned(), value.clone());
            }
            Value::Array(items) => items.push(value.clone()),
            other => panic!("{pointer} is in {other}"),
        }
    }
    let mut pod = serde_json::from_value(pod).unwrap();
    set_defaults(&mut pod);
    let mut faults = validate_pod(&pod);
    faults.extend(validate_references(&pod));
    faults.iter().map(ToString::to_string).collect()
}

fn container(field: &str, value: Value) -> Vec<String> {
    faults(&[(&format!("/spec/containers/0/{field}"), value)])
}

#[track_caller]
fn one(found: Vec<String>, expected: &str) {
    assert_eq!(found, [expected]);
}

#[test]
fn a_plain_pod_is_valid() {
    assert_eq!(faults(&[]), Vec::<String>::new());
}

#[test]
fn ports() {
    one(
        container("ports", json!([{"containerPort": 70000}])),
        "spec.containers[0].ports[0].containerPort: Invalid value: 70000: must be between 1 and 65535, inclusive",
    );
    one(
        container("ports", json!([{"containerPort": 80, "protocol": "ICMP"}])),
        "spec.containers[0].ports[0].protocol: Unsupported value: \"ICMP\": supported values: \"TCP\", \"UDP\", \"SCTP\"",
    );
    one(
        container(
            "ports",
            json!([{"name": "a", "containerPort": 80}, {"name": "a", "containerPort": 81}]),
        ),
        "spec.containers[0].ports[1].name: Duplicate value: \"a\"",
    );
    one(
        container(
            "ports",
            json!([{"containerPort": 80, "hostPort": 8080}, {"containerPort": 81, "hostPort": 8080}]),
        ),
        "spec.containers[0].ports[1].hostPort: Duplicate value: \"TCP//8080\"",
    );
    one(
        faults(&[
            ("/spec/hostNetwork", json!(true)),
            (
                "/spec/containers/0/ports",
                json!([{"containerPort": 80, "hostPort": 81}]),
            ),
        ]),
        "spec.containers[0].ports[0].containerPort: Invalid value: 80: must match `hostPort` when `hostNetwork` is true",
    );
}

#[test]
fn names_and_presence() {
    one(
        faults(&[("/spec/containers", json!([]))]),
        "spec.containers: Required value",
    );
    one(
        faults(&[("/spec/containers/1", json!({"name": "web", "image": "x"}))]),
        "spec.containers[1].name: Duplicate value: \"web\"",
    );
    one(
        container("image", json!("")),
        "spec.containers[0].image: Required value",
    );
    let found = container("name", json!("Web"));
    assert!(
        found[0].starts_with(
            "spec.containers[0].name: Invalid value: \"Web\": a lowercase RFC 1123 label"
        ),
        "{found:?}"
    );
    let found = faults(&[("/metadata/labels", json!({"a b": "c"}))]);
    assert!(
        found[0].starts_with("metadata.labels: Invalid value: \"a b\""),
        "{found:?}"
    );
    one(
        faults(&[("/metadata/uid", json!("../../etc"))]),
        "metadata.uid: Invalid value: \"../../etc\": may not be '.' or '..', and may not contain '/'",
    );
}

#[test]
fn policies() {
    one(
        faults(&[("/spec/restartPolicy", json!("Sometimes"))]),
        "spec.restartPolicy: Unsupported value: \"Sometimes\": supported values: \"Always\", \"OnFailure\", \"Never\"",
    );
    one(
        faults(&[("/spec/dnsPolicy", json!("None"))]),
        "spec.dnsConfig: Required value: must provide `dnsConfig` when `dnsPolicy` is None",
    );
    one(
        faults(&[
            ("/spec/dnsPolicy", json!("None")),
            ("/spec/dnsConfig", json!({})),
        ]),
        "spec.dnsConfig.nameservers: Required value: must provide at least one DNS nameserver when `dnsPolicy` is None",
    );
    one(
        container("imagePullPolicy", json!("Maybe")),
        "spec.containers[0].imagePullPolicy: Unsupported value: \"Maybe\": supported values: \"Always\", \"IfNotPresent\", \"Never\"",
    );
}

#[test]
fn volumes_and_mounts() {
    one(
        container("volumeMounts", json!([{"name": "gone", "mountPath": "/d"}])),
        "spec.containers[0].volumeMounts[0].name: Not found: \"gone\"",
    );
    one(
        container(
            "volumeMounts",
            json!([{"name": "data", "mountPath": "/d"}, {"name": "data", "mountPath": "/d"}]),
        ),
        "spec.containers[0].volumeMounts[1].mountPath: Invalid value: \"/d\": must be unique",
    );
    one(
        container(
            "volumeMounts",
            json!([{"name": "data", "mountPath": "/d", "subPath": "../x"}]),
        ),
        "spec.containers[0].volumeMounts[0].subPath: Invalid value: \"../x\": must not contain '..'",
    );
    one(
        faults(&[(
            "/spec/volumes",
            json!([{"name": "a", "emptyDir": {}, "hostPath": {"path": "/"}}]),
        )]),
        "spec.volumes[0].hostPath: Forbidden: may not specify more than 1 volume type",
    );
    one(
        faults(&[(
            "/spec/volumes/0/hostPath",
            json!({"path": "/a", "type": "Pipe"}),
        )]),
        "spec.volumes[0].hostPath.type: Unsupported value: \"Pipe\": supported values: \"\", \"BlockDevice\", \"CharDevice\", \"Directory\", \"DirectoryOrCreate\", \"File\", \"FileOrCreate\", \"Socket\"",
    );
}

#[test]
fn resources() {
    one(
        container(
            "resources",
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1500m"}}),
        ),
        "spec.containers[0].resources.requests: Invalid value: \"1500m\": must be less than or equal to cpu limit of 1",
    );
    let found = container("resources", json!({"limits": {"memory": "lots"}}));
    assert!(
        found[0].starts_with(
            "spec.containers[0].resources.limits[memory]: Invalid value: \"lots\": quantities must"
        ),
        "{found:?}"
    );
    assert_eq!(
        container(
            "resources",
            json!({"limits": {"cpu": "0.3"}, "requests": {"cpu": "300m"}})
        ),
        Vec::<String>::new()
    );
}

#[test]
fn probes_hooks_env_and_security() {
    one(
        container("livenessProbe", json!({})),
        "spec.containers[0].livenessProbe: Required value: must specify a handler type",
    );
    one(
        container("livenessProbe", json!({"tcpSocket": {"port": 0}})),
        "spec.containers[0].livenessProbe.tcpSocket.port: Invalid value: 0: must be between 1 and 65535, inclusive",
    );
    one(
        container("lifecycle", json!({"preStop": {"exec": {"command": []}}})),
        "spec.containers[0].lifecycle.preStop.exec.command: Required value",
    );
    one(
        container("env", json!([{"name": "A=B", "value": "1"}])),
        "spec.containers[0].env[0].name: Invalid value: \"A=B\": a valid environment variable name must consist only of printable ASCII characters other than '='",
    );
    let found = container(
        "env",
        json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": "spec.x"}}}]),
    );
    assert!(
        found[0].starts_with(
            "spec.containers[0].env[0].valueFrom.fieldRef.fieldPath: Unsupported value: \"spec.x\""
        ),
        "{found:?}"
    );
    one(
        container("securityContext", json!({"runAsUser": -5})),
        "spec.containers[0].securityContext.runAsUser: Invalid value: -5: must be between 0 and 2147483647, inclusive",
    );
    one(
        container(
            "securityContext",
            json!({"seccompProfile": {"type": "Localhost"}}),
        ),
        "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when seccomp type is Localhost",
    );
}

#[test]
fn resources_of_a_pod_hold_its_containers() {
    let pod = |own: Value, container: Value| {
        faults(&[
            ("/spec/resources", own),
            ("/spec/containers/0/resources", container),
        ])
    };
    one(
        pod(
            json!({"requests": {"memory": "1Gi"}}),
            json!({"requests": {"memory": "2Gi"}}),
        ),
        "spec.resources.requests[memory]: Invalid value: \"1Gi\": must be greater than or equal to aggregate container requests of 2Gi",
    );
    one(
        pod(
            json!({"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}),
            json!({"limits": {"cpu": "2"}, "requests": {"cpu": "1"}}),
        ),
        "spec.resources.containers[0][cpu].limits: Invalid value: \"2\": must be less than or equal to pod limits of 1",
    );
    one(
        pod(json!({"requests": {"ephemeral-storage": "1"}}), json!({})),
        "spec.resources.requests[ephemeral-storage]: Unsupported value: \"ephemeral-storage\": supported values: \"cpu\", \"hugepages-\", \"memory\"",
    );
    assert_eq!(
        pod(
            json!({"limits": {"cpu": "2", "memory": "1Gi"}}),
            json!({"limits": {"cpu": "1"}}),
        ),
        Vec::<String>::new()
    );
}

#[test]
fn huge_pages_and_extended_resources() {
    let limits = |limits: Value| container("resources", json!({"limits": limits}));
    // The request defaults to the limit, so both are invalid.
    assert_eq!(
        limits(json!({"hugepages-2Mi": "3Mi", "memory": "1Gi"}))[0],
        "spec.containers[0].resources.limits[hugepages-2Mi]: Invalid value: \"3Mi\": 3Mi is not positive integer multiple of hugepages-2Mi",
    );
    one(
        limits(json!({"hugepages-2Mi": "4Mi"})),
        "spec.containers[0].resources: Forbidden: HugePages require cpu or memory",
    );
    one(
        container("resources", json!({"requests": {"x.y/z": "1"}})),
        "spec.containers[0].resources.limits: Required value: Limit must be set for non overcommitable resources",
    );
    assert_eq!(
        limits(json!({"requests.x.y/z": "1"}))[0],
        "spec.containers[0].resources.limits[requests.x.y/z]: Invalid value: \"requests.x.y/z\": doesn't follow extended resource name standard",
    );
    one(
        faults(&[("/spec/overhead", json!({"gpu": "1"}))]),
        "spec.overhead.limits[gpu]: Invalid value: \"gpu\": must be a standard resource type or fully qualified",
    );
}

#[test]
fn hostnames_and_what_is_shared_with_the_node() {
    let overridden = ("/spec/hostnameOverride", json!("db.example.org"));
    assert_eq!(
        faults(std::slice::from_ref(&overridden)),
        Vec::<String>::new()
    );
    one(
        faults(&[overridden.clone(), ("/spec/setHostnameAsFQDN", json!(true))]),
        "spec.hostnameOverride: Forbidden: may not be specified when setHostnameAsFQDN is true",
    );
    one(
        faults(&[overridden, ("/spec/hostNetwork", json!(true))]),
        "spec.hostnameOverride: Forbidden: may not be specified when hostNetwork is true",
    );
    let long = json!(format!("a.{}", "b".repeat(63)));
    one(
        faults(&[("/spec/hostnameOverride", long)]),
        "spec.hostnameOverride: Too long: may not be more than 64 bytes",
    );
    one(
        faults(&[
            ("/spec/hostUsers", json!(false)),
            ("/spec/hostPID", json!(true)),
        ]),
        "spec.HostPID: Forbidden: when `hostUsers` is false",
    );
    let sysctl = |name: &str| {
        let context = json!({"sysctls": [{"name": name, "value": "1"}]});
        ("/spec/securityContext", context)
    };
    one(
        faults(&[
            sysctl("net.ipv4.tcp_rmem"),
            ("/spec/hostNetwork", json!(true)),
        ]),
        "spec.securityContext.sysctls[0].name: Invalid value: \"net.ipv4.tcp_rmem\": may not be specified when 'hostNetwork' is true",
    );
    one(
        faults(&[sysctl("kernel.msgmax"), ("/spec/hostIPC", json!(true))]),
        "spec.securityContext.sysctls[0].name: Invalid value: \"kernel.msgmax\": may not be specified when 'hostIPC' is true",
    );
}

#[test]
fn sources_of_variables() {
    let source = |source: Value| container("env", json!([{"name": "A", "valueFrom": source}]));
    let path = "spec.containers[0].env[0].valueFrom";
    one(
        source(json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "2"}})),
        &format!(
            "{path}.resourceFieldRef.divisor: Invalid value: \"limits.cpu\": only divisor's values 1m and 1 are supported with the cpu resource"
        ),
    );
    assert_eq!(
        source(json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1024Ki"}})),
        Vec::<String>::new()
    );
    one(
        source(json!({"fileKeyRef": {"volumeName": "gone", "path": "p", "key": "K"}})),
        &format!("{path}.fileKeyRef.volumeName: Not found: \"gone\""),
    );
    one(
        faults(&[
            ("/spec/volumes/0/hostPath", json!({"path": "/"})),
            (
                "/spec/containers/0/env",
                json!([{"name": "A", "valueFrom": {
                    "fileKeyRef": {"volumeName": "data", "path": "p", "key": "K"}
                }}]),
            ),
        ]),
        &format!(
            "{path}.fileKeyRef.volumeName: Invalid value: \"data\": referenced volume must be of type emptyDir"
        ),
    );
    one(
        container("envFrom", json!([{"prefix": "A"}])),
        "spec.containers[0].envFrom: Invalid value: \"\": must specify one of: `configMapRef` or `secretRef`",
    );
}

#[test]
fn profiles_of_the_node() {
    let context = |context: Value| container("securityContext", context);
    one(
        context(json!({"appArmorProfile": {"type": "Localhost"}})),
        "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Required value: must be set when AppArmor type is Localhost",
    );
    one(
        context(json!({"appArmorProfile": {"type": "Unconfined", "localhostProfile": "p"}})),
        "spec.containers[0].securityContext.appArmorProfile.localhostProfile: Invalid value: \"p\": can only be set when AppArmor type is Localhost",
    );
    one(
        context(json!({"seccompProfile": {"type": "Localhost", "localhostProfile": "../p"}})),
        "spec.containers[0].securityContext.seccompProfile.localhostProfile: Invalid value: \"../p\": must not contain '..'",
    );
}

proptest! {
    #[test]
    fn any_text_in_any_place_never_panics(text in "\\PC{0,30}", place in 0usize..8) {
        let text = json!(text);
        let (pointer, value) = [
            ("/metadata/name", text.clone()),
            ("/metadata/labels", json!({"a": text})),
            ("/spec/containers/0/image", text.clone()),
            ("/spec/containers/0/volumeMounts", json!([{"name": text, "mountPath": text}])),
            ("/spec/containers/0/resources", json!({"limits": {"cpu": text}})),
            ("/spec/containers/0/env", json!([{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": text}}}])),
            ("/spec/dnsConfig", json!({"searches": [text]})),
            ("/spec/volumes/0/emptyDir", json!({"sizeLimit": text})),
        ][place].clone();
        faults(&[(pointer, value)]);
    }
}

#[test]
fn options_of_windows_are_refused_only_in_a_pod_for_linux() {
    let options = json!({"windowsOptions": {"runAsUserName": "ContainerUser"}});
    let own = ("/spec/containers/0/securityContext", options.clone());
    let of_pod = ("/spec/securityContext", options);
    assert_eq!(faults(&[own.clone(), of_pod.clone()]), Vec::<String>::new());
    let os = ("/spec/os", json!({"name": "linux"}));
    assert_eq!(
        faults(&[own, of_pod, os]),
        [
            "spec.containers[0].securityContext.windowsOptions: Forbidden: windows options cannot \
             be set for a linux pod",
            "spec.securityContext.windowsOptions: Forbidden: windows options cannot be set for a \
             linux pod",
        ]
    );
}
