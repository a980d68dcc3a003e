//! Static pods: pods without an API server. Their identity is derived from the manifest, its
//! location and the node.

use std::{
    os::unix::ffi::OsStrExt,
    path::{Component, Path, PathBuf},
};

use k8s_openapi::api::core::v1::{Pod, PodStatus, Toleration};
use kubelet_pod_spec::{
    config_hash::config_hash,
    defaults::set_defaults,
    identity::CONFIG_HASH,
    manifest::ManifestError,
    validation::{static_pod::validate_references, validate_pod},
};

/// The location of a static pod's manifest.
#[derive(Clone, Copy, Debug)]
pub enum Origin<'a> {
    /// A file on this node.
    File(&'a Path),
    /// A document on a server, the same for all nodes.
    Url(&'a str),
}

/// Completes a static pod from a manifest: sets its UID, name, namespace and node, and defaults.
///
/// # Errors
/// All validation errors of the pod.
pub fn static_pod(mut pod: Pod, origin: Origin<'_>, node_name: &str) -> Result<Pod, ManifestError> {
    let uid = match pod.metadata.uid.take().filter(|uid| !uid.is_empty()) {
        Some(uid) => uid,
        None => {
            config_hash(&pod, &place(origin, node_name)).map_err(|error| ManifestError::Type {
                field: "metadata".to_owned(),
                message: error.to_string(),
            })?
        }
    };
    set_defaults(&mut pod);

    let written_name = pod.metadata.name.take().unwrap_or_default();
    if !written_name.is_empty() {
        pod.metadata.name = Some(format!("{written_name}-{node_name}"));
    }
    let namespace = pod.metadata.namespace.get_or_insert_default();
    if namespace.is_empty() {
        "default".clone_into(namespace);
    }
    pod.metadata
        .annotations
        .get_or_insert_default()
        .insert(CONFIG_HASH.to_owned(), uid.clone());
    pod.metadata.uid = Some(uid);
    if let Some(spec) = &mut pod.spec {
        spec.node_name = Some(node_name.to_owned());
        if matches!(origin, Origin::File(_)) {
            tolerate(spec.tolerations.get_or_insert_default());
        }
    }
    pod.status = Some(PodStatus {
        phase: Some("Pending".to_owned()),
        ..PodStatus::default()
    });

    let mut faults = validate_pod(&pod);
    faults.extend(validate_references(&pod));
    if faults.is_empty() {
        Ok(pod)
    } else {
        Err(ManifestError::Invalid {
            name: written_name,
            faults,
        })
    }
}

/// Prevents eviction by taints: a static pod tolerates every `NoExecute` taint.
fn tolerate(tolerations: &mut Vec<Toleration>) {
    let any = Toleration {
        operator: Some("Exists".to_owned()),
        effect: Some("NoExecute".to_owned()),
        ..Toleration::default()
    };
    // As upstream, also one that is limited in time: the API server's copy of the pod would be deleted.
    let is_same = |known: &&mut Toleration| {
        let written = |text: &Option<String>| text.clone().unwrap_or_default();
        written(&known.key).is_empty()
            && written(&known.value).is_empty()
            && known.operator == any.operator
            && known.effect == any.effect
    };
    match tolerations.iter_mut().find(is_same) {
        Some(known) => *known = any,
        None => tolerations.push(any),
    }
}

/// What distinguishes equal manifests, as upstream.
fn place(origin: Origin<'_>, node_name: &str) -> Vec<u8> {
    match origin {
        Origin::File(path) => {
            let path = cleaned(path);
            let node = format!("host:{node_name}file:");
            [node.as_bytes(), path.as_os_str().as_bytes()].concat()
        }
        Origin::Url(url) => format!("url:{url}").into_bytes(),
    }
}

/// The path without `..`; upstream resolves it as text, without looking at symlinks.
fn cleaned(path: &Path) -> PathBuf {
    let mut cleaned = PathBuf::new();
    for component in path.components() {
        match component {
            Component::ParentDir => _ = cleaned.pop(),
            component => cleaned.push(component),
        }
    }
    cleaned
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(image: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": "web"},
            "spec": {"containers": [{"name": "web", "image": image}]},
        }))
        .unwrap()
    }

    fn uid(image: &str, path: &str, node: &str) -> String {
        static_pod(written(image), Origin::File(Path::new(path)), node)
            .unwrap()
            .metadata
            .uid
            .unwrap()
    }

    #[test]
    fn taints_never_evict_it() {
        let tolerations = |written: serde_json::Value| {
            let mut tolerations = serde_json::from_value(written).unwrap();
            tolerate(&mut tolerations);
            serde_json::to_value(tolerations).unwrap()
        };
        let any = json!({"operator": "Exists", "effect": "NoExecute"});
        let other = json!({"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9});
        assert_eq!(tolerations(json!([])), json!([any]));
        let limited = json!({"key": "", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60});
        assert_eq!(tolerations(json!([limited, other])), json!([any, other]));
        assert_eq!(tolerations(json!([other])), json!([other, any]));
    }

    #[test]
    fn identity_follows_from_manifest_place_and_node() {
        let pod = static_pod(
            written("web:1"),
            Origin::File(Path::new("/m/web.yaml")),
            "node-1",
        )
        .unwrap();
        assert_eq!(pod.metadata.name.as_deref(), Some("web-node-1"));
        assert_eq!(pod.metadata.namespace.as_deref(), Some("default"));
        let annotations = pod.metadata.annotations.unwrap();
        assert_eq!(annotations.get(CONFIG_HASH), pod.metadata.uid.as_ref());
        let spec = pod.spec.unwrap();
        assert_eq!(
            spec.tolerations.unwrap()[0].effect.as_deref(),
            Some("NoExecute")
        );
        assert_eq!(pod.status.unwrap().phase.as_deref(), Some("Pending"));

        let one = uid("web:1", "/m/a", "n");
        assert_eq!(one, uid("web:1", "/m/a", "n"));
        assert_eq!(one, uid("web:1", "/x/..//m/./a", "n"));
        assert_eq!(one.len(), 32);
        assert!(one.bytes().all(|byte| byte.is_ascii_hexdigit()));
        for other in [
            uid("web:2", "/m/a", "n"),
            uid("web:1", "/m/b", "n"),
            uid("web:1", "/m/a", "o"),
        ] {
            assert_ne!(one, other);
        }
    }

    #[test]
    fn a_uid_of_its_own_stays() {
        let mut pod = written("web:1");
        pod.metadata.uid = Some("mine".into());
        let pod = static_pod(pod, Origin::File(Path::new("/m")), "n").unwrap();
        assert_eq!(pod.metadata.uid.as_deref(), Some("mine"));
    }

    #[test]
    fn all_faults_are_told_at_once() {
        let mut pod = written("");
        pod.metadata.name = None;
        pod.spec.as_mut().unwrap().service_account_name = Some("robot".into());
        let error = static_pod(pod, Origin::File(Path::new("/m")), "n")
            .unwrap_err()
            .to_string();
        assert_eq!(
            error,
            "pod \"\" is invalid: metadata.name: Required value; \
             spec.containers[0].image: Required value; \
             spec.serviceAccountName: Forbidden: static pods may not reference serviceaccounts"
        );
    }
}
