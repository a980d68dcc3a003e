//! The Go types of upstream's internal pod: their fields in order, and the fields' types.

use std::collections::HashMap;

/// The type of a pod.
pub(super) const POD: &str = "*core.Pod";

/// Rows of four columns: type, field, JSON key in the v1 API, the field's type. An empty first
/// column continues the type above. The key of an embedded type is empty; that of a field that is
/// never set is `-`. A row with the field `=` defines a type by another one.
const TABLE: &str = include_str!("types.tsv");

/// A type with a name.
pub(super) enum GoType {
    Struct(Vec<Field>),
    /// A type with the same values as this one.
    Defined(&'static str),
}

/// A field of a struct.
pub(super) struct Field {
    pub(super) name: &'static str,
    /// The key of its value in JSON; empty if the value's fields are those of the struct.
    pub(super) key: &'static str,
    pub(super) type_: &'static str,
}

/// All types, by name.
pub(super) fn types() -> HashMap<&'static str, GoType> {
    let mut types = HashMap::new();
    let mut current = None;
    for row in TABLE.lines() {
        let mut columns = row.split('\t');
        let [name, field, key, type_] = std::array::from_fn(|_| columns.next().unwrap_or_default());
        if field == "=" {
            types.insert(name, GoType::Defined(type_));
        } else if !name.is_empty() {
            types.insert(name, GoType::Struct(Vec::new()));
            current = Some(name);
        } else if let Some(GoType::Struct(fields)) = current.and_then(|it| types.get_mut(it)) {
            fields.push(Field {
                name: field,
                key,
                type_,
            });
        }
    }
    types
}
