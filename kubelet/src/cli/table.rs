//! The upstream kubelet's flags. Most set a field of `KubeletConfiguration`, and are processed like
//! the file's fields.

use super::value::Kind::{self, *};

/// A flag of the kubelet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Flag {
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
pub(super) enum Target {
    /// The field of `KubeletConfiguration` at this path.
    Field(&'static str),
    /// A setting outside `KubeletConfiguration`, read by name when the settings are assembled.
    Node,
    /// Not implemented, and harmless to ignore.
    Unused,
}

use Target::{Field, Node, Unused};

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
pub(super) const GROUPS: &[(&str, &[Flag])] = &[
    (
        "Configuration",
        &[
            flag("config", Text, Node, "KubeletConfiguration file (kubelet.config.k8s.io/v1beta1); flags override it"),
            flag("config-dir", Text, Node, "directory of drop-in .conf files that override --config, in the order of their names"),
            flag("container-logs-dir", Text, Node, "directory of symlinks to container logs, for log agents [default: /var/log/containers]"),
            flag("root-dir", Text, Node, "directory of the kubelet's files, volumes and status socket [default: /var/lib/kubelet]"),
            flag("runonce", Bool, Field("runOnce"), "start the pods from the manifests, report on each, and exit"),
            flag("feature-gates", BoolMap, Field("featureGates"), "feature gates to enable or disable"),
            flag("lock-file", Text, Node, "file to lock before the start; waits for the process that holds it"),
            flag("exit-on-lock-contention", Bool, Node, "stop when another process opens or removes the lock file"),
        ],
    ),
    (
        "Pods from files and URLs",
        &[
            flag("pod-manifest-path", Text, Field("staticPodPath"), "file or directory of static pod manifests; names with a leading dot are skipped"),
            flag("file-check-frequency", Duration, Field("fileCheckFrequency"), "how often manifests are read again when no change is detected"),
            flag("manifest-url", Text, Field("staticPodURL"), "URL of static pod manifests"),
            flag("manifest-url-header", Headers, Field("staticPodURLHeader"), "HTTP headers of requests to --manifest-url"),
            flag("http-check-frequency", Duration, Field("httpCheckFrequency"), "how often --manifest-url is read"),
            flag("sync-frequency", Duration, Field("syncFrequency"), "how often a pod is synced when nothing changes"),
        ],
    ),
    (
        "Container runtime",
        &[
            flag("container-runtime-endpoint", Text, Field("containerRuntimeEndpoint"), "unix socket of the CRI runtime service, such as unix:///run/containerd/containerd.sock"),
            flag("image-service-endpoint", Text, Field("imageServiceEndpoint"), "unix socket of the CRI image service [default: the runtime's]"),
            flag("runtime-request-timeout", Duration, Field("runtimeRequestTimeout"), "timeout of CRI calls other than image pulls and stops"),
            flag("serialize-image-pulls", Bool, Field("serializeImagePulls"), "pull one image at a time"),
            flag("registry-qps", Int, Field("registryPullQPS"), "image pulls per second, 0 for no limit"),
            flag("registry-burst", Int, Field("registryBurst"), "burst of image pulls above --registry-qps"),
            flag("pod-infra-container-image", Text, Unused, "sandbox image; the runtime chooses it"),
            flag("runtime-cgroups", Text, Node, "cgroup of the container runtime, for its statistics"),
            flag("image-credential-provider-config", Text, Node, "configuration of credential provider plugins (CredentialProviderConfig): a file, or a directory of .json, .yaml and .yml files"),
            flag("image-credential-provider-bin-dir", Text, Node, "directory of credential provider plugins"),
            flag("seccomp-default", Bool, Field("seccompDefault"), "use RuntimeDefault as the seccomp profile of pods that set none"),
            flag("container-log-max-size", Text, Field("containerLogMaxSize"), "size at which a container's log file is rotated"),
            flag("container-log-max-files", Int, Field("containerLogMaxFiles"), "maximum number of log files per container"),
        ],
    ),
    (
        "Node",
        &[
            flag("hostname-override", Text, Node, "name of the node [default: the host's name]"),
            flag("node-ip", Text, Node, "IP address of the node, or one per IP family separated by a comma"),
            flag("max-pods", Int, Field("maxPods"), "maximum number of pods on this node"),
            flag("pods-per-core", Int, Field("podsPerCore"), "maximum number of pods per core, 0 for no limit"),
            flag("resolv-conf", Text, Field("resolvConf"), "resolv.conf on which the DNS configuration of pods is based"),
            flag("cluster-dns", List, Field("clusterDNS"), "name servers of pods with dnsPolicy ClusterFirst"),
            flag("cluster-domain", Text, Field("clusterDomain"), "domain of the cluster, which pods search first"),
            flag("pod-cidr", Text, Field("podCIDR"), "CIDR of pod IP addresses"),
            flag("hairpin-mode", Text, Field("hairpinMode"), "promiscuous-bridge, hairpin-veth or none"),
            flag("make-iptables-util-chains", Bool, Field("makeIPTablesUtilChains"), "create and maintain the kubelet's iptables chains"),
            flag("oom-score-adj", Int, Field("oomScoreAdj"), "oom_score_adj of the kubelet process"),
            flag("max-open-files", Int, Field("maxOpenFiles"), "maximum number of open files of the kubelet"),
            flag("fail-swap-on", Bool, Field("failSwapOn"), "refuse to start while swap is on"),
            flag("fail-cgroupv1", Bool, Field("failCgroupV1"), "refuse to start on a cgroup v1 host"),
            flag("protect-kernel-defaults", Bool, Field("protectKernelDefaults"), "refuse to start when kernel settings differ from the kubelet's defaults"),
            flag("set-kernel-tunables", Bool, Node, "set kernel settings that differ from the kubelet's defaults; false only logs them [default: true]"),
            flag("allowed-unsafe-sysctls", List, Field("allowedUnsafeSysctls"), "unsafe sysctls that pods may set"),
            flag("volume-plugin-dir", Text, Field("volumePluginDir"), "directory of volume plugins"),
            flag("experimental-mounter-path", Text, Unused, "path of the mounter binary"),
            flag("volume-stats-agg-period", Duration, Field("volumeStatsAggPeriod"), "how often volume disk usage is calculated"),
            flag("local-storage-capacity-isolation", Bool, Field("localStorageCapacityIsolation"), "account for local ephemeral storage"),
        ],
    ),
    (
        "Servers",
        &[
            flag("healthz-port", Int, Field("healthzPort"), "port of /healthz, 0 to disable"),
            flag("healthz-bind-address", Ip, Field("healthzBindAddress"), "address of /healthz"),
            flag("address", Ip, Field("address"), "address of the secure and the read-only port"),
            flag("read-only-port", Int, Field("readOnlyPort"), "port of /healthz, /pods and metrics without authentication, 0 to disable"),
            flag("enable-server", Bool, Field("enableServer"), "serve the kubelet's API"),
            flag("port", Int, Field("port"), "secure port"),
            flag("anonymous-auth", Bool, Field("authentication.anonymous.enabled"), "allow anonymous requests"),
            flag("authentication-token-webhook", Bool, Field("authentication.webhook.enabled"), "authenticate bearer tokens with the API server's TokenReview API"),
            flag("authentication-token-webhook-cache-ttl", Duration, Field("authentication.webhook.cacheTTL"), "how long token reviews are cached"),
            flag("client-ca-file", Text, Field("authentication.x509.clientCAFile"), "CA bundle for client certificates"),
            flag("authorization-mode", Text, Field("authorization.mode"), "AlwaysAllow or Webhook"),
            flag("authorization-webhook-cache-authorized-ttl", Duration, Field("authorization.webhook.cacheAuthorizedTTL"), "how long authorized responses are cached"),
            flag("authorization-webhook-cache-unauthorized-ttl", Duration, Field("authorization.webhook.cacheUnauthorizedTTL"), "how long unauthorized responses are cached"),
            flag("tls-cert-file", Text, Field("tlsCertFile"), "certificate of the secure port"),
            flag("tls-private-key-file", Text, Field("tlsPrivateKeyFile"), "private key of the secure port"),
            flag("tls-cipher-suites", List, Field("tlsCipherSuites"), "cipher suites of the secure port"),
            flag("tls-min-version", Text, Field("tlsMinVersion"), "minimum TLS version of the secure port"),
            flag("streaming-connection-idle-timeout", Duration, Field("streamingConnectionIdleTimeout"), "how long an exec, attach or port-forward connection may be idle"),
            flag("enable-debugging-handlers", Bool, Field("enableDebuggingHandlers"), "serve logs, exec, attach and port-forward"),
            flag("contention-profiling", Bool, Field("enableContentionProfiling"), "profile lock contention"),
        ],
    ),
    (
        "Cluster",
        &[
            flag("kubeconfig", Text, Node, "kubeconfig for the API server; without it the kubelet runs standalone"),
            flag("bootstrap-kubeconfig", Text, Node, "kubeconfig to request a client certificate with when the one of --kubeconfig is missing or expired"),
            flag("bootstrap-checkpoint-path", Text, Node, "directory that stores this node's pods and their config maps, so that they can start while the API server is unreachable; disabled when empty"),
            flag("bootstrap-checkpoint-key", Text, Node, "file with a key of 32 bytes, raw or in base64; with it, --bootstrap-checkpoint-path also stores secrets and tokens, encrypted"),
            flag("register-node", Bool, Field("registerNode"), "register the node with the API server"),
            flag("register-with-taints", Taints, Field("registerWithTaints"), "taints to register the node with"),
            flag("node-labels", Map, Node, "labels to register the node with"),
            flag("cloud-provider", Text, Node, "empty, or external: a cloud controller initializes the node"),
            flag("provider-id", Text, Field("providerID"), "ID of the node at its cloud provider"),
            flag("cert-dir", Text, Node, "directory of certificates [default: pki below --root-dir]"),
            flag("rotate-certificates", Bool, Field("rotateCertificates"), "renew the client certificate"),
            flag("rotate-server-certificates", Bool, Field("serverTLSBootstrap"), "request and renew the serving certificate"),
            flag("node-status-update-frequency", Duration, Field("nodeStatusUpdateFrequency"), "how often the node status is computed"),
            flag("node-status-max-images", Int, Field("nodeStatusMaxImages"), "maximum number of images in the node status, -1 for no limit"),
            flag("event-qps", Int, Field("eventRecordQPS"), "events per second"),
            flag("event-burst", Int, Field("eventBurst"), "burst of events above --event-qps"),
            flag("kube-api-qps", Int, Field("kubeAPIQPS"), "requests to the API server per second"),
            flag("kube-api-burst", Int, Field("kubeAPIBurst"), "burst of requests to the API server above --kube-api-qps"),
            flag("kube-api-content-type", Text, Field("contentType"), "content type of requests to the API server; always JSON"),
            flag("enable-controller-attach-detach", Bool, Field("enableControllerAttachDetach"), "leave attaching and detaching of volumes to the attach/detach controller"),
        ],
    ),
    (
        "Resources",
        &[
            flag("cgroup-driver", Text, Field("cgroupDriver"), "cgroupfs or systemd; the runtime's own driver takes precedence"),
            flag("cgroup-root", Text, Field("cgroupRoot"), "root cgroup of pods"),
            flag("cgroups-per-qos", Bool, Field("cgroupsPerQOS"), "create a cgroup for each QoS class and pod"),
            flag("kubelet-cgroups", Text, Field("kubeletCgroups"), "cgroup that the kubelet moves to [default: it stays in its own]"),
            flag("system-cgroups", Text, Field("systemCgroups"), "cgroup to which the processes of the root cgroup are moved, except the kernel's; undone only by a reboot"),
            flag("system-reserved", Map, Field("systemReserved"), "resources reserved for system processes"),
            flag("system-reserved-cgroup", Text, Field("systemReservedCgroup"), "cgroup on which --system-reserved is enforced"),
            flag("kube-reserved", Map, Field("kubeReserved"), "resources reserved for Kubernetes processes"),
            flag("kube-reserved-cgroup", Text, Field("kubeReservedCgroup"), "cgroup on which --kube-reserved is enforced"),
            flag("enforce-node-allocatable", List, Field("enforceNodeAllocatable"), "which of pods, system-reserved and kube-reserved are enforced"),
            flag("reserved-cpus", Text, Field("reservedSystemCPUs"), "CPUs reserved for system and Kubernetes processes"),
            flag("reserved-memory", ReservedMemory, Field("reservedMemory"), "memory reserved per NUMA node"),
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
            flag("pod-max-pids", Int, Field("podPidsLimit"), "maximum number of processes per pod, -1 for the node's own limit"),
        ],
    ),
    (
        "Eviction and garbage collection",
        &[
            flag("eviction-hard", Thresholds, Field("evictionHard"), "thresholds that evict pods immediately"),
            flag("eviction-soft", Thresholds, Field("evictionSoft"), "thresholds that evict pods after a grace period"),
            flag("eviction-soft-grace-period", Map, Field("evictionSoftGracePeriod"), "grace periods of --eviction-soft"),
            flag("eviction-pressure-transition-period", Duration, Field("evictionPressureTransitionPeriod"), "how long pressure must be gone before its condition is cleared"),
            flag("eviction-max-pod-grace-period", Int, Field("evictionMaxPodGracePeriod"), "longest grace period of an evicted pod, in seconds"),
            flag("eviction-minimum-reclaim", Map, Field("evictionMinimumReclaim"), "minimum amounts that an eviction reclaims"),
            flag("kernel-memcg-notification", Bool, Field("kernelMemcgNotification"), "use kernel notifications of memory pressure"),
            flag("minimum-image-ttl-duration", Duration, Field("imageMinimumGCAge"), "minimum age of an image before it is removed"),
            flag("image-gc-high-threshold", Int, Field("imageGCHighThresholdPercent"), "disk usage in percent at which image garbage collection starts"),
            flag("image-gc-low-threshold", Int, Field("imageGCLowThresholdPercent"), "disk usage in percent at which image garbage collection stops"),
            flag("minimum-container-ttl-duration", Duration, Node, "minimum age of a dead container before it is removed"),
            flag("maximum-dead-containers-per-container", Int, Node, "dead instances kept of each container, -1 for any number [default: 1]"),
            flag("experimental-allocatable-ignore-eviction", Bool, Unused, "ignore eviction thresholds in the node's allocatable resources"),
            flag("maximum-dead-containers", Int, Node, "dead containers kept on the node, -1 for any number [default: -1]"),
        ],
    ),
    (
        "Logging",
        &[
            flag("v", Int, Field("logging.verbosity"), "log verbosity: 0 to 3 for info, 4 and 5 for debug, 6 and higher for trace"),
            flag("logging-format", Text, Field("logging.format"), "text or json"),
            flag("vmodule", Modules, Field("logging.vmodule"), "verbosity of modules whose names match, with the wildcards * and ?"),
            flag("log-flush-frequency", Duration, Unused, "the log is never buffered"),
        ],
    ),
];
