//! Checks that this machine cannot run. They are printed past the test harness's capture and
//! counted, so that no check is skipped silently.

use std::{
    env,
    fs::OpenOptions,
    io::{self, Write as _},
    path::Path,
};

/// The environment variable that names the file in which `make test` counts skipped checks.
const VARIABLE: &str = "SKIPPED_CHECKS";

/// Reports that `check` is skipped on this machine, and why.
pub fn skip(check: &str, reason: &str) {
    let line = format!("{}: {check}: skipped: {reason}\n", program());
    // The test harness captures the output of the print macros and drops it if the test passes.
    let _ = io::stderr().write_all(line.as_bytes());
    if let Some(file) = env::var_os(VARIABLE)
        && let Err(error) = append(Path::new(&file), &line)
    {
        panic!("{VARIABLE}: {}: {error}", file.display());
    }
}

/// The name of the test target, because tests of different targets may have the same name.
fn program() -> String {
    let program = env::current_exe().unwrap_or_default();
    let name = program.file_stem().unwrap_or_default().to_string_lossy();
    // cargo appends a hash.
    name.rsplit_once('-')
        .map_or_else(|| name.to_string(), |(name, _)| name.to_owned())
}

/// Appends a line in a single write, because several test processes append concurrently.
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

    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/test.sh");
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
        let wanted = "first\nsecond\nthird\nchecks skipped on this machine: 2\na\nb\n";
        assert_eq!((told.as_str(), run.status.code()), (wanted, Some(3)));
    }

    /// Waits until `so` returns true.
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
        assert_eq!(program(), "test_run");
    }
}
