//! Docker labels: what identifies a sandbox or container to the shim.
//!
//! Keys and their meaning are cri-dockerd's, so that pods which it started are
//! adopted; keys that start with [`OWN_PREFIX`] are this shim's additions.

use std::collections::{BTreeMap, HashMap};

/// `podsandbox` or `container`; a Docker container without it is not ours.
pub const TYPE: &str = "io.kubernetes.docker.type";
/// Value of [`TYPE`] on a sandbox.
pub const TYPE_SANDBOX: &str = "podsandbox";
/// Value of [`TYPE`] on a container.
pub const TYPE_CONTAINER: &str = "container";
/// On a container: the id of its sandbox.
pub const SANDBOX_ID: &str = "io.kubernetes.sandbox.id";
/// On a container: where its log is expected, absolute.
pub const LOG_PATH: &str = "io.kubernetes.container.logpath";
/// Prefix of this shim's own keys.
pub const OWN_PREFIX: &str = "dockershim.";
/// On a sandbox: the runtime handler of its request, when it named one.
pub const RUNTIME_HANDLER: &str = "dockershim.runtime-handler";
/// On a container: the image as its pod's author wrote it.
pub const USER_SPECIFIED_IMAGE: &str = "dockershim.user-specified-image";
/// On a container: `ContainerConfig.linux.resources.unified`, as JSON.
pub const UNIFIED: &str = "dockershim.unified";
/// On a container: [`LOG_FORMAT_CRI`] when the shim writes its log in CRI's format;
/// otherwise the log is a link to the engine's.
pub const LOG_FORMAT: &str = "dockershim.log-format";
/// Value of [`LOG_FORMAT`].
pub const LOG_FORMAT_CRI: &str = "cri";

/// On a container: the images that it has mounted, as JSON.
pub const IMAGE_MOUNTS: &str = "dockershim.image-mounts";
/// On a container: who it runs as, as JSON.
pub const USER: &str = "dockershim.user";

/// Keys of labels that came with the image, as a JSON array: the engine puts an image's
/// labels on its containers, among those of the container itself.
pub const FROM_IMAGE: &str = "dockershim.labels-from-image";

/// Set on a sandbox for tools that look at engines by Kubernetes' labels.
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const SANDBOX_CONTAINER_NAME: &str = "POD";
const ANNOTATION_PREFIX: &str = "annotation.";

/// The Docker labels for a sandbox or container with these CRI labels and
/// annotations. `kind` is [`TYPE_SANDBOX`] or [`TYPE_CONTAINER`].
pub fn to_docker(
    kind: &'static str,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> HashMap<String, String> {
    let mut docker: HashMap<_, _> = labels.clone().into_iter().collect();
    for (key, value) in annotations {
        docker.insert(format!("{ANNOTATION_PREFIX}{key}"), value.clone());
    }
    docker.insert(TYPE.into(), kind.into());
    if kind == TYPE_SANDBOX {
        docker.insert(CONTAINER_NAME.into(), SANDBOX_CONTAINER_NAME.into());
    }
    docker
}

/// Notes down which labels of the image the engine will add to `docker`.
pub fn mark_image_labels(image_keys: &[String], docker: &mut HashMap<String, String>) {
    let foreign: Vec<_> = image_keys
        .iter()
        .filter(|key| !docker.contains_key(*key))
        .collect();
    if !foreign.is_empty() {
        let json = serde_json::json!(foreign).to_string();
        docker.insert(FROM_IMAGE.into(), json);
    }
}

/// CRI labels and annotations out of Docker's, without the keys in between.
pub fn from_docker(
    docker: &HashMap<String, String>,
) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
    let sandbox = docker.get(TYPE).is_some_and(|kind| kind == TYPE_SANDBOX);
    let from_image: Vec<String> = docker
        .get(FROM_IMAGE)
        .and_then(|json| serde_json::from_str(json).ok())
        .unwrap_or_default();
    let mut labels = BTreeMap::new();
    let mut annotations = BTreeMap::new();
    for (key, value) in docker {
        let internal = matches!(key.as_str(), TYPE | SANDBOX_ID | LOG_PATH)
            || key.starts_with(OWN_PREFIX)
            || (sandbox && key == CONTAINER_NAME)
            || from_image.contains(key);
        if internal {
            continue;
        }
        match key.strip_prefix(ANNOTATION_PREFIX) {
            Some(annotation) => annotations.insert(annotation.to_owned(), value.clone()),
            None => labels.insert(key.clone(), value.clone()),
        };
    }
    (labels, annotations)
}

/// Whether `labels` has every pair of `selector`; an empty selector fits all.
pub fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
        proptest::collection::btree_map("[a-z][a-z0-9./-]{0,20}", ".{0,20}", 0..6)
    }

    proptest! {
        #[test]
        fn labels_and_annotations_survive_docker(labels in map(), annotations in map()) {
            prop_assume!(labels.keys().all(|k| {
                !k.starts_with(ANNOTATION_PREFIX) && !k.starts_with(OWN_PREFIX)
            }));
            for kind in [TYPE_SANDBOX, TYPE_CONTAINER] {
                let docker = to_docker(kind, &labels, &annotations);
                prop_assert_eq!(from_docker(&docker), (labels.clone(), annotations.clone()));
            }
        }
    }

    #[test]
    fn an_images_labels_are_not_the_pods() {
        let labels = BTreeMap::from([("app".to_owned(), "web".to_owned())]);
        let image = ["app", "vendor", "annotation.spoof"].map(str::to_owned);
        let mut docker = to_docker(TYPE_CONTAINER, &labels, &BTreeMap::new());
        mark_image_labels(&image, &mut docker);
        for key in image {
            docker.entry(key).or_insert_with(|| "of the image".into());
        }
        assert_eq!(from_docker(&docker), (labels, BTreeMap::new()));
    }

    #[test]
    fn a_pod_of_cri_dockerd_is_read() {
        let docker = HashMap::from(
            [
                ("io.kubernetes.docker.type", "podsandbox"),
                ("io.kubernetes.container.name", "POD"),
                ("io.kubernetes.pod.name", "web"),
                ("annotation.kubernetes.io/config.source", "file"),
            ]
            .map(|(k, v)| (k.to_owned(), v.to_owned())),
        );
        let (labels, annotations) = from_docker(&docker);
        assert_eq!(
            labels.into_keys().collect::<Vec<_>>(),
            ["io.kubernetes.pod.name"]
        );
        assert_eq!(annotations["kubernetes.io/config.source"], "file");
    }
}
