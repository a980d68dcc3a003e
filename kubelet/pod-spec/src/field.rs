//! Validation errors of API objects, in the API server's words.

use std::fmt;

/// The path of a field: `spec.containers[0].name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A top-level field of the object.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// A child of this field.
    pub fn child(&self, name: &str) -> Self {
        Self(format!("{}.{name}", self.0))
    }

    /// An item of this list.
    pub fn index(&self, index: usize) -> Self {
        Self(format!("{}[{index}]", self.0))
    }

    /// An entry of this map.
    pub fn key(&self, key: &str) -> Self {
        Self(format!("{}[{key}]", self.0))
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A validation error: the field and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {fault}")]
pub struct FieldError {
    path: String,
    fault: String,
}

/// Collects the validation errors of an object.
#[derive(Debug, Default)]
pub struct Faults(Vec<FieldError>);

impl Faults {
    fn add(&mut self, path: &Path, fault: String) {
        self.0.push(FieldError {
            path: path.0.clone(),
            fault,
        });
    }

    /// Reports a missing required field.
    pub fn required(&mut self, path: &Path, detail: &str) {
        let colon = if detail.is_empty() { "" } else { ": " };
        self.add(path, format!("Required value{colon}{detail}"));
    }

    /// Reports an invalid value; strings are quoted.
    pub fn invalid(&mut self, path: &Path, value: impl fmt::Debug, rule: impl fmt::Display) {
        self.add(path, format!("Invalid value: {value:?}: {rule}"));
    }

    /// Reports a duplicate value.
    pub fn duplicate(&mut self, path: &Path, value: impl fmt::Debug) {
        self.add(path, format!("Duplicate value: {value:?}"));
    }

    /// Reports a reference to something that does not exist.
    pub fn not_found(&mut self, path: &Path, value: impl fmt::Debug) {
        self.add(path, format!("Not found: {value:?}"));
    }

    /// Reports a field that must not be set.
    pub fn forbidden(&mut self, path: &Path, why: &str) {
        self.add(path, format!("Forbidden: {why}"));
    }

    /// Requires a value of at most `bytes` bytes.
    pub fn at_most(&mut self, path: &Path, value: &str, bytes: usize) {
        if value.len() > bytes {
            self.add(
                path,
                format!("Too long: may not be more than {bytes} bytes"),
            );
        }
    }

    /// Requires a list of at most `most` items.
    pub fn at_most_items(&mut self, path: &Path, items: usize, most: usize) {
        if items > most {
            let fault = format!("Too many: {items}: must have at most {most} items");
            self.add(path, fault);
        }
    }

    /// Requires one of the `supported` values.
    pub fn one_of(&mut self, path: &Path, value: &str, supported: &[&str]) {
        if !supported.contains(&value) {
            let supported: Vec<String> =
                supported.iter().map(|value| format!("{value:?}")).collect();
            self.add(
                path,
                format!(
                    "Unsupported value: {value:?}: supported values: {}",
                    supported.join(", ")
                ),
            );
        }
    }

    /// Requires a value from `low` to `high`, inclusive.
    pub fn range(&mut self, path: &Path, value: i64, low: i64, high: i64) {
        if !(low..=high).contains(&value) {
            self.invalid(
                path,
                value,
                format_args!("must be between {low} and {high}, inclusive"),
            );
        }
    }

    /// Requires a value that is not negative.
    pub fn non_negative(&mut self, path: &Path, value: i64) {
        if value < 0 {
            self.invalid(path, value, "must be greater than or equal to 0");
        }
    }

    /// Requires a port number, from 1 to 65535.
    pub fn port(&mut self, path: &Path, port: i32) {
        self.range(path, i64::from(port), 1, 65535);
    }

    /// Requires a value that satisfies `rule`.
    pub fn text(
        &mut self,
        path: &Path,
        value: &str,
        rule: impl FnOnce(&str) -> Result<(), &'static str>,
    ) {
        if let Err(rule) = rule(value) {
            self.invalid(path, value, rule);
        }
    }

    /// Requires a non-empty value that satisfies `rule`.
    pub fn required_text(
        &mut self,
        path: &Path,
        value: &str,
        rule: impl FnOnce(&str) -> Result<(), &'static str>,
    ) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.text(path, value, rule);
        }
    }

    /// Succeeds if there are no errors.
    ///
    /// # Errors
    /// The first error.
    pub fn into_result(self) -> Result<(), FieldError> {
        self.0.into_iter().next().map_or(Ok(()), Err)
    }

    /// All errors, in the order in which they were reported.
    pub fn into_vec(self) -> Vec<FieldError> {
        self.0
    }
}
