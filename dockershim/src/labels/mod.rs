//! Docker labels that identify sandboxes and containers.
//!
//! Keys and values are compatible with cri-dockerd, so that pods it started are adopted; keys that
//! start with `dockershim.` are this shim's additions.
//!
//! The engine keeps labels from three sources in one map: the image's, which the request's labels
//! override, the pod's, and the shim's. So the shim writes all of its own labels at every create,
//! with an empty value if there is nothing to store, and also stores which keys are the pod's. It
//! trusts its own labels only on containers that carry `MADE_HERE`, which no label can forge.

pub mod image_mounts;
pub mod user;

use std::collections::{BTreeMap, HashMap};

use bollard::models::{ContainerCreateBody, HostConfig};
use serde::{Deserialize, Serialize};

/// `podsandbox`, `container` or `scratch`; Docker containers without this label are ignored.
pub const TYPE: &str = "io.kubernetes.docker.type";
/// Value of [`TYPE`] on a sandbox.
pub const TYPE_SANDBOX: &str = "podsandbox";
/// Value of [`TYPE`] on a container.
pub const TYPE_CONTAINER: &str = "container";
/// Value of [`TYPE`] on a container that is created only to read an image's files, and never
/// started.
pub const TYPE_SCRATCH: &str = "scratch";
/// On a container: its sandbox's id.
pub const SANDBOX_ID: &str = "io.kubernetes.sandbox.id";
/// On a container: the absolute path of its log.
pub const LOG_PATH: &str = "io.kubernetes.container.logpath";
/// The Docker name at creation; a user may have renamed the container since.
pub const NAME: &str = "dockershim.name";
/// The keys of the pod's labels and annotations: [`Keys`], as JSON.
const KEYS: &str = "dockershim.keys";
/// On a sandbox: the runtime handler of the request, if any.
pub const RUNTIME_HANDLER: &str = "dockershim.runtime-handler";
/// On a container: the image as written in the pod spec.
pub const USER_SPECIFIED_IMAGE: &str = "dockershim.user-specified-image";
/// On a container: `ContainerConfig.linux.resources.unified`, as JSON.
pub const UNIFIED: &str = "dockershim.unified";
/// On a container: [`LOG_FORMAT_CRI`] if the shim writes its log in CRI's format; otherwise the log
/// is a symlink to the engine's.
pub const LOG_FORMAT: &str = "dockershim.log-format";
/// Value of [`LOG_FORMAT`].
pub const LOG_FORMAT_CRI: &str = "cri";
/// On a container: its image mounts, as JSON.
pub const IMAGE_MOUNTS: &str = "dockershim.image-mounts";
/// On a container: the user it runs as, as JSON.
pub const USER: &str = "dockershim.user";

/// Every label that the shim uses itself, as opposed to the pod's labels.
pub const OWN: [&str; 11] = [
    TYPE,
    SANDBOX_ID,
    LOG_PATH,
    NAME,
    KEYS,
    RUNTIME_HANDLER,
    USER_SPECIFIED_IMAGE,
    UNIFIED,
    LOG_FORMAT,
    IMAGE_MOUNTS,
    USER,
];

/// Prefix of this shim's own keys.
const OWN_PREFIX: &str = "dockershim.";
/// Prefix of pod labels whose key would otherwise conflict with one of the shim's.
const ESCAPED_PREFIX: &str = "dockershim.label.";
const ANNOTATION_PREFIX: &str = "annotation.";

/// Set on a sandbox for tools that select containers by Kubernetes labels.
const CONTAINER_NAME: &str = "io.kubernetes.container.name";
const SANDBOX_CONTAINER_NAME: &str = "POD";

/// `HostConfig.ContainerIDFile` of every container that the shim creates. The engine stores the
/// value, does not act on it, and takes it only from the request, never from an image.
const MADE_HERE: &str = "dockershim";

/// Kubernetes keys that every kubelet sets on every container, so that their values are never the
/// image's. In the form that they have as Docker labels.
const ALWAYS_SET: [&str; 8] = [
    "io.kubernetes.pod.name",
    "io.kubernetes.pod.namespace",
    "io.kubernetes.pod.uid",
    CONTAINER_NAME,
    "annotation.io.kubernetes.container.hash",
    "annotation.io.kubernetes.container.restartCount",
    "annotation.io.kubernetes.container.terminationMessagePath",
    "annotation.io.kubernetes.container.terminationMessagePolicy",
];

/// The keys of a pod's labels and annotations.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Keys<T> {
    labels: Vec<T>,
    annotations: Vec<T>,
}

/// The Docker labels of a sandbox or container with these CRI labels and annotations. `kind` is a
/// value of [`TYPE`].
pub fn to_docker(
    kind: &'static str,
    labels: &BTreeMap<String, String>,
    annotations: &BTreeMap<String, String>,
) -> HashMap<String, String> {
    let mut docker = HashMap::new();
    let keys = Keys {
        labels: labels.keys().collect(),
        annotations: annotations.keys().collect(),
    };
    docker.insert(KEYS.into(), serde_json::json!(keys).to_string());
    docker.insert(TYPE.into(), kind.into());
    if kind == TYPE_SANDBOX {
        docker.insert(CONTAINER_NAME.into(), SANDBOX_CONTAINER_NAME.into());
    }
    for (key, value) in labels {
        docker.insert(label_key(kind, key), value.clone());
    }
    for (key, value) in annotations {
        docker.insert(annotation_key(key), value.clone());
    }
    docker
}

/// The Docker key of the pod's label `key`.
fn label_key(kind: &str, key: &str) -> String {
    let means_something = OWN.contains(&key)
        || key.starts_with(OWN_PREFIX)
        || key.starts_with(ANNOTATION_PREFIX)
        || (kind == TYPE_SANDBOX && key == CONTAINER_NAME);
    if means_something {
        format!("{ESCAPED_PREFIX}{key}")
    } else {
        key.to_owned()
    }
}

fn annotation_key(key: &str) -> String {
    format!("{ANNOTATION_PREFIX}{key}")
}

/// Marks a creation request for [`made_here`] under the Docker name `name`. Missing labels of
/// [`OWN`] are added with an empty value, so that an image cannot set them.
pub fn sign(name: &str, body: &mut ContainerCreateBody) {
    let labels = body.labels.get_or_insert_default();
    for key in OWN {
        labels.entry(key.into()).or_default();
    }
    labels.insert(NAME.into(), name.into());
    let host = body.host_config.get_or_insert_default();
    host.container_id_file = Some(MADE_HERE.into());
}

/// Checks whether this shim created a container, rather than another client of the same engine.
pub fn made_here(host: Option<&HostConfig>) -> bool {
    let mark = host.and_then(|host| host.container_id_file.as_deref());
    mark == Some(MADE_HERE)
}

/// The creator of a Docker container's labels.
#[derive(Debug, Clone, Copy)]
pub enum Author<'a> {
    /// This shim.
    Shim,
    /// Another client, such as cri-dockerd, which can distinguish its own labels from the image's
    /// only by their keys. Holds the keys of the image's labels, if known.
    Other(Option<&'a [String]>),
}

/// A Docker container's labels, as far as they can be trusted.
#[derive(Debug)]
pub struct Labels<'a> {
    docker: &'a HashMap<String, String>,
    author: Author<'a>,
}

impl<'a> Labels<'a> {
    /// The labels of a container that `author` created.
    pub fn new(docker: &'a HashMap<String, String>, author: Author<'a>) -> Self {
        Self { docker, author }
    }

    /// The value of one of [`OWN`]; empty if it is not set or not trusted.
    pub fn own(&self, key: &str) -> &'a str {
        let believed = matches!(self.author, Author::Shim) || !key.starts_with(OWN_PREFIX);
        let value = self.docker.get(key).filter(|_| believed);
        value.map_or("", String::as_str)
    }

    /// The Docker name at creation, if it is known reliably.
    pub fn name(&self) -> Option<&'a str> {
        Some(self.own(NAME)).filter(|name| !name.is_empty())
    }

    /// The pod's labels and annotations.
    pub fn of_pod(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        match self.author {
            Author::Shim => self.by_keys(),
            Author::Other(image) => self.but_for_images(image),
        }
    }

    fn by_keys(&self) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let kind = self.own(TYPE);
        let keys: Keys<String> = serde_json::from_str(self.own(KEYS)).unwrap_or_default();
        let found = |of: &dyn Fn(&str) -> String, keys: Vec<String>| {
            let pair = |key: String| Some((self.docker.get(&of(&key))?.clone(), key));
            let pairs = keys.into_iter().filter_map(pair);
            pairs.map(|(value, key)| (key, value)).collect()
        };
        (
            found(&|key| label_key(kind, key), keys.labels),
            found(&annotation_key, keys.annotations),
        )
    }

    fn but_for_images(
        &self,
        image: Option<&[String]>,
    ) -> (BTreeMap<String, String>, BTreeMap<String, String>) {
        let sandbox = self.own(TYPE) == TYPE_SANDBOX;
        let of_image = |key: &String| match image {
            _ if ALWAYS_SET.contains(&key.as_str()) => false,
            Some(keys) => keys.contains(key),
            None => key.starts_with(ANNOTATION_PREFIX) || key.starts_with("io.kubernetes."),
        };
        let mut labels = BTreeMap::new();
        let mut annotations = BTreeMap::new();
        for (key, value) in self.docker {
            let own = OWN.contains(&key.as_str())
                || key.starts_with(OWN_PREFIX)
                || (sandbox && key == CONTAINER_NAME);
            if own || of_image(key) {
                continue;
            }
            match key.strip_prefix(ANNOTATION_PREFIX) {
                Some(annotation) => annotations.insert(annotation.to_owned(), value.clone()),
                None => labels.insert(key.clone(), value.clone()),
            };
        }
        (labels, annotations)
    }
}

/// Checks whether `labels` has every pair of `selector`; an empty selector matches everything.
pub fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

/// `LinuxContainerResources.unified`, as the label [`UNIFIED`] stores it: values by file name.
pub type Unified = BTreeMap<String, String>;

/// Parses the value of the label [`UNIFIED`].
pub fn unified(json: &str) -> Unified {
    serde_json::from_str(json).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
        let own = proptest::sample::select(&OWN[..]).prop_map(str::to_owned);
        let nested = own.clone().prop_map(|key| format!("{ESCAPED_PREFIX}{key}"));
        let annotation = own.clone().prop_map(|key| annotation_key(&key));
        let key = prop_oneof![own, nested, annotation, "[a-z][a-z0-9./-]{0,20}"];
        proptest::collection::btree_map(key, ".{0,20}", 0..6)
    }

    fn owned(pairs: &[(&str, &str)]) -> HashMap<String, String> {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        pairs.iter().map(owned).collect()
    }

    proptest! {
        #[test]
        fn labels_and_annotations_survive_docker(
            labels in map(),
            annotations in map(),
            image in map(),
        ) {
            for kind in [TYPE_SANDBOX, TYPE_CONTAINER] {
                let mut body = ContainerCreateBody {
                    labels: Some(to_docker(kind, &labels, &annotations)),
                    ..Default::default()
                };
                sign("name", &mut body);
                let own = body.labels.unwrap();
                // The engine lets the request's labels override the image's.
                let mut docker: HashMap<_, _> = image.clone().into_iter().collect();
                docker.extend(own.clone());
                let read = Labels::new(&docker, Author::Shim);
                prop_assert_eq!(read.of_pod(), (labels.clone(), annotations.clone()));
                for key in OWN {
                    prop_assert_eq!(read.own(key), own[key].as_str());
                }
            }
        }

        #[test]
        fn any_labels_are_read(docker in map(), keys in ".{0,60}", image in map()) {
            let mut docker: HashMap<_, _> = docker.into_iter().collect();
            docker.insert(KEYS.into(), keys);
            let image: Vec<_> = image.into_keys().collect();
            for author in [Author::Shim, Author::Other(None), Author::Other(Some(&image))] {
                Labels::new(&docker, author).of_pod();
            }
        }
    }

    #[test]
    fn a_pod_of_cri_dockerd_is_read() {
        let docker = owned(&[
            ("io.kubernetes.docker.type", "podsandbox"),
            ("io.kubernetes.container.name", "POD"),
            ("io.kubernetes.pod.name", "web"),
            ("app", "web"),
            ("annotation.kubernetes.io/config.source", "file"),
        ]);
        let read = Labels::new(&docker, Author::Other(Some(&[])));
        let (labels, annotations) = read.of_pod();
        assert_eq!(
            labels.into_keys().collect::<Vec<_>>(),
            ["app", "io.kubernetes.pod.name"]
        );
        assert_eq!(annotations["kubernetes.io/config.source"], "file");
    }

    #[test]
    fn nothing_of_an_image_is_read_on_a_container_of_cri_dockerd() {
        let of_image = [
            ("vendor", "evil"),
            ("io.kubernetes.pod.terminationGracePeriod", "3600"),
            ("annotation.io.kubernetes.container.preStopHandler", "{}"),
        ];
        let of_shim: Vec<_> = OWN
            .iter()
            .filter(|key| key.starts_with(OWN_PREFIX))
            .map(|key| (*key, r#"{"labels":["vendor"],"annotations":[]}"#))
            .collect();
        let of_kubelet = [
            (TYPE, TYPE_CONTAINER),
            (SANDBOX_ID, "of cri-dockerd"),
            ("io.kubernetes.pod.uid", "u"),
            ("annotation.io.kubernetes.container.hash", "cafe"),
        ];
        let image: Vec<String> = of_image
            .iter()
            .chain(&of_shim)
            .chain(&of_kubelet[2..])
            .map(|(key, _)| (*key).to_owned())
            .collect();
        let all = [&of_image[..], &of_shim, &of_kubelet].concat();
        let docker = owned(&all);
        let read = Labels::new(&docker, Author::Other(Some(&image)));
        let (labels, annotations) = read.of_pod();
        let hash = "io.kubernetes.container.hash".to_owned();
        assert_eq!(annotations, BTreeMap::from([(hash, "cafe".to_owned())]));
        let uid = "io.kubernetes.pod.uid".to_owned();
        assert_eq!(labels, BTreeMap::from([(uid, "u".to_owned())]));
        assert_eq!(read.own(SANDBOX_ID), "of cri-dockerd");
        assert_eq!(read.name(), None);
        for (key, _) in of_shim {
            assert_eq!(read.own(key), "", "{key}");
        }
        // If the image cannot be inspected, any label not set by every kubelet may be the image's.
        let (labels, annotations) = Labels::new(&docker, Author::Other(None)).of_pod();
        assert_eq!(
            labels.into_keys().collect::<Vec<_>>(),
            ["io.kubernetes.pod.uid", "vendor"]
        );
        assert_eq!(annotations.len(), 1);
    }

    #[test]
    fn only_the_request_marks_a_container_as_the_shims() {
        let mut body = ContainerCreateBody::default();
        assert!(!made_here(body.host_config.as_ref()));
        assert!(!made_here(None));
        sign("name", &mut body);
        assert!(made_here(body.host_config.as_ref()));
    }
}
