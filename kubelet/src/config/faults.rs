//! Collects the faults of a configuration.

use std::{fmt::Display, net::IpAddr};

/// Faults of fields: field, value and what is allowed.
#[derive(Default)]
pub(super) struct Faults(Vec<String>);

impl Faults {
    pub(super) fn into_list(self) -> Vec<String> {
        self.0
    }

    pub(super) fn add(&mut self, field: &str, value: impl Display, rule: impl Display) {
        self.0
            .push(format!("{field}: invalid value {value}: {rule}"));
    }

    /// A field that has no effect unless a feature gate is on.
    pub(super) fn require(&mut self, field: &str, gate: &str) {
        self.0
            .push(format!("{field}: requires the feature gate {gate}"));
    }

    pub(super) fn port(&mut self, field: &str, port: i32) {
        if !(1..=65535).contains(&port) {
            self.add(field, port, "must be between 1 and 65535, inclusive");
        }
    }

    pub(super) fn address(&mut self, field: &str, address: &str) {
        if address.parse::<IpAddr>().is_err() {
            self.add(
                field,
                format_args!("{address:?}"),
                "must be an IP address, such as 127.0.0.1 or ::1",
            );
        }
    }

    pub(super) fn range<T: PartialOrd + Display>(
        &mut self,
        field: &str,
        value: Option<T>,
        (low, high): (T, T),
    ) {
        if let Some(value) = value
            && !(value >= low && value <= high)
        {
            self.add(
                field,
                value,
                format_args!("must be between {low} and {high}, inclusive"),
            );
        }
    }

    pub(super) fn at_least<T: PartialOrd + Display>(
        &mut self,
        field: &str,
        value: Option<T>,
        least: T,
    ) {
        if let Some(value) = value
            && value < least
        {
            self.add(field, value, format_args!("must be {least} or greater"));
        }
    }

    pub(super) fn choice(&mut self, field: &str, value: &str, allowed: &[&str]) {
        if !allowed.contains(&value) {
            self.add(
                field,
                format_args!("{value:?}"),
                format_args!("must be one of: {}", quoted(allowed)),
            );
        }
    }
}

fn quoted(values: &[&str]) -> String {
    let quoted: Vec<String> = values.iter().map(|value| format!("{value:?}")).collect();
    quoted.join(", ")
}
