//! The results of all checks, displayed as a table.

use std::fmt;

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Everything is in order.
    Ok,
    /// The shim works, but with a disadvantage.
    Warn,
    /// The shim does not work, or not for every pod.
    Fail,
}

/// A completed check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: &'static str,
    /// The result.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// A suggested remedy; set unless the result is [`Verdict::Ok`].
    pub remedy: Option<String>,
}

/// All completed checks, in the order in which they depend on each other. Displays as a table.
#[derive(Clone, Debug)]
pub struct Report {
    checks: Vec<Check>,
}

impl Verdict {
    fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        }
    }
}

impl Check {
    /// Creates a successful check.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            detail: detail.into(),
            remedy: None,
        }
    }

    /// Creates a check that found a disadvantage.
    pub fn warn(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(name, detail)
        }
    }

    /// Creates a check that found a failure.
    pub fn fail(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(name, detail, remedy)
        }
    }
}

impl Report {
    /// Creates a report of these checks.
    pub fn new(checks: Vec<Check>) -> Self {
        Self { checks }
    }

    /// All checks.
    pub fn checks(&self) -> &[Check] {
        &self.checks
    }

    /// Whether any check failed.
    pub fn failed(&self) -> bool {
        self.checks.iter().any(|c| c.verdict == Verdict::Fail)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const HEAD: &str = "CHECK";
        let names = self.checks.iter().map(|check| check.name.len());
        let width = names.chain([HEAD.len()]).max().unwrap_or_default();
        writeln!(f, "{HEAD:width$}  STATUS  DETAIL")?;
        for check in &self.checks {
            let verdict = check.verdict.as_str();
            writeln!(f, "{:width$}  {verdict:6}  {}", check.name, check.detail)?;
            if let Some(remedy) = &check.remedy {
                writeln!(f, "{:width$}  {:6}  -> {remedy}", "", "")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_a_table_with_remedies() {
        let report = Report::new(vec![
            Check::ok("engine", "version 28.2.2"),
            Check::warn("live-restore", "off", "turn it on"),
        ]);
        assert!(!report.failed());
        let expected = "\
CHECK         STATUS  DETAIL
engine        ok      version 28.2.2
live-restore  warn    off
                      -> turn it on
";
        assert_eq!(report.to_string(), expected);
        let failed = Report::new(vec![Check::fail("engine", "away", "start it")]);
        assert!(failed.failed());
    }
}
