//! Limits of single processes, `proc_pid_limits(5)`.

use std::{fmt::Display, fs, path::Path};

/// The limit that is in force for a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SoftLimit {
    /// None.
    Unlimited,
    /// Up to this number.
    At(u64),
}

/// How many files a process may open; blocking. `None` if it has ended.
pub(crate) fn max_open_files(proc: &Path, pid: impl Display) -> Option<SoftLimit> {
    let limits = fs::read_to_string(proc.join(format!("{pid}/limits"))).ok()?;
    let mut lines = limits.lines();
    // Followed by the soft limit, the hard limit and the unit.
    let line = lines.find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_ascii_whitespace().next()? {
        "unlimited" => Some(SoftLimit::Unlimited),
        number => number.parse().ok().map(SoftLimit::At),
    }
}

#[cfg(test)]
mod tests {
    use std::process;

    use rustix::process::{Resource, getrlimit};

    use super::*;

    #[test]
    fn limits_are_those_of_the_process() {
        let expected = match getrlimit(Resource::Nofile).current {
            Some(limit) => SoftLimit::At(limit),
            None => SoftLimit::Unlimited,
        };
        let proc = Path::new("/proc");
        assert_eq!(max_open_files(proc, process::id()), Some(expected));
        assert_eq!(max_open_files(proc, "none"), None);
    }
}
