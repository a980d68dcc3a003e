//! What image garbage collection needs of the rest of the kubelet.

use futures::future::BoxFuture;
use kubelet_pod_spec::identity::PodUid;

/// The space of a file system in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSpace {
    /// Its size.
    pub capacity: u64,
    /// What is free for images.
    pub available: u64,
}

/// The images of a pod's image volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImageVolumes {
    /// The pod.
    pub pod_uid: PodUid,
    /// The references in its spec.
    pub references: Vec<String>,
}

/// What the rest of the kubelet knows about images.
pub trait ImageHost: Send + Sync {
    /// Measures the file system of images.
    fn image_fs(&self) -> BoxFuture<'_, Result<DiskSpace, String>>;

    /// The image volumes of the active pods that have any.
    fn image_volumes(&self) -> Vec<ImageVolumes>;

    /// Called after an image was removed. A pull may have brought it back by then.
    fn image_removed<'a>(&'a self, id: &'a str) -> BoxFuture<'a, ()>;

    /// Called after each period. Others may have removed images.
    fn period_ended(&self) -> BoxFuture<'_, ()>;
}
