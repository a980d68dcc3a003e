//! The resources of the server.

/// A resource of the API.
#[derive(Debug, PartialEq, Eq)]
pub struct Resource {
    /// The API group; empty for the core group.
    pub group: &'static str,
    /// The version in the group.
    pub version: &'static str,
    /// The plural name, as in paths.
    pub plural: &'static str,
    /// The singular name, which `kubectl` accepts.
    pub singular: &'static str,
    /// The kind of its objects.
    pub kind: &'static str,
    /// Whether the resource is namespaced.
    pub namespaced: bool,
    /// The short names, which `kubectl` accepts.
    pub short_names: &'static [&'static str],
    /// The subresources.
    pub subresources: &'static [&'static str],
    /// Whether an update may omit the resource version.
    pub unconditional_update: bool,
    /// Whether an update of an object that does not exist creates it.
    pub create_on_update: bool,
    /// Whether a change of the spec increments `metadata.generation`.
    pub generations: bool,
    /// Whether objects are answered but not stored, like reviews.
    pub answered_only: bool,
    /// Whether it is served by default.
    pub by_default: bool,
}

const fn core(
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> Resource {
    Resource {
        group: "",
        version: "v1",
        plural,
        singular,
        kind,
        namespaced,
        short_names: &[],
        subresources: &[],
        unconditional_update: true,
        create_on_update: false,
        generations: false,
        answered_only: false,
        by_default: true,
    }
}

const fn of(
    group: &'static str,
    plural: &'static str,
    singular: &'static str,
    kind: &'static str,
    namespaced: bool,
) -> Resource {
    let mut resource = core(plural, singular, kind, namespaced);
    resource.group = group;
    resource
}

const fn review(group: &'static str, plural: &'static str, kind: &'static str) -> Resource {
    let mut resource = of(group, plural, "", kind, false);
    resource.answered_only = true;
    resource
}

impl Resource {
    const fn short(mut self, names: &'static [&'static str]) -> Self {
        self.short_names = names;
        self
    }

    const fn with(mut self, subresources: &'static [&'static str]) -> Self {
        self.subresources = subresources;
        self
    }

    const fn version(mut self, version: &'static str) -> Self {
        self.version = version;
        self
    }

    const fn conditional(mut self) -> Self {
        self.unconditional_update = false;
        self
    }

    const fn upsert(mut self) -> Self {
        self.create_on_update = true;
        self
    }

    const fn on_demand(mut self) -> Self {
        self.by_default = false;
        self
    }

    const fn generated(mut self) -> Self {
        self.generations = true;
        self
    }

    /// `group/version`, or only the version for the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// `plural.group`, as in error messages.
    pub fn qualified(&self) -> String {
        if self.group.is_empty() {
            self.plural.to_owned()
        } else {
            format!("{}.{}", self.plural, self.group)
        }
    }

    /// Whether the resource has this subresource.
    pub fn has(&self, subresource: &str) -> bool {
        self.subresources.contains(&subresource)
    }

    /// The resource under which the objects are stored. Both event groups share one store, and so
    /// do all versions of trust bundles.
    pub fn stored(&'static self) -> &'static Resource {
        let stored = match self.plural {
            "events" => find("", "v1", "events"),
            "clustertrustbundles" => find(self.group, "v1beta1", self.plural),
            _ => None,
        };
        stored.unwrap_or(self)
    }
}

const TRUST_BUNDLES: Resource = of(
    "certificates.k8s.io",
    "clustertrustbundles",
    "clustertrustbundle",
    "ClusterTrustBundle",
    false,
);

/// Every resource, in discovery order.
pub(super) static RESOURCES: &[Resource] = &[
    core("configmaps", "configmap", "ConfigMap", true).short(&["cm"]),
    core("endpoints", "endpoints", "Endpoints", true)
        .short(&["ep"])
        .upsert(),
    core("events", "event", "Event", true)
        .short(&["ev"])
        .upsert(),
    core("namespaces", "namespace", "Namespace", false)
        .short(&["ns"])
        .with(&["status", "finalize"]),
    core("nodes", "node", "Node", false)
        .short(&["no"])
        .with(&["status", "proxy"]),
    core(
        "persistentvolumeclaims",
        "persistentvolumeclaim",
        "PersistentVolumeClaim",
        true,
    )
    .short(&["pvc"])
    .with(&["status"]),
    core(
        "persistentvolumes",
        "persistentvolume",
        "PersistentVolume",
        false,
    )
    .short(&["pv"])
    .with(&["status"]),
    core("pods", "pod", "Pod", true)
        .short(&["po"])
        .generated()
        .with(&[
            "status",
            "binding",
            "eviction",
            "ephemeralcontainers",
            "resize",
            "log",
            "exec",
            "attach",
            "portforward",
        ]),
    core("secrets", "secret", "Secret", true),
    core("serviceaccounts", "serviceaccount", "ServiceAccount", true)
        .short(&["sa"])
        .with(&["token"]),
    core("services", "service", "Service", true)
        .short(&["svc"])
        .upsert()
        .with(&["status"]),
    of("apps", "daemonsets", "daemonset", "DaemonSet", true)
        .short(&["ds"])
        .generated()
        .with(&["status"]),
    of("apps", "deployments", "deployment", "Deployment", true)
        .short(&["deploy"])
        .generated()
        .with(&["status"]),
    of("apps", "replicasets", "replicaset", "ReplicaSet", true)
        .short(&["rs"])
        .generated()
        .with(&["status"]),
    review(
        "authentication.k8s.io",
        "selfsubjectreviews",
        "SelfSubjectReview",
    ),
    review("authentication.k8s.io", "tokenreviews", "TokenReview"),
    review(
        "authorization.k8s.io",
        "selfsubjectaccessreviews",
        "SelfSubjectAccessReview",
    ),
    review(
        "authorization.k8s.io",
        "subjectaccessreviews",
        "SubjectAccessReview",
    ),
    of(
        "certificates.k8s.io",
        "certificatesigningrequests",
        "certificatesigningrequest",
        "CertificateSigningRequest",
        false,
    )
    .short(&["csr"])
    .with(&["status", "approval"]),
    TRUST_BUNDLES.version("v1").on_demand(),
    TRUST_BUNDLES.version("v1beta1"),
    TRUST_BUNDLES.version("v1alpha1").on_demand(),
    of("coordination.k8s.io", "leases", "lease", "Lease", true)
        .conditional()
        .upsert(),
    of("events.k8s.io", "events", "event", "Event", true)
        .short(&["ev"])
        .upsert(),
    of("metrics.k8s.io", "nodes", "", "NodeMetrics", false).version("v1beta1"),
    of("metrics.k8s.io", "pods", "", "PodMetrics", true).version("v1beta1"),
    of(
        "node.k8s.io",
        "runtimeclasses",
        "runtimeclass",
        "RuntimeClass",
        false,
    ),
    of(
        "policy",
        "poddisruptionbudgets",
        "poddisruptionbudget",
        "PodDisruptionBudget",
        true,
    )
    .short(&["pdb"])
    .generated()
    .with(&["status"]),
    of(
        "resource.k8s.io",
        "resourceclaims",
        "resourceclaim",
        "ResourceClaim",
        true,
    )
    .with(&["status"]),
    of(
        "resource.k8s.io",
        "resourceslices",
        "resourceslice",
        "ResourceSlice",
        false,
    )
    .generated(),
    of(
        "storage.k8s.io",
        "csidrivers",
        "csidriver",
        "CSIDriver",
        false,
    ),
    of("storage.k8s.io", "csinodes", "csinode", "CSINode", false),
    of(
        "storage.k8s.io",
        "storageclasses",
        "storageclass",
        "StorageClass",
        false,
    )
    .short(&["sc"]),
    of(
        "storage.k8s.io",
        "volumeattachments",
        "volumeattachment",
        "VolumeAttachment",
        false,
    )
    .with(&["status"]),
];

/// The resources that a server serves, in discovery order.
pub(super) type Served = [&'static Resource];

/// The resources that are served by default.
pub(super) fn served_by_default() -> Vec<&'static Resource> {
    let all = RESOURCES.iter();
    all.filter(|resource| resource.by_default).collect()
}

/// The resource of this group, version and plural name.
pub(super) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    RESOURCES.iter().find(|resource| {
        resource.group == group && resource.version == version && resource.plural == plural
    })
}

/// The resource of this `apiVersion` and kind.
pub(super) fn find_kind(api_version: &str, kind: &str) -> Option<&'static Resource> {
    RESOURCES
        .iter()
        .find(|resource| resource.kind == kind && resource.api_version() == api_version)
}
