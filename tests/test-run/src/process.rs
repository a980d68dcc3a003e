//! Child processes that end with the test that started them.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};
use rustix::process::{Pid, Signal, kill_process};

/// The grace period after SIGTERM.
const GRACE: Duration = Duration::from_secs(20);

/// A child process that logs to a file. It is stopped on drop; if the test itself is killed, the
/// kernel ends it.
#[derive(Debug)]
pub struct Process {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Process {
    /// Starts `program` and appends its output to `log`. If `netns` is given, the program runs in
    /// the network namespace of that process.
    pub fn start(
        name: &str,
        netns: Option<u32>,
        program: &Path,
        args: &[&str],
        log: &Path,
    ) -> Result<Self> {
        let output = File::options()
            .create(true)
            .append(true)
            .open(log)
            .with_context(|| format!("cannot open {}", log.display()))?;
        // Each of these commands replaces itself with the next, so the pid is that of the program.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM", "--"]);
        if let Some(pid) = netns {
            command.args(["nsenter", "--target", &pid.to_string(), "--net", "--"]);
        }
        let child = command
            .arg(program)
            .args(args)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .spawn()
            .with_context(|| format!("cannot start {name} ({})", program.display()))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log: log.to_owned(),
        })
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The content of its log.
    pub fn output(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Fails with its output if it has ended.
    pub fn check_runs(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}):\n{}", self.name, self.output());
        }
        Ok(())
    }

    /// Sends SIGKILL and waits until it has ended.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Sends SIGTERM and waits until it has ended; sends SIGKILL after the grace period.
    pub fn stop(mut self) -> Result<ExitStatus> {
        self.end().with_context(|| format!("{} to end", self.name))
    }

    fn end(&mut self) -> Result<ExitStatus> {
        if let Some(status) = self.child.try_wait()? {
            return Ok(status);
        }
        signal(self.pid(), Signal::TERM)?;
        let deadline = Instant::now() + GRACE;
        while Instant::now() < deadline {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            park(Duration::from_millis(10));
        }
        self.child.kill()?;
        let status = self.child.wait()?;
        bail!("did not end within {GRACE:?} of SIGTERM and was killed ({status})")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}

/// Sends a signal to a process.
pub fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(kill_process(pid, signal)?)
}

/// Blocks this thread; for `Drop`, which cannot await.
pub fn park(time: Duration) {
    std::thread::park_timeout(time);
}
