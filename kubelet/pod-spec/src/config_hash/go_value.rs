//! The text that Go's spew library prints for a value with its types (`%#v`).

use std::{
    collections::HashMap,
    fmt::{self, Write},
};

use serde_json::{Value, json};

use super::{
    go_types::{Field, GoType, types},
    quantity::GoQuantity,
};

const NIL: &str = "<nil>";

/// Writes a JSON value as a Go value of this type.
pub(super) fn write(to: &mut impl Write, type_: &'static str, value: &Value) -> fmt::Result {
    let types = types();
    let mut writer = Writer { to, types: &types };
    writer.typed(type_, Some(value))
}

struct Writer<'a, W> {
    to: &'a mut W,
    types: &'a HashMap<&'static str, GoType>,
}

impl<W: Write> Writer<'_, W> {
    /// Writes a value after its type.
    fn typed(&mut self, type_: &'static str, value: Option<&Value>) -> fmt::Result {
        write!(self.to, "({type_})")?;
        match type_.strip_prefix('*') {
            Some(target) if value.is_some() => self.untyped(target, value),
            _ => self.untyped(type_, value),
        }
    }

    /// Writes a value without its type. A value that is missing in JSON is zero in Go.
    fn untyped(&mut self, type_: &'static str, value: Option<&Value>) -> fmt::Result {
        if let Some(target) = type_.strip_prefix('*') {
            return match value {
                Some(_) => {
                    self.to.write_str("<*>")?;
                    self.untyped(target, value)
                }
                None => self.to.write_str(NIL),
            };
        }
        if let Some(item) = type_.strip_prefix("[]") {
            return self.slice(item, value);
        }
        if let Some((_, item)) = type_.strip_prefix("map[").and_then(|it| it.split_once(']')) {
            return self.map(item, value, Value::clone);
        }
        // The defaults round the amounts of all lists of resources.
        if type_ == "core.ResourceList" {
            return self.map("resource.Quantity", value, rounded);
        }
        let types = self.types;
        let parts = value.and_then(|value| parts(type_, value));
        let value = parts.as_ref().or(value);
        match types.get(type_) {
            Some(GoType::Struct(fields)) => self.fields(fields, value),
            Some(GoType::Defined(other)) => self.untyped(other, value),
            None => self.scalar(type_, value),
        }
    }

    fn slice(&mut self, item: &'static str, value: Option<&Value>) -> fmt::Result {
        let Some(items) = value.and_then(Value::as_array) else {
            return self.to.write_str(NIL);
        };
        self.to.write_char('[')?;
        for (at, value) in items.iter().enumerate() {
            self.space(at)?;
            self.untyped(item, Some(value))?;
        }
        self.to.write_char(']')
    }

    fn map(
        &mut self,
        item: &'static str,
        value: Option<&Value>,
        adapt: fn(&Value) -> Value,
    ) -> fmt::Result {
        let Some(entries) = value.and_then(Value::as_object) else {
            return self.to.write_str(NIL);
        };
        self.to.write_str("map[")?;
        // The keys are sorted in both.
        for (at, (key, value)) in entries.iter().enumerate() {
            self.space(at)?;
            write!(self.to, "{key}:")?;
            self.untyped(item, Some(&adapt(value)))?;
        }
        self.to.write_char(']')
    }

    fn fields(&mut self, fields: &[Field], value: Option<&Value>) -> fmt::Result {
        self.to.write_char('{')?;
        for (at, field) in fields.iter().enumerate() {
            self.space(at)?;
            write!(self.to, "{}:", field.name)?;
            let value = match field.key {
                "" => value,
                key => value.and_then(|value| value.get(key)),
            };
            self.typed(field.type_, value)?;
        }
        self.to.write_char('}')
    }

    fn scalar(&mut self, type_: &str, value: Option<&Value>) -> fmt::Result {
        match value {
            Some(Value::String(text)) => self.to.write_str(text),
            Some(value) => write!(self.to, "{value}"),
            None => self.to.write_str(match type_ {
                "string" => "",
                "bool" => "false",
                _ => "0",
            }),
        }
    }

    fn space(&mut self, at: usize) -> fmt::Result {
        if at > 0 {
            self.to.write_char(' ')?;
        }
        Ok(())
    }
}

/// The fields of a Go value whose JSON is not an object of them.
fn parts(type_: &str, value: &Value) -> Option<Value> {
    match (type_, value) {
        ("resource.Quantity", Value::String(text)) => Some(GoQuantity::parse(text)?.to_value()),
        ("intstr.IntOrString", Value::Number(number)) => Some(json!({"intVal": number})),
        ("intstr.IntOrString", Value::String(text)) => Some(json!({"type": 1, "strVal": text})),
        ("v1.FieldsV1", value) => Some(json!({"raw": value.to_string().as_bytes()})),
        _ => None,
    }
}

/// A quantity of a list of resources; those that defaults computed are not texts, and are rounded.
fn rounded(value: &Value) -> Value {
    let quantity = value.as_str().and_then(GoQuantity::parse);
    let rounded = quantity.and_then(GoQuantity::rounded);
    rounded.map_or_else(|| value.clone(), |quantity| quantity.to_value())
}
