//! What a machine lacks for a check: said where the test harness captures nothing, and
//! counted, so that no check is left out in silence.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write as _},
    path::Path,
};

/// The environment variable that names the file in which `make test` counts them.
const VARIABLE: &str = "SKIPPED_CHECKS";

/// Says that `check` is not made on this machine, and why.
pub fn skip(check: &str, reason: &str) {
    let line = format!("{}: {check}: skipped: {reason}\n", program());
    // What the macros print is captured of tests that pass.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(file) = env::var_os(VARIABLE)
        && let Err(error) = append(Path::new(&file), &line)
    {
        panic!("{VARIABLE}: {}: {error}", file.display());
    }
}

/// The test target: tests of different ones have the same names.
fn program() -> String {
    let program = env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    // cargo adds a hash.
    name.rsplit_once('-')
        .map_or_else(|| name.to_string(), |(name, _)| name.to_owned())
}

/// Adds a line in one piece: tests of several processes do so at once.
fn append(file: &Path, line: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().create(true).append(true).open(file)?;
    file.write_all(line.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("skipped");
        append(&file, "one\n").unwrap();
        append(&file, "two\n").unwrap();
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn what_was_not_checked_is_told_last_and_every_status_counts() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/test.sh");
        let commands = [
            format!("echo first; echo b >>${VARIABLE}"),
            format!("echo second >&2; echo a >>${VARIABLE}; exit 3"),
            "echo third".to_owned(),
        ];
        let run = std::process::Command::new(script).args(commands).output();
        let run = run.unwrap();
        let told = String::from_utf8(run.stdout).unwrap();
        let wanted = "first\nsecond\nthird\nchecks that were not made on this machine: 2\na\nb\n";
        assert_eq!((told.as_str(), run.status.code()), (wanted, Some(3)));
    }

    #[test]
    fn the_target_is_told() {
        assert_eq!(program(), "e2e");
    }
}
