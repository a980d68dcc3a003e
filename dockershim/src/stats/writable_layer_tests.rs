use cri_proto::runtime::v1::ContainerStatus;
use rustix::fs::{Mode, OFlags};

use super::*;
use crate::{engine::EngineLocality, model::Record};

/// The processes of an engine that was not reached.
fn processes() -> Arc<Processes> {
    Arc::new(Processes::new(EngineLocality::default()))
}

fn container(state: ContainerState, upper_dir: &str) -> Container {
    Container {
        status: ContainerStatus {
            state: state.into(),
            finished_at: i64::from(state == ContainerState::ContainerExited),
            ..Default::default()
        },
        sandbox_id: "s".into(),
        docker_name: String::new(),
        pid: 0,
        engine_log: String::new(),
        unified: Default::default(),
        cri_log: false,
        image_mounts: Default::default(),
        upper_dir: upper_dir.into(),
        provisional: false,
    }
}

fn put(model: &Model, id: &str, state: ContainerState, upper_dir: &str) {
    put_container(model, id, container(state, upper_dir));
}

fn put_container(model: &Model, id: &str, mut container: Container) {
    container.status.id = id.into();
    let record = Record::Container(Arc::new(container));
    model.put(&model.ticket(), id, Some(record));
}

#[tokio::test]
async fn layers_are_measured_only_when_somebody_asks() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), vec![1; 64 << 10]).unwrap();
    let model = Arc::new(Model::new());
    let upper = dir.path().to_str().unwrap();
    put(&model, "a", ContainerState::ContainerRunning, upper);
    put(&model, "none", ContainerState::ContainerRunning, "");
    put(&model, "gone", ContainerState::ContainerRunning, "/no/such");
    let stop = CancellationToken::new();
    let layers = WritableLayers::start(Arc::clone(&model), processes(), true, stop.clone());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(layers.of("a"), None);
    layers.request();
    let mut found = None;
    for _ in 0..6000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        found = layers.of("a");
        if found.is_some() {
            break;
        }
    }
    let found = found.unwrap();
    assert!(found.bytes >= 64 << 10 && found.inodes == 2, "{found:?}");
    assert_eq!(layers.total(), (found.bytes, found.inodes));
    assert_eq!((layers.of("none"), layers.of("gone")), (None, None));
    // A removed container is forgotten.
    model.remove("a");
    layers.request();
    for _ in 0..6000 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if layers.of("a").is_none() {
            break;
        }
    }
    assert_eq!(layers.total(), (0, 0));
    stop.cancel();
}

#[tokio::test]
async fn output_that_the_engine_keeps_for_the_shim_counts() {
    let dir = tempfile::tempdir().unwrap();
    let upper = dir.path().join("upper");
    std::fs::create_dir(&upper).unwrap();
    let log = dir.path().join("c-json.log");
    for suffix in ["", ".1", ".2", ".3", ".4"] {
        let path = format!("{}{suffix}", log.display());
        std::fs::write(path, vec![1; 256 << 10]).unwrap();
    }
    for (has_backlogs, is_converted, bytes) in [
        (true, true, 512 << 10),
        (false, true, 0),
        // The log is a link to the engine's, with the engine's own limits.
        (true, false, 0),
    ] {
        let model = Arc::new(Model::new());
        let mut container = container(ContainerState::ContainerRunning, upper.to_str().unwrap());
        container.engine_log = log.display().to_string();
        container.cri_log = is_converted;
        put_container(&model, "c", container);
        let stop = CancellationToken::new();
        let layers =
            WritableLayers::start(Arc::clone(&model), processes(), has_backlogs, stop.clone());
        layers.recent(&model, Duration::from_secs(60)).await;
        let found = layers.of("c").unwrap();
        // Two of the files, besides the directory.
        assert!(
            (bytes..bytes + (64 << 10)).contains(&found.bytes),
            "{found:?}"
        );
        stop.cancel();
    }
}

#[tokio::test]
async fn a_first_measurement_can_be_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let model = Arc::new(Model::new());
    let upper = dir.path().to_str().unwrap();
    for id in ["a", "b"] {
        put(&model, id, ContainerState::ContainerRunning, upper);
    }
    put(&model, "none", ContainerState::ContainerRunning, "");
    put(&model, "gone", ContainerState::ContainerRunning, "/no/such");
    let stop = CancellationToken::new();
    let layers = WritableLayers::start(Arc::clone(&model), processes(), true, stop.clone());
    layers.recent(&model, Duration::from_secs(60)).await;
    assert!(layers.of("a").is_some() && layers.of("b").is_some());
    // No task measures any more, so the wait ends at the limit.
    stop.cancel();
    put(&model, "c", ContainerState::ContainerRunning, upper);
    layers.recent(&model, Duration::from_millis(10)).await;
    assert_eq!(layers.of("c"), None);
}

#[tokio::test(start_paused = true)]
async fn what_was_written_since_is_reported_after_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let model = Arc::new(Model::new());
    let upper = dir.path().to_str().unwrap();
    put(&model, "a", ContainerState::ContainerRunning, upper);
    let stop = CancellationToken::new();
    let layers = WritableLayers::start(Arc::clone(&model), processes(), true, stop.clone());
    let limit = Duration::from_secs(60);
    layers.recent(&model, limit).await;
    let first = layers.of("a").unwrap().bytes;
    std::fs::write(dir.path().join("file"), vec![1; 64 << 10]).unwrap();
    layers.recent(&model, limit).await;
    assert_eq!(layers.of("a").unwrap().bytes, first);
    tokio::time::advance(SHORTEST_INTERVAL).await;
    layers.recent(&model, limit).await;
    assert!(layers.of("a").unwrap().bytes >= first + (64 << 10));
    stop.cancel();
}

#[tokio::test(start_paused = true)]
async fn a_container_is_measured_the_less_often_the_longer_all_take() {
    let model = Model::new();
    let layers = WritableLayers::default();
    let put_outcome = |id: &str, took| {
        let found = Measurement {
            timestamp: 5,
            bytes: 1,
            inodes: 1,
            is_partial: false,
        };
        let outcome = Outcome {
            at: Instant::now(),
            took,
            found: Some(found),
        };
        layers.measured.lock().insert(id.into(), outcome);
    };
    put(&model, "run", ContainerState::ContainerRunning, "/upper");
    put(&model, "end", ContainerState::ContainerExited, "/upper");
    for (took, interval) in [
        (Duration::from_millis(1), SHORTEST_INTERVAL),
        (Duration::from_secs(2), Duration::from_secs(40)),
        (Duration::from_secs(100), LONGEST_INTERVAL),
    ] {
        put_outcome("run", took);
        put_outcome("end", took);
        tokio::time::advance(interval - Duration::from_millis(1)).await;
        assert!(layers.next(&model).is_none());
        assert!(!layers.is_measuring(&model, LONGEST_INTERVAL));
        tokio::time::advance(Duration::from_millis(1)).await;
        // An ended container writes no more.
        assert_eq!(layers.next(&model).unwrap().id(), "run");
        assert!(layers.is_measuring(&model, took));
        assert!(!layers.is_measuring(&model, took / 2), "it is waited for");
    }
    // A container that was never measured comes first.
    put(&model, "new", ContainerState::ContainerRunning, "/upper");
    assert_eq!(layers.next(&model).unwrap().id(), "new");
    assert!(layers.is_measuring(&model, Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn a_measurement_of_a_part_is_told_and_counted() {
    struct InMemory(tempfile::TempDir);
    impl Drop for InMemory {
        fn drop(&mut self) {
            tree_walk::remove_all(self.0.path()).unwrap();
        }
    }
    // In memory, because a disk would take most of the time.
    let dir = InMemory(tempfile::tempdir_in("/dev/shm").unwrap());
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut at = rustix::fs::open(dir.0.path(), flags, Mode::empty()).unwrap();
    for _ in 0..=tree_walk::MAX_DEPTH {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", flags, Mode::empty()).unwrap();
    }
    let model = Arc::new(Model::new());
    let upper = dir.0.path().to_str().unwrap();
    put(&model, "deep", ContainerState::ContainerRunning, upper);
    let stop = CancellationToken::new();
    let layers = WritableLayers::start(Arc::clone(&model), processes(), true, stop.clone());
    layers.recent(&model, Duration::from_secs(300)).await;
    let found = layers.of("deep").unwrap();
    assert!(found.is_partial && found.inodes > tree_walk::MAX_DEPTH as u64);
    assert_eq!(layers.in_part.get(), 1);
    stop.cancel();
}
