//! Conversion of objects between their stored form and the versions of the API. Both event groups
//! serve the same events, which are stored in the form of the core group.

use serde_json::{Value, json};

use super::resources::Resource;

/// The names of fields in the core group and in `events.k8s.io`.
const NAMES: [(&str, &str); 7] = [
    ("involvedObject", "regarding"),
    ("message", "note"),
    ("source", "deprecatedSource"),
    ("firstTimestamp", "deprecatedFirstTimestamp"),
    ("lastTimestamp", "deprecatedLastTimestamp"),
    ("count", "deprecatedCount"),
    ("reportingComponent", "reportingController"),
];

fn is_new_event(resource: &Resource) -> bool {
    resource.group == "events.k8s.io"
}

/// Converts an object to its stored form.
pub(super) fn to_stored(resource: &'static Resource, mut object: Value) -> Value {
    if is_new_event(resource)
        && let Some(fields) = object.as_object_mut()
    {
        for (core, new) in NAMES {
            if let Some(value) = fields.remove(new) {
                fields.insert(core.to_owned(), value);
            }
        }
    }
    let stored = resource.stored();
    object["apiVersion"] = Value::String(stored.api_version());
    object["kind"] = Value::String(stored.kind.to_owned());
    object
}

/// Converts a stored object to the resource's group.
pub(super) fn to_shown(resource: &'static Resource, stored: &Value) -> Value {
    let mut object = stored.clone();
    if is_new_event(resource)
        && let Some(fields) = object.as_object_mut()
    {
        for (core, new) in NAMES {
            if let Some(value) = fields.remove(core) {
                fields.insert(new.to_owned(), value);
            }
        }
    }
    object["apiVersion"] = Value::String(resource.api_version());
    // A short stand-in: upstream records the manager of every field.
    object["metadata"]["managedFields"] = json!([{
        "manager": "kubectl", "operation": "Update", "apiVersion": resource.api_version(),
        "time": object["metadata"]["creationTimestamp"],
        "fieldsType": "FieldsV1", "fieldsV1": {"f:metadata": {"f:labels": {}}},
    }]);
    object
}
