//! The flags and their values, as `/flagz` shows them.

use std::collections::BTreeMap;

use serde_json::Value;

use super::flags::{Flags, ShownValue};

/// The values of all flags with an effect. `configuration` is what is in force, wherever it was
/// set, without secrets.
pub(super) fn flagz(flags: &Flags, configuration: &Value) -> BTreeMap<String, String> {
    let shown = flags.shown.iter();
    let text = |value: &ShownValue| match value {
        ShownValue::CommandLine(value) => text(value),
        ShownValue::Field(path) => {
            let pointer = format!("/{}", path.replace('.', "/"));
            configuration
                .pointer(&pointer)
                .map(text)
                .unwrap_or_default()
        }
    };
    shown
        .map(|(name, value)| ((*name).to_owned(), text(value)))
        .collect()
}

/// A value as it is written on the command line.
fn text(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(","),
        Value::Object(fields) => {
            let pairs = fields
                .iter()
                .map(|(key, value)| format!("{key}={}", text(value)));
            pairs.collect::<Vec<_>>().join(",")
        }
        value => value.to_string(),
    }
}
