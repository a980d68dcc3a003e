//! Manifests, parsed from the bytes of a file into pods.

use k8s_openapi::api::core::v1::Pod;
use serde_json::{Map, Value};

use super::{
    json,
    yaml::{self, DuplicateKeys, SyntaxError},
};
use crate::field::FieldError;

/// Why a manifest is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// The bytes are not UTF-8.
    #[error("is not UTF-8 text (byte {offset})")]
    NotText {
        /// Offset of the first invalid byte.
        offset: usize,
    },
    /// The text is not YAML or JSON.
    #[error(transparent)]
    Syntax(#[from] SyntaxError),
    /// The manifest contains no pod.
    #[error("contains no pod")]
    Empty,
    /// An object is not a pod.
    #[error("{field}: Unsupported value: {found:?}: supported values: {supported}")]
    NotAPod {
        /// Path of the `apiVersion` or `kind`.
        field: String,
        /// The value in the manifest.
        found: String,
        /// The supported values.
        supported: &'static str,
    },
    /// A field has a value of the wrong type.
    #[error("{field}: {message}")]
    Type {
        /// The field's path.
        field: String,
        /// The found and expected types.
        message: String,
    },
    /// The API server would reject a pod.
    #[error("pod {name:?} is invalid: {}", joined(faults))]
    Invalid {
        /// The pod's name.
        name: String,
        /// All validation errors.
        faults: Vec<FieldError>,
    },
}

fn joined(faults: &[FieldError]) -> String {
    let faults: Vec<String> = faults.iter().map(FieldError::to_string).collect();
    faults.join("; ")
}

/// The content of a manifest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Manifest {
    /// The pods as written: without defaults, not validated.
    pub pods: Vec<Pod>,
    /// Warnings for the author that do not prevent the pods from running: fields unknown to the
    /// API, and duplicate keys.
    pub warnings: Vec<String>,
}

/// Parses a manifest: YAML or JSON, one or more documents, each a `Pod`, a `PodList` or a `List` of
/// pods.
///
/// # Errors
/// The position of a syntax error, or the field that is invalid in a pod.
pub fn decode(bytes: &[u8]) -> Result<Manifest, ManifestError> {
    let text = std::str::from_utf8(bytes).map_err(|error| ManifestError::NotText {
        offset: error.valid_up_to(),
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut manifest = Manifest::default();
    let documents = match yaml::documents(text, DuplicateKeys::Refuse) {
        // As upstream, the last one wins; unlike upstream, with a warning.
        Err(error) if error.duplicate_key => {
            manifest
                .warnings
                .push(format!("{error}; the last value is used"));
            yaml::documents(text, DuplicateKeys::LastWins)?
        }
        documents => documents?,
    };
    let several = documents.len() > 1;
    for (index, document) in documents.into_iter().enumerate() {
        let place = if several {
            format!("document {}: ", index + 1)
        } else {
            String::new()
        };
        // Upstream reads only the first document: what else is in the file prevents no pod.
        match decode_object(document, &place, &mut manifest) {
            Err(error @ ManifestError::NotAPod { .. }) if index > 0 => {
                manifest.warnings.push(format!("ignored: {error}"));
            }
            decoded => decoded?,
        }
    }
    if manifest.pods.is_empty() {
        return Err(ManifestError::Empty);
    }
    Ok(manifest)
}

/// Decodes an object of a manifest. `place` is its path from the manifest's root.
fn decode_object(
    mut object: Value,
    place: &str,
    manifest: &mut Manifest,
) -> Result<(), ManifestError> {
    expect(&object, "apiVersion", &["v1"], "\"v1\"", place)?;
    expect(
        &object,
        "kind",
        &["Pod", "PodList", "List"],
        "\"Pod\", \"PodList\", \"List\"",
        place,
    )?;
    if object["kind"] == "Pod" {
        return decode_pod(object, place, manifest);
    }
    let of_pods = object["kind"] == "PodList";
    let Value::Array(items) = object["items"].take() else {
        return Ok(());
    };
    for (index, item) in items.into_iter().enumerate() {
        let place = format!("{place}items[{index}].");
        if !of_pods {
            expect(&item, "apiVersion", &["v1"], "\"v1\"", &place)?;
            expect(&item, "kind", &["Pod"], "\"Pod\"", &place)?;
        }
        decode_pod(item, &place, manifest)?;
    }
    Ok(())
}

fn expect(
    object: &Value,
    field: &str,
    allowed: &[&str],
    supported: &'static str,
    place: &str,
) -> Result<(), ManifestError> {
    let found = object
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default();
    if allowed.contains(&found) {
        Ok(())
    } else {
        Err(ManifestError::NotAPod {
            field: format!("{place}{field}"),
            found: found.to_owned(),
            supported,
        })
    }
}

fn decode_pod(
    mut object: Value,
    place: &str,
    manifest: &mut Manifest,
) -> Result<(), ManifestError> {
    if let Value::Object(fields) = &mut object {
        // Items of a PodList may omit them, but deserialization requires them.
        fields.insert("apiVersion".to_owned(), "v1".into());
        fields.insert("kind".to_owned(), "Pod".into());
    }
    let pod: Pod = json::from_value(&object).map_err(|error| ManifestError::Type {
        field: format!("{place}{}", error.path),
        message: error.message,
    })?;
    if let Ok(known) = json::to_value(&pod) {
        let mut unknown = Vec::new();
        unknown_fields(&object, &known, "", &mut unknown);
        if !unknown.is_empty() {
            manifest.warnings.push(format!(
                "{place}unknown fields are ignored: {}",
                unknown.join(", ")
            ));
        }
    }
    manifest.pods.push(pod);
    Ok(())
}

/// Collects the fields of `written` that are missing from the typed object.
fn unknown_fields(written: &Value, known: &Value, path: &str, unknown: &mut Vec<String>) {
    match (written, known) {
        (Value::Object(written), Value::Object(known)) => {
            let nothing = Value::Object(Map::new());
            for (key, value) in written {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                match known.get(key) {
                    Some(known) => unknown_fields(value, known, &path, unknown),
                    None if value.is_null() => {}
                    // The typed object does not distinguish an empty object from an absent one.
                    None if *value == nothing => {}
                    None => unknown.push(path),
                }
            }
        }
        (Value::Array(written), Value::Array(known)) => {
            for (index, (written, known)) in written.iter().zip(known).enumerate() {
                unknown_fields(written, known, &format!("{path}[{index}]"), unknown);
            }
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const POD: &str = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: web\nspec:\n  containers:\n  - name: web\n    image: web:1\n";

    fn error(text: &str) -> String {
        decode(text.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn one_pod_or_many() {
        assert_eq!(decode(POD.as_bytes()).unwrap().pods.len(), 1);
        let two = format!("---\n{POD}---\n# nothing\n---\n{POD}");
        assert_eq!(decode(two.as_bytes()).unwrap().pods.len(), 2);
        let list = json!({"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}]});
        assert_eq!(decode(list.to_string().as_bytes()).unwrap().pods.len(), 2);
        let other = format!("{POD}---\napiVersion: v1\nkind: Service\n");
        let found = decode(other.as_bytes()).unwrap();
        assert_eq!(found.pods.len(), 1);
        assert_eq!(
            found.warnings,
            [
                "ignored: document 2: kind: Unsupported value: \"Service\": supported values: \"Pod\", \"PodList\", \"List\""
            ]
        );
        assert!(error(&format!("kind: Service\n---\n{POD}")).starts_with("document 1: apiVersion"));
        let list = json!({"apiVersion": "v1", "kind": "List", "items": [{"apiVersion": "v1", "kind": "Service"}]});
        assert_eq!(
            error(&list.to_string()),
            "items[0].kind: Unsupported value: \"Service\": supported values: \"Pod\""
        );
    }

    #[test]
    fn faults_have_a_place_and_a_field() {
        assert_eq!(error(""), "contains no pod");
        assert_eq!(
            error("apiVersion: apps/v1\nkind: Deployment\n"),
            "apiVersion: Unsupported value: \"apps/v1\": supported values: \"v1\""
        );
        assert_eq!(
            error(&POD.replace("image: web:1", "image: {a: 1}")),
            "spec.containers[0].image: invalid type: map, expected a string"
        );
        let message = error(&POD.replace("    image", "   image"));
        assert!(message.starts_with("line 8, column"), "{message}");
        assert!(matches!(
            decode(&[0xff]),
            Err(ManifestError::NotText { offset: 0 })
        ));
    }

    #[test]
    fn what_the_api_does_not_know_is_told() {
        let manifest = decode(
            POD.replace(
                "image: web:1",
                "imagee: web:1\n    ports: [{containerPort: 1, hostport: 2}]",
            )
            .as_bytes(),
        )
        .unwrap();
        assert_eq!(
            manifest.warnings,
            [
                "unknown fields are ignored: spec.containers[0].imagee, spec.containers[0].ports[0].hostport"
            ]
        );
        let twice = decode(format!("{POD}    image: web:2\n").as_bytes()).unwrap();
        assert_eq!(
            twice.pods[0].spec.as_ref().unwrap().containers[0]
                .image
                .as_deref(),
            Some("web:2")
        );
        assert!(
            twice.warnings[0].contains("duplicate field \"image\"; the last value is used"),
            "{:?}",
            twice.warnings
        );
    }

    #[test]
    fn no_json_has_more_values_than_yaml() {
        let twice = |items: usize| {
            let items = vec!["{}"; items].join(",");
            format!(
                "{{\"apiVersion\": \"v1\", \"kind\": \"Pod\", \"kind\": \"Pod\", \
                 \"spec\": {{\"containers\": [], \"x\": [{items}]}}}}"
            )
        };
        assert_eq!(decode(twice(10).as_bytes()).unwrap().pods.len(), 1);
        assert!(decode(twice(300_000).as_bytes()).is_err());
    }

    fn json_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            "[a-z0-9:./-]{0,12}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(
                    prop::sample::select(vec![
                        "name",
                        "image",
                        "spec",
                        "containers",
                        "ports",
                        "metadata",
                        "volumes",
                        "items"
                    ]),
                    inner,
                    0..4,
                )
                .prop_map(|map| Value::Object(
                    map.into_iter()
                        .map(|(key, value)| (key.to_owned(), value))
                        .collect()
                )),
            ]
        })
    }

    prop_compose! {
        fn pod()(
            name in "[a-z][a-z0-9-]{0,20}",
            image in "[a-z]{1,8}(:[0-9.]{1,5})?",
            args in prop::collection::vec("\\PC{0,20}", 0..4),
            port in 1..=65535,
            labels in prop::collection::btree_map("[a-z]{1,8}", "(|[a-z0-9]{1,8}|true|yes|0644|1e3|~|null)", 0..4),
            quantity in prop_oneof![Just(json!("100m")), Just(json!("1Gi"))],
        ) -> Value {
            json!({
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": name, "labels": labels},
                "spec": {"containers": [{
                    "name": "a", "image": image, "args": args,
                    "ports": [{"containerPort": port}],
                    "resources": {"limits": {"cpu": quantity}},
                }]},
            })
        }
    }

    /// Writes block YAML with all strings quoted, independently of the parser under test.
    fn to_yaml(value: &Value, indent: usize, out: &mut String) {
        let pad = "  ".repeat(indent);
        match value {
            Value::Object(map) if !map.is_empty() => {
                for (key, value) in map {
                    out.push_str(&format!("\n{pad}{}:", json!(key)));
                    to_yaml(value, indent + 1, out);
                }
            }
            Value::Array(items) if !items.is_empty() => {
                for item in items {
                    out.push_str(&format!("\n{pad}-"));
                    to_yaml(item, indent + 1, out);
                }
            }
            leaf => out.push_str(&format!(" {leaf}")),
        }
    }

    proptest! {
        #[test]
        fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn any_text_never_panics(text in "[a-zA-Z0-9:{}\\[\\]&*!|>'\"%@`,#?\\- \n\t]{0,120}") {
            let _ = decode(text.as_bytes());
        }

        #[test]
        fn any_object_never_panics(spec in json_value(), metadata in json_value()) {
            let object = json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec});
            let _ = decode(object.to_string().as_bytes());
        }

        #[test]
        fn yaml_and_json_mean_the_same(pod in pod()) {
            let mut yaml = String::new();
            to_yaml(&pod, 0, &mut yaml);
            let from_yaml = decode(yaml.as_bytes());
            prop_assert!(from_yaml.is_ok(), "{:?}\n{}", from_yaml, yaml);
            prop_assert_eq!(from_yaml, decode(pod.to_string().as_bytes()));
        }
    }
}
