//! The upstream kubelet's flags. Most set a field of `KubeletConfiguration`, and are processed like
//! the file's fields.

use super::value::Kind::{self, *};

/// A flag of the kubelet.
#[derive(Clone, Copy, Debug)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// The syntax of its value.
    pub kind: Kind,
    /// What it sets.
    pub target: Target,
    /// One line for `--help`.
    pub help: &'static str,
}

/// What a flag sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// The field of `KubeletConfiguration` at this path.
    Field(&'static str),
    /// A setting outside `KubeletConfiguration`, read by name when the settings are assembled.
    Node,
    /// Not implemented, and harmless to ignore.
    Unused,
    /// Not implemented, and misleading to ignore; the reason.
    Refused(&'static str),
}

use Target::{Field, Node, Refused, Unused};

const LOCK: &str = "another lock file is not built yet; the root directory has its own lock";

const fn flag(name: &'static str, kind: Kind, target: Target, help: &'static str) -> Flag {
    Flag {
        name,
        kind,
        target,
        help,
    }
}

/// All flags, under the headings of `--help`, one per line.
#[rustfmt::skip]
pub const GROUPS: &[(&str, &[Flag])] = &[
    (
        "Configuration",
        &[
            flag("config", Text, Node, "KubeletConfiguration file (kubelet.config.k8s.io/v1beta1); flags win over it"),
            flag("config-dir", Text, Node, "directory of drop-in .conf files, merged over --config in the order of their names"),
            flag("container-logs-dir", Text, Node, "links to the logs of containers, for log agents [default: /var/log/containers]"),
            flag("root-dir", Text, Node, "the kubelet's own files, volumes and status socket [default: /var/lib/kubelet]"),
            flag("runonce", Bool, Field("runOnce"), "start the pods of the manifests, report each, and exit"),
            flag("feature-gates", BoolMap, Field("featureGates"), "feature gates to switch"),
            flag("lock-file", Text, Refused(LOCK), "lock file to hold"),
            flag("exit-on-lock-contention", Bool, Refused(LOCK), "exit when somebody else wants the lock file"),
        ],
    ),
    (
        "Pods from files and URLs",
        &[
            flag("pod-manifest-path", Text, Field("staticPodPath"), "file or directory of static pod manifests; names with a leading dot are skipped"),
            flag("file-check-frequency", Duration, Field("fileCheckFrequency"), "how often manifests are read again without a change being noticed"),
            flag("manifest-url", Text, Field("staticPodURL"), "URL of static pod manifests"),
            flag("manifest-url-header", Headers, Field("staticPodURLHeader"), "headers of requests to --manifest-url"),
            flag("http-check-frequency", Duration, Field("httpCheckFrequency"), "how often --manifest-url is read"),
            flag("sync-frequency", Duration, Field("syncFrequency"), "how often a pod is synced when nothing happens to it"),
        ],
    ),
    (
        "Container runtime",
        &[
            flag("container-runtime-endpoint", Text, Field("containerRuntimeEndpoint"), "unix socket of the CRI runtime service, such as unix:///run/containerd/containerd.sock"),
            flag("image-service-endpoint", Text, Field("imageServiceEndpoint"), "unix socket of the CRI image service [default: the runtime's]"),
            flag("runtime-request-timeout", Duration, Field("runtimeRequestTimeout"), "deadline of CRI calls other than pulls and stops"),
            flag("serialize-image-pulls", Bool, Field("serializeImagePulls"), "pull one image at a time"),
            flag("registry-qps", Int, Field("registryPullQPS"), "pulls a second, 0 for no limit"),
            flag("registry-burst", Int, Field("registryBurst"), "pulls at once over --registry-qps"),
            flag("pod-infra-container-image", Text, Unused, "sandbox image; the runtime decides it"),
            flag("runtime-cgroups", Text, Unused, "cgroup of the container runtime"),
            flag("image-credential-provider-config", Text, Node, "configuration of credential provider plugins (CredentialProviderConfig): a file, or a directory of .json, .yaml and .yml files"),
            flag("image-credential-provider-bin-dir", Text, Node, "directory of credential provider plugins"),
            flag("seccomp-default", Bool, Field("seccompDefault"), "RuntimeDefault as the seccomp profile of pods that name none"),
            flag("container-log-max-size", Text, Field("containerLogMaxSize"), "size of a container's log file at which it is rotated"),
            flag("container-log-max-files", Int, Field("containerLogMaxFiles"), "log files kept of a container"),
        ],
    ),
    (
        "Node",
        &[
            flag("hostname-override", Text, Node, "name of the node [default: the host's name]"),
            flag("node-ip", Text, Node, "address of the node, or one of each family separated by a comma"),
            flag("max-pods", Int, Field("maxPods"), "most pods that run on this node"),
            flag("pods-per-core", Int, Field("podsPerCore"), "most pods per core, 0 for no limit"),
            flag("resolv-conf", Text, Field("resolvConf"), "resolv.conf that pods' name resolution builds on"),
            flag("cluster-dns", List, Field("clusterDNS"), "name servers of pods with dnsPolicy ClusterFirst"),
            flag("cluster-domain", Text, Field("clusterDomain"), "domain that pods search first"),
            flag("pod-cidr", Text, Field("podCIDR"), "CIDR of the pods' addresses"),
            flag("hairpin-mode", Text, Field("hairpinMode"), "promiscuous-bridge, hairpin-veth or none"),
            flag("make-iptables-util-chains", Bool, Field("makeIPTablesUtilChains"), "keep the kubelet's iptables chains"),
            flag("oom-score-adj", Int, Field("oomScoreAdj"), "oom_score_adj of the kubelet itself"),
            flag("max-open-files", Int, Field("maxOpenFiles"), "files that the kubelet may have open"),
            flag("fail-swap-on", Bool, Field("failSwapOn"), "refuse to start while swap is on"),
            flag("fail-cgroupv1", Bool, Field("failCgroupV1"), "refuse to start on a cgroup v1 host"),
            flag("protect-kernel-defaults", Bool, Field("protectKernelDefaults"), "refuse to start when kernel settings differ"),
            flag("allowed-unsafe-sysctls", List, Field("allowedUnsafeSysctls"), "unsafe sysctls that pods may set"),
            flag("volume-plugin-dir", Text, Field("volumePluginDir"), "directory of volume plugins"),
            flag("experimental-mounter-path", Text, Unused, "program that mounts"),
            flag("volume-stats-agg-period", Duration, Field("volumeStatsAggPeriod"), "how often volumes' disk usage is computed"),
            flag("local-storage-capacity-isolation", Bool, Field("localStorageCapacityIsolation"), "account for local ephemeral storage"),
        ],
    ),
    (
        "Servers",
        &[
            flag("healthz-port", Int, Field("healthzPort"), "port of /healthz, 0 for none"),
            flag("healthz-bind-address", Ip, Field("healthzBindAddress"), "address of /healthz"),
            flag("address", Ip, Field("address"), "address of the secure and the read-only port"),
            flag("read-only-port", Int, Field("readOnlyPort"), "port of /healthz, /pods and metrics without authentication, 0 for none"),
            flag("enable-server", Bool, Field("enableServer"), "serve the kubelet's API"),
            flag("port", Int, Field("port"), "secure port"),
            flag("anonymous-auth", Bool, Field("authentication.anonymous.enabled"), "serve callers who show no identity"),
            flag("authentication-token-webhook", Bool, Field("authentication.webhook.enabled"), "have the API server review bearer tokens"),
            flag("authentication-token-webhook-cache-ttl", Duration, Field("authentication.webhook.cacheTTL"), "how long reviewed tokens are kept"),
            flag("client-ca-file", Text, Field("authentication.x509.clientCAFile"), "authorities of client certificates"),
            flag("authorization-mode", Text, Field("authorization.mode"), "AlwaysAllow or Webhook"),
            flag("authorization-webhook-cache-authorized-ttl", Duration, Field("authorization.webhook.cacheAuthorizedTTL"), "how long allowing answers are kept"),
            flag("authorization-webhook-cache-unauthorized-ttl", Duration, Field("authorization.webhook.cacheUnauthorizedTTL"), "how long refusing answers are kept"),
            flag("tls-cert-file", Text, Field("tlsCertFile"), "certificate of the secure port"),
            flag("tls-private-key-file", Text, Field("tlsPrivateKeyFile"), "private key of the secure port"),
            flag("tls-cipher-suites", List, Field("tlsCipherSuites"), "cipher suites of the secure port"),
            flag("tls-min-version", Text, Field("tlsMinVersion"), "least TLS version of the secure port"),
            flag("streaming-connection-idle-timeout", Duration, Field("streamingConnectionIdleTimeout"), "how long an exec, attach or port-forward may idle"),
            flag("enable-debugging-handlers", Bool, Field("enableDebuggingHandlers"), "serve logs, exec, attach and port-forward"),
            flag("contention-profiling", Bool, Field("enableContentionProfiling"), "profile lock contention"),
        ],
    ),
    (
        "Cluster",
        &[
            flag("kubeconfig", Text, Node, "how to reach the API server; without it the kubelet runs standalone"),
            flag("bootstrap-kubeconfig", Text, Node, "how to get the first client certificate, when that of --kubeconfig is not there or has expired"),
            flag("bootstrap-checkpoint-path", Text, Node, "directory that keeps this node's pods and their config maps, so that they start again while the API server is away; none when empty"),
            flag("bootstrap-checkpoint-key", Text, Node, "file of a key, 32 bytes or their base64, with which --bootstrap-checkpoint-path keeps secrets and tokens too, encrypted"),
            flag("register-node", Bool, Field("registerNode"), "register the node at the API server"),
            flag("register-with-taints", Taints, Field("registerWithTaints"), "taints to register the node with"),
            flag("node-labels", Map, Node, "labels to register the node with"),
            flag("cloud-provider", Text, Node, "empty, or external: a cloud controller completes the node"),
            flag("provider-id", Text, Field("providerID"), "the node's name at its cloud provider"),
            flag("cert-dir", Text, Node, "directory of certificates [default: pki below --root-dir]"),
            flag("rotate-certificates", Bool, Field("rotateCertificates"), "renew the client certificate"),
            flag("rotate-server-certificates", Bool, Field("serverTLSBootstrap"), "request and renew the serving certificate"),
            flag("node-status-update-frequency", Duration, Field("nodeStatusUpdateFrequency"), "how often the node's status is computed"),
            flag("node-status-max-images", Int, Field("nodeStatusMaxImages"), "images in the node's status, -1 for all"),
            flag("event-qps", Int, Field("eventRecordQPS"), "events a second"),
            flag("event-burst", Int, Field("eventBurst"), "events at once over --event-qps"),
            flag("kube-api-qps", Int, Field("kubeAPIQPS"), "requests to the API server a second"),
            flag("kube-api-burst", Int, Field("kubeAPIBurst"), "requests to the API server at once over --kube-api-qps"),
            flag("kube-api-content-type", Text, Field("contentType"), "content type of requests to the API server; JSON whatever it says"),
            flag("enable-controller-attach-detach", Bool, Field("enableControllerAttachDetach"), "leave attaching of volumes to the controller"),
        ],
    ),
    (
        "Resources",
        &[
            flag("cgroup-driver", Text, Field("cgroupDriver"), "cgroupfs or systemd; the runtime is asked first"),
            flag("cgroup-root", Text, Field("cgroupRoot"), "cgroup of all pods"),
            flag("cgroups-per-qos", Bool, Field("cgroupsPerQOS"), "a cgroup for each QoS class and pod"),
            flag("kubelet-cgroups", Text, Field("kubeletCgroups"), "cgroup of the kubelet"),
            flag("system-cgroups", Text, Field("systemCgroups"), "cgroup of the system's other processes"),
            flag("system-reserved", Map, Field("systemReserved"), "resources of the system's own processes"),
            flag("system-reserved-cgroup", Text, Field("systemReservedCgroup"), "cgroup to hold --system-reserved to"),
            flag("kube-reserved", Map, Field("kubeReserved"), "resources of Kubernetes' own processes"),
            flag("kube-reserved-cgroup", Text, Field("kubeReservedCgroup"), "cgroup to hold --kube-reserved to"),
            flag("enforce-node-allocatable", List, Field("enforceNodeAllocatable"), "which of pods, system-reserved and kube-reserved are enforced"),
            flag("reserved-cpus", Text, Field("reservedSystemCPUs"), "CPUs of the system"),
            flag("reserved-memory", ReservedMemory, Field("reservedMemory"), "memory of NUMA nodes that pods do not get"),
            flag("qos-reserved", Map, Field("qosReserved"), "requests reserved per QoS class"),
            flag("cpu-cfs-quota", Bool, Field("cpuCFSQuota"), "enforce CPU limits"),
            flag("cpu-cfs-quota-period", Duration, Field("cpuCFSQuotaPeriod"), "period of CPU limits"),
            flag("cpu-manager-policy", Text, Field("cpuManagerPolicy"), "none or static"),
            flag("cpu-manager-policy-options", Map, Field("cpuManagerPolicyOptions"), "options of the CPU manager"),
            flag("cpu-manager-reconcile-period", Duration, Field("cpuManagerReconcilePeriod"), "how often CPU sets are checked"),
            flag("memory-manager-policy", Text, Field("memoryManagerPolicy"), "None or Static"),
            flag("topology-manager-policy", Text, Field("topologyManagerPolicy"), "none, best-effort, restricted or single-numa-node"),
            flag("topology-manager-scope", Text, Field("topologyManagerScope"), "container or pod"),
            flag("topology-manager-policy-options", Map, Field("topologyManagerPolicyOptions"), "options of the topology manager"),
            flag("pod-max-pids", Int, Field("podPidsLimit"), "processes of a pod, -1 for the node's own limit"),
        ],
    ),
    (
        "Eviction and garbage collection",
        &[
            flag("eviction-hard", Thresholds, Field("evictionHard"), "thresholds that evict at once"),
            flag("eviction-soft", Thresholds, Field("evictionSoft"), "thresholds that evict after a grace period"),
            flag("eviction-soft-grace-period", Map, Field("evictionSoftGracePeriod"), "grace periods of --eviction-soft"),
            flag("eviction-pressure-transition-period", Duration, Field("evictionPressureTransitionPeriod"), "how long pressure must be gone"),
            flag("eviction-max-pod-grace-period", Int, Field("evictionMaxPodGracePeriod"), "longest grace period of an evicted pod, in seconds"),
            flag("eviction-minimum-reclaim", Map, Field("evictionMinimumReclaim"), "least amounts that an eviction frees"),
            flag("kernel-memcg-notification", Bool, Field("kernelMemcgNotification"), "have the kernel tell of memory pressure"),
            flag("minimum-image-ttl-duration", Duration, Field("imageMinimumGCAge"), "least age of an image that is removed"),
            flag("image-gc-high-threshold", Int, Field("imageGCHighThresholdPercent"), "disk usage that starts the removal of images"),
            flag("image-gc-low-threshold", Int, Field("imageGCLowThresholdPercent"), "disk usage that ends the removal of images"),
            flag("minimum-container-ttl-duration", Duration, Unused, "least age of a dead container that is removed"),
            flag("maximum-dead-containers-per-container", Int, Unused, "dead instances kept of a container"),
            flag("experimental-allocatable-ignore-eviction", Bool, Unused, "leave eviction thresholds out of the node's allocatable resources"),
            flag("maximum-dead-containers", Int, Unused, "dead containers kept on the node"),
        ],
    ),
    (
        "Logging",
        &[
            flag("v", Int, Field("logging.verbosity"), "verbosity: 0 to 3 informs, 4 and 5 debug, 6 and more trace"),
            flag("logging-format", Text, Field("logging.format"), "text"),
            flag("vmodule", Text, Unused, "verbosity by source file"),
            flag("log-flush-frequency", Duration, Unused, "the log is never buffered"),
        ],
    ),
];
