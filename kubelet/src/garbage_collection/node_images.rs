//! The images of the node, for their collector.

use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{Pod, Volume};
use kubelet_garbage_collector::{DiskSpace, ImageHost, ImageVolumes};
use kubelet_pod_spec::identity::PodUid;
use kubelet_runtime::RuntimeManager;
use kubelet_stats::StatsProvider;

use crate::{
    active_pods::active_pods, pod::manager::PodManager, pod_syncer::Syncer, pod_worker::PodWorkers,
    status::StatusManager,
};

/// The file system of images, the image volumes of pods, and the records of pulls.
pub(crate) struct NodeImages {
    pub(crate) stats: Arc<StatsProvider>,
    pub(crate) pods: Arc<PodManager>,
    pub(crate) statuses: Arc<StatusManager>,
    pub(crate) workers: Arc<PodWorkers<Syncer>>,
    pub(crate) runtime: Arc<RuntimeManager>,
}

impl ImageHost for NodeImages {
    fn image_fs(&self) -> BoxFuture<'_, Result<DiskSpace, String>> {
        Box::pin(async {
            let stats = self.stats.node().await;
            let stats = stats.map_err(|error| error.to_string())?;
            let images = stats.images.map(|both| both.images);
            let images = images.ok_or("the runtime does not report it")?;
            let space = images.capacity.zip(images.available);
            let (capacity, available) = space.ok_or("its size is unknown")?;
            Ok(DiskSpace {
                capacity,
                available,
            })
        })
    }

    fn image_volumes(&self) -> Vec<ImageVolumes> {
        let pods = active_pods(&self.pods, &self.statuses, &self.workers);
        let volumes = pods.iter().map(|pod| ImageVolumes {
            pod_uid: PodUid::of(pod),
            references: references(pod),
        });
        volumes.filter(|it| !it.references.is_empty()).collect()
    }

    fn image_removed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, ()> {
        Box::pin(self.runtime.images().forget(id))
    }

    fn period_ended(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.runtime.images().forget_absent())
    }
}

fn references(pod: &Pod) -> Vec<String> {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    let reference = |volume: &Volume| volume.image.as_ref()?.reference.clone();
    volumes.filter_map(reference).collect()
}
