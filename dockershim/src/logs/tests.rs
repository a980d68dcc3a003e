mod full_disk;

use std::{
    fs::{self, OpenOptions},
    io::Write as _,
    sync::atomic::AtomicBool,
};

use cri_proto::runtime::v1::ContainerStatus;

use super::*;
use crate::engine::Engine;

/// A container and its engine log.
struct World {
    dir: tempfile::TempDir,
    container: Container,
}

impl World {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        fs::create_dir(path("engine")).unwrap();
        fs::write(path("engine/c-json.log"), "").unwrap();
        let container = Container {
            status: ContainerStatus {
                id: "c".into(),
                log_path: path("pod/0.log"),
                ..Default::default()
            },
            sandbox_id: "s".into(),
            docker_name: String::new(),
            pid: 1,
            engine_log: path("engine/c-json.log"),
            cri_log: true,
            unified: Default::default(),
            image_mounts: Default::default(),
            upper_dir: String::new(),
            provisional: false,
        };
        Self { dir, container }
    }

    fn root(&self) -> PathBuf {
        self.dir.path().join("root")
    }

    /// Logs of an engine that is away, so that only its files are read.
    fn logs(&self) -> Logs {
        let endpoint = "unix:///nonexistent/docker.sock".parse().unwrap();
        let engine = Arc::new(Engine::new(endpoint));
        Logs::new(&self.root(), engine, LogDriver::JsonFile)
    }

    fn lines(&self) -> usize {
        let log = fs::read_to_string(&self.container.status.log_path);
        log.unwrap_or_default().lines().count()
    }

    async fn until(&self, what: &str, condition: impl Fn() -> bool) {
        for _ in 0..6000 {
            if condition() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("timeout after 60 s: {what}");
    }
}

/// Appends lines with the same timestamp.
fn write(engine_log: &str, lines: usize) {
    let line = r#"{"log":"text\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}"#;
    let mut file = OpenOptions::new().append(true).open(engine_log).unwrap();
    for _ in 0..lines {
        writeln!(file, "{line}").unwrap();
    }
}

/// Appends lines with a later timestamp; creates the file if it is missing.
fn write_later(engine_log: &str, lines: usize) {
    let line = r#"{"log":"later\n","stream":"stdout","time":"2026-01-02T00:00:00Z"}"#;
    let mut file = OpenOptions::new();
    let mut file = file.append(true).create(true).open(engine_log).unwrap();
    for _ in 0..lines {
        writeln!(file, "{line}").unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_container_that_writes_all_the_time_can_have_its_log_reopened() {
    let world = World::new();
    let done = Arc::new(AtomicBool::new(false));
    let writer = std::thread::spawn({
        let (path, done) = (world.container.engine_log.clone(), Arc::clone(&done));
        move || {
            while !done.load(Ordering::Relaxed) {
                write(&path, 1000);
            }
        }
    });
    let logs = world.logs();
    logs.follow(&world.container);
    world.until("lines come", || world.lines() > 0).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    let log = world.container.status.log_path.clone();
    fs::rename(&log, format!("{log}.1")).unwrap();
    let reopened = tokio::time::timeout(Duration::from_secs(60), logs.reopen("c")).await;
    done.store(true, Ordering::Relaxed);
    writer.join().unwrap();
    reopened.unwrap().unwrap();
}

#[tokio::test]
async fn a_crash_soon_after_the_start_loses_no_lines_of_one_time() {
    let world = World::new();
    write(&world.container.engine_log, 3);
    let logs = world.logs();
    logs.follow(&world.container);
    world.until("lines come", || world.lines() == 3).await;
    // The state that a crash would leave now.
    let note = "root/logs/c.json";
    let crashed = fs::read(world.dir.path().join(note)).unwrap();
    logs.close().await;
    fs::write(world.dir.path().join(note), crashed).unwrap();

    write(&world.container.engine_log, 3);
    let logs = world.logs();
    logs.finish(&world.container).await;
    assert_eq!(world.lines(), 6);
}

#[tokio::test]
async fn a_removed_container_has_what_it_wrote_at_last() {
    let world = World::new();
    write(&world.container.engine_log, 1);
    let logs = world.logs();
    logs.follow(&world.container);
    world.until("lines come", || world.lines() == 1).await;
    write(&world.container.engine_log, 1000);
    fs::remove_dir_all(world.dir.path().join("engine")).unwrap();
    logs.forget("c");
    world
        .until("all lines are there", || world.lines() == 1001)
        .await;
}

#[tokio::test]
async fn nothing_is_left_of_what_is_removed_as_it_ends() {
    let world = World::new();
    write(&world.container.engine_log, 2);
    let logs = world.logs();
    logs.follow(&world.container);
    let noted = || logs.shared.checkpoints.load("c").is_some();
    world.until("it is begun", noted).await;
    // The second order reaches the follower while it handles the first, after which it ends.
    logs.end("c");
    logs.forget("c");
    world.until("nothing is left", || !noted()).await;
    assert_eq!(world.lines(), 2);
}

#[tokio::test]
async fn a_log_that_is_followed_after_its_end_is_left_again() {
    let world = World::new();
    write(&world.container.engine_log, 2);
    let logs = world.logs();
    logs.finish(&world.container).await;
    // The state of an inspect from before the exit.
    logs.follow(&world.container);
    assert!(logs.is_followed("c"));
    logs.end("c");
    world.until("it is left", || !logs.is_followed("c")).await;
    assert_eq!(world.lines(), 2);
}

#[tokio::test]
async fn a_log_is_there_before_the_engine_has_its_own() {
    let mut world = World::new();
    // The engine reports no log file before the start.
    world.container.engine_log.clear();
    let logs = world.logs();
    let log = PathBuf::from(&world.container.status.log_path);
    world.container.cri_log = false;
    logs.create(&world.container).await;
    assert!(!log.exists());
    world.container.cri_log = true;
    logs.create(&world.container).await;
    assert!(log.exists());
}

#[tokio::test]
async fn a_disk_that_syncs_slowly_holds_up_no_log() {
    let world = World::new();
    let logs = world.logs();
    // All sync permits are taken by slow syncs.
    let threads = u32::try_from(SYNCS).unwrap();
    let busy = logs.shared.syncs.acquire_many(threads).await.unwrap();
    write(&world.container.engine_log, 3);
    logs.follow(&world.container);
    world.until("lines come", || world.lines() == 3).await;
    let log = world.container.status.log_path.clone();
    fs::rename(&log, format!("{log}.1")).unwrap();
    logs.reopen("c").await.unwrap();
    write(&world.container.engine_log, 2);
    world.until("more lines come", || world.lines() == 2).await;

    // The log of an exited container is reported as complete only once that is on disk.
    let finish = logs.finish(&world.container);
    tokio::pin!(finish);
    let early = tokio::time::timeout(Duration::from_millis(200), &mut finish).await;
    assert!(early.is_err());
    drop(busy);
    finish.await;
    assert!(logs.shared.checkpoints.load("c").unwrap().complete);
}

#[tokio::test]
async fn what_the_engine_removed_before_it_was_read_is_counted() {
    let world = World::new();
    let engine_log = &world.container.engine_log;
    let numbered = |n: usize| format!("{engine_log}.{n}");
    write(engine_log, 3);
    let logs = world.logs();
    logs.follow(&world.container);
    world.until("lines come", || world.lines() == 3).await;
    let lost = |logs: &Logs| Loss::ALL.map(|loss| logs.lost(loss));
    assert_eq!(lost(&logs), [0; 4]);
    logs.close().await;
    write(engine_log, 5);
    fs::remove_file(engine_log).unwrap();
    write_later(&numbered(1), 2);
    write_later(engine_log, 2);

    // A log that cannot be written yet causes no further loss.
    let log = world.container.status.log_path.clone();
    fs::rename(&log, format!("{log}.1")).unwrap();
    fs::create_dir(&log).unwrap();
    let logs = world.logs();
    logs.follow(&world.container);
    tokio::time::sleep(Duration::from_millis(700)).await;
    fs::remove_dir(&log).unwrap();
    world.until("later lines come", || world.lines() == 4).await;
    // Counted after the lines have been written.
    world.until("it is counted", || lost(&logs) != [0; 4]).await;
    assert_eq!(lost(&logs), [1, 0, 0, 0]);

    // An invalid line.
    let mut file = OpenOptions::new().append(true).open(engine_log).unwrap();
    file.write_all(b"{\"log\":\"torn\n\0\0\n").unwrap();
    write_later(engine_log, 1);
    world
        .until("the next line comes", || world.lines() == 5)
        .await;
    world
        .until("it is counted", || lost(&logs) != [1, 0, 0, 0])
        .await;
    assert_eq!(lost(&logs), [1, 0, 2, 0]);

    fs::write(engine_log, "").unwrap();
    world
        .until("it was cut", || lost(&logs) == [1, 1, 2, 0])
        .await;

    // Removed while the log cannot be written.
    logs.close().await;
    fs::rename(&log, format!("{log}.2")).unwrap();
    fs::create_dir(&log).unwrap();
    write_later(engine_log, 1);
    let logs = world.logs();
    logs.follow(&world.container);
    logs.forget("c");
    let all = [0, 0, 0, 1];
    world.until("the end is lost", || lost(&logs) == all).await;
}
