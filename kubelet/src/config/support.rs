//! The fields of `KubeletConfiguration` that this kubelet implements; nothing else lists them.
//! Other fields are accepted, and those that are set are logged.

use serde_json::Value;

/// Implemented fields, by dotted path.
const EFFECTIVE: &[&str] = &[
    "address",
    "allowedUnsafeSysctls",
    "apiVersion",
    "authentication.anonymous.enabled",
    "authentication.webhook.cacheTTL",
    "authentication.webhook.enabled",
    "authentication.x509.clientCAFile",
    "authorization.mode",
    "authorization.webhook.cacheAuthorizedTTL",
    "authorization.webhook.cacheUnauthorizedTTL",
    "cgroupDriver",
    "cgroupRoot",
    "cgroupsPerQOS",
    "clusterDNS",
    "clusterDomain",
    "configMapAndSecretChangeDetectionStrategy",
    "containerLogMaxFiles",
    "containerLogMaxSize",
    "containerLogMaxWorkers",
    "containerLogMonitorInterval",
    "containerRuntimeEndpoint",
    "cpuCFSQuota",
    "cpuCFSQuotaPeriod",
    "cpuManagerPolicy",
    "cpuManagerPolicyOptions",
    "cpuManagerReconcilePeriod",
    "crashLoopBackOff.maxContainerRestartPeriod",
    "enableControllerAttachDetach",
    "enableDebugFlagsHandler",
    "enableDebuggingHandlers",
    "enableProfilingHandler",
    "enableServer",
    "enableSystemLogHandler",
    "enableSystemLogQuery",
    "enforceNodeAllocatable",
    "eventBurst",
    "eventRecordQPS",
    "evictionHard",
    "evictionMaxPodGracePeriod",
    "evictionMinimumReclaim",
    "evictionPressureTransitionPeriod",
    "evictionSoft",
    "evictionSoftGracePeriod",
    "failCgroupV1",
    "failSwapOn",
    "featureGates",
    "fileCheckFrequency",
    "healthzBindAddress",
    "healthzPort",
    "httpCheckFrequency",
    "imageGCHighThresholdPercent",
    "imageGCLowThresholdPercent",
    "imageMaximumGCAge",
    "imageMinimumGCAge",
    "imagePullCredentialsVerificationPolicy",
    "imageServiceEndpoint",
    "kernelMemcgNotification",
    "kind",
    "kubeAPIBurst",
    "kubeAPIQPS",
    "kubeReserved",
    "kubeReservedCgroup",
    "kubeletCgroups",
    "localStorageCapacityIsolation",
    "logging.format",
    "logging.verbosity",
    "logging.vmodule",
    "makeIPTablesUtilChains",
    "maxOpenFiles",
    "maxParallelImagePulls",
    "maxPods",
    "memoryManagerPolicy",
    "memoryReservationPolicy",
    "memorySwap.swapBehavior",
    "memoryThrottlingFactor",
    "mergeDefaultEvictionSettings",
    "nodeLeaseDurationSeconds",
    "nodeStatusMaxImages",
    "nodeStatusReportFrequency",
    "nodeStatusUpdateFrequency",
    "oomScoreAdj",
    "podCIDR",
    "podLogsDir",
    "podPidsLimit",
    "podsPerCore",
    "port",
    "preloadedImagesVerificationAllowlist",
    "protectKernelDefaults",
    "providerID",
    "qosReserved",
    "readOnlyPort",
    "registerNode",
    "registerWithTaints",
    "registryBurst",
    "registryPullQPS",
    "reservedMemory",
    "reservedSystemCPUs",
    "resolvConf",
    "rotateCertificates",
    "runOnce",
    "runtimeRequestTimeout",
    "seccompDefault",
    "serializeImagePulls",
    "serverTLSBootstrap",
    "showHiddenMetricsForVersion",
    "shutdownGracePeriod",
    "shutdownGracePeriodByPodPriority",
    "shutdownGracePeriodCriticalPods",
    "singleProcessOOMKill",
    "staticPodPath",
    "staticPodURL",
    "staticPodURLHeader",
    "syncFrequency",
    "systemCgroups",
    "systemReserved",
    "systemReservedCgroup",
    "tlsCertFile",
    "tlsCipherSuites",
    "tlsCurvePreferences",
    "tlsMinVersion",
    "tlsPrivateKeyFile",
    "topologyManagerPolicy",
    "topologyManagerPolicyOptions",
    "topologyManagerScope",
    "tracing.endpoint",
    "tracing.samplingRatePerMillion",
    "userNamespaces.idsPerPod",
    "volumePluginDir",
    "volumeStatsAggPeriod",
];

/// Whether a field, by dotted path, has an effect.
pub fn has_effect(field: &str) -> bool {
    EFFECTIVE.contains(&field)
}

/// Whether a field, or a field in it, has an effect.
pub fn has_effect_inside(field: &str) -> bool {
    let inside = format!("{field}.");
    has_effect(field) || EFFECTIVE.iter().any(|known| known.starts_with(&inside))
}

/// The fields of a configuration file that are set but have no effect.
///
/// A structure is listed as a whole, unless some of its fields have an effect.
pub fn without_effect(configuration: &Value) -> Vec<String> {
    let mut fields = Vec::new();
    collect(configuration, "", &mut fields);
    fields
}

fn collect(value: &Value, path: &str, fields: &mut Vec<String>) {
    let Value::Object(object) = value else {
        return;
    };
    for (key, value) in object {
        let field = if path.is_empty() {
            key.clone()
        } else {
            format!("{path}.{key}")
        };
        if has_effect(&field) || is_unset(value) {
            continue;
        }
        if has_effect_inside(&field) {
            collect(value, &field, fields);
        } else {
            fields.push(field);
        }
    }
}

/// Whether a value is equivalent to an unset field. kubeadm writes many of these.
fn is_unset(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(_) => false,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => matches!(text.as_str(), "" | "0" | "0s"),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_unset),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_what_is_set_in_vain_only() {
        let file = json!({
            "staticPodPath": "/m",
            "enableContentionProfiling": true,
            "iptablesDropBit": 0,
            "authentication": {"anonymous": {"enabled": false}, "x509": {}},
            "logging": {"verbosity": 2, "options": {"json": {"infoBufferSize": "0"}}},
        });
        assert_eq!(without_effect(&file), ["enableContentionProfiling"]);
    }
}
