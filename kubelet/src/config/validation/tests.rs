//! What is refused, in the API server's words; and that nothing else is.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{static_pod::validate_references, validate_pod};
use crate::config::defaults::set_defaults;

/// The faults of a pod whose spec or metadata is changed by a JSON pointer.
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
        faults(&[("/spec/terminationGracePeriodSeconds", json!(-1))]),
        "spec.terminationGracePeriodSeconds: Invalid value: -1: must be greater than or equal to 0",
    );
    one(
        faults(&[("/spec/dnsPolicy", json!("None"))]),
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
        "spec.containers[0].securityContext.seccompProfile.localhostProfile: Required value: must be set when type is Localhost",
    );
}

#[test]
fn what_only_the_api_server_knows_is_refused() {
    one(
        faults(&[("/spec/volumes/0/secret", json!({"secretName": "s"}))]),
        "spec.volumes[0].secret: Forbidden: static pods may not reference secrets",
    );
    one(
        container("envFrom", json!([{"configMapRef": {"name": "c"}}])),
        "spec.containers[0].envFrom[0].configMapRef: Forbidden: static pods may not reference configmaps",
    );
    one(
        faults(&[(
            "/spec/volumes/0/projected",
            json!({"sources": [{"serviceAccountToken": {"path": "t"}}]}),
        )]),
        "spec.volumes[0].projected.sources[0].serviceAccountToken: Forbidden: static pods may not reference serviceaccounts",
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
