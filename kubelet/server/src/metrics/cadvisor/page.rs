//! Writes metrics, each with all of its rows.

use std::fmt::{self, Display};

use kubelet_metrics::Exposition;
use kubelet_stats::{Details, MemoryUsage, Usage};

use super::rows::Row;

/// Name of the metric of start times.
pub(super) const START_TIME: &str = "container_start_time_seconds";
/// What the names of metrics with the limits of containers begin with.
const SPEC: &str = "container_spec_";

/// A number as cAdvisor writes it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value {
    Integer(u64),
    /// Nanoseconds, written in seconds.
    Nanoseconds(u64),
    /// Milliseconds, written in seconds.
    Milliseconds(u64),
    Unlimited,
}

impl Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(number) => number.fmt(f),
            Self::Nanoseconds(number) => (*number as f64 / 1e9).fmt(f),
            Self::Milliseconds(number) => (*number as f64 / 1e3).fmt(f),
            Self::Unlimited => f.write_str("-1"),
        }
    }
}

/// The samples of one metric.
pub(super) struct Family<'a> {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    has_begun: bool,
    page: &'a mut Exposition,
}

impl Family<'_> {
    pub(super) fn add(&mut self, row: &Row<'_>, labels: &[(&str, &str)], value: Value) {
        if !self.has_begun {
            self.page.family(self.name, self.kind, self.help);
            self.has_begun = true;
        }
        // As cAdvisor, without the time of the measurement for what is not measured.
        let is_measured = self.name != START_TIME && !self.name.starts_with(SPEC);
        let at = (row.at > 0 && is_measured).then_some(row.at);
        self.page
            .labelled_sample(self.name, &row.labels, labels, value, at);
    }
}

pub(super) struct Page<'a> {
    pub(super) rows: &'a [Row<'a>],
    pub(super) page: &'a mut Exposition,
}

impl Page<'_> {
    /// A metric with any number of samples per row.
    pub(super) fn family(
        &mut self,
        (name, kind, help): (&'static str, &'static str, &'static str),
        add: impl Fn(&Row<'_>, &mut Family<'_>),
    ) {
        let mut family = Family {
            name,
            kind,
            help,
            has_begun: false,
            page: self.page,
        };
        for row in self.rows {
            add(row, &mut family);
        }
    }

    /// A metric with one sample per row.
    pub(super) fn single(
        &mut self,
        names: (&'static str, &'static str, &'static str),
        value: impl Fn(&Row<'_>) -> Option<Value>,
    ) {
        self.family(names, |row, family| {
            if let Some(value) = value(row) {
                family.add(row, &[], value);
            }
        });
    }

    pub(super) fn of_cpu(
        &mut self,
        names: (&'static str, &'static str, &'static str),
        value: impl Fn(&Details) -> Option<Value>,
    ) {
        self.single(names, |row| {
            row.usage?.cpu?;
            value(details(row)?)
        });
    }

    pub(super) fn of_memory(
        &mut self,
        names: (&'static str, &'static str, &'static str),
        value: impl Fn(&MemoryUsage, &Usage) -> Option<u64>,
    ) {
        self.single(names, |row| {
            let usage = row.usage?;
            value(&usage.memory?, usage).map(Value::Integer)
        });
    }
}

pub(super) fn details<'a>(row: &Row<'a>) -> Option<&'a Details> {
    row.usage?.details.as_deref()
}
