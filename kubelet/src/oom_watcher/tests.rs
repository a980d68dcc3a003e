use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::PathBuf,
    sync::Arc,
};

use kubelet_api_client::events::EventQueue;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use tempfile::TempDir;

use super::*;

/// A log, and a watcher of it.
struct Kernel {
    log: File,
    watcher: Arc<OomWatcher>,
    events: EventQueue,
    _dir: TempDir,
}

impl Kernel {
    async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kmsg");
        mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        // Read and write, as there is no reader yet.
        let log = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let (watcher, events) = watcher(Some(path));
        watcher.start().await;
        Self {
            log,
            watcher,
            events,
            _dir: dir,
        }
    }

    fn log(&mut self, message: &str) {
        writeln!(self.log, "6,1,2,-;{message}").unwrap();
    }
}

fn watcher(path: Option<PathBuf>) -> (Arc<OomWatcher>, EventQueue) {
    let (recorder, events) = EventRecorder::new("node");
    (Arc::new(OomWatcher::new(path, recorder)), events)
}

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

fn summary(id: &str) -> String {
    format!(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,\
         oom_memcg=/kubepods,task_memcg=/kubepods/pod1/{id},task=a,pid=7,uid=0"
    )
}

const OF_NODE: &str = "Out of memory: Killed process 41 (java) total-vm:8kB, anon-rss:4kB";

#[tokio::test]
async fn an_oom_of_the_node_is_an_event_as_it_happens() {
    let mut kernel = Kernel::new().await;
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (watcher, cancel) = (Arc::clone(&kernel.watcher), cancel.clone());
        async move { watcher.run(cancel).await }
    });
    kernel.log(&summary(&id('a')));
    kernel.log("Memory cgroup out of memory: Killed process 7 (a) total-vm:8kB");
    for (message, expected) in [
        (OF_NODE, ", victim process: java, pid: 41"),
        ("Out of memory: Killed process 42 () total-vm:8kB", ""),
    ] {
        kernel.log(message);
        let event = kernel.events.recv().await.unwrap();
        assert_eq!(event.involved_object.kind.as_deref(), Some("Node"));
        assert_eq!(event.type_.as_deref(), Some("Warning"));
        assert_eq!(event.reason.as_deref(), Some("SystemOOM"));
        let message = format!("System OOM encountered{expected}");
        assert_eq!(event.message, Some(message));
    }
    cancel.cancel();
    running.await.unwrap();
    // Nothing of the memory cgroup.
    assert!(kernel.events.try_recv().is_err());
}

#[tokio::test]
async fn a_kill_is_known_once_it_is_in_the_log() {
    let mut kernel = Kernel::new().await;
    assert!(!kernel.watcher.has_killed(&id('a'), 1));
    kernel.log(&summary(&id('a')));
    let killed = ['a', 'b'].map(|digit| kernel.watcher.has_killed(&id(digit), 1));
    assert_eq!(killed, [true, false]);
    assert!(kernel.watcher.has_killed(&id('a'), 1), "a second look");
}

#[tokio::test]
async fn kills_before_the_start_count_for_containers_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kmsg");
    let past = format!("6,1,2,-;{}\n3,2,3,-;{OF_NODE}\n", summary(&id('a')));
    fs::write(&path, past).unwrap();
    let (watcher, mut events) = watcher(Some(path));
    watcher.start().await;
    assert!(watcher.has_killed(&id('a'), 1));
    assert!(events.try_recv().is_err());
}

#[tokio::test]
async fn a_node_without_a_log_has_no_kills() {
    let dir = tempfile::tempdir().unwrap();
    // Denied, not a log, a log with an end, and none.
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [
        Some(dir.path().join("absent")),
        Some(dir.path().to_owned()),
        Some(file),
        Some("/dev/null".into()),
        None,
    ] {
        let (watcher, _events) = watcher(path);
        watcher.start().await;
        watcher.run(CancellationToken::new()).await;
        assert!(!watcher.has_killed(&id('a'), 1));
    }
}

#[tokio::test]
async fn the_kernels_device_is_watched() {
    let path = PathBuf::from("/dev/kmsg");
    if let Err(error) = KernelLog::open(&path) {
        test_run::skips::skip("OOM kills from /dev/kmsg", &error.to_string());
        return;
    }
    let (watcher, _events) = watcher(Some(path));
    watcher.start().await;
    let cancel = CancellationToken::new();
    let running = tokio::spawn({
        let (watcher, cancel) = (Arc::clone(&watcher), cancel.clone());
        async move { watcher.run(cancel).await }
    });
    tokio::task::yield_now().await;
    cancel.cancel();
    running.await.unwrap();
    assert!(
        watcher.state.lock().log.is_some(),
        "the log is read no further"
    );
}
