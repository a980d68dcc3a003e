//! What was found, as a table.

use std::fmt;

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// As it should be.
    Ok,
    /// The shim works, with a disadvantage.
    Warn,
    /// The shim does not work, or not for every pod.
    Fail,
}

/// One check, made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What was looked at.
    pub name: &'static str,
    /// How it ended.
    pub verdict: Verdict,
    /// What was found.
    pub detail: String,
    /// What to do about it; with every verdict but [`Verdict::Ok`].
    pub remedy: Option<String>,
}

/// Every check that was made, in the order in which things depend on each other.
/// Displayed, it is a table for people.
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
    /// A check that found what it wanted.
    pub fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            verdict: Verdict::Ok,
            detail: detail.into(),
            remedy: None,
        }
    }

    /// A check that found a disadvantage.
    pub fn warn(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Warn,
            remedy: Some(remedy.into()),
            ..Self::ok(name, detail)
        }
    }

    /// A check that found an obstacle.
    pub fn fail(name: &'static str, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self {
            verdict: Verdict::Fail,
            ..Self::warn(name, detail, remedy)
        }
    }
}

impl Report {
    /// Of these.
    pub fn new(checks: Vec<Check>) -> Self {
        Self { checks }
    }

    /// Every check.
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
