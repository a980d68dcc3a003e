use std::sync::{
    atomic::{AtomicUsize, Ordering},
    mpsc,
};

use futures::future::{self, FutureExt as _};
use kubelet_api_client::{events::EventRecorder, objects::NoObjects};
use kubelet_metrics::{Collector as _, Exposition};
use kubelet_volume::{
    VolumeError, VolumeHost,
    plugin::{
        Attributes, FoundDevice, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin,
    },
    plugins,
    spec::VolumeSpec,
    usage::UsageSource,
};
use tokio::{sync::Notify, time::sleep};
use tokio_util::sync::CancellationToken;

use super::*;

/// The directories of a kubelet. Those of the pod `live` are kept.
struct Node {
    _root: tempfile::TempDir,
    node: Arc<LocalNode>,
}

impl Node {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let node = Arc::new(LocalNode {
            root_dir: root.path().join("kubelet"),
            pod_logs_dir: root.path().join("logs"),
            ..LocalNode::default()
        });
        Self { _root: root, node }
    }

    fn host(&self) -> VolumeHost {
        VolumeHost {
            root_dir: self.node.root_dir.clone(),
            node_name: self.node.name.clone(),
            selinux: None,
            objects: Arc::new(NoObjects),
            allocatable: Arc::default(),
            events: EventRecorder::default(),
        }
    }

    fn pod(&self, dir: &str) -> PathBuf {
        directory::pods_dir(&self.node.root_dir).join(dir)
    }

    fn log(&self, dir: &str) -> PathBuf {
        self.node.pod_logs_dir.join(dir)
    }

    fn scan_input(
        &self,
        volumes: &Arc<VolumeManager>,
    ) -> ScanInput<impl Fn(&PodUid) -> bool + Clone + use<>> {
        ScanInput {
            node: Arc::clone(&self.node),
            volumes: Arc::clone(volumes),
            listing: Arc::default(),
            removals: Removals::default(),
            orphans: Arc::default(),
            keep: |uid: &PodUid| uid.as_str() == "live",
        }
    }
}

fn make(dir: &Path) {
    std::fs::create_dir_all(dir).unwrap();
}

/// Waits until another task has removed it.
async fn is_removed(dir: &Path) {
    while dir.exists() {
        sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn directories_of_gone_pods_are_removed() {
    let node = Node::new();
    for dir in [
        "live",
        "gone/volumes/kubernetes.io~empty-dir/v",
        "gone/volumes/example.com~removed-driver/v",
    ] {
        make(&node.pod(dir));
    }
    for dir in ["ns_a_live", "ns_b_gone", "not-ours"] {
        make(&node.log(dir));
    }
    let host = node.host();
    let plugins = plugins::all(&host, Arc::default(), Path::new("/none"));
    let volumes = Arc::new(VolumeManager::new(host, plugins));
    let cancel = CancellationToken::new();
    let clean = async {
        let input = node.scan_input(&volumes);
        let orphans = Arc::clone(&input.orphans);
        Directories::default().scan_if_due(input);
        is_removed(&node.pod("gone")).await;
        is_removed(&node.log("ns_b_gone")).await;
        cancel.cancel();
        let mut page = Exposition::default();
        orphans.collect(&mut page);
        let text = page.into_text();
        for line in [
            "\nkubelet_orphan_pod_cleaned_volumes 1\n",
            "\nkubelet_orphan_pod_cleaned_volumes_errors 0\n",
        ] {
            assert!(text.contains(line), "{text}");
        }
    };
    tokio::join!(volumes.run(cancel.clone()), clean);
    assert!(node.pod("live").exists());
    let logs: Vec<String> = children(&node.node.pod_logs_dir)
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    assert_eq!(logs, ["not-ours", "ns_a_live"]);
}

/// A plugin whose volumes are on a server that does not respond.
#[derive(Debug)]
struct Hung(Arc<Mutex<mpsc::Receiver<()>>>);

impl VolumePlugin for Hung {
    fn name(&self) -> &'static str {
        "test/hung"
    }

    fn supports(&self, _: &VolumeSpec) -> bool {
        false
    }

    fn attributes(&self, _: &VolumeSpec) -> Attributes {
        Attributes::default()
    }

    fn usage(&self, _: &MountRequest) -> UsageSource {
        UsageSource::None
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        future::ready(Err(VolumeError::Unsupported(request.spec.name.clone()))).boxed()
    }

    fn tear_down<'a>(&'a self, _: &'a PodVolume) -> PluginFuture<'a, ()> {
        future::ready(Ok(())).boxed()
    }

    fn device_on_disk<'a>(&'a self, _: &'a PodVolume) -> PluginFuture<'a, Option<FoundDevice>> {
        let answers = Arc::clone(&self.0);
        kubelet_volume::blocking_on_server("test", move || {
            let _ = answers.lock().recv();
            Err(VolumeError::Unsupported("hung".to_owned()))
        })
        .boxed()
    }
}

#[tokio::test]
async fn a_directory_that_hangs_holds_up_no_other_and_no_later_look() {
    let node = Node::new();
    let (server, answers) = mpsc::channel();
    let plugin = Arc::new(Hung(Arc::new(Mutex::new(answers))));
    let volumes = Arc::new(VolumeManager::new(node.host(), vec![plugin]));
    make(&node.pod("hung/volumes/test~hung/v"));
    make(&node.pod("gone"));
    make(&node.log("ns_a_gone"));
    let mut directories = Directories::default();
    directories.scan_if_due(node.scan_input(&volumes));
    for removed in [node.pod("gone"), node.log("ns_a_gone")] {
        is_removed(&removed).await;
    }
    make(&node.pod("later"));
    make(&node.log("ns_a_later"));
    while directories.cleaning.0.lock().len() > 1 {
        sleep(Duration::from_millis(1)).await;
    }
    directories.scanned = None;
    directories.scan_if_due(node.scan_input(&volumes));
    for removed in [node.pod("later"), node.log("ns_a_later")] {
        is_removed(&removed).await;
    }
    assert!(node.pod("hung").exists());
    let cleaning = directories.cleaning.0.lock().clone();
    assert!(cleaning.contains(&node.pod("hung")));
    drop(server);
    let cancel = CancellationToken::new();
    let clean = async {
        is_removed(&node.pod("hung")).await;
        cancel.cancel();
    };
    tokio::join!(volumes.run(cancel.clone()), clean);
}

#[tokio::test]
async fn a_directory_is_cleaned_by_one_task_at_a_time() {
    let cleaning = CleanupTasks::default();
    let (end, ended) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let begun = Arc::new(Mutex::new(Vec::new()));
    let begin = |dir: &str, name: &'static str| {
        let (begun, end, ended) = (Arc::clone(&begun), Arc::clone(&end), Arc::clone(&ended));
        cleaning.begin(Path::new(dir), async move {
            begun.lock().push(name);
            end.notified().await;
            ended.notify_one();
        });
    };
    begin("/a", "first of a");
    begin("/a", "second of a");
    begin("/b", "first of b");
    tokio::task::yield_now().await;
    assert_eq!(*begun.lock(), ["first of a", "first of b"]);
    end.notify_waiters();
    ended.notified().await;
    tokio::task::yield_now().await;
    begin("/a", "third of a");
    tokio::task::yield_now().await;
    assert_eq!(begun.lock().last(), Some(&"third of a"));
}

#[tokio::test]
async fn a_pod_that_comes_back_at_any_time_loses_nothing() {
    // `keep` is called in the scan, before the volumes are released, and after that.
    for back_at in [2, 3] {
        let node = Node::new();
        let plugin = Arc::new(Hung(Arc::new(Mutex::new(mpsc::channel().1))));
        let volumes = Arc::new(VolumeManager::new(node.host(), vec![plugin]));
        let volume = node.pod("back/volumes/test~hung/v");
        make(&volume);
        let asked = Arc::new(AtomicUsize::new(0));
        let input = ScanInput {
            node: Arc::clone(&node.node),
            volumes: Arc::clone(&volumes),
            listing: Arc::default(),
            removals: Removals::default(),
            orphans: Arc::default(),
            keep: {
                let asked = Arc::clone(&asked);
                move |_: &PodUid| asked.fetch_add(1, Ordering::Relaxed) + 1 >= back_at
            },
        };
        let mut directories = Directories::default();
        directories.scan_if_due(input);
        let cancel = CancellationToken::new();
        let clean = async {
            while !directories.cleaning.0.lock().is_empty() {
                sleep(Duration::from_millis(1)).await;
            }
            cancel.cancel();
        };
        tokio::join!(volumes.run(cancel.clone()), clean);
        assert!(volume.exists(), "{back_at}");
        assert_eq!(asked.load(Ordering::Relaxed), back_at);
    }
}
