//! Runs programs of others with limits on their time and output. At a limit, and when the run is
//! dropped, a program is killed with all processes of its group.

use std::{
    io,
    process::{ExitStatus, Stdio},
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    pin,
    process::{Child, ChildStdin, Command},
    time::{Instant, sleep, timeout},
};
use tracing::warn;

/// How long to wait for a program that is being installed, and between two attempts.
const BUSY_LIMIT: Duration = Duration::from_secs(1);
const BUSY_PAUSE: Duration = Duration::from_millis(20);
/// How long to read the output of a program that has ended: daemons that it started may keep the
/// pipes open.
const READ_LIMIT: Duration = Duration::from_secs(1);
/// How long to wait for the end of a killed program.
const KILL_LIMIT: Duration = Duration::from_secs(5);
/// Size of an error text in bytes.
const MAX_ERROR_TEXT: usize = 4096;

/// The limits of a run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time until the program ends.
    pub time: Duration,
    /// Size of its standard output in bytes; the same number is kept of the end of its standard
    /// error.
    pub output: usize,
}

/// What a program printed.
#[derive(Debug)]
pub struct ProgramOutput {
    /// How it ended.
    pub status: ExitStatus,
    /// Its standard output.
    pub stdout: Vec<u8>,
    /// The end of its standard error.
    pub stderr: Vec<u8>,
}

impl ProgramOutput {
    /// The end of its standard error as text.
    pub fn error_text(&self) -> String {
        let start = self.stderr.len().saturating_sub(MAX_ERROR_TEXT);
        let text = String::from_utf8_lossy(&self.stderr[start..]);
        text.trim().to_owned()
    }
}

/// Why a program was not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// It cannot be started, or its output cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It was killed at the time limit.
    #[error("it did not end within {0:?}")]
    Time(Duration),
    /// It was killed because of its output.
    #[error("its output is longer than {0} bytes")]
    Output(usize),
}

/// Runs a program with this standard input, which it need not read.
///
/// # Errors
/// The program cannot be run, or reaches a limit. How it ended is not checked.
pub async fn run(
    mut command: Command,
    input: &[u8],
    limits: Limits,
) -> Result<ProgramOutput, ProgramError> {
    command
        .stdin(match input {
            [] => Stdio::null(),
            _ => Stdio::piped(),
        })
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .process_group(0);
    let mut child = spawn(command).await?;
    let group = ProcessGroup::of(&child);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let end = async {
        let status = child.wait().await;
        group.ended();
        status
    };
    pin!(end);
    let work = async {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let status = {
            let streams = async {
                let all = tokio::try_join!(
                    write(stdin, input),
                    read(stdout, &mut out, at_most(limits.output)),
                    read(stderr, &mut err, end_of(limits.output)),
                );
                all.map(drop)
            };
            pin!(streams);
            tokio::select! {
                status = &mut end => {
                    let rest = timeout(READ_LIMIT, streams).await;
                    rest.unwrap_or(Ok(()))?;
                    status?
                }
                done = &mut streams => {
                    done?;
                    (&mut end).await?
                }
            }
        };
        Ok(ProgramOutput {
            status,
            stdout: out,
            stderr: err,
        })
    };
    let result = timeout(limits.time, work).await;
    let result = result.unwrap_or(Err(ProgramError::Time(limits.time)));
    // The caller must not undo anything while the program still runs.
    if result.is_err() && group.kill() && timeout(KILL_LIMIT, end).await.is_err() {
        warn!("a killed program does not end");
    }
    result
}

async fn spawn(mut command: Command) -> io::Result<Child> {
    let begun = Instant::now();
    loop {
        match command.spawn() {
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && begun.elapsed() < BUSY_LIMIT =>
            {
                sleep(BUSY_PAUSE).await;
            }
            spawned => return spawned,
        }
    }
}

/// Writes the input to a program that may end without reading it.
async fn write(stdin: Option<ChildStdin>, input: &[u8]) -> Result<(), ProgramError> {
    if let Some(mut stdin) = stdin {
        let _ = stdin.write_all(input).await;
    }
    Ok(())
}

/// Reads a stream to its end, and passes what was read so far to `bound` after each part.
async fn read(
    stream: Option<impl AsyncRead + Unpin>,
    bytes: &mut Vec<u8>,
    bound: impl Fn(&mut Vec<u8>) -> Result<(), ProgramError>,
) -> Result<(), ProgramError> {
    let Some(mut stream) = stream else {
        return Ok(());
    };
    let mut part = [0; 4096];
    loop {
        let length = stream.read(&mut part).await?;
        if length == 0 {
            return Ok(());
        }
        bytes.extend_from_slice(&part[..length]);
        bound(bytes)?;
    }
}

/// Refuses output that is too long.
const fn at_most(max: usize) -> impl Fn(&mut Vec<u8>) -> Result<(), ProgramError> {
    move |bytes| match bytes.len() > max {
        true => Err(ProgramError::Output(max)),
        false => Ok(()),
    }
}

/// Keeps the end of output that is too long.
const fn end_of(max: usize) -> impl Fn(&mut Vec<u8>) -> Result<(), ProgramError> {
    move |bytes| {
        bytes.drain(..bytes.len().saturating_sub(max));
        Ok(())
    }
}

/// The process group of a program, which is killed on drop unless the program has ended.
struct ProcessGroup(Mutex<Option<Pid>>);

impl ProcessGroup {
    fn of(program: &Child) -> Self {
        let pid = program.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Self(Mutex::new(pid))
    }

    /// Records that the program was waited for: its number may be reused, and what it leaves
    /// running, such as the daemon of a file system, stays.
    fn ended(&self) {
        self.0.lock().take();
    }

    /// Kills the group; `false` if the program has ended.
    fn kill(&self) -> bool {
        let group = *self.0.lock();
        if let Some(group) = group {
            // The program may just have ended.
            let _ = kill_process_group(group, Signal::KILL);
        }
        group.is_some()
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    const LIMITS: Limits = Limits {
        time: Duration::from_secs(60),
        output: 5000,
    };

    fn shell(script: &str) -> Command {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        command
    }

    /// A script that writes the process ID of a child of its own to a file, and waits for it.
    fn with_child(file: &Path) -> Command {
        let file = file.display();
        shell(&format!(
            "sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; wait"
        ))
    }

    async fn is_gone(file: &Path) {
        let pid = fs::read_to_string(file).unwrap();
        let stat = format!("/proc/{}/stat", pid.trim());
        // A zombie that nothing has waited for counts, too.
        while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            sleep(Duration::from_millis(5)).await;
        }
    }

    #[tokio::test]
    async fn a_program_reads_prints_and_ends() {
        let output = run(shell("cat; echo err >&2; exit 3"), b"in", LIMITS).await;
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(3));
        assert_eq!(
            (&*output.stdout, &*output.stderr),
            (&b"in"[..], &b"err\n"[..])
        );
    }

    #[tokio::test]
    async fn a_program_that_hangs_is_killed_with_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let limits = Limits {
            time: Duration::from_millis(500),
            ..LIMITS
        };
        let error = run(with_child(&file), &[], limits).await.unwrap_err();
        assert_eq!(error.to_string(), "it did not end within 500ms");
        is_gone(&file).await;
    }

    #[tokio::test]
    async fn a_dropped_run_ends_the_program_and_its_children() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let task = tokio::spawn(run(with_child(&file), &[], LIMITS));
        while !file.exists() {
            sleep(Duration::from_millis(5)).await;
        }
        task.abort();
        is_gone(&file).await;
    }

    #[tokio::test]
    async fn endless_output_is_an_error_and_endless_messages_are_cut() {
        let error = run(shell("yes"), &[], LIMITS).await.unwrap_err();
        assert_eq!(error.to_string(), "its output is longer than 5000 bytes");
        let noise = "yes | head -c 1000000 >&2; echo the end >&2";
        let output = run(shell(noise), &[], LIMITS).await.unwrap();
        assert_eq!(output.stderr.len(), LIMITS.output);
        assert!(output.stderr.ends_with(b"y\nthe end\n"));
        let text = output.error_text();
        assert!(text.len() <= MAX_ERROR_TEXT && text.ends_with("y\nthe end"));
    }

    #[tokio::test]
    async fn input_that_is_not_read_delays_nothing() {
        let input = vec![b'x'; 1024 * 1024];
        let output = run(shell("echo done"), &input, LIMITS).await.unwrap();
        assert_eq!(output.stdout, b"done\n");
    }

    #[tokio::test]
    async fn a_daemon_with_the_pipes_stays_and_delays_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pid");
        let path = file.display();
        let daemon = format!("sleep 1000 & echo $! > {path}; echo done");
        let begun = Instant::now();
        let output = run(shell(&daemon), &[], LIMITS).await.unwrap();
        assert!(begun.elapsed() < LIMITS.time / 2);
        assert_eq!(output.stdout, b"done\n");
        let pid = fs::read_to_string(&file).unwrap();
        let pid = Pid::from_raw(pid.trim().parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
    }
}
