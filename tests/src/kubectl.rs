//! The real `kubectl`, run against an API server of the tests.

use std::{
    env,
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Output, Stdio},
};

use anyhow::{Context as _, Result, bail};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::network_namespace::NetworkNamespace;

/// `kubectl` with a kubeconfig and a home directory of its own.
#[derive(Debug)]
pub struct Kubectl {
    program: PathBuf,
    home: TempDir,
    /// The command line that runs `kubectl` in a network namespace; empty if none.
    before: Vec<String>,
}

/// The result of a `kubectl` command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubectlOutput {
    /// Its exit code.
    pub code: Option<i32>,
    /// Its standard output.
    pub stdout: String,
    /// Its standard error.
    pub stderr: String,
}

impl Kubectl {
    /// `kubectl` with this kubeconfig. The program must exist: at `$KUBECTL`, where
    /// `deploy/install.sh tests` installs it, or on the `PATH`.
    pub fn new(kubeconfig: &str) -> Result<Self> {
        let home = TempDir::new()?;
        fs::write(home.path().join("kubeconfig"), kubeconfig)?;
        Ok(Self {
            program: find()?,
            home,
            before: Vec::new(),
        })
    }

    /// Runs it in a network namespace.
    pub fn within(mut self, namespace: &NetworkNamespace) -> Self {
        self.before = namespace.enter();
        // A command that hangs fails the test, but does not block it.
        let limit = ["timeout", "--foreground", "60"];
        self.before.extend(limit.map(str::to_owned));
        self
    }

    /// A command with these arguments, not started yet.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let home = self.home.path();
        let mut words = self.before.iter().map(OsStr::new);
        let words = words.by_ref().chain([self.program.as_os_str()]);
        let words: Vec<&OsStr> = words.collect();
        let mut command = Command::new(words[0]);
        command
            .args(&words[1..])
            .args(arguments)
            .env("HOME", home)
            .env("KUBECONFIG", home.join("kubeconfig"))
            .current_dir(home)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    /// Starts a command in the background. It is killed when the child is dropped.
    pub fn start(&self, arguments: &[&str]) -> Result<Child> {
        self.command(arguments)
            .spawn()
            .with_context(|| format!("cannot start {}", self.program.display()))
    }

    /// Runs a command until it ends.
    pub async fn run(&self, arguments: &[&str]) -> Result<KubectlOutput> {
        let output = self.start(arguments)?.wait_with_output().await?;
        Ok(KubectlOutput::from(output))
    }

    /// Runs a command that must succeed. Returns its output.
    pub async fn ok(&self, arguments: &[&str]) -> Result<String> {
        let ended = self.run(arguments).await?;
        if ended.code != Some(0) {
            bail!("kubectl {}: {ended:?}", arguments.join(" "));
        }
        Ok(ended.stdout)
    }

    /// Its home directory, where it may keep files.
    pub fn home(&self) -> &Path {
        self.home.path()
    }
}

impl From<Output> for KubectlOutput {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

fn find() -> Result<PathBuf> {
    if let Some(program) = env::var_os("KUBECTL") {
        return Ok(PathBuf::from(program));
    }
    let installed = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/tools/bin");
    let path = env::var_os("PATH").unwrap_or_default();
    [installed]
        .into_iter()
        .chain(env::split_paths(&path))
        .map(|folder| folder.join("kubectl"))
        .find(|program| program.is_file())
        .context("there is no kubectl: set KUBECTL to it, or run deploy/install.sh tests")
}
