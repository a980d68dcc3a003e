//! Prometheus' text format (0.0.4).

use std::fmt::{Display, Write as _};

/// A page of metrics in text format.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
    /// A page of about this many bytes. Pages of many pods are megabytes, which would be copied as
    /// they grow.
    pub fn of_about(bytes: usize) -> Self {
        Self(String::with_capacity(bytes))
    }

    /// Starts a metric: `kind` is `counter`, `gauge` or `histogram`.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// Adds a sample to the metric started last. `at` is the time of measurement in nanoseconds
    /// since the epoch; without it, the time of the scrape applies.
    pub fn sample(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        value: impl Display,
        at: Option<i64>,
    ) {
        self.labelled_sample(name, &Labels::default(), labels, value, at);
    }

    /// [`sample`](Self::sample) with further labels before the sample's own.
    pub fn labelled_sample(
        &mut self,
        name: &str,
        labels: &Labels,
        own: &[(&str, &str)],
        value: impl Display,
        at: Option<i64>,
    ) {
        self.0 += name;
        let mut before = '{';
        if !labels.0.is_empty() {
            self.0.push('{');
            self.0 += &labels.0;
            before = ',';
        }
        for (label, text) in own {
            self.0.push(before);
            push_label(&mut self.0, label, text);
            before = ',';
        }
        if before == ',' {
            self.0.push('}');
        }
        // Writing to a string does not fail.
        let _ = write!(self.0, " {value}");
        if let Some(at) = at {
            let _ = write!(self.0, " {}", at / 1_000_000);
        }
        self.0.push('\n');
    }

    /// Adds a metric with a single sample.
    pub fn gauge(&mut self, name: &str, help: &str, value: impl Display) {
        self.family(name, "gauge", help);
        self.sample(name, &[], value, None);
    }

    /// The finished page.
    pub fn into_text(self) -> String {
        self.0
    }
}

/// Labels in text format, for many samples.
#[derive(Clone, Debug, Default)]
pub struct Labels(String);

impl Labels {
    /// Writes the labels.
    pub fn new(labels: &[(&str, &str)]) -> Self {
        let mut text = String::new();
        for (index, (label, value)) in labels.iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            push_label(&mut text, label, value);
        }
        Self(text)
    }
}

fn push_label(into: &mut String, label: &str, value: &str) {
    *into += label;
    *into += "=\"";
    for part in value.split_inclusive(['\\', '"', '\n']) {
        let special = part.chars().next_back();
        let (plain, escaped) = match special {
            Some('\\') => (&part[..part.len() - 1], "\\\\"),
            Some('"') => (&part[..part.len() - 1], "\\\""),
            Some('\n') => (&part[..part.len() - 1], "\\n"),
            _ => (part, ""),
        };
        *into += plain;
        *into += escaped;
    }
    into.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_with_labels_and_times() {
        let mut metrics = Exposition::default();
        metrics.family("a", "counter", "What a\nis");
        metrics.sample("a", &[], 1.5, None);
        metrics.sample(
            "a",
            &[("b", "\"x\\"), ("c", "")],
            2,
            Some(1_700_000_000_123_000_000),
        );
        let labels = Labels::new(&[("d", "1"), ("e", "\n")]);
        metrics.labelled_sample("a", &labels, &[], 3, None);
        metrics.labelled_sample("a", &labels, &[("f", "x")], 4, None);
        assert_eq!(
            metrics.into_text(),
            "# HELP a What a\\nis\n# TYPE a counter\na 1.5\na{b=\"\\\"x\\\\\",c=\"\"} 2 1700000000123\n\
             a{d=\"1\",e=\"\\n\"} 3\na{d=\"1\",e=\"\\n\",f=\"x\"} 4\n"
        );
    }
}
