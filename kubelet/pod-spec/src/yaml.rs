//! YAML and JSON documents, parsed as Kubernetes tools do.

use serde::de::DeserializeOwned;
use serde_json::Value;
use serde_saphyr::{DuplicateKeyPolicy, Error};

use super::json::{self, TypeError};

mod positions;

/// Maximum nesting depth of a document. Each level takes stack, and a runtime thread has 2 MiB:
/// twice this depth is too much for unoptimised code.
const MAX_DEPTH: usize = 64;

/// Maximum number of values in a document, as the YAML parser's own: an empty object in a list of
/// volumes takes kilobytes.
const MAX_VALUES: usize = 250_000;

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

/// Parses one document into a type. As in Go, a field without a value is unset.
///
/// # Errors
/// A syntax error, an unknown or duplicate field, or a value of the wrong type.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, SyntaxError> {
    let mut document = serde_saphyr::from_str_with_options(text, options(DuplicateKeys::Refuse))
        .map_err(|error| syntax_error(&error))?;
    remove_nulls(&mut document);
    json::from_value(&document).map_err(|error| error_in_field(text, &error))
}

/// Removes fields without a value from all objects.
pub fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Parses all documents of a text; empty ones are left out.
///
/// # Errors
/// A syntax error, or a duplicate key if these are refused.
pub fn documents(text: &str, duplicates: DuplicateKeys) -> Result<Vec<Value>, SyntaxError> {
    // JSON goes to its own parser first, in which the last duplicate key wins too.
    if text.trim_start().starts_with('{')
        && duplicates == DuplicateKeys::LastWins
        && values(text) <= MAX_VALUES
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

/// At least as many values as a JSON text has.
fn values(text: &str) -> usize {
    let begins = |byte: &u8| matches!(byte, b'{' | b'[' | b',' | b':');
    text.bytes().filter(begins).count()
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
        names_field: matches!(error, Error::DuplicateMappingKey { .. }),
    }
}

/// The error of a field that does not fit its type, with its position in the text.
fn error_in_field(text: &str, error: &TypeError) -> SyntaxError {
    let (line, column) = positions::find(text, &error.path).unwrap_or_default();
    let unknown = unknown_field(&error.message);
    SyntaxError {
        line,
        column,
        names_field: unknown.is_some(),
        message: unknown.unwrap_or_else(|| error.to_string()),
        duplicate_key: false,
    }
}

/// The error of an unknown field, with the field that was probably meant instead of all known
/// ones.
fn unknown_field(message: &str) -> Option<String> {
    let rest = message.strip_prefix("unknown field ")?;
    let mut names = rest.split('`').skip(1).step_by(2);
    let field = names.next()?;
    Some(
        match names.find(|known| known.eq_ignore_ascii_case(field)) {
            Some(known) => format!("unknown field {field:?}; did you mean {known:?}?"),
            None => format!("unknown field {field:?}"),
        },
    )
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

    #[derive(Debug, PartialEq, serde::Deserialize)]
    #[serde(default, deny_unknown_fields, rename_all = "camelCase")]
    struct Config {
        max_pods: u32,
        nested: Vec<Config>,
    }

    impl Default for Config {
        fn default() -> Self {
            Self {
                max_pods: 110,
                nested: Vec::new(),
            }
        }
    }

    #[test]
    fn errors_of_fields_have_a_position() {
        for (text, error) in [
            (
                "maxPods: 1\nnested:\n- maxPods: [x]\n",
                "line 3, column 3: nested[0].maxPods: invalid type: sequence, expected u32",
            ),
            (
                "maxPods: 1\nnested: [{}, {maxpods: 1}]\n",
                "line 2, column 15: unknown field \"maxpods\"; did you mean \"maxPods\"?",
            ),
            (
                "nested:\n- nested:\n  - other: 1\n",
                "line 3, column 5: unknown field \"other\"",
            ),
            (
                "a: &a {maxPods: -1}\n",
                "line 1, column 1: unknown field \"a\"",
            ),
            (
                "nested:\n- {nested: [{maxPods: 1}]}\n- maxPods: 2\n  nested: &x\n  - maxPods: a\nother: *x\n",
                "line 5, column 5: nested[1].nested[0].maxPods: invalid type: string \"a\", expected u32",
            ),
            (
                "# nothing\n1\n",
                "line 2, column 1: .: invalid type: integer `1`, expected struct Config",
            ),
        ] {
            let found = from_str::<Config>(text).unwrap_err();
            assert_eq!(found.to_string(), error);
            assert_eq!(found.is_of_a_field(), error.contains("unknown field"));
        }
    }

    #[test]
    fn a_field_without_a_value_is_unset() {
        let config: Config = from_str("maxPods:\nnested:\n- maxPods: null\n").unwrap();
        assert_eq!(config.max_pods, 110);
        assert_eq!(config.nested, [Config::default()]);
    }

    #[test]
    fn the_position_in_a_deep_document_is_found() {
        let deep = format!("deep: {}{}", "[".repeat(62), "]".repeat(62));
        let error = from_str::<Config>(&deep).unwrap_err();
        assert_eq!(
            error.to_string(),
            "line 1, column 1: unknown field \"deep\""
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
