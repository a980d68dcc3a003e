//! Kubernetes' protobuf encoding, which `kubectl` uses for some of the objects that it creates.
//! Bodies are converted to JSON; responses are always JSON.

mod wire;

use std::{collections::BTreeMap, sync::LazyLock};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::errors::ApiError;
use wire::{Field as Sent, fields};

/// The prefix of every body.
const MAGIC: &[u8] = b"k8s\0";

/// The known messages.
static MESSAGES: LazyLock<BTreeMap<&str, Vec<Field>>> = LazyLock::new(|| {
    let mut messages: BTreeMap<&str, Vec<Field>> = BTreeMap::new();
    let mut message = "";
    for line in include_str!("fields.txt").lines() {
        if line.starts_with('#') {
            continue;
        }
        match line.strip_prefix(' ') {
            None => message = line,
            Some(field) => messages
                .entry(message)
                .or_default()
                .extend(Field::parse(field)),
        }
    }
    messages
});

/// A field of a message.
#[derive(Debug, Clone, Copy)]
struct Field {
    number: u64,
    name: &'static str,
    form: Form,
    kind: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A value. A scalar that is zero or empty means that the field is not set.
    One,
    /// A value that is significant even if it is zero or empty.
    Explicit,
    List,
    Map,
    /// A message whose fields belong to the message that contains it.
    Inline,
}

impl Field {
    fn parse(line: &'static str) -> Option<Self> {
        let mut words = line.split(' ');
        let number = words.next()?.parse().ok()?;
        let (name, kind) = (words.next()?, words.next()?);
        let forms = [
            ("[]", Form::List),
            ("{}", Form::Map),
            ("=", Form::Inline),
            ("?", Form::Explicit),
        ];
        let (form, kind) = forms
            .into_iter()
            .find_map(|(mark, form)| Some((form, kind.strip_prefix(mark)?)))
            .unwrap_or((Form::One, kind));
        Some(Self {
            number,
            name,
            form,
            kind,
        })
    }
}

/// Whether a body is protobuf.
pub(super) fn is_protobuf(body: &[u8]) -> bool {
    body.starts_with(MAGIC)
}

/// Decodes the object in a body.
pub(super) fn read(body: &[u8]) -> Result<Value, ApiError> {
    object(body).ok_or_else(|| ApiError::bad_request("the protobuf sent cannot be read"))?
}

/// `None` if the body is malformed; an error if its kind is not known.
fn object(body: &[u8]) -> Option<Result<Value, ApiError>> {
    let (mut version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for (number, sent) in fields(body.strip_prefix(MAGIC)?)? {
        match (number, sent) {
            (1, Sent::Bytes(bytes)) => {
                for (number, sent) in fields(bytes)? {
                    let said = String::from_utf8(sent.bytes()?.to_vec()).ok()?;
                    match number {
                        1 => version = said,
                        2 => kind = said,
                        _ => {}
                    }
                }
            }
            (2, Sent::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    if !MESSAGES.contains_key(kind.as_str()) {
        let kind = format!("application/vnd.kubernetes.protobuf of kind {kind}");
        return Some(Err(ApiError::unsupported_media_type(&kind)));
    }
    let mut object = message(&kind, raw)?;
    object.insert("apiVersion".to_owned(), json!(version));
    object.insert("kind".to_owned(), json!(kind));
    Some(Ok(Value::Object(object)))
}

fn message(kind: &str, bytes: &[u8]) -> Option<Map<String, Value>> {
    let known = MESSAGES.get(kind)?;
    let mut object = Map::new();
    for (number, sent) in fields(bytes)? {
        let Some(field) = known.iter().find(|field| field.number == number) else {
            continue;
        };
        match field.form {
            Form::Inline => object.extend(message(field.kind, sent.bytes()?)?),
            Form::List => {
                let list = object.entry(field.name).or_insert_with(|| json!([]));
                list.as_array_mut()?.push(value(field.kind, &sent)?);
            }
            Form::Map => {
                let (key, value) = entry(field.kind, sent.bytes()?)?;
                let map = object.entry(field.name).or_insert_with(|| json!({}));
                map.as_object_mut()?.insert(key, value);
            }
            Form::One | Form::Explicit => {
                let value = value(field.kind, &sent)?;
                if field.form == Form::Explicit || !is_nothing(&value) {
                    object.insert(field.name.to_owned(), value);
                }
            }
        }
    }
    Some(object)
}

fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(truth) => !truth,
        Value::Number(number) => number.as_i64() == Some(0),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

fn entry(kind: &str, bytes: &[u8]) -> Option<(String, Value)> {
    let (mut key, mut found) = (String::new(), value(kind, &Sent::Bytes(&[])));
    for (number, sent) in fields(bytes)? {
        match number {
            1 => key = String::from_utf8(sent.bytes()?.to_vec()).ok()?,
            2 => found = value(kind, &sent),
            _ => {}
        }
    }
    Some((key, found?))
}

fn value(kind: &str, sent: &Sent<'_>) -> Option<Value> {
    Some(match kind {
        "string" => json!(str::from_utf8(sent.bytes()?).ok()?),
        "bytes" => json!(STANDARD.encode(sent.bytes()?)),
        "bool" => json!(sent.number()? != 0),
        // Negative numbers are encoded as their two's complement.
        "integer" => json!(sent.number()?.cast_signed()),
        "Quantity" => {
            let text = fields(sent.bytes()?)?
                .into_iter()
                .find(|(number, _)| *number == 1);
            match text {
                Some((_, text)) => json!(str::from_utf8(text.bytes()?).ok()?),
                None => json!("0"),
            }
        }
        "IntOrString" => {
            let parts = fields(sent.bytes()?)?;
            let part = |wanted: u64| parts.iter().find(|(number, _)| *number == wanted);
            match part(1) {
                Some((_, is_text)) if is_text.number()? == 1 => {
                    json!(str::from_utf8(part(3)?.1.bytes()?).ok()?)
                }
                _ => json!(
                    part(2)
                        .map_or(Some(0), |(_, one)| one.number())?
                        .cast_signed()
                ),
            }
        }
        "Time" | "MicroTime" => {
            let parts = fields(sent.bytes()?)?;
            let seconds = parts.iter().find(|(number, _)| *number == 1);
            let Some((_, seconds)) = seconds else {
                return Some(Value::Null);
            };
            let time = Timestamp::from_second(seconds.number()?.cast_signed()).ok()?;
            json!(time.to_string())
        }
        "ExtraValue" => message(kind, sent.bytes()?)?
            .remove("items")
            .unwrap_or(json!([])),
        other => Value::Object(message(other, sent.bytes()?)?),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A length-delimited field that is short enough for a length of one byte.
    fn bytes(number: u8, content: &[u8]) -> Vec<u8> {
        let mut field = vec![(number << 3) | 2, u8::try_from(content.len()).unwrap()];
        field.extend_from_slice(content);
        field
    }

    fn sent(kind: &str, raw: &[u8]) -> Vec<u8> {
        let about = [bytes(1, b"v1"), bytes(2, kind.as_bytes())].concat();
        [MAGIC.to_vec(), bytes(1, &about), bytes(2, raw)].concat()
    }

    #[test]
    fn a_pod_is_read_with_what_it_says_and_without_what_it_leaves_out() {
        let quantity = [bytes(1, b"cpu"), bytes(2, &bytes(1, b"100m"))].concat();
        let container = [
            bytes(1, b"c"),
            bytes(2, b""),
            bytes(3, b"sh"),
            bytes(3, b"-c"),
            bytes(8, &bytes(1, &quantity)),
        ]
        .concat();
        let volume = [bytes(1, b"v"), bytes(2, &bytes(2, b""))].concat();
        let spec = [
            bytes(1, &volume),
            bytes(2, &container),
            // A grace period of zero, which is significant, and `hostNetwork: false`, which is not.
            vec![4 << 3, 0],
            vec![11 << 3, 0],
        ]
        .concat();
        let metadata = bytes(1, &[bytes(1, b"web"), bytes(8, b"")].concat());
        let pod = read(&sent("Pod", &[metadata, bytes(2, &spec)].concat())).unwrap();
        assert_eq!(
            pod,
            json!({
                "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"},
                "spec": {
                    "volumes": [{"name": "v", "emptyDir": {}}],
                    "containers": [{"name": "c", "command": ["sh", "-c"],
                        "resources": {"limits": {"cpu": "100m"}}}],
                    "terminationGracePeriodSeconds": 0,
                },
            })
        );
    }

    #[test]
    fn what_is_no_known_message_is_refused() {
        assert!(!is_protobuf(b"{}"));
        assert_eq!(read(&sent("Unicorn", b"")).unwrap_err().code, 415);
        assert_eq!(read(&sent("Pod", &[0x0a, 0xff])).unwrap_err().code, 400);
    }

    #[test]
    fn every_message_that_is_named_is_there() {
        let plain = [
            "string",
            "bytes",
            "bool",
            "integer",
            "Quantity",
            "IntOrString",
            "Time",
            "MicroTime",
        ];
        for (message, fields) in MESSAGES.iter() {
            for field in fields {
                let known = plain.contains(&field.kind) || MESSAGES.contains_key(field.kind);
                assert!(known, "{message}.{}: {}", field.name, field.kind);
            }
        }
    }
}
