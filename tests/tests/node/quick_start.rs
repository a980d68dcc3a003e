//! `deploy/run.sh`, which is `make run`, leaves nothing behind, however it ends. Each test has its
//! own processes, mounts and network, isolated in namespaces (the "machine").

use std::{
    collections::BTreeSet,
    fs,
    io::{PipeReader, Read as _, pipe},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use e2e::node::binary;
use rustix::process::Signal;
use tempfile::TempDir;
use test_run::process::{Process, signal};
use tokio::time::{Instant, sleep};

/// The time for a start or an end.
const LIMIT: Duration = Duration::from_secs(120);
/// The output once the example is running.
const SERVES: &str = "Ctrl-C stops it all.";
/// Gives the machine its own directories for the engine. Its first process also reaps orphans, as
/// PID 1 must.
const MACHINE: &str = "mount -t tmpfs none /run && mount -t tmpfs none /var/lib && \
     mkdir -p /run/lock && ip link set lo up && echo ready && { sleep infinity & wait; }";

const OWN_PROCESSES: usize = 2;

/// The namespaces of one test. All processes in them end when it is dropped.
struct Machine {
    dir: TempDir,
    /// The PID of its first process, outside the namespaces.
    init: u32,
    mounts: BTreeSet<String>,
    _holder: Process,
}

/// A run of the quick start.
struct Run {
    child: Child,
    output: PipeReader,
}

// === impl Machine ===

impl Machine {
    async fn new() -> Self {
        let dir = TempDir::new().unwrap();
        let holder = Process::start(
            "machine",
            None,
            Path::new("unshare"),
            &[
                "--pid",
                "--fork",
                "--kill-child",
                "--mount-proc",
                "--mount",
                "--net",
                "--",
                "sh",
                "-c",
                MACHINE,
            ],
            &dir.path().join("machine.log"),
        );
        let holder = holder.unwrap();
        let children = format!("/proc/{0}/task/{0}/children", holder.pid());
        let deadline = Instant::now() + LIMIT;
        while !holder.output().contains("ready") {
            assert!(Instant::now() < deadline, "{}", holder.output());
            sleep(Duration::from_millis(10)).await;
        }
        let init = fs::read_to_string(&children).unwrap();
        let mut machine = Self {
            dir,
            init: init.trim().parse().unwrap(),
            mounts: BTreeSet::new(),
            _holder: holder,
        };
        machine.mounts = machine.mounts();
        machine
    }

    /// Starts the quick start, and waits until the example is running.
    async fn run(&self) -> Run {
        let mut run = self.start();
        let mut written = String::new();
        while !written.contains(SERVES) {
            let mut bytes = [0; 4096];
            let length = run.output.read(&mut bytes).unwrap();
            assert!(length > 0, "it ended: {written}{}", self.logs());
            written.push_str(&String::from_utf8_lossy(&bytes[..length]));
        }
        run
    }

    fn start(&self) -> Run {
        let (output, writer) = pipe().unwrap();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/run.sh");
        let child = Command::new("nsenter")
            .args(["--target", &self.init.to_string()])
            .args(["--pid", "--mount", "--net", "--"])
            .arg(script)
            .env("RUN", self.dir.path().join("run"))
            .env("BIN", binary("dockershim").unwrap().parent().unwrap())
            .stdin(Stdio::null())
            .stdout(writer.try_clone().unwrap())
            .stderr(writer)
            .spawn();
        Run {
            child: child.unwrap(),
            output,
        }
    }

    /// The path to the machine's own procfs.
    fn proc(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root/proc", self.init))
    }

    /// The machine's processes: their PIDs in it, and their commands.
    fn processes(&self) -> Vec<(u32, String)> {
        let entries = fs::read_dir(self.proc()).unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        pids.filter_map(|pid| Some((pid, command(&self.proc(), pid)?)))
            .collect()
    }

    /// The mount points.
    fn mounts(&self) -> BTreeSet<String> {
        let table = fs::read_to_string(format!("/proc/{}/mounts", self.init)).unwrap();
        let targets = table.lines().filter_map(|line| line.split(' ').nth(1));
        targets.map(str::to_owned).collect()
    }

    /// Sends a signal (such as `KILL`) to the process whose command line `is_it` accepts.
    fn kill(&self, what: &str, is_it: impl Fn(&str) -> bool) {
        let line = |pid: &u32| {
            let line = fs::read_to_string(self.proc().join(pid.to_string()).join("cmdline"));
            is_it(&line.unwrap_or_default().replace('\0', " "))
        };
        let mut pids: Vec<u32> = self.processes().into_iter().map(|(pid, _)| pid).collect();
        pids.sort_unstable();
        let found = pids.iter().find(|pid| line(pid));
        let pid = found.unwrap_or_else(|| panic!("none of {:?}", self.processes()));
        let status = Command::new("nsenter")
            .args(["--target", &self.init.to_string(), "--pid", "--mount", "--"])
            .args(["kill", "-s", what, &pid.to_string()])
            .status();
        assert!(status.unwrap().success());
    }

    /// Runs `ip` in the machine's network; whether it succeeded.
    fn ip(&self, arguments: &[&str]) -> bool {
        let output = Command::new("nsenter")
            .args(["--target", &self.init.to_string(), "--net", "--", "ip"])
            .args(arguments)
            .output();
        output.unwrap().status.success()
    }

    /// Waits until only the machine's own processes and mounts are left, no container, and no bridge.
    async fn await_nothing_left(&self, way: &str) {
        let deadline = Instant::now() + LIMIT;
        let containers = self.proc().join("../var/lib/docker/containers");
        loop {
            let processes = self.processes();
            let mounts: Vec<_> = self.mounts().difference(&self.mounts).cloned().collect();
            let containers = fs::read_dir(&containers).map_or(0, Iterator::count);
            let bridge = self.ip(&["link", "show", "docker0"]);
            if processes.len() == OWN_PROCESSES && mounts.is_empty() && containers == 0 && !bridge {
                return;
            }
            if Instant::now() > deadline {
                panic!(
                    "{way}: {processes:?}, {mounts:?}, {containers} containers are left, bridge: \
                     {bridge}\n{}",
                    self.logs()
                );
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn logs(&self) -> String {
        let read = |name| fs::read_to_string(self.dir.path().join("run").join(name));
        let logs = ["engine.log", "dockershim.log", "kubelet.log"].map(read);
        logs.map(Result::unwrap_or_default).concat()
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        // When the first process ends, all others end with it, including the one that started it.
        let _ = signal(self.init, Signal::KILL);
    }
}

/// The program name of a process; `None` if it has ended, even if it is not reaped yet.
fn command(proc: &Path, pid: u32) -> Option<String> {
    let stat = fs::read_to_string(proc.join(pid.to_string()).join("stat")).ok()?;
    let (before, after) = stat.rsplit_once(") ")?;
    let (_, name) = before.split_once('(')?;
    (!after.starts_with('Z')).then(|| name.to_owned())
}

/// Whether a command line is that of the called script.
fn is_called(line: &str) -> bool {
    line.starts_with("bash /")
}

/// Whether a command line is that of the process that starts everything.
fn is_session(line: &str) -> bool {
    line.contains("run.sh session")
}

#[tokio::test]
async fn nothing_is_left_when_it_is_told_to_end_and_nobody_reads_what_it_says() {
    let machine = Machine::new().await;
    for what in ["INT", "TERM", "HUP"] {
        let mut run = machine.run().await;
        // Like Ctrl-C with `make run | tee log`: the reader ends first.
        drop(run.output);
        machine.kill(what, is_called);
        machine.await_nothing_left(what).await;
        run.child.wait().unwrap();
    }
}

#[tokio::test]
async fn nothing_is_left_when_its_reader_goes_away() {
    let machine = Machine::new().await;
    let mut run = machine.run().await;
    drop(run.output);
    machine.await_nothing_left("while it waits").await;
    run.child.wait().unwrap();
    // The reader ends before the first output.
    let mut run = machine.start();
    drop(run.output);
    machine.await_nothing_left("while it starts").await;
    run.child.wait().unwrap();
}

#[tokio::test]
async fn nothing_is_left_when_a_process_of_it_is_killed() {
    let machine = Machine::new().await;
    for (name, is_it) in [
        (
            "kubelet",
            (|line| line.contains("kubelet --config")) as fn(&str) -> bool,
        ),
        ("dockershim", |line| line.contains("dockershim --")),
        ("engine", |line| line.starts_with("dockerd")),
        ("called", is_called),
        ("session", is_session),
    ] {
        let mut run = machine.run().await;
        machine.kill("KILL", is_it);
        machine.await_nothing_left(name).await;
        run.child.wait().unwrap();
    }
}

#[tokio::test]
async fn the_example_responds_although_the_engines_bridge_has_lost_its_route() {
    let machine = Machine::new().await;
    for arguments in [
        "link add docker0 type bridge",
        "address add 172.17.0.1/16 noprefixroute dev docker0",
        "link set docker0 up",
    ] {
        assert!(machine.ip(&arguments.split(' ').collect::<Vec<_>>()));
    }
    let mut run = machine.run().await;
    machine.kill("TERM", is_called);
    machine.await_nothing_left("TERM").await;
    run.child.wait().unwrap();
}
