//! Measurements that hang.

use std::sync::{
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use futures::future::{BoxFuture, FutureExt as _};
use kubelet_volume::{
    VolumeError,
    usage::{DriverUsage, DriverVolume},
};
use tokio::sync::Notify;

use super::*;

/// A driver that answers once it is released.
#[derive(Debug, Default)]
struct Slow {
    calls: AtomicUsize,
    released: Notify,
}

impl DriverVolume for Slow {
    fn driver(&self) -> &str {
        "slow"
    }

    fn usage(&self) -> BoxFuture<'_, Result<Option<DriverUsage>, VolumeError>> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        async {
            self.released.notified().await;
            Ok(Some(DriverUsage::default()))
        }
        .boxed()
    }
}

#[tokio::test]
async fn a_dead_mount_stops_no_other_and_takes_two_threads() {
    let dir = memory();
    let (server, answers) = mpsc::channel::<()>();
    let answers = Arc::new(Mutex::new(answers));
    let calls = Arc::new(AtomicUsize::new(0));
    let stat = {
        let calls = Arc::clone(&calls);
        move |path: &Path| {
            if path.starts_with("/proc") {
                calls.fetch_add(1, Ordering::Relaxed);
                // Returns when the server is gone.
                let _ = answers.lock().recv();
            }
            Ok(rustix::fs::statfs(path)?)
        }
    };
    let it = Running::with(Meter {
        stat_file_system: Arc::new(stat),
        ..Meter::default()
    });
    let dead = || UsageSource::FileSystem("/proc/1".into());
    let volumes = |name: &'static str| [(name, dead()), ("last", directory(dir.path()))];
    let pods = ["t", "u", "v", "w"];
    it.set(
        pods.map(|uid| pod(uid, json!([]), &volumes("dead")))
            .to_vec(),
    );
    in_time(async {
        for uid in pods {
            let first = it.measured(uid, "last").await.at;
            // And again in later rounds.
            until(|| it.volume(uid, "last").filter(|volume| volume.at > first)).await;
        }
        for uid in pods {
            assert_eq!(it.volume(uid, "dead"), None);
        }
        // The volumes are on the same file system.
        assert_eq!(calls.load(Ordering::Relaxed), 2);
        drop(server);
        for uid in pods {
            it.measured(uid, "dead").await;
        }
    })
    .await;
}

#[tokio::test]
async fn what_a_late_measurement_has_found_counts_until_it_ends() {
    let dir = memory();
    for name in ["a", "b", "c"] {
        std::fs::write(dir.path().join(name), "x").unwrap();
    }
    let (server, answers) = mpsc::channel::<()>();
    let answers = Arc::new(Mutex::new(answers));
    // After the walk.
    let stat = move |path: &Path| {
        let _ = answers.lock().recv();
        Ok(rustix::fs::statfs(path)?)
    };
    let it = Running::with(Meter {
        stat_file_system: Arc::new(stat),
        ..Meter::default()
    });
    let source = directory(dir.path());
    it.set(vec![pod("u", empty_dir("v"), &[("v", source)])]);
    let so_far = || {
        let usages = it.analyzer.usages_so_far();
        let pod = usages.get(&PodUid::from("u"))?;
        pod.volumes.get("v").cloned()
    };
    in_time(async {
        let has_all = |volume: &VolumeUsage| volume.inodes.used == 4 && volume.bytes.used > 0;
        let found = until(|| so_far().filter(has_all)).await;
        assert!(found.is_local_ephemeral);
        assert_eq!(it.volume("u", "v"), None);
        // Now and later, statfs succeeds.
        drop(server);
        it.measured("u", "v").await;
        for name in ["a", "b"] {
            std::fs::remove_file(dir.path().join(name)).unwrap();
        }
        until(|| it.volume("u", "v").filter(|volume| volume.inodes.used == 2)).await;
        until(|| so_far().filter(|volume| volume.inodes.used == 2)).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_driver_that_hangs_is_called_once_and_its_late_answer_counts() {
    let dir = memory();
    let slow = Arc::<Slow>::default();
    let driver = UsageSource::Driver(Arc::clone(&slow) as _);
    let it = Running::start();
    let sources = [("a", driver), ("b", directory(dir.path()))];
    it.set(vec![pod("u", json!([]), &sources)]);
    let first = it.measured("u", "b").await.at;
    let later = || {
        let volume = it.volume("u", "b");
        volume.filter(|volume| volume.at.duration_since(first).as_secs() > 1)
    };
    until(later).await;
    assert_eq!(slow.calls.load(Ordering::Relaxed), 1);
    assert_eq!(it.volume("u", "a"), None);
    slow.released.notify_one();
    let usage = it.measured("u", "a").await;
    // The last result stays while the next one is late.
    until(|| (slow.calls.load(Ordering::Relaxed) == 2).then_some(())).await;
    tokio::time::sleep(100 * PERIOD).await;
    assert_eq!(it.volume("u", "a"), Some(usage));
    // An answer for a volume that is gone does not count.
    it.set(vec![pod("u", json!([]), &sources[1..])]);
    until(|| it.volume("u", "a").is_none().then_some(())).await;
    slow.released.notify_one();
    tokio::time::sleep(100 * PERIOD).await;
    assert_eq!(it.volume("u", "a"), None);
}

/// Panics.
#[derive(Debug)]
struct Broken;

impl DriverVolume for Broken {
    fn driver(&self) -> &str {
        "broken"
    }

    fn usage(&self) -> BoxFuture<'_, Result<Option<DriverUsage>, VolumeError>> {
        panic!("broken")
    }
}

#[tokio::test(start_paused = true)]
async fn more_dead_volumes_than_threads_stop_no_other() {
    let dir = memory();
    let it = Running::start();
    let slow = Arc::<Slow>::default();
    let dead = |uid: usize| {
        let source = UsageSource::Driver(Arc::clone(&slow) as _);
        pod(&uid.to_string(), json!([]), &[("v", source)])
    };
    let mut pods: Vec<_> = (0..100).map(dead).collect();
    let broken = UsageSource::Driver(Arc::new(Broken));
    let sources = [("a", broken), ("b", directory(dir.path()))];
    pods.push(pod("u", json!([]), &sources));
    it.set(pods);
    for _ in 0..3 {
        let before = it.measured("u", "b").await.at;
        until(|| it.volume("u", "b").filter(|volume| volume.at > before)).await;
    }
    assert_eq!(slow.calls.load(Ordering::Relaxed), 100);
    assert_eq!(it.volume("u", "a"), None);
}
