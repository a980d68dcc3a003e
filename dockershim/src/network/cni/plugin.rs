//! Runs plugins. A plugin reads its request from environment variables and standard input, and
//! writes its result to standard output.

use std::{
    fmt, io,
    path::PathBuf,
    process::{Output, Stdio},
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _},
    process::{Child, Command},
};

use super::{chain::Attachment, leftover_plugins::OWNER};

/// The time limit of a request.
const DEADLINE: Duration = Duration::from_secs(120);
/// How long a killed plugin may take to exit.
const KILL: Duration = Duration::from_secs(10);
/// How long to wait for a binary that is being written.
const BUSY_PATIENCE: Duration = Duration::from_secs(5);
const BUSY_PAUSE: Duration = Duration::from_millis(100);
/// The length limit, in bytes, for a plugin's standard error in an error message.
const MAX_STDERR: usize = 2048;

/// A plugin operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verb {
    /// Attach a sandbox to the network.
    Add,
    /// Detach it.
    Del,
    /// Check that it is still attached.
    Check,
    /// Check whether `ADD` would succeed.
    Status,
    /// Remove what belongs to no attachment.
    Gc,
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Status => "STATUS",
            Self::Gc => "GC",
        })
    }
}

/// Why a plugin failed.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The binary does not exist.
    #[error("not found in {0}")]
    Missing(String),
    /// The binary could not be executed.
    #[error("cannot run: {0}")]
    Start(#[from] io::Error),
    /// It took too long and was killed.
    #[error("did not exit within {DEADLINE:?}")]
    Deadline,
    /// It returned a CNI error.
    #[error("{message} (code {code})")]
    Refused {
        /// CNI's error code; codes from 100 are plugin-specific.
        code: u32,
        /// The message, the details, and the standard error.
        message: String,
    },
    /// It failed without a CNI error.
    #[error("{0}")]
    Failed(String),
    /// Its result is invalid.
    #[error("returned an invalid result: {0}")]
    Answer(String),
}

/// The error object that a plugin prints.
#[derive(Deserialize)]
struct Refusal {
    #[serde(default)]
    code: u32,
    #[serde(default)]
    msg: String,
    #[serde(default)]
    details: String,
}

/// The installed plugins.
#[derive(Debug, Clone)]
pub struct Plugins {
    directories: Vec<PathBuf>,
    /// The id of the shim that runs them.
    owner: Option<String>,
    /// The number of plugins killed because they took too long.
    pub killed: Counter,
}

impl Plugins {
    /// Creates the plugins for the shim `owner`; the directories are searched in order.
    pub fn new(directories: Vec<PathBuf>, owner: Option<String>) -> Self {
        Self {
            directories,
            owner,
            killed: Counter::default(),
        }
    }

    /// Finds a plugin's binary. Blocks.
    ///
    /// # Errors
    /// [`PluginError::Missing`], with the directories.
    pub fn look_up(&self, kind: &str) -> Result<PathBuf, PluginError> {
        let mut paths = self
            .directories
            .iter()
            .map(|directory| directory.join(kind));
        paths
            .find(|path| path.is_file())
            .ok_or_else(|| PluginError::Missing(self.list(", ")))
    }

    /// [`Plugins::look_up`] on the blocking thread pool.
    ///
    /// # Errors
    /// As [`Plugins::look_up`].
    pub async fn find(&self, kind: &str) -> Result<PathBuf, PluginError> {
        let (this, kind) = (self.clone(), kind.to_owned());
        let task = tokio::task::spawn_blocking(move || this.look_up(&kind));
        task.await.map_err(io::Error::other)?
    }

    /// Runs a plugin and returns its output. `attachment` is `None` for operations on the whole
    /// network.
    ///
    /// # Errors
    /// See [`PluginError`].
    pub async fn run(
        &self,
        kind: &str,
        verb: Verb,
        attachment: Option<&Attachment>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        let path = self.find(kind).await?;
        let mut command = Command::new(&path);
        command
            .env("CNI_COMMAND", verb.to_string())
            .env(
                "CNI_CONTAINERID",
                attachment.map_or("", |a| &a.container_id),
            )
            .env("CNI_NETNS", attachment.map_or("", |a| &a.netns))
            .env("CNI_IFNAME", attachment.map_or("", |a| &a.ifname))
            .env("CNI_ARGS", attachment.map(cni_args).unwrap_or_default())
            .env("CNI_PATH", self.list(":"))
            .env(OWNER, self.owner.as_deref().unwrap_or_default())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .process_group(0);
        let output = run_to_end(command, stdin).await.inspect_err(|error| {
            if matches!(error, PluginError::Deadline) {
                let plugin = path.display();
                tracing::warn!(%plugin, %verb, %error, "killed a CNI plugin");
                self.killed.inc();
            }
        })?;
        tracing::debug!(plugin = %path.display(), %verb, status = %output.status, "CNI");
        if output.status.success() {
            return Ok(output.stdout);
        }
        Err(failure(&output))
    }

    fn list(&self, separator: &str) -> String {
        let names = self.directories.iter().map(|d| d.display().to_string());
        names.collect::<Vec<_>>().join(separator)
    }
}

fn cni_args(attachment: &Attachment) -> String {
    let pairs = attachment.args.iter();
    let pairs = pairs.map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(";")
}

async fn run_to_end(mut command: Command, stdin: &[u8]) -> Result<Output, PluginError> {
    let began = tokio::time::Instant::now();
    let mut child = loop {
        match command.spawn() {
            // An add-on is installing it.
            Err(error)
                if error.kind() == io::ErrorKind::ExecutableFileBusy
                    && began.elapsed() < BUSY_PATIENCE =>
            {
                tokio::time::sleep(BUSY_PAUSE).await;
            }
            spawned => break spawned?,
        }
    };
    let group = ProcessGroup::of(&child);
    let (input, mut stdout, mut stderr) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let feed = async {
        if let Some(mut input) = input {
            // The answer of a plugin that does not read its input says more than this error.
            let _ = input.write_all(stdin).await;
        }
    };
    let end = async {
        let status = child.wait().await;
        group.ended();
        status
    };
    let work = async {
        let read = (read(&mut stdout), read(&mut stderr));
        let (_, status, stdout, stderr) = tokio::join!(feed, end, read.0, read.1);
        Ok(Output {
            status: status?,
            stdout: stdout?,
            stderr: stderr?,
        })
    };
    let mut work = std::pin::pin!(work);
    if let Ok(output) = tokio::time::timeout(DEADLINE, &mut work).await {
        return output;
    }
    group.kill();
    // Wait for the exit, so that nothing is undone while the plugin still runs.
    if tokio::time::timeout(KILL, work).await.is_err() {
        tracing::warn!("a killed CNI plugin does not exit");
    }
    Err(PluginError::Deadline)
}

async fn read(from: &mut Option<impl AsyncRead + Unpin>) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if let Some(from) = from {
        from.read_to_end(&mut bytes).await?;
    }
    Ok(bytes)
}

/// A plugin and its child processes, which are killed when the request is dropped.
struct ProcessGroup(Mutex<Option<Pid>>);

impl ProcessGroup {
    fn of(plugin: &Child) -> Self {
        let pid = plugin.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        Self(Mutex::new(pid))
    }

    /// Records that the plugin has exited, as its pid may be reused.
    fn ended(&self) {
        self.0.lock().take();
    }

    fn kill(&self) {
        if let Some(group) = *self.0.lock() {
            // The plugin may just have exited.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

fn failure(output: &Output) -> PluginError {
    let stderr = tail(&output.stderr);
    let refusal = serde_json::from_slice::<Refusal>(&output.stdout);
    match refusal {
        Ok(refusal) if !refusal.msg.is_empty() || refusal.code != 0 => PluginError::Refused {
            code: refusal.code,
            message: join([&refusal.msg, &refusal.details, &stderr]),
        },
        _ => {
            let stdout = tail(&output.stdout);
            PluginError::Failed(join([&output.status.to_string(), &stdout, &stderr]))
        }
    }
}

fn join(parts: [&str; 3]) -> String {
    let said = parts.into_iter().filter(|part| !part.is_empty());
    said.collect::<Vec<_>>().join("; ")
}

/// The end of a program's output, which usually has the reason.
fn tail(bytes: &[u8]) -> String {
    let start = bytes.len().saturating_sub(MAX_STDERR);
    let end = bytes.get(start..).unwrap_or_default();
    String::from_utf8_lossy(end).trim().to_owned()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    fn plugin(script: &str) -> (tempfile::TempDir, Plugins) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test");
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        let plugins = Plugins::new(vec![dir.path().join("absent"), dir.path().to_owned()], None);
        (dir, plugins)
    }

    async fn failure_of(script: &str) -> PluginError {
        let (_dir, plugins) = plugin(script);
        let input = vec![b' '; 1 << 20];
        plugins
            .run("test", Verb::Add, None, &input)
            .await
            .unwrap_err()
    }

    #[tokio::test]
    async fn what_a_plugin_says_is_told() {
        let said = failure_of("echo why >&2; exit 3").await.to_string();
        assert!(
            said.contains("exit status: 3") && said.contains("why"),
            "{said}"
        );
        let refusal = r#"echo '{"code": 11, "msg": "busy", "details": "later"}'; exit 1"#;
        let error = failure_of(refusal).await;
        assert!(
            matches!(error, PluginError::Refused { code: 11, .. }),
            "{error}"
        );
        assert_eq!(error.to_string(), "busy; later (code 11)");
        let much = failure_of("yes | head -c 1000000 >&2; exit 1").await;
        assert!(much.to_string().len() < 2 * MAX_STDERR);
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_hangs_is_given_up() {
        let error = failure_of("sleep 1000").await;
        assert!(matches!(error, PluginError::Deadline), "{error}");
    }

    #[tokio::test]
    async fn a_plugin_that_nobody_waits_for_ends_with_what_it_runs() {
        let script = "sleep 1000 & echo $! >\"$(dirname \"$0\")/pid\"; wait";
        let (dir, plugins) = plugin(script);
        let run = tokio::spawn(async move { plugins.run("test", Verb::Check, None, b"").await });
        let eventually = async |what: &str, is_so: &dyn Fn() -> bool| {
            for _ in 0..6000 {
                if is_so() {
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            panic!("timeout after 60 s: {what}");
        };
        let number = || fs::read_to_string(dir.path().join("pid")).unwrap_or_default();
        eventually("it runs", &|| !number().is_empty()).await;
        run.abort();
        // It has exited, but may not have been reaped yet.
        let stat = format!("/proc/{}/stat", number().trim());
        let ended = || fs::read_to_string(&stat).map_or(true, |stat| stat.contains(") Z "));
        eventually("what it runs has ended", &ended).await;
    }

    #[tokio::test]
    async fn a_plugin_that_is_not_there_is_looked_for_everywhere() {
        let (dir, plugins) = plugin("");
        let error = plugins
            .run("other", Verb::Del, None, b"")
            .await
            .unwrap_err();
        let text = error.to_string();
        let last = dir.path().display().to_string();
        assert!(text.contains("absent") && text.ends_with(&last), "{text}");
    }
}
