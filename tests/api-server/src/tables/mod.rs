//! Response formats for `kubectl` other than plain objects: tables with upstream's columns, and
//! metadata only.

mod cells;
mod columns;
mod duration;
mod nodes;
mod pods;

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use jiff::Timestamp;
use serde_json::{Value, json};

use super::{
    event_versions::to_stored,
    request::Query,
    resources::Resource,
    strategy::{remove, text},
    watch::ObjectFormatter,
};

/// The format of a response, from the `Accept` header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// Plain objects.
    Whole,
    /// `meta.k8s.io/v1` tables.
    Table(Rows),
    /// `meta.k8s.io/v1` objects with metadata only.
    Metadata,
}

/// The object in a table row (`includeObject`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rows {
    /// No object.
    None,
    /// Its metadata.
    Metadata,
    /// The whole object.
    Whole,
}

impl Form {
    /// The first supported format in the `Accept` header.
    pub(super) fn of(accept: &str, query: &Query) -> Self {
        for wanted in accept.split(',') {
            let mut parameters = wanted.split(';').map(str::trim).skip(1);
            if parameters.clone().all(|one| one != "g=meta.k8s.io") {
                continue;
            }
            match parameters.find_map(|one| one.strip_prefix("as=")) {
                Some("Table") => {
                    return Self::Table(match query.text("includeObject") {
                        "None" => Rows::None,
                        "Object" => Rows::Whole,
                        _ => Rows::Metadata,
                    });
                }
                Some("PartialObjectMetadata" | "PartialObjectMetadataList") => {
                    return Self::Metadata;
                }
                _ => {}
            }
        }
        Self::Whole
    }

    /// Formats an object.
    pub(super) fn one(self, resource: &'static Resource, object: Value, now: Timestamp) -> Value {
        match self {
            Self::Whole => object,
            Self::Metadata => metadata_alone(&object),
            Self::Table(rows) => {
                let version = &object["metadata"]["resourceVersion"];
                let metadata = json!({"resourceVersion": version});
                let row = row(resource, object.clone(), rows, now);
                table(columns::of(resource.kind), &metadata, &[row])
            }
        }
    }

    /// Formats a list.
    pub(super) fn many(self, resource: &'static Resource, list: Value, now: Timestamp) -> Value {
        let items = || list["items"].as_array().cloned().unwrap_or_default();
        let typed = |mut item: Value| {
            item["apiVersion"] = json!(resource.api_version());
            item["kind"] = json!(resource.kind);
            item
        };
        match self {
            Self::Whole => list,
            Self::Metadata => {
                let items: Vec<_> = items()
                    .iter()
                    .map(|item| {
                        let mut item = metadata_alone(item);
                        remove(&mut item, "kind");
                        remove(&mut item, "apiVersion");
                        item
                    })
                    .collect();
                json!({
                    "kind": "PartialObjectMetadataList", "apiVersion": "meta.k8s.io/v1",
                    "metadata": list["metadata"], "items": items,
                })
            }
            Self::Table(rows) => {
                let rows: Vec<_> = items()
                    .into_iter()
                    .map(|item| row(resource, typed(item), rows, now))
                    .collect();
                table(columns::of(resource.kind), &list["metadata"], &rows)
            }
        }
    }

    /// The formatter of a watch. Only the first object of a table has the columns.
    pub(super) fn watched(
        self,
        resource: &'static Resource,
        now: impl Fn() -> Timestamp + Send + Sync + 'static,
    ) -> ObjectFormatter {
        let first = AtomicBool::new(true);
        Arc::new(move |object| {
            let mut shown = self.one(resource, object, now());
            if matches!(self, Self::Table(_)) && !first.swap(false, Ordering::Relaxed) {
                shown["columnDefinitions"] = Value::Null;
            }
            shown
        })
    }
}

fn metadata_alone(object: &Value) -> Value {
    json!({
        "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1",
        "metadata": object["metadata"],
    })
}

fn table(columns: &[columns::Column], metadata: &Value, rows: &[Value]) -> Value {
    let columns: Vec<_> = columns
        .iter()
        .map(|column| {
            json!({
                "name": column.name, "type": column.kind, "priority": column.priority,
                "format": if column.name == "Name" { "name" } else { "" },
                "description": column.description,
            })
        })
        .collect();
    json!({
        "kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata,
        "columnDefinitions": columns, "rows": rows,
    })
}

fn row(resource: &'static Resource, object: Value, rows: Rows, now: Timestamp) -> Value {
    let cells = cells::of(&to_stored(resource, object.clone()), now);
    let mut row = json!({"cells": cells});
    let over = match text(&object, "/status/phase") {
        "Succeeded" => Some(("Succeeded", "The pod has completed successfully.")),
        "Failed" => Some(("Failed", "The pod failed.")),
        _ => None,
    };
    if let (Some((reason, message)), "Pod") = (over, resource.kind) {
        row["conditions"] = json!([{
            "type": "Completed", "status": "True", "reason": reason, "message": message,
        }]);
    }
    row["object"] = match rows {
        Rows::None => Value::Null,
        Rows::Metadata => metadata_alone(&object),
        Rows::Whole => object,
    };
    row
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resources::find;

    const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json";

    fn now() -> Timestamp {
        "2026-11-01T00:10:00Z".parse().unwrap()
    }

    #[test]
    fn the_header_says_the_form() {
        let query = |text: &str| Query::of(&format!("/x?{text}").parse().unwrap());
        assert_eq!(Form::of("application/json", &Query::default()), Form::Whole);
        assert_eq!(
            Form::of(TABLE, &Query::default()),
            Form::Table(Rows::Metadata)
        );
        assert_eq!(
            Form::of(TABLE, &query("includeObject=Object")),
            Form::Table(Rows::Whole)
        );
        let metadata = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
        assert_eq!(Form::of(metadata, &Query::default()), Form::Metadata);
    }

    #[test]
    fn a_watch_says_the_columns_once() {
        let pods = find("", "v1", "pods").unwrap();
        let show = Form::Table(Rows::Metadata).watched(pods, now);
        let pod = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "a"}});
        assert_eq!(show(pod.clone())["columnDefinitions"][0]["name"], "Name");
        let second = show(pod);
        assert_eq!(second["columnDefinitions"], Value::Null);
        assert_eq!(second["rows"][0]["cells"][0], "a");
    }

    #[test]
    fn every_row_has_a_cell_for_each_column() {
        for resource in crate::resources::RESOURCES {
            let object = json!({"metadata": {"name": "x"}, "apiVersion": resource.api_version(),
                "kind": resource.kind});
            let table = Form::Table(Rows::None).one(resource, object, now());
            let columns = table["columnDefinitions"].as_array().unwrap().len();
            let cells = table["rows"][0]["cells"].as_array().unwrap().len();
            assert_eq!(cells, columns, "{}", resource.kind);
        }
    }
}
