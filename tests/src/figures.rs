//! The figures of the benchmarks: the median and the spread of several runs, as a Markdown table.
//! They are not judged here.

use std::fmt;

use test_run::size;

/// The number of runs per figure.
const RUNS: u64 = 3;

/// The figures, in the order in which they were first measured.
#[derive(Debug, Default)]
pub struct Figures {
    rows: Vec<Row>,
}

#[derive(Debug)]
struct Row {
    figure: String,
    unit: Unit,
    target: String,
    values: Vec<f64>,
}

/// The unit of a figure.
#[derive(Debug, Clone, Copy)]
pub enum Unit {
    /// `s`.
    Seconds,
    /// `ms`.
    Milliseconds,
    /// `MiB`.
    Mebibytes,
    /// `MiB/s`.
    MebibytesPerSecond,
    /// `%`.
    Percent,
}

impl Figures {
    /// The number of runs: `BENCH_RUNS`, or 3 by default.
    pub fn runs() -> u64 {
        size::amount("BENCH_RUNS", RUNS)
    }

    /// Adds the value that one run measured. `target` is the design's target, or empty.
    pub fn add(&mut self, figure: &str, value: f64, unit: Unit, target: &str) {
        match self.rows.iter_mut().find(|row| row.figure == figure) {
            Some(row) => row.values.push(value),
            None => self.rows.push(Row {
                figure: figure.to_owned(),
                unit,
                target: target.to_owned(),
                values: vec![value],
            }),
        }
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let runs = self.rows.iter().map(|row| row.values.len()).max();
        let runs = runs.unwrap_or_default();
        writeln!(
            f,
            "| figure | median of {runs} | lowest to highest | target |"
        )?;
        writeln!(f, "| --- | --- | --- | --- |")?;
        for row in &self.rows {
            let mut values = row.values.clone();
            values.sort_unstable_by(f64::total_cmp);
            let unit = row.unit;
            let [lowest, highest] = [values[0], values[values.len() - 1]].map(|v| unit.digits(v));
            writeln!(
                f,
                "| {} | {} {unit} | {lowest} to {highest} | {} |",
                row.figure,
                unit.digits(median(&mut values)),
                row.target,
            )?;
        }
        Ok(())
    }
}

/// The median of `values`, which must not be empty.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Unit {
    fn digits(self, value: f64) -> String {
        match self {
            Self::Seconds | Self::Milliseconds | Self::Percent => format!("{value:.2}"),
            Self::Mebibytes | Self::MebibytesPerSecond => format!("{value:.1}"),
        }
    }
}

impl fmt::Display for Unit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Seconds => "s",
            Self::Milliseconds => "ms",
            Self::Mebibytes => "MiB",
            Self::MebibytesPerSecond => "MiB/s",
            Self::Percent => "%",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_median_and_spread() {
        let mut figures = Figures::default();
        for (time, memory) in [(0.75, 12.04), (0.5, 11.0), (3.0, 11.5)] {
            figures.add("start", time, Unit::Seconds, "<= 0.77 s");
            figures.add("memory", memory, Unit::Mebibytes, "");
        }
        assert_eq!(
            figures.to_string(),
            "| figure | median of 3 | lowest to highest | target |\n\
             | --- | --- | --- | --- |\n\
             | start | 0.75 s | 0.50 to 3.00 | <= 0.77 s |\n\
             | memory | 11.5 MiB | 11.0 to 12.0 |  |\n"
        );
    }
}
