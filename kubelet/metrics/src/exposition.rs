//! Prometheus' text format (0.0.4).

use std::fmt::{Display, Write as _};

/// A page of metrics in text format.
#[derive(Debug, Default)]
pub struct Exposition(String);

impl Exposition {
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
        self.0 += name;
        for (index, (label, text)) in labels.iter().enumerate() {
            let before = if index == 0 { '{' } else { ',' };
            let text = text
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n");
            let _ = write!(self.0, "{before}{label}=\"{text}\"");
        }
        let close = if labels.is_empty() { "" } else { "}" };
        let _ = write!(self.0, "{close} {value}");
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
        assert_eq!(
            metrics.into_text(),
            "# HELP a What a\\nis\n# TYPE a counter\na 1.5\na{b=\"\\\"x\\\\\",c=\"\"} 2 1700000000123\n"
        );
    }
}
