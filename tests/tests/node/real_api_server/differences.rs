//! Differences between the answers of two servers, apart from values specific to each cluster:
//! UIDs, revisions, times, tokens, certificates.

use jiff::Timestamp;
use serde_json::{Map, Value};

use super::side::Answer;

/// All differences, one per line: the double's value and the real server's.
pub(crate) fn between(double: &[Answer], real: &[Answer]) -> Vec<String> {
    let mut found = Vec::new();
    for (double, real) in double.iter().zip(real) {
        let what = double.what;
        if what != real.what {
            found.push(format!("{what}: the other was asked for {}", real.what));
            break;
        }
        if double.code != real.code {
            found.push(format!("{what}: code {} is {}", double.code, real.code));
        }
        let (double, real) = (comparable(double), comparable(real));
        compare(&double, &real, "", &mut |path, double, real| {
            found.push(format!("{what}: {path}: {double} is {real}"));
        });
    }
    found
}

fn compare(
    double: &Value,
    real: &Value,
    path: &str,
    differ: &mut impl FnMut(&str, &Value, &Value),
) {
    match (double, real) {
        (Value::Object(double), Value::Object(real)) => {
            let only = real.keys().filter(|key| !double.contains_key(*key));
            for key in double.keys().chain(only) {
                let [double, real] = [double, real].map(|map| map.get(key).unwrap_or(&Value::Null));
                compare(double, real, &format!("{path}/{key}"), differ);
            }
        }
        (Value::Array(double), Value::Array(real)) if double.len() == real.len() => {
            for (index, (double, real)) in double.iter().zip(real).enumerate() {
                compare(double, real, &format!("{path}/{index}"), differ);
            }
        }
        (double, real) if double == real => {}
        (double, real) => differ(path, double, real),
    }
}

/// An answer without values specific to a cluster.
fn comparable(answer: &Answer) -> Value {
    let mut body = answer.body.clone();
    if let Value::Array(events) = &mut body {
        // The number of bookmarks depends on timing, except for the one that ends the initial
        // events.
        events.retain(|event| !is_plain_bookmark(event));
    }
    replace(&mut body, "");
    body
}

fn is_plain_bookmark(event: &Value) -> bool {
    event["type"] == "BOOKMARK" && event["object"]["metadata"]["annotations"].is_null()
}

fn replace(value: &mut Value, key: &str) {
    match value {
        Value::Object(map) => replace_in(map),
        Value::Array(list) => {
            match key {
                // OpenShift builds add their own CA to each pod.
                "sources" => {
                    list.retain(|one| one["configMap"]["name"] != "openshift-service-ca.crt");
                }
                // Upstream may report a cause twice.
                "causes" => list.dedup(),
                _ => {}
            }
            list.iter_mut().for_each(|one| replace(one, key));
        }
        Value::String(text) => *text = general(key, text),
        _ => {}
    }
}

fn replace_in(map: &mut Map<String, Value>) {
    for field in [
        // Kubelets do not read the managed fields.
        "managedFields",
        // Controllers change these fields of a node shortly afterwards.
        "taints",
        "node.alpha.kubernetes.io/ttl",
    ] {
        map.remove(field);
    }
    let bookmark = map.get("type").is_some_and(|kind| kind == "BOOKMARK");
    // Upstream's bookmarks include the fields of an empty object.
    if bookmark && let Some(Value::Object(object)) = map.get_mut("object") {
        object.retain(|field, _| matches!(field.as_str(), "kind" | "apiVersion" | "metadata"));
    }
    for (key, value) in map.iter_mut() {
        replace(value, key);
    }
}

fn general(key: &str, text: &str) -> String {
    if matches!(key, "uid" | "resourceVersion" | "token" | "certificate") && !text.is_empty() {
        return format!("<{key}>");
    }
    if text.parse::<Timestamp>().is_ok() {
        let precise = if text.contains('.') { "precise " } else { "" };
        return format!("<{precise}time>");
    }
    // The rest of these texts is random or differs.
    for beginning in ["kube-api-access-", "too old resource version: "] {
        if text.starts_with(beginning) {
            return format!("{beginning}<any>");
        }
    }
    // Upstream adds a diff of two objects in Go syntax on further lines.
    let line = text.lines().next().unwrap_or_default();
    let in_no_uid = |c: char| !c.is_ascii_hexdigit() && c != '-';
    let mut general = line.to_owned();
    for word in line.split(in_no_uid).filter(|word| is_uid(word)) {
        general = general.replace(word, "<uid>");
    }
    general
}

fn is_uid(word: &str) -> bool {
    word.split('-').map(str::len).eq([8, 4, 4, 4, 12])
}
