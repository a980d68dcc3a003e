use cri_proto::runtime::v1::ContainerStatus;
use rustix::fs::{Mode, OFlags};

use super::*;
use crate::{engine::EngineLocality, model::Record};

/// The processes of an engine that was not reached.
fn processes() -> Arc<Processes> {
    Arc::new(Processes::new(EngineLocality::default()))
}

fn put(model: &Model, id: &str, state: ContainerState, upper_dir: &str) {
    let container = Container {
        status: ContainerStatus {
            id: id.into(),
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
    };
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
    let layers = WritableLayers::start(Arc::clone(&model), processes(), stop.clone());
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert_eq!(layers.of("a"), None);
    layers.request();
    let mut found = None;
    for _ in 0..500 {
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
    for _ in 0..500 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        if layers.of("a").is_none() {
            break;
        }
    }
    assert_eq!(layers.total(), (0, 0));
    stop.cancel();
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
    let layers = WritableLayers::start(Arc::clone(&model), processes(), stop.clone());
    layers.first(&model, Duration::from_secs(60)).await;
    assert!(layers.of("a").is_some() && layers.of("b").is_some());
    // No task measures any more, so the wait ends at the limit.
    stop.cancel();
    put(&model, "c", ContainerState::ContainerRunning, upper);
    layers.first(&model, Duration::from_millis(10)).await;
    assert_eq!(layers.of("c"), None);
}

#[tokio::test(start_paused = true)]
async fn a_container_is_measured_again_after_minutes_unless_it_ended() {
    let model = Model::new();
    let layers = WritableLayers::default();
    let outcome = |timestamp| Outcome {
        at: Instant::now(),
        found: Some(Measurement {
            timestamp,
            bytes: 1,
            inodes: 1,
            is_partial: false,
        }),
    };
    put(&model, "run", ContainerState::ContainerRunning, "/upper");
    put(&model, "end", ContainerState::ContainerExited, "/upper");
    layers.measured.lock().insert("run".into(), outcome(5));
    layers.measured.lock().insert("end".into(), outcome(5));
    assert!(layers.next(&model).is_none());
    tokio::time::advance(INTERVAL).await;
    assert_eq!(layers.next(&model).unwrap().id(), "run");
    layers.measured.lock().insert("run".into(), outcome(5));
    assert!(layers.next(&model).is_none());
    // A container that was never measured comes first.
    tokio::time::advance(INTERVAL).await;
    put(&model, "new", ContainerState::ContainerRunning, "/upper");
    assert_eq!(layers.next(&model).unwrap().id(), "new");
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
    let layers = WritableLayers::start(Arc::clone(&model), processes(), stop.clone());
    layers.first(&model, Duration::from_secs(300)).await;
    let found = layers.of("deep").unwrap();
    assert!(found.is_partial && found.inodes > tree_walk::MAX_DEPTH as u64);
    assert_eq!(layers.in_part.get(), 1);
    stop.cancel();
}
