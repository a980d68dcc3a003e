//! A node with images.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, ImageSpec, Mount, PodSandboxConfig, PodSandboxMetadata,
};
use fake_runtime::FakeRuntime;
use futures::future::BoxFuture;
use kubelet_api_client::events::{EventQueue, EventRecorder};
use kubelet_cri_client::CriClient;
use parking_lot::Mutex;
use tempfile::TempDir;

use crate::images::{DiskSpace, ImageCollector, ImageGcOptions, ImageHost, ImageVolumes};

const TIMEOUT: Duration = Duration::from_secs(60);
/// The size of an image of the fake runtime.
pub(super) const SIZE: u64 = 1 << 20;

/// The rest of the kubelet.
#[derive(Default)]
pub(super) struct Host(pub(super) Mutex<HostState>);

#[derive(Default)]
pub(super) struct HostState {
    pub(super) space: Option<DiskSpace>,
    pub(super) hangs: bool,
    pub(super) volumes: Vec<ImageVolumes>,
    pub(super) removed: Vec<String>,
}

impl ImageHost for Host {
    fn image_fs(&self) -> BoxFuture<'_, Result<DiskSpace, String>> {
        Box::pin(async {
            let hangs = self.0.lock().hangs;
            if hangs {
                std::future::pending::<()>().await;
            }
            self.0.lock().space.ok_or_else(|| "no space".to_owned())
        })
    }

    fn image_volumes(&self) -> Vec<ImageVolumes> {
        self.0.lock().volumes.clone()
    }

    fn image_removed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(async { self.0.lock().removed.push(id.to_owned()) })
    }

    fn period_ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// A node with a runtime, a directory and a file system.
pub(super) struct Node {
    pub(super) runtime: FakeRuntime,
    pub(super) dir: TempDir,
    pub(super) host: Arc<Host>,
}

impl Node {
    pub(super) fn new() -> Self {
        let node = Self {
            runtime: FakeRuntime::new(),
            dir: tempfile::tempdir().unwrap(),
            host: Arc::default(),
        };
        node.used(10);
        node
    }

    pub(super) fn used(&self, percent: u64) {
        self.host.0.lock().space = Some(DiskSpace {
            capacity: 100 * SIZE,
            available: (100 - percent) * SIZE,
        });
    }

    pub(super) fn cri(&self) -> CriClient {
        let channel = self.runtime.channel();
        CriClient::from_channels(channel.clone(), channel, TIMEOUT)
    }

    /// A kubelet that starts on this node.
    pub(super) fn start(
        &self,
        edit: impl FnOnce(&mut ImageGcOptions),
    ) -> (Arc<ImageCollector>, EventQueue) {
        let mut options = ImageGcOptions::default();
        edit(&mut options);
        let (events, queue) = EventRecorder::new("node");
        let host = Arc::<Host>::clone(&self.host);
        let root = self.dir.path();
        let collector = ImageCollector::new(self.cri(), options, root, events, host);
        (Arc::new(collector), queue)
    }

    /// Runs a container of a pod, with these images mounted. Returns its ID.
    pub(super) async fn run(&self, pod: &str, image: &str, mounted: &[&str]) -> String {
        let cri = self.cri();
        let label = ("io.kubernetes.pod.uid".to_owned(), pod.to_owned());
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: pod.to_owned(),
                uid: pod.to_owned(),
                ..PodSandboxMetadata::default()
            }),
            ..PodSandboxConfig::default()
        };
        let sandbox = cri.run_pod_sandbox(config.clone(), "").await.unwrap();
        let mounts = mounted.iter().map(|image| Mount {
            image: Some(ImageSpec {
                image: (*image).to_owned(),
                ..ImageSpec::default()
            }),
            ..Mount::default()
        });
        let container = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "c".to_owned(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: image.to_owned(),
                ..ImageSpec::default()
            }),
            mounts: mounts.collect(),
            labels: [label].into(),
            ..ContainerConfig::default()
        };
        let id = cri.create_container(&sandbox, container, config).await;
        let id = id.unwrap();
        cri.start_container(&id).await.unwrap();
        id
    }

    /// The tags of the images that are left.
    pub(super) fn left(&self) -> BTreeSet<String> {
        let images = self.runtime.images().into_iter();
        let tag = |tag: &String| tag.rsplit('/').next().map(str::to_owned);
        images
            .filter_map(|image| image.repo_tags.first().and_then(tag))
            .collect()
    }
}

pub(super) fn set(tags: &[&str]) -> BTreeSet<String> {
    tags.iter().map(|&tag| tag.to_owned()).collect()
}

/// The reasons and messages of the events so far.
pub(super) fn told(events: &mut EventQueue) -> Vec<(String, String)> {
    std::iter::from_fn(|| events.try_recv().ok())
        .map(|event| {
            assert_eq!(event.involved_object.kind.as_deref(), Some("Node"));
            (event.reason.unwrap(), event.message.unwrap())
        })
        .collect()
}
