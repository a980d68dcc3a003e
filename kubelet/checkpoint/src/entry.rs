//! Entries of a checkpoint. Each has a file.

use std::{
    fmt,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::Pod;
use kubelet_pod_spec::{identity, names};

/// The kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EntryKind {
    /// This node's object, reduced to what pods need.
    Node,
    /// A pod of this node.
    Pod,
    /// The services visible to pods in a namespace; named after the namespace.
    Services,
    /// A config map.
    ConfigMap,
    /// A secret.
    Secret,
    /// A service account token for a pod.
    Token,
    /// A persistent volume claim.
    Claim,
    /// A persistent volume.
    Volume,
    /// A CSI driver.
    CsiDriver,
    /// A runtime class.
    RuntimeClass,
    /// A cluster trust bundle.
    TrustBundle,
    /// The cluster trust bundles of a signer.
    SignerBundles,
}

impl EntryKind {
    /// Every kind.
    pub const ALL: [Self; 12] = [
        Self::Node,
        Self::Pod,
        Self::Services,
        Self::ConfigMap,
        Self::Secret,
        Self::Token,
        Self::Claim,
        Self::Volume,
        Self::CsiDriver,
        Self::RuntimeClass,
        Self::TrustBundle,
        Self::SignerBundles,
    ];

    /// The directory of its files.
    pub const fn directory(self) -> &'static str {
        match self {
            Self::Node => "nodes",
            Self::Pod => "pods",
            Self::Services => "services",
            Self::ConfigMap => "configmaps",
            Self::Secret => "secrets",
            Self::Token => "tokens",
            Self::Claim => "persistentvolumeclaims",
            Self::Volume => "persistentvolumes",
            Self::CsiDriver => "csidrivers",
            Self::RuntimeClass => "runtimeclasses",
            Self::TrustBundle => "clustertrustbundles",
            Self::SignerBundles => "clustertrustbundles-of-signers",
        }
    }

    /// Whether there is a subdirectory for each namespace.
    pub const fn is_namespaced(self) -> bool {
        matches!(
            self,
            Self::Pod | Self::ConfigMap | Self::Secret | Self::Token | Self::Claim
        )
    }

    /// Whether its files are encrypted, and not written without a key.
    pub const fn is_secret(self) -> bool {
        matches!(self, Self::Secret | Self::Token)
    }
}

/// An object, or a group of objects, with a file of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    kind: EntryKind,
    /// Empty for kinds without a namespace.
    namespace: String,
    name: String,
}

impl Entry {
    /// The entry of an object; `None` if the namespace or name is invalid, so that every file stays
    /// inside the checkpoint's directory.
    pub fn new(kind: EntryKind, namespace: &str, name: &str) -> Option<Self> {
        let has_namespace = names::dns1123_label(namespace).is_ok();
        let is_placed = match kind.is_namespaced() {
            true => has_namespace,
            false => namespace.is_empty(),
        };
        (is_placed && names::dns1123_subdomain(name).is_ok()).then(|| Self {
            kind,
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    /// The entry of a pod.
    pub fn of_pod(pod: &Pod) -> Option<Self> {
        Self::new(
            EntryKind::Pod,
            identity::namespace(pod),
            identity::name(pod),
        )
    }

    /// Its kind.
    pub const fn kind(&self) -> EntryKind {
        self.kind
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its file in the checkpoint's directory `dir`.
    pub fn path(&self, dir: &Path) -> PathBuf {
        let mut path = dir.join(self.kind.directory());
        if self.kind.is_namespaced() {
            path.push(&self.namespace);
        }
        path.push(&self.name);
        path
    }

    /// Its identity in the first line of the file: three words.
    pub fn words(&self) -> String {
        let namespace = match &*self.namespace {
            "" => "-",
            namespace => namespace,
        };
        format!("{} {namespace} {}", self.kind.directory(), self.name)
    }
}

impl fmt::Display for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind.directory())?;
        if self.kind.is_namespaced() {
            write!(f, "/{}", self.namespace)?;
        }
        write!(f, "/{}", self.name)
    }
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_stay_in_their_directory() {
        let dir = Path::new("/c");
        let path = |kind, namespace, name| Entry::new(kind, namespace, name).map(|e| e.path(dir));
        assert_eq!(
            path(EntryKind::Pod, "default", "web-1"),
            Some(PathBuf::from("/c/pods/default/web-1"))
        );
        assert_eq!(
            path(EntryKind::Volume, "", "pv.1"),
            Some(PathBuf::from("/c/persistentvolumes/pv.1"))
        );
        for (namespace, name) in [
            ("default", ".."),
            ("default", "a/b"),
            ("default", ".new"),
            ("..", "a"),
            ("", "a"),
        ] {
            assert_eq!(
                path(EntryKind::ConfigMap, namespace, name),
                None,
                "{namespace}/{name}"
            );
        }
    }
}
