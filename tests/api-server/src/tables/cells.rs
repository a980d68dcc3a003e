//! The table rows of all kinds. Those of pods and nodes have their own modules.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    duration::{of as lasting, since},
    nodes, pods,
};
use crate::strategy::text;

/// The cells of an object, one for each column of its kind.
pub(super) fn of(object: &Value, now: Timestamp) -> Vec<Value> {
    let name = object["metadata"]["name"].clone();
    let age = json!(since(text(object, "/metadata/creationTimestamp"), now));
    let count = |field: &str| match &object[field] {
        Value::Object(map) => map.len(),
        Value::Array(list) => list.len(),
        _ => 0,
    };
    match text(object, "/kind") {
        "Pod" => pods::cells(object, now),
        "Node" => nodes::cells(object, now),
        "Event" => event(object, now),
        "Service" => service(object, &age),
        "PersistentVolume" => volume(object, &age),
        "PersistentVolumeClaim" => claim(object, &age),
        "DaemonSet" => daemon_set(object, &age),
        "CertificateSigningRequest" => signing_request(object, &age),
        "CSIDriver" => driver(object, &age),
        "Namespace" => vec![name, json!(text(object, "/status/phase")), age],
        "Secret" => vec![
            name,
            json!(text(object, "/type")),
            json!(count("data")),
            age,
        ],
        "ConfigMap" => vec![name, json!(count("data") + count("binaryData")), age],
        "ServiceAccount" => vec![name, age],
        "Lease" => vec![name, json!(text(object, "/spec/holderIdentity")), age],
        "RuntimeClass" => vec![name, json!(text(object, "/handler")), age],
        "CSINode" => {
            let drivers = object["spec"]["drivers"].as_array().map_or(0, Vec::len);
            vec![name, json!(drivers), age]
        }
        "VolumeAttachment" => vec![
            name,
            json!(text(object, "/spec/attacher")),
            json!(text(object, "/spec/source/persistentVolumeName")),
            json!(text(object, "/spec/nodeName")),
            json!(object["status"]["attached"] == true),
            age,
        ],
        "ClusterTrustBundle" => vec![name, json!(or_none(text(object, "/spec/signerName")))],
        _ => vec![name, json!(text(object, "/metadata/creationTimestamp"))],
    }
}

fn or_none(said: &str) -> &str {
    if said.is_empty() { "<none>" } else { said }
}

/// Formats labels as `a=1,b=2`.
fn labels(map: &Value) -> String {
    let pairs: Vec<String> = map
        .as_object()
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={}", value.as_str().unwrap_or_default()))
        .collect();
    or_none(&pairs.join(",")).to_owned()
}

fn texts(list: &Value, pointer: &str) -> String {
    let list: Vec<&str> = list
        .as_array()
        .into_iter()
        .flatten()
        .map(|one| text(one, pointer))
        .collect();
    list.join(",")
}

fn event(event: &Value, now: Timestamp) -> Vec<Value> {
    let at = |pointer: &str| since(text(event, pointer), now);
    let mut first = at("/firstTimestamp");
    if text(event, "/firstTimestamp").is_empty() {
        first = at("/eventTime");
    }
    let mut last = at("/lastTimestamp");
    if text(event, "/lastTimestamp").is_empty() {
        last.clone_from(&first);
    }
    let mut count = event["count"].as_i64().filter(|count| *count != 0);
    let series = &event["series"];
    if series.is_object() {
        last = at("/series/lastObservedTime");
        count = series["count"].as_i64();
    }
    let kind = text(event, "/involvedObject/kind").to_lowercase();
    let target = match text(event, "/involvedObject/name") {
        "" => kind,
        name => format!("{kind}/{name}"),
    };
    let either = |first: &str, second: &str| match text(event, first) {
        "" => text(event, second).to_owned(),
        said => said.to_owned(),
    };
    let component = either("/source/component", "/reportingComponent");
    let host = either("/source/host", "/reportingInstance");
    let source = if host.is_empty() {
        component
    } else {
        format!("{component}, {host}")
    };
    vec![
        json!(last),
        json!(text(event, "/type")),
        json!(text(event, "/reason")),
        json!(target),
        json!(text(event, "/involvedObject/fieldPath")),
        json!(source),
        json!(text(event, "/message").trim()),
        json!(first),
        json!(count.unwrap_or(1)),
        event["metadata"]["name"].clone(),
    ]
}

fn service(service: &Value, age: &Value) -> Vec<Value> {
    let spec = &service["spec"];
    let addresses = texts(&spec["externalIPs"], "");
    let kind = text(spec, "/type");
    let external = match kind {
        "ExternalName" => text(spec, "/externalName").to_owned(),
        "LoadBalancer" => {
            let given = texts(&service["status"]["loadBalancer"]["ingress"], "/ip");
            match (given.as_str(), addresses.as_str()) {
                ("", "") => "<pending>".to_owned(),
                (one, "") | ("", one) => one.to_owned(),
                (given, addresses) => format!("{given},{addresses}"),
            }
        }
        _ => or_none(&addresses).to_owned(),
    };
    let ports: Vec<String> = spec["ports"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|port| {
            let (number, protocol) = (&port["port"], text(port, "/protocol"));
            match port["nodePort"].as_i64() {
                Some(node) if node > 0 => format!("{number}:{node}/{protocol}"),
                _ => format!("{number}/{protocol}"),
            }
        })
        .collect();
    vec![
        service["metadata"]["name"].clone(),
        json!(kind),
        json!(or_none(text(spec, "/clusterIPs/0"))),
        json!(external),
        json!(or_none(&ports.join(","))),
        age.clone(),
        json!(labels(&spec["selector"])),
    ]
}

fn access_modes(modes: &Value) -> String {
    let short: Vec<&str> = modes
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|mode| match mode.as_str()? {
            "ReadWriteOnce" => Some("RWO"),
            "ReadOnlyMany" => Some("ROX"),
            "ReadWriteMany" => Some("RWX"),
            "ReadWriteOncePod" => Some("RWOP"),
            _ => None,
        })
        .collect();
    short.join(",")
}

fn phase(object: &Value) -> &str {
    if text(object, "/metadata/deletionTimestamp").is_empty() {
        text(object, "/status/phase")
    } else {
        "Terminating"
    }
}

fn or_unset(said: &str) -> &str {
    if said.is_empty() { "<unset>" } else { said }
}

fn volume(volume: &Value, age: &Value) -> Vec<Value> {
    let spec = &volume["spec"];
    let claim = if spec["claimRef"].is_object() {
        let (namespace, name) = (
            text(spec, "/claimRef/namespace"),
            text(spec, "/claimRef/name"),
        );
        format!("{namespace}/{name}")
    } else {
        String::new()
    };
    vec![
        volume["metadata"]["name"].clone(),
        json!(text(spec, "/capacity/storage")),
        json!(access_modes(&spec["accessModes"])),
        json!(text(spec, "/persistentVolumeReclaimPolicy")),
        json!(phase(volume)),
        json!(claim),
        json!(text(spec, "/storageClassName")),
        json!(or_unset(text(spec, "/volumeAttributesClassName"))),
        json!(text(volume, "/status/reason")),
        age.clone(),
        json!(or_unset(text(spec, "/volumeMode"))),
    ]
}

fn claim(claim: &Value, age: &Value) -> Vec<Value> {
    let (spec, status) = (&claim["spec"], &claim["status"]);
    let bound = text(spec, "/volumeName");
    let (capacity, modes) = if bound.is_empty() {
        (String::new(), String::new())
    } else {
        (
            text(status, "/capacity/storage").to_owned(),
            access_modes(&status["accessModes"]),
        )
    };
    vec![
        claim["metadata"]["name"].clone(),
        json!(phase(claim)),
        json!(bound),
        json!(capacity),
        json!(modes),
        json!(text(spec, "/storageClassName")),
        json!(or_unset(text(spec, "/volumeAttributesClassName"))),
        age.clone(),
        json!(or_unset(text(spec, "/volumeMode"))),
    ]
}

fn daemon_set(set: &Value, age: &Value) -> Vec<Value> {
    let number = |field: &str| json!(set["status"][field].as_i64().unwrap_or(0));
    let template = &set["spec"]["template"]["spec"];
    vec![
        set["metadata"]["name"].clone(),
        number("desiredNumberScheduled"),
        number("currentNumberScheduled"),
        number("numberReady"),
        number("updatedNumberScheduled"),
        number("numberAvailable"),
        json!(labels(&template["nodeSelector"])),
        age.clone(),
        json!(texts(&template["containers"], "/name")),
        json!(texts(&template["containers"], "/image")),
        json!(labels(&set["spec"]["selector"]["matchLabels"])),
    ]
}

fn signing_request(request: &Value, age: &Value) -> Vec<Value> {
    let has = |kind: &str| {
        let conditions = request["status"]["conditions"].as_array();
        conditions
            .into_iter()
            .flatten()
            .any(|condition| condition["type"] == kind)
    };
    let mut condition = if has("Denied") {
        "Denied"
    } else if has("Approved") {
        "Approved"
    } else {
        "Pending"
    }
    .to_owned();
    if has("Failed") {
        condition.push_str(",Failed");
    }
    if !text(request, "/status/certificate").is_empty() {
        condition.push_str(",Issued");
    }
    let seconds = request["spec"]["expirationSeconds"].as_i64();
    vec![
        request["metadata"]["name"].clone(),
        age.clone(),
        json!(or_none(text(request, "/spec/signerName"))),
        json!(text(request, "/spec/username")),
        json!(seconds.map_or_else(|| "<none>".to_owned(), lasting)),
        json!(condition),
    ]
}

fn driver(driver: &Value, age: &Value) -> Vec<Value> {
    let spec = &driver["spec"];
    let audiences = if spec["tokenRequests"].is_array() {
        texts(&spec["tokenRequests"], "/audience")
    } else {
        "<unset>".to_owned()
    };
    vec![
        driver["metadata"]["name"].clone(),
        json!(spec["attachRequired"] != false),
        json!(spec["podInfoOnMount"] == true),
        json!(spec["storageCapacity"] == true),
        json!(audiences),
        json!(spec["requiresRepublish"] == true),
        json!(or_none(&texts(&spec["volumeLifecycleModes"], ""))),
        age.clone(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> Timestamp {
        "2026-11-01T00:10:00Z".parse().unwrap()
    }

    #[test]
    fn an_event_says_what_when_and_how_often() {
        let event = json!({
            "kind": "Event", "metadata": {"name": "web.1"}, "type": "Warning", "reason": "BackOff",
            "message": "Back-off \n", "involvedObject": {"kind": "Pod", "name": "web",
                "fieldPath": "spec.containers{c}"},
            "source": {"component": "kubelet", "host": "n1"}, "count": 3,
            "firstTimestamp": "2026-11-01T00:00:00Z", "lastTimestamp": "2026-11-01T00:09:59Z",
        });
        assert_eq!(
            Value::from(of(&event, now())),
            json!([
                "1s",
                "Warning",
                "BackOff",
                "pod/web",
                "spec.containers{c}",
                "kubelet, n1",
                "Back-off",
                "10m",
                3,
                "web.1",
            ])
        );
    }

    #[test]
    fn a_service_and_a_request_are_told_in_short() {
        let service = json!({
            "kind": "Service", "metadata": {"name": "s", "creationTimestamp": "2026-11-01T00:00:00Z"},
            "spec": {"type": "NodePort", "clusterIPs": ["10.0.0.1"], "selector": {"app": "s"},
                "ports": [{"port": 80, "protocol": "TCP", "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]},
        });
        assert_eq!(
            Value::from(of(&service, now())),
            json!([
                "s",
                "NodePort",
                "10.0.0.1",
                "<none>",
                "80:30080/TCP,53/UDP",
                "10m",
                "app=s"
            ])
        );
        let request = json!({
            "kind": "CertificateSigningRequest", "metadata": {"name": "csr-1"},
            "spec": {"signerName": "a/b", "username": "system:bootstrap:x", "expirationSeconds": 86400},
            "status": {"conditions": [{"type": "Approved"}], "certificate": "YQ=="},
        });
        assert_eq!(
            Value::from(of(&request, now())),
            json!([
                "csr-1",
                "<unknown>",
                "a/b",
                "system:bootstrap:x",
                "24h",
                "Approved,Issued"
            ])
        );
    }
}
