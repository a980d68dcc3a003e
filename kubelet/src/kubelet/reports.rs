//! Reports for `kubelet status` and `kubelet gc`.

use kubelet_eviction::EvictionManager;
use kubelet_garbage_collector::{
    ContainerCollector, ContainerReason, ImageCandidate, ImageCollector, ImageReason,
};
use kubelet_server::reports::{
    EvictedPod, GarbageContainer, GarbageImage, GarbageReport, PressureReport,
};

/// The conditions that eviction observes, and what it has evicted.
pub(super) fn pressure(eviction: &EvictionManager) -> PressureReport {
    let conditions = eviction.conditions().into_iter();
    let evicted = eviction.evicted().into_iter();
    PressureReport {
        conditions: conditions.map(|it| it.as_str().to_owned()).collect(),
        evicted: evicted
            .map(|pod| EvictedPod {
                namespace: pod.namespace,
                name: pod.name,
                at: pod.at.to_string(),
                message: pod.message,
            })
            .collect(),
    }
}

/// What the collectors would remove now.
pub(super) async fn garbage(
    images: &ImageCollector,
    containers: &ContainerCollector,
) -> Result<GarbageReport, String> {
    let images = images.candidates().await;
    let images = images.map_err(|error| error.to_string())?;
    let dead = containers.candidates().await;
    let dead = dead.map_err(|error| error.to_string())?;
    let containers = dead.containers.into_iter();
    let sandboxes = dead.sandboxes.into_iter();
    Ok(GarbageReport {
        bytes_to_free: images.bytes_to_free,
        images: images.images.into_iter().map(image).collect(),
        containers: containers
            .map(|it| GarbageContainer {
                id: it.id,
                pod_uid: it.pod_uid.as_str().to_owned(),
                name: it.name,
                reason: why(it.reason).to_owned(),
            })
            .collect(),
        sandboxes: sandboxes
            .map(|it| GarbageContainer {
                id: it.id,
                pod_uid: it.pod_uid.as_str().to_owned(),
                name: String::new(),
                reason: "no container is in it, and there is a newer one or its pod is gone"
                    .to_owned(),
            })
            .collect(),
    })
}

fn image(image: ImageCandidate) -> GarbageImage {
    GarbageImage {
        id: image.id,
        names: image.names,
        bytes: image.size,
        unused_seconds: image.unused_for.as_secs(),
        reason: match image.reason {
            ImageReason::Age => "it is unused for longer than imageMaximumGCAge",
            ImageReason::Space => "the image file system is too full",
        }
        .to_owned(),
    }
}

const fn why(reason: ContainerReason) -> &'static str {
    match reason {
        ContainerReason::PodGone => "its pod is gone",
        ContainerReason::PerContainerLimit => "there are newer dead ones of the same container",
        ContainerReason::TotalLimit => "there are too many dead containers on the node",
    }
}
