//! Typed values from JSON, with the path of the field that has the wrong type.
//!
//! Every API type is decoded from JSON text, also those that were written as YAML, and encoded to
//! JSON text: each further kind of input or output would add another copy of all its decoders or
//! encoders to the binary.

use std::fmt;

use k8s_openapi::api::core::v1::Node;
use serde::{
    Serialize,
    de::{self, Deserialize, DeserializeOwned},
};
use serde_json::Value;

/// Why a value does not fit its type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct TypeError {
    /// Path of the field; of the object, if one of its fields is missing.
    pub path: Path,
    /// What was found and what was expected.
    pub message: String,
}

/// The path of a value in a document. Its text is like `spec.containers[0].image`, and `.` for
/// the document itself.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(Vec<Segment>);

/// A step of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Segment {
    /// A field of an object.
    Field(String),
    /// An item of an array, from 0.
    Item(usize),
}

impl Path {
    /// The steps, from the document to the value.
    pub fn segments(&self) -> &[Segment] {
        &self.0
    }

    /// The last step, and the path without it.
    pub fn split_last(mut self) -> Option<(Self, Segment)> {
        let last = self.0.pop()?;
        Some((self, last))
    }

    /// The value at this path in a document.
    pub fn find_mut<'a>(&self, document: &'a mut Value) -> Option<&'a mut Value> {
        self.0
            .iter()
            .try_fold(document, |value, segment| match segment {
                Segment::Field(name) => value.get_mut(name),
                Segment::Item(index) => value.get_mut(index),
            })
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str(".");
        }
        for (at, segment) in self.0.iter().enumerate() {
            match segment {
                Segment::Field(name) if at == 0 => f.write_str(name)?,
                Segment::Field(name) => write!(f, ".{name}")?,
                Segment::Item(index) => write!(f, "[{index}]")?,
            }
        }
        Ok(())
    }
}

/// Decodes a JSON text that may not be UTF-8.
///
/// # Errors
/// The text is not JSON, or of another type.
pub fn from_slice<'a, T: Deserialize<'a>>(text: &'a [u8]) -> serde_json::Result<T> {
    serde_json::from_str(std::str::from_utf8(text).map_err(de::Error::custom)?)
}

/// Decodes a node.
///
/// Crates above this one that decode nodes use this copy of the decoder, instead of one each.
///
/// # Errors
/// As [`from_slice`].
pub fn node(text: &[u8]) -> serde_json::Result<Node> {
    from_slice(text)
}

/// Decodes a value.
///
/// # Errors
/// The first field of the wrong type, unknown field or missing field.
pub fn from_value<T: DeserializeOwned>(value: &Value) -> Result<T, TypeError> {
    let text = value.to_string();
    serde_json::from_str(&text).map_err(|error| type_error(&text, &error))
}

/// Encodes a value as a JSON value.
///
/// # Errors
/// As [`serde_json::to_value`].
pub fn to_value(value: &impl Serialize) -> serde_json::Result<Value> {
    from_slice(&serde_json::to_vec(value)?)
}

/// The error of a text that [`Value`] wrote, without white space.
fn type_error(text: &str, error: &serde_json::Error) -> TypeError {
    let message = error.to_string();
    let message = match message.rfind(" at line ") {
        Some(at) => message[..at].to_owned(),
        None => message,
    };
    // The text is one line, so that the column is the number of bytes that the decoder has read.
    let read = text.get(..error.column()).unwrap_or(text);
    let mut path = path_at(read);
    // An array was read in place of an object; the error is not one of its first item.
    let next = text.as_bytes().get(read.len());
    if read.ends_with('[') && message.starts_with("invalid type: sequence") && next != Some(&b'[') {
        path.0.pop();
    }
    TypeError { path, message }
}

/// The path of the value that ends or starts after this part of a document without white space.
fn path_at(read: &str) -> Path {
    /// An object or array that has not ended.
    enum Open {
        /// The key that was read last.
        Object(Option<String>),
        /// The item's index.
        Array(usize),
    }
    let mut open: Vec<Open> = Vec::new();
    let mut rest = read;
    while let Some(token) = rest.chars().next() {
        let mut length = token.len_utf8();
        match token {
            '{' => open.push(Open::Object(None)),
            '[' => open.push(Open::Array(0)),
            '}' | ']' => {
                open.pop();
            }
            ',' => match open.last_mut() {
                Some(Open::Object(key)) => *key = None,
                Some(Open::Array(index)) => *index += 1,
                None => {}
            },
            '"' => {
                length = string_length(rest);
                if let Some(Open::Object(key @ None)) = open.last_mut() {
                    *key = serde_json::from_str(&rest[..length]).ok();
                }
            }
            _ => {}
        }
        rest = &rest[length..];
    }
    let segments = open.into_iter().filter_map(|level| match level {
        Open::Object(key) => key.map(Segment::Field),
        Open::Array(index) => Some(Segment::Item(index)),
    });
    Path(segments.collect())
}

/// The length of the string literal at the start of a text, with its quotes.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::Pod;
    use proptest::prelude::*;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    fn pod_error(spec: Value) -> String {
        let pod = json!({"apiVersion": "v1", "kind": "Pod", "spec": spec});
        from_value::<Pod>(&pod).unwrap_err().to_string()
    }

    #[test]
    fn errors_name_the_field_of_an_api_type() {
        for (spec, error) in [
            (
                json!(1),
                "spec: invalid type: integer `1`, expected PodSpec",
            ),
            (json!([1]), "spec: invalid type: sequence, expected PodSpec"),
            (
                json!({"containers": {"name": "a"}}),
                "spec.containers: invalid type: map, expected a sequence",
            ),
            (
                json!({"containers": ["a"]}),
                "spec.containers[0]: invalid type: string \"a\", expected Container",
            ),
            (
                json!({"containers": [{"name": "\"},{\\"}, {"name": ["a"]}, {}]}),
                "spec.containers[1].name: invalid type: sequence, expected a string",
            ),
            (
                json!({"containers": [{"name": "a", "command": ["b", {"c": 1}]}]}),
                "spec.containers[0].command[1]: invalid type: map, expected a string",
            ),
            (
                json!({"containers": [{"name": "a", "command": [{"c": 1}]}]}),
                "spec.containers[0].command[0]: invalid type: map, expected a string",
            ),
            (
                json!({"containers": [{"name": "a", "ports": [{"containerPort": 3_000_000_000_u64}]}]}),
                "spec.containers[0].ports[0].containerPort: invalid value: integer `3000000000`, expected i32",
            ),
            (
                json!({"nodeSelector": {"a\"b": "", "c": true}}),
                "spec.nodeSelector.c: invalid type: boolean `true`, expected a string",
            ),
            (
                json!({"containers": [{"livenessProbe": {"httpGet": {"port": {"a": 1}}}}]}),
                "spec.containers[0].livenessProbe.httpGet.port: invalid type: map, expected IntOrString",
            ),
        ] {
            assert_eq!(pod_error(spec), error);
        }
    }

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Named {
        #[serde(rename = "name")]
        _name: String,
    }

    #[test]
    fn errors_name_the_object_that_lacks_a_field_and_the_field_that_is_unknown() {
        let error = |value| from_value::<Vec<Named>>(&value).unwrap_err().to_string();
        assert_eq!(
            error(json!([{"name": "a"}, {}])),
            "[1]: missing field `name`"
        );
        assert_eq!(
            error(json!([{"name": "a"}, {"name": "b", "nam": 1}])),
            "[1].nam: unknown field `nam`, expected `name`"
        );
        assert_eq!(
            error(json!({"name": "a"})),
            ".: invalid type: map, expected a sequence"
        );
    }

    /// A document, and the path of a number in it.
    fn document_with_a_number() -> impl Strategy<Value = (Value, Path)> {
        let leaf = Just((json!(1), Path::default()));
        leaf.prop_recursive(6, 64, 4, |inner| {
            let text = "[\\PC\"\\\\\\[\\]{},:]{0,6}";
            prop_oneof![
                (inner.clone(), prop::collection::vec(text, 0..3)).prop_map(
                    |((value, path), before)| {
                        let mut items: Vec<Value> = before.into_iter().map(Value::from).collect();
                        let index = items.len();
                        items.push(value);
                        items.push(json!("after"));
                        let mut segments = vec![Segment::Item(index)];
                        segments.extend(path.0);
                        (Value::from(items), Path(segments))
                    }
                ),
                (inner, text, prop::collection::btree_map(text, text, 0..3)).prop_map(
                    |((value, path), key, others)| {
                        let mut fields: serde_json::Map<_, _> = others
                            .into_iter()
                            .map(|(key, text)| (key, Value::from(text)))
                            .collect();
                        fields.insert(key.clone(), value);
                        let mut segments = vec![Segment::Field(key)];
                        segments.extend(path.0);
                        (Value::from(fields), Path(segments))
                    }
                ),
            ]
        })
    }

    /// A document without numbers.
    #[derive(Debug, Deserialize)]
    #[serde(transparent)]
    struct Texts(#[serde(deserialize_with = "texts")] ());

    fn texts<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<(), D::Error> {
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = ();
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("no number")
            }
            fn visit_str<E>(self, _: &str) -> Result<(), E> {
                Ok(())
            }
            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
                while seq.next_element::<Texts>()?.is_some() {}
                Ok(())
            }
            fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
                while map.next_entry::<String, Texts>()?.is_some() {}
                Ok(())
            }
        }
        deserializer.deserialize_any(Visitor)
    }

    proptest! {
        #[test]
        fn any_value_of_the_wrong_type_is_found((mut document, path) in document_with_a_number()) {
            let error = from_value::<Texts>(&document).unwrap_err();
            prop_assert_eq!(&error.path, &path);
            prop_assert_eq!(error.path.find_mut(&mut document), Some(&mut json!(1)));
        }

        #[test]
        fn any_map_is_read_as_it_was_written(map: BTreeMap<String, String>) {
            let value = json!(map);
            prop_assert_eq!(from_value::<BTreeMap<String, String>>(&value), Ok(map));
        }
    }
}
