//! Limits on local ephemeral storage: `emptyDir.sizeLimit`, and the limits on `ephemeral-storage`
//! of pods and containers.

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_pod_spec::{
    quantity::{self, NANOS},
    resources::{self, Side},
};

use crate::{observation::Layout, usage::PodUsage};

const STORAGE: &str = "ephemeral-storage";

/// Which limit a pod exceeds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excess {
    /// The message, as upstream.
    pub(crate) message: String,
    /// The value of the metric's label.
    pub(crate) signal: &'static str,
}

/// Whether the pod has any limit.
pub(crate) fn has_limit(pod: &Pod) -> bool {
    has_volume_limit(pod) || has_storage_limit(pod)
}

/// Whether the pod limits its volumes.
pub(crate) fn has_volume_limit(pod: &Pod) -> bool {
    let volumes = pod
        .spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten());
    volumes
        .filter_map(|volume| volume.empty_dir.as_ref())
        .any(|source| source.size_limit.is_some())
}

/// Whether the pod limits its ephemeral storage, which includes writable layers.
pub(crate) fn has_storage_limit(pod: &Pod) -> bool {
    pod.spec.as_ref().is_some_and(|spec| limit(spec).is_some())
}

fn limit(spec: &PodSpec) -> Option<i128> {
    let limits = resources::of_containers(spec, Side::Limits);
    limits.get(STORAGE).copied()
}

/// The first limit that the pod exceeds.
pub(crate) fn excess(pod: &Pod, usage: &PodUsage, layout: Layout) -> Option<Excess> {
    let spec = pod.spec.as_ref()?;
    let of_volumes = volume_excess(spec, usage);
    let of_pod = || pod_excess(spec, usage);
    of_volumes
        .or_else(of_pod)
        .or_else(|| container_excess(spec, usage, layout))
}

fn volume_excess(spec: &PodSpec, usage: &PodUsage) -> Option<Excess> {
    spec.volumes.iter().flatten().find_map(|volume| {
        let limit = volume.empty_dir.as_ref()?.size_limit.as_ref()?;
        let used = usage.volume(&volume.name)?;
        let allowed = quantity::parse(&limit.0).ok()?;
        (allowed > 0 && i128::from(used.bytes) * NANOS > allowed).then(|| Excess {
            message: format!(
                "Usage of EmptyDir volume {:?} exceeds the limit {:?}. ",
                volume.name, limit.0
            ),
            signal: "emptydirfs.limit",
        })
    })
}

fn pod_excess(spec: &PodSpec, usage: &PodUsage) -> Option<Excess> {
    let allowed = limit(spec)?;
    let used = i128::from(usage.ephemeral_storage().bytes) * NANOS;
    (used > allowed).then(|| Excess {
        message: format!(
            "Pod ephemeral local storage usage exceeds the total limit of containers {}. ",
            quantity::format(STORAGE, allowed)
        ),
        signal: "ephemeralpodfs.limit",
    })
}

/// Writable layers that are not on the kubelet's file system do not count, as upstream.
fn container_excess(spec: &PodSpec, usage: &PodUsage, layout: Layout) -> Option<Excess> {
    spec.containers.iter().find_map(|container| {
        let limit = container
            .resources
            .as_ref()?
            .limits
            .as_ref()?
            .get(STORAGE)?;
        let used = usage.containers.get(&container.name)?;
        let layer = used.layer.filter(|_| layout != Layout::ImagesApart);
        let files = layer.into_iter().chain(used.logs);
        let used: u64 = files.fold(0, |sum, files| sum.saturating_add(files.bytes));
        let allowed = quantity::parse(&limit.0).ok()?;
        (allowed != 0 && i128::from(used) * NANOS > allowed).then(|| Excess {
            message: format!(
                "Container {} exceeded its local ephemeral storage limit {:?}. ",
                container.name, limit.0
            ),
            signal: "ephemeralcontainerfs.limit",
        })
    })
}

#[cfg(test)]
mod tests {
    use kubelet_resource_analyzer::FileUsage;
    use serde_json::{Value, json};

    use super::*;
    use crate::usage::ContainerUsage;

    fn pod(spec: Value) -> Pod {
        serde_json::from_value(json!({"spec": spec})).unwrap()
    }

    fn files(bytes: u64) -> FileUsage {
        FileUsage { bytes, inodes: 1 }
    }

    fn usage(layer: u64, logs: u64, disk: u64, memory: u64) -> PodUsage {
        let container = ContainerUsage {
            layer: Some(files(layer)),
            logs: Some(files(logs)),
            ..ContainerUsage::default()
        };
        PodUsage {
            containers: [("c".to_owned(), container)].into(),
            local_volumes: [("disk".to_owned(), files(disk))].into(),
            memory_volumes: [("memory".to_owned(), files(memory))].into(),
            ..PodUsage::default()
        }
    }

    fn limited(storage: Option<&str>, disk: &str, memory: &str) -> Pod {
        let mut resources = json!({});
        if let Some(storage) = storage {
            resources["limits"] = json!({"ephemeral-storage": storage});
        }
        pod(json!({
            "containers": [{"name": "c", "resources": resources}, {"name": "unlimited"}],
            "volumes": [
                {"name": "unlimited", "emptyDir": {}},
                {"name": "disk", "emptyDir": {"sizeLimit": disk}},
                {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": memory}},
            ],
        }))
    }

    #[test]
    fn each_limit_is_exceeded_by_one_byte() {
        let of = |pod: &Pod, usage: &PodUsage, layout| {
            excess(pod, usage, layout).map(|it| (it.signal, it.message))
        };
        let volumes = limited(None, "10", "20");
        assert_eq!(
            of(&volumes, &usage(9999, 9999, 10, 20), Layout::Single),
            None
        );
        let (signal, message) = of(&volumes, &usage(0, 0, 11, 20), Layout::Single).unwrap();
        assert_eq!(signal, "emptydirfs.limit");
        assert_eq!(
            message,
            "Usage of EmptyDir volume \"disk\" exceeds the limit \"10\". "
        );
        let (_, message) = of(&volumes, &usage(0, 0, 10, 21), Layout::Single).unwrap();
        assert!(message.contains("\"memory\" exceeds the limit \"20\""));

        // Volumes of memory are no storage.
        let storage = limited(Some("1Ki"), "0", "0");
        assert_eq!(
            of(&storage, &usage(500, 500, 24, 9999), Layout::Single),
            None
        );
        let (signal, message) = of(&storage, &usage(500, 500, 25, 0), Layout::Single).unwrap();
        assert_eq!(signal, "ephemeralpodfs.limit");
        assert_eq!(
            message,
            "Pod ephemeral local storage usage exceeds the total limit of containers 1Ki. "
        );
    }

    #[test]
    fn a_container_has_a_limit_of_its_own() {
        let of_two = pod(json!({"containers": [
            {"name": "c", "resources": {"limits": {"ephemeral-storage": "100"}}},
            {"name": "d", "resources": {"limits": {"ephemeral-storage": "100"}}},
        ]}));
        let found = excess(&of_two, &usage(60, 41, 0, 0), Layout::Single).unwrap();
        assert_eq!(found.signal, "ephemeralcontainerfs.limit");
        assert_eq!(
            found.message,
            "Container c exceeded its local ephemeral storage limit \"100\". "
        );
        assert_eq!(excess(&of_two, &usage(60, 40, 0, 0), Layout::Single), None);
        assert_eq!(
            excess(&of_two, &usage(60, 41, 0, 0), Layout::ImagesApart),
            None
        );
        assert!(excess(&of_two, &usage(0, 101, 0, 0), Layout::ImagesApart).is_some());
        assert!(excess(&of_two, &usage(60, 41, 0, 0), Layout::OnlyImagesApart).is_some());
    }

    #[test]
    fn only_pods_with_limits_are_measured() {
        let volumes = limited(None, "10", "20");
        assert!(has_volume_limit(&volumes) && !has_storage_limit(&volumes));
        let storage = pod(json!({"containers": [
            {"name": "c", "resources": {"limits": {"ephemeral-storage": "1"}}},
        ]}));
        assert!(!has_volume_limit(&storage) && has_storage_limit(&storage));
    }
}
