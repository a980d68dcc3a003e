//! YAML and JSON documents, parsed as Kubernetes tools do.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Error};

/// Maximum nesting depth of a document. Each level takes stack, and a runtime thread has 2 MiB:
/// twice this depth is too much for unoptimised code.
const MAX_DEPTH: usize = 64;

/// Why a text cannot be parsed, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct SyntaxError {
    /// Line of the error, from 1; 0 if unknown.
    pub line: u64,
    /// Column of the error, from 1; 0 if unknown.
    pub column: u64,
    /// What is wrong.
    pub message: String,
    /// Whether the error is a duplicate key in an object.
    pub duplicate_key: bool,
    /// Whether the message already names the field.
    names_field: bool,
}

impl SyntaxError {
    /// Whether the error is an unknown or duplicate field.
    pub const fn is_of_a_field(&self) -> bool {
        self.names_field
    }
}

/// How duplicate keys are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateKeys {
    /// As an error.
    Refuse,
    /// The last one wins.
    LastWins,
}

/// Parses one document into a type.
///
/// # Errors
/// A syntax error, an unknown or duplicate field, or a value of the wrong type.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, SyntaxError> {
    let mut path = None;
    serde_saphyr::with_deserializer_from_str_with_options(
        text,
        options(DuplicateKeys::Refuse),
        |deserializer| {
            serde_path_to_error::deserialize(deserializer).map_err(|error| {
                path = Some(error.path().to_string());
                error.into_inner()
            })
        },
    )
    .map_err(|error| {
        let mut error = syntax_error(&error);
        if let Some(path) = path.filter(|path| !error.names_field && path != ".") {
            error.message = format!("{path}: {}", error.message);
        }
        error
    })
}

/// Parses all documents of a text; empty ones are left out.
///
/// # Errors
/// A syntax error, or a duplicate key if these are refused.
pub fn documents(text: &str, duplicates: DuplicateKeys) -> Result<Vec<Value>, SyntaxError> {
    // JSON goes to its own parser first, in which the last duplicate key wins too.
    if text.trim_start().starts_with('{')
        && duplicates == DuplicateKeys::LastWins
        && let Ok(value) = serde_json::from_str(text)
    {
        return Ok(vec![value]);
    }
    let documents: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options(duplicates))
        .map_err(|error| syntax_error(&error))?;
    Ok(documents
        .into_iter()
        .filter(|document| !document.is_null())
        .collect())
}

fn options(duplicates: DuplicateKeys) -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! { max_depth: MAX_DEPTH, flow_nesting_limit: MAX_DEPTH },
        duplicate_keys: match duplicates {
            DuplicateKeys::Refuse => DuplicateKeyPolicy::Error,
            DuplicateKeys::LastWins => DuplicateKeyPolicy::LastWins,
        },
        // All Kubernetes tools read `defaultMode: 0644` as octal.
        legacy_octal_numbers: true,
        with_snippet: false,
    }
}

fn syntax_error(error: &Error) -> SyntaxError {
    let error = error.without_snippet();
    let (line, column) = error
        .location()
        .map_or((0, 0), |at| (at.line(), at.column()));
    let message = match error {
        Error::SerdeUnknownField {
            field, expected, ..
        } => match expected
            .iter()
            .find(|known| known.eq_ignore_ascii_case(field))
        {
            Some(known) => format!("unknown field {field:?}; did you mean {known:?}?"),
            None => format!("unknown field {field:?}"),
        },
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate field {key:?}")
        }
        Error::Budget { breach, .. } => format!("is nested too deeply, or too large ({breach:?})"),
        other => plain(&other.render()),
    };
    SyntaxError {
        line,
        column,
        message,
        duplicate_key: matches!(error, Error::DuplicateMappingKey { .. }),
        names_field: matches!(
            error,
            Error::DuplicateMappingKey { .. } | Error::SerdeUnknownField { .. }
        ),
    }
}

/// The first line of a message without the position, which is reported separately.
fn plain(message: &str) -> String {
    let first = message.lines().next().unwrap_or_default();
    let text = match first.split_once(": ") {
        Some((head, rest)) if head.contains("line ") => rest,
        _ => first,
    };
    match text.rfind(" at line ") {
        Some(at) => text[..at].to_owned(),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<Vec<Value>, SyntaxError> {
        documents(text, DuplicateKeys::Refuse)
    }

    #[test]
    fn reads_what_kubernetes_tools_write() {
        assert_eq!(
            read("a: 0644\nb: yes\nc: \"yes\"\nd: 1.5\ne: 8080\n").unwrap(),
            [json!({"a": 420, "b": true, "c": "yes", "d": 1.5, "e": 8080})]
        );
        assert_eq!(
            read("---\n# nothing\n---\na: 1\n---\na: 2\n").unwrap(),
            [json!({"a": 1}), json!({"a": 2})]
        );
        assert_eq!(read("{\n\t\"a\": [1]\n}").unwrap(), [json!({"a": [1]})]);
        assert_eq!(
            read("a: &x {b: 1}\nc:\n  <<: *x\n").unwrap(),
            [json!({"a": {"b": 1}, "c": {"b": 1}})]
        );
    }

    #[test]
    fn faults_have_a_place() {
        let error = read("a: 1\nb: [1,\nc: 2\n").unwrap_err();
        assert!(error.line >= 2, "{error}");
        let error = read("a: 1\na: 2\n").unwrap_err();
        assert_eq!(error.to_string(), "line 2, column 1: duplicate field \"a\"");
        assert!(error.duplicate_key);
        assert_eq!(
            documents("a: 1\na: 2\n", DuplicateKeys::LastWins).unwrap(),
            [json!({"a": 2})]
        );
    }

    #[test]
    fn deep_nesting_is_refused_not_run_into() {
        for level in ["[", "{\"a\":", "- "] {
            for depth in [65, 100, 10_000] {
                assert!(read(&level.repeat(depth)).is_err(), "{level} {depth}");
            }
        }
    }
}
