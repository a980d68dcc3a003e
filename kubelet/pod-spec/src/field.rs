//! Faults of API objects, in the API server's own words.

use std::fmt;

/// The path of a field: `spec.containers[0].name`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(String);

impl Path {
    /// A field of the object itself.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// A field of this one.
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

/// One fault of an object: which field, and what is wrong with it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {fault}")]
pub struct FieldError {
    path: String,
    fault: String,
}

/// The faults of an object, as they are found.
#[derive(Debug, Default)]
pub struct Faults(Vec<FieldError>);

impl Faults {
    fn add(&mut self, path: &Path, fault: String) {
        self.0.push(FieldError {
            path: path.0.clone(),
            fault,
        });
    }

    /// The field must be there.
    pub fn required(&mut self, path: &Path, detail: &str) {
        let colon = if detail.is_empty() { "" } else { ": " };
        self.add(path, format!("Required value{colon}{detail}"));
    }

    /// The value is wrong; texts are quoted.
    pub fn invalid(&mut self, path: &Path, value: impl fmt::Debug, rule: impl fmt::Display) {
        self.add(path, format!("Invalid value: {value:?}: {rule}"));
    }

    /// The value is one too many.
    pub fn duplicate(&mut self, path: &Path, value: impl fmt::Debug) {
        self.add(path, format!("Duplicate value: {value:?}"));
    }

    /// The value refers to something that is not there.
    pub fn not_found(&mut self, path: &Path, value: impl fmt::Debug) {
        self.add(path, format!("Not found: {value:?}"));
    }

    /// The field must not be there.
    pub fn forbidden(&mut self, path: &Path, why: &str) {
        self.add(path, format!("Forbidden: {why}"));
    }

    /// The value must not be longer than so many bytes.
    pub fn at_most(&mut self, path: &Path, value: &str, bytes: usize) {
        if value.len() > bytes {
            self.add(
                path,
                format!("Too long: may not be more than {bytes} bytes"),
            );
        }
    }

    /// The list must not have more than so many items.
    pub fn at_most_items(&mut self, path: &Path, items: usize, most: usize) {
        if items > most {
            let fault = format!("Too many: {items}: must have at most {most} items");
            self.add(path, fault);
        }
    }

    /// The value must be one of `supported`.
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

    /// The value must be in a range.
    pub fn range(&mut self, path: &Path, value: i64, low: i64, high: i64) {
        if !(low..=high).contains(&value) {
            self.invalid(
                path,
                value,
                format_args!("must be between {low} and {high}, inclusive"),
            );
        }
    }

    /// The value must not be negative.
    pub fn non_negative(&mut self, path: &Path, value: i64) {
        if value < 0 {
            self.invalid(path, value, "must be greater than or equal to 0");
        }
    }

    /// The value must be a port.
    pub fn port(&mut self, path: &Path, port: i32) {
        self.range(path, i64::from(port), 1, 65535);
    }

    /// The value must pass a rule on texts.
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

    /// The value must be there and pass a rule on texts.
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

    /// Whether there is none.
    ///
    /// # Errors
    /// The first.
    pub fn into_result(self) -> Result<(), FieldError> {
        self.0.into_iter().next().map_or(Ok(()), Err)
    }

    /// All of them, in the order of their finding.
    pub fn into_vec(self) -> Vec<FieldError> {
        self.0
    }
}
