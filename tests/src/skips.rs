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
    use std::{fs, path::PathBuf, process::Command, time::Duration};

    use rustix::process::{Pid, Signal, kill_process};
    use tokio::time::{sleep, timeout};

    use super::*;

    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/test.sh");
    const SOON: Duration = Duration::from_secs(20);

    #[test]
    fn every_line_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("skipped");
        append(&file, "one\n").unwrap();
        append(&file, "two\n").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "one\ntwo\n");
    }

    #[test]
    fn what_was_not_checked_is_told_last_and_every_status_counts() {
        let commands = [
            format!("echo first; echo b >>${VARIABLE}"),
            format!("echo second >&2; echo a >>${VARIABLE}; exit 3"),
            "echo third".to_owned(),
        ];
        let run = Command::new(SCRIPT).args(commands).output().unwrap();
        let told = String::from_utf8(run.stdout).unwrap();
        let wanted = "first\nsecond\nthird\nchecks that were not made on this machine: 2\na\nb\n";
        assert_eq!((told.as_str(), run.status.code()), (wanted, Some(3)));
    }

    /// Waits until it is so.
    async fn until(what: &str, so: impl Fn() -> bool) {
        let waiting = async {
            while !so() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        assert!(timeout(SOON, waiting).await.is_ok(), "{what}");
    }

    #[tokio::test]
    async fn what_the_tests_started_ends_with_them() {
        let dir = tempfile::tempdir().unwrap();
        let files = ["first", "second"].map(|name| dir.path().join(name));
        let commands = files.each_ref().map(|file| {
            let file = file.display();
            format!("sleep 100 & echo $! >{file}.new; mv {file}.new {file}; wait")
        });
        let mut run = Command::new(SCRIPT).args(commands).spawn().unwrap();
        until("both run", || files.iter().all(|file| file.exists())).await;
        kill_process(Pid::from_child(&run), Signal::TERM).unwrap();
        assert_eq!(run.wait().unwrap().code(), Some(143));
        let has_ended = |file: &PathBuf| {
            let pid = fs::read_to_string(file).unwrap();
            let stat = fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
            stat.map_or(true, |stat| stat.contains(") Z "))
        };
        until("both ended", || files.iter().all(has_ended)).await;
    }

    #[test]
    fn the_target_is_told() {
        assert_eq!(program(), "e2e");
    }
}
