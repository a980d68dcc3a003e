//! Prometheus' text format, with the time at which each value was measured.

use std::fmt::{Display, Write as _};

/// Metrics, as text.
#[derive(Debug, Default)]
pub(super) struct Exposition(String);

impl Exposition {
    /// Begins a metric.
    pub(super) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string does not fail.
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    /// A value of the metric that was begun last, measured at a time in nanoseconds since
    /// the epoch.
    pub(super) fn sample(
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

    pub(super) fn into_text(self) -> String {
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
