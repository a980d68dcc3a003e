//! Plugins left running by an earlier shim that was killed. `ADD` and `DEL` of one sandbox must not
//! run concurrently, so these plugins must exit before anything is undone; nor may a `GC` run that
//! does not know about an attachment in progress.
//!
//! The plugins and their child processes are identified by their environments.

use std::{
    collections::HashSet,
    fs::{self, File},
    io::Read as _,
    os::{fd::OwnedFd, unix::fs::MetadataExt as _},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use prometheus_client::metrics::counter::Counter;
use rustix::{
    fs::{CWD, Mode, OFlags, openat, readlinkat},
    process::{Signal, geteuid, pidfd_send_signal},
};
use tokio::{sync::OnceCell, time::Instant};

use super::error::CniError;

/// How long a leftover plugin may continue before it is killed.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a killed plugin may take to exit.
const KILL: Duration = Duration::from_secs(10);
/// The polling interval.
const PAUSE: Duration = Duration::from_millis(50);
/// The environment variables of a plugin with its verb and its sandbox.
const VERB: &str = "CNI_COMMAND";
const SANDBOX: &str = "CNI_CONTAINERID";
/// The environment variable with the shim that runs the plugin, needed for plugins without a
/// sandbox.
pub(super) const OWNER: &str = "DOCKERSHIM_OWNER";
/// The sandbox id of a plugin that runs `GC`.
pub(super) const NO_SANDBOX: &str = "";
const GARBAGE_COLLECTION: &str = "GC";
/// The limit on bytes read from an environment. A plugin's is the shim's own plus a few variables.
const MAX_ENVIRONMENT: u64 = 256 * 1024;
/// How often to retry reading the environments of processes in the middle of an `execve(2)`, and
/// the interval.
const READ_ATTEMPTS: usize = 100;
const READ_RETRY: Duration = Duration::from_millis(1);

/// The plugins left running by an earlier shim.
#[derive(Debug)]
pub(super) struct LeftoverPlugins {
    owner: Option<String>,
    killed: Counter,
    /// The sandboxes with a running plugin when first checked; the set can only shrink.
    sandboxes: OnceCell<HashSet<String>>,
}

/// A process of a plugin.
struct PluginProcess {
    /// `/proc/<pid>`.
    directory: OwnedFd,
    sandbox: String,
}

impl LeftoverPlugins {
    /// Creates an unchecked instance; `owner` is this shim, and `killed` counts the plugins that
    /// had to be killed.
    pub(super) fn new(owner: Option<String>, killed: Counter) -> Self {
        Self {
            owner,
            killed,
            sandboxes: OnceCell::new(),
        }
    }

    /// Returns when no plugin of an earlier shim is running for the sandbox or, with
    /// [`NO_SANDBOX`], for `GC`. Kills plugins that take too long.
    ///
    /// # Errors
    /// [`CniError::LeftRunning`] if one does not exit even then.
    pub(super) async fn wait_or_kill(&self, sandbox_id: &str) -> Result<(), CniError> {
        let look = async || {
            let plugins = self.running().await.into_iter();
            plugins.map(|plugin| plugin.sandbox).collect()
        };
        if !self.sandboxes.get_or_init(look).await.contains(sandbox_id) {
            return Ok(());
        }
        let began = Instant::now();
        let (mut warned, mut killed) = (false, false);
        loop {
            let mut plugins = self.running().await;
            plugins.retain(|plugin| plugin.sandbox == sandbox_id);
            if plugins.is_empty() {
                return Ok(());
            }
            if !warned {
                warned = true;
                tracing::warn!(sandbox_id, "waiting for a CNI plugin that was left running");
            }
            if began.elapsed() > PATIENCE + KILL {
                return Err(CniError::LeftRunning);
            }
            if began.elapsed() > PATIENCE {
                if !killed {
                    killed = true;
                    self.killed.inc();
                    tracing::warn!(sandbox_id, "killing a CNI plugin that was left running");
                }
                for plugin in plugins {
                    // The plugin may have exited meanwhile.
                    let _ = pidfd_send_signal(&plugin.directory, Signal::KILL);
                }
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// The running plugins and their child processes.
    async fn running(&self) -> Vec<PluginProcess> {
        let owner = self.owner.clone();
        let look = tokio::task::spawn_blocking(move || {
            let own = fs::read_link("/proc/self/ns/pid").ok();
            let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
            let processes = entries.filter(|entry| {
                let name = entry.file_name();
                name.as_encoded_bytes().iter().all(u8::is_ascii_digit)
            });
            let paths = processes.map(|process| process.path()).collect();
            plugins(paths, own.as_deref(), owner.as_deref())
        });
        look.await.unwrap_or_default()
    }
}

/// The plugins among the processes with these `/proc/<pid>` paths. Blocks.
#[expect(clippy::disallowed_methods, reason = "blocks its thread anyway")]
fn plugins(mut paths: Vec<PathBuf>, own: Option<&Path>, owner: Option<&str>) -> Vec<PluginProcess> {
    let mut plugins = Vec::new();
    for _ in 0..READ_ATTEMPTS {
        paths.retain(|path| match classify(path, own, owner) {
            Some(ProcessKind::Plugin(plugin)) => {
                plugins.push(plugin);
                false
            }
            Some(ProcessKind::BeginsProgram) => true,
            None => false,
        });
        if paths.is_empty() {
            break;
        }
        thread::sleep(READ_RETRY);
    }
    plugins
}

/// The kind of a process that may be a plugin.
enum ProcessKind {
    Plugin(PluginProcess),
    /// Its environment is missing or incomplete: it is in the middle of an `execve(2)`, or has
    /// none.
    BeginsProgram,
}

/// Examines the process with this `/proc/<pid>`. A process in a container is not a plugin, whatever
/// its environment; neither is a daemon that a plugin has started, which has its own session.
fn classify(path: &Path, namespace: Option<&Path>, owner: Option<&str>) -> Option<ProcessKind> {
    if fs::metadata(path).ok()?.uid() != geteuid().as_raw() {
        return None;
    }
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = openat(CWD, path, flags | OFlags::DIRECTORY, Mode::empty()).ok()?;
    let theirs = readlinkat(&directory, "ns/pid", Vec::new()).ok()?;
    if namespace?.as_os_str().as_encoded_bytes() != theirs.to_bytes() {
        return None;
    }
    let read = |file: &str| {
        let file = File::from(openat(&directory, file, flags, Mode::empty()).ok()?);
        let mut bytes = Vec::new();
        file.take(MAX_ENVIRONMENT).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let environment = read("environ")?;
    let stat = Stat::of(&read("stat")?);
    let Some(sandbox) = sandbox_of(&environment, owner) else {
        let cut_off = stat.environment == 0 || (environment.len() as u64) < stat.environment;
        return (stat.has_memory && cut_off).then_some(ProcessKind::BeginsProgram);
    };
    (!stat.has_own_session).then_some(ProcessKind::Plugin(PluginProcess { directory, sandbox }))
}

/// The sandbox of the plugin with this environment, or [`NO_SANDBOX`] if it runs `GC` for the shim
/// `owner`; `None` if it is not a plugin's environment.
fn sandbox_of(environment: &str, owner: Option<&str>) -> Option<String> {
    let value = |name| {
        let mut variables = environment.split('\0').filter_map(|v| v.split_once('='));
        variables.find_map(|(key, value)| (key == name).then_some(value))
    };
    let (verb, sandbox) = (value(VERB)?, value(SANDBOX)?);
    let collects = verb == GARBAGE_COLLECTION && owner.is_some() && value(OWNER) == owner;
    (sandbox != NO_SANDBOX || collects).then(|| sandbox.to_owned())
}

/// Fields of `/proc/<pid>/stat`; see proc(5).
struct Stat {
    /// Whether its session was started by its own process group (`setsid(2)`).
    has_own_session: bool,
    /// Whether it has memory; kernel threads and exiting processes have none.
    has_memory: bool,
    /// The size of its environment that is read, in bytes; 0 in the middle of an `execve(2)`.
    environment: u64,
}

impl Stat {
    fn of(text: &str) -> Self {
        // The program name before it may contain anything.
        let fields = text.rsplit_once(") ").map_or("", |(_, fields)| fields);
        let number = |field: usize| fields.split(' ').nth(field - 3)?.parse::<u64>().ok();
        let environment = number(51).zip(number(50));
        let size = environment.map_or(0, |(end, start)| end.saturating_sub(start));
        Self {
            has_own_session: number(5) == number(6),
            has_memory: number(23).is_some_and(|size| size > 0),
            environment: size.min(MAX_ENVIRONMENT),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::process::CommandExt as _,
        process::{Child, Command},
    };

    use super::*;

    /// A shell with a plugin's environment; killed at the end of the test.
    struct Left(Child);

    /// A sandbox id that is unique across test processes.
    fn id(name: &str) -> String {
        format!("former-{name}-{}", std::process::id())
    }

    impl Left {
        fn start(sandbox: &str, script: &str) -> Self {
            let mut command = Command::new("sh");
            command
                .args(["-c", script])
                .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", sandbox)])
                .process_group(0);
            Self(command.spawn().unwrap())
        }

        fn runs(&mut self) -> bool {
            self.0.try_wait().unwrap().is_none()
        }

        /// Waits for its exit, which is shortly after its environment has gone.
        #[expect(clippy::disallowed_methods, reason = "the test's time is paused")]
        fn has_ended(&mut self) -> bool {
            (0..1000).any(|_| {
                thread::sleep(Duration::from_millis(10));
                !self.runs()
            })
        }
    }

    impl Drop for Left {
        fn drop(&mut self) {
            let group = rustix::process::Pid::from_raw(self.0.id().cast_signed()).unwrap();
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            let _ = self.0.wait();
        }
    }

    #[tokio::test]
    async fn a_plugin_that_was_left_running_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let ended = dir.path().join("ended");
        let script = format!("sleep 0.5; touch {}", ended.display());
        let mut waited_for = Left::start(&id("waited-for"), &script);
        let mut other = Left::start(&id("other"), "sleep 1000; true");
        let leftover = LeftoverPlugins::new(None, Counter::default());
        leftover.wait_or_kill(&id("waited-for")).await.unwrap();
        assert!(ended.exists());
        leftover.wait_or_kill(&id("without")).await.unwrap();
        waited_for.0.wait().unwrap();
        assert!(other.runs());
    }

    #[tokio::test(start_paused = true)]
    async fn a_plugin_that_goes_on_is_killed_with_what_it_runs() {
        let mut left = Left::start(&id("goes-on"), "sleep 1000; true");
        let leftover = LeftoverPlugins::new(None, Counter::default());
        leftover.wait_or_kill(&id("goes-on")).await.unwrap();
        assert_eq!(leftover.killed.get(), 1);
        assert!(left.has_ended());
        let left_over = leftover.running().await;
        assert!(!left_over.iter().any(|p| p.sandbox == id("goes-on")));
    }

    #[test]
    fn a_plugin_that_runs_one_program_after_another_is_always_seen() {
        let dir = tempfile::tempdir().unwrap();
        let script = dir.path().join("again");
        fs::write(&script, "exec sh \"$0\"\n").unwrap();
        let left = Left::start(&id("again"), &format!("exec sh {}", script.display()));
        let paths = vec![Path::new("/proc").join(left.0.id().to_string())];
        let own = fs::read_link("/proc/self/ns/pid").unwrap();
        for look in 0..5000 {
            let seen = plugins(paths.clone(), Some(&own), None);
            assert_eq!(seen.len(), 1, "look {look}");
        }
    }

    #[tokio::test]
    async fn a_server_that_a_plugin_started_is_left_alone() {
        let script = "exec setsid --fork sh -c 'echo $$ >\"$0\"; exec sleep 1000' \"$0\"";
        let dir = tempfile::tempdir().unwrap();
        let number = dir.path().join("pid");
        let mut command = Command::new("sh");
        command
            .args(["-c", script])
            .arg(&number)
            .envs([("CNI_COMMAND", "ADD"), ("CNI_CONTAINERID", &id("server"))]);
        command.status().unwrap();
        let pid = loop {
            let text = fs::read_to_string(&number).unwrap_or_default();
            if let Ok(pid) = text.trim().parse() {
                break rustix::process::Pid::from_raw(pid).unwrap();
            }
            thread::yield_now();
        };
        LeftoverPlugins::new(None, Counter::default())
            .wait_or_kill(&id("server"))
            .await
            .unwrap();
        let running = rustix::process::test_kill_process(pid);
        rustix::process::kill_process(pid, Signal::KILL).unwrap();
        running.unwrap();
    }

    #[test]
    fn what_is_no_plugin_is_told_from_one() {
        let environment = "A=1\0CNI_COMMAND=DEL\0CNI_CONTAINERID=abc\0CNI_IFNAME=eth0\0";
        assert_eq!(sandbox_of(environment, None).as_deref(), Some("abc"));
        let collects = "CNI_COMMAND=GC\0CNI_CONTAINERID=\0DOCKERSHIM_OWNER=me\0";
        assert_eq!(
            sandbox_of(collects, Some("me")).as_deref(),
            Some(NO_SANDBOX)
        );
        assert_eq!(sandbox_of(collects, Some("other")), None);
        assert_eq!(sandbox_of(collects, None), None);
        for other in [
            "",
            "CNI_CONTAINERID=abc\0",
            "CNI_COMMAND=STATUS\0CNI_CONTAINERID=\0",
            "CNI_COMMAND=GC\0",
        ] {
            assert_eq!(sandbox_of(other, Some("me")), None, "{other:?}");
        }

        let stat = |session: u64, size: u64, start: u64, end: u64| {
            let (pid, between) = ("1 ".repeat(16), "1 ".repeat(26));
            let text = format!("7 (a) b) S 1 7 {session} {pid}{size} {between}{start} {end} 0");
            let stat = Stat::of(&text);
            (stat.has_own_session, stat.has_memory, stat.environment)
        };
        assert_eq!(stat(7, 4096, 10, 14), (true, true, 4));
        assert_eq!(stat(3, 4096, 0, 0), (false, true, 0));
        assert_eq!(stat(3, 0, 10, 10), (false, false, 0));
        assert_eq!(stat(3, 4096, 10, 0), (false, true, 0));
        assert_eq!(stat(3, 4096, 0, u64::MAX), (false, true, MAX_ENVIRONMENT));
    }
}
