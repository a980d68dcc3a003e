//! Reads and merges the configuration file and its drop-ins.

use std::{
    fs,
    path::{Path, PathBuf},
};

use kubelet_pod_spec::{
    json::{self, Segment},
    yaml::{self, DuplicateKeys},
};
use serde_json::Value;

use super::{
    kubelet_configuration::{API_VERSION, KIND, KubeletConfiguration},
    settings_error::SettingsError,
    values::absolute,
};

/// Fields with paths, as JSON pointers. Relative paths are resolved against the directory of the
/// file.
const PATHS: &[&str] = &[
    "/staticPodPath",
    "/resolvConf",
    "/podLogsDir",
    "/tlsCertFile",
    "/tlsPrivateKeyFile",
    "/authentication/x509/clientCAFile",
];

/// Reads the configuration file. As upstream, unknown fields are ignored, and of duplicate fields
/// the last one counts, so that a file for a newer or older kubelet still works. The second value
/// is a warning about such fields.
///
/// # Errors
/// The file cannot be read or is of another kind, or a field has the wrong type.
pub(super) fn main_file(path: &Path) -> Result<(Value, Option<String>), SettingsError> {
    let text = read(path, "the configuration file (--config)")?;
    let parse = |source| SettingsError::Parse {
        path: path.to_owned(),
        source,
    };
    let mut value = document(path, &text, DuplicateKeys::LastWins)?;
    yaml::remove_nulls(&mut value);
    let mut warning = None;
    if let Err(first) = yaml::from_str::<KubeletConfiguration>(&text) {
        if !first.is_of_a_field() {
            return Err(parse(first));
        }
        let unknown = remove_unknown(&mut value)?;
        let mut text = format!(
            "{}: {first}; the file is used anyway, with the last value of a duplicate field",
            path.display()
        );
        if !unknown.is_empty() {
            text = format!(
                "{text}, and without these unknown fields: {}",
                unknown.join(", ")
            );
        }
        warning = Some(text);
    }
    make_absolute(path, &mut value);
    Ok((value, warning))
}

/// Reads a drop-in file, strictly.
///
/// # Errors
/// The file cannot be read or is of another kind, or a field is unknown, duplicated or of the wrong
/// type.
pub(super) fn drop_in(path: &Path) -> Result<Value, SettingsError> {
    let text = read(path, "the drop-in file")?;
    let mut value = document(path, &text, DuplicateKeys::Refuse)?;
    // For the errors only, which have line and column.
    yaml::from_str::<KubeletConfiguration>(&text).map_err(|source| SettingsError::Parse {
        path: path.to_owned(),
        source,
    })?;
    make_absolute(path, &mut value);
    Ok(value)
}

fn read(path: &Path, role: &'static str) -> Result<String, SettingsError> {
    fs::read_to_string(path).map_err(|source| SettingsError::Read {
        role,
        path: path.to_owned(),
        source,
    })
}

/// Parses a file's first document, and checks `apiVersion` and `kind`.
fn document(path: &Path, text: &str, duplicates: DuplicateKeys) -> Result<Value, SettingsError> {
    let documents = yaml::documents(text, duplicates).map_err(|source| SettingsError::Parse {
        path: path.to_owned(),
        source,
    })?;
    let value = documents.into_iter().next().unwrap_or(Value::Null);
    for (field, expected) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        let found = value.get(field).and_then(Value::as_str).unwrap_or_default();
        if found != expected {
            return Err(SettingsError::Kind {
                path: path.to_owned(),
                field,
                found: found.to_owned(),
                expected,
            });
        }
    }
    Ok(value)
}

fn make_absolute(path: &Path, value: &mut Value) {
    let dir = absolute(path).parent().map(Path::to_owned);
    for field in PATHS {
        if let (Some(dir), Some(Value::String(path))) = (&dir, value.pointer_mut(field))
            && !path.is_empty()
        {
            *path = dir.join(&path).to_string_lossy().into_owned();
        }
    }
}

/// Removes unknown fields; returns their paths.
fn remove_unknown(value: &mut Value) -> Result<Vec<String>, SettingsError> {
    let mut removed = Vec::new();
    while let Err(error) = json::from_value::<KubeletConfiguration>(value) {
        let field = error.path.to_string();
        let gone = match error.path.split_last() {
            Some((object, Segment::Field(name))) if error.message.starts_with("unknown field ") => {
                let object = object.find_mut(value).and_then(Value::as_object_mut);
                object.and_then(|object| object.remove(&name))
            }
            _ => None,
        };
        if gone.is_none() {
            return Err(SettingsError::Type {
                field,
                message: error.message,
            });
        }
        removed.push(field);
    }
    Ok(removed)
}

/// The `.conf` files below a directory, recursively, sorted by path.
///
/// # Errors
/// A directory cannot be read.
pub(super) fn drop_ins(dir: &Path) -> Result<Vec<PathBuf>, SettingsError> {
    let read = |source| SettingsError::Read {
        role: "the drop-in directory (--config-dir)",
        path: dir.to_owned(),
        source,
    };
    let mut paths = Vec::new();
    for entry in fs::read_dir(dir).map_err(read)? {
        let entry = entry.map_err(read)?;
        let path = entry.path();
        if entry.file_type().map_err(read)?.is_dir() {
            paths.extend(drop_ins(&path)?);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "conf")
        {
            paths.push(path);
        }
    }
    paths.sort_unstable();
    Ok(paths)
}

/// Merges `over` into `base`: objects are merged, other values replaced, and `null` removes a field
/// (RFC 7396, as upstream merges drop-ins).
pub(super) fn merge(base: &mut Value, over: Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (key, value) in over {
                if value.is_null() {
                    base.remove(&key);
                } else {
                    merge(base.entry(key).or_insert(Value::Null), value);
                }
            }
        }
        (base, over) => *base = over,
    }
}
