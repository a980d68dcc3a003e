//! What a pod's spec may ask for and this kubelet cannot do. Everything in a pod
//! spec that changes how it runs is either done or listed here.

use k8s_openapi::api::core::v1::{
    Container, EnvVar, LifecycleHandler, Pod, PodSpec, ResourceRequirements, Volume,
    VolumeProjection,
};

use crate::runtime::{env, resources};

/// The fields of the pod that this kubelet cannot do, as `path: what`; empty
/// when it can be run.
pub fn unsupported(pod: &Pod) -> Vec<String> {
    let mut found = Found::default();
    if let Some(spec) = &pod.spec {
        pod_spec(spec, &mut found);
    }
    found.0
}

#[derive(Default)]
struct Found(Vec<String>);

impl Found {
    fn when(&mut self, asked: bool, path: impl Into<String>, what: &str) {
        if asked {
            self.0.push(format!("{}: {what}", path.into()));
        }
    }
}

fn some<T>(list: Option<&Vec<T>>) -> bool {
    list.is_some_and(|list| !list.is_empty())
}

fn pod_spec(spec: &PodSpec, found: &mut Found) {
    found.when(
        spec.active_deadline_seconds.is_some(),
        "spec.activeDeadlineSeconds",
        "deadlines of pods",
    );
    found.when(
        some(spec.ephemeral_containers.as_ref()),
        "spec.ephemeralContainers",
        "ephemeral containers",
    );
    found.when(
        spec.host_users == Some(false),
        "spec.hostUsers",
        "user namespaces",
    );
    found.when(
        spec.hostname_override.is_some(),
        "spec.hostnameOverride",
        "overriding the hostname",
    );
    found.when(
        spec.os.as_ref().is_some_and(|os| os.name != "linux"),
        "spec.os",
        "operating systems other than linux",
    );
    found.when(
        spec.overhead
            .as_ref()
            .is_some_and(|overhead| !overhead.is_empty()),
        "spec.overhead",
        "pod overhead",
    );
    found.when(
        some(spec.resource_claims.as_ref()),
        "spec.resourceClaims",
        "dynamic resource allocation",
    );
    found.when(
        spec.resources
            .as_ref()
            .is_some_and(|r| *r != ResourceRequirements::default()),
        "spec.resources",
        "resources of whole pods",
    );
    found.when(
        spec.runtime_class_name.is_some(),
        "spec.runtimeClassName",
        "runtime classes",
    );
    if let Some(context) = &spec.security_context {
        found.when(
            context.windows_options.is_some(),
            "spec.securityContext.windowsOptions",
            "Windows",
        );
    }
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        volume_source(volume, &format!("spec.volumes[{index}]"), found);
    }
    for (index, init) in spec.init_containers.iter().flatten().enumerate() {
        let path = format!("spec.initContainers[{index}]");
        found.when(
            init.lifecycle.is_some(),
            format!("{path}.lifecycle"),
            "hooks of init containers",
        );
        container(init, &path, found);
    }
    for (index, regular) in spec.containers.iter().enumerate() {
        container(regular, &format!("spec.containers[{index}]"), found);
    }
}

fn volume_source(volume: &Volume, path: &str, found: &mut Found) {
    for (index, item) in projections(volume).enumerate() {
        let path = format!("{path}.projected.sources[{index}]");
        found.when(
            item.cluster_trust_bundle.is_some(),
            format!("{path}.clusterTrustBundle"),
            "bundles of the cluster's certificates",
        );
        found.when(
            item.pod_certificate.is_some(),
            format!("{path}.podCertificate"),
            "certificates of pods",
        );
    }
    let projected = projections(volume).filter_map(|p| p.downward_api.as_ref()?.items.as_ref());
    let own = volume.downward_api.iter().filter_map(|d| d.items.as_ref());
    found.when(
        own.chain(projected)
            .flatten()
            .any(|item| item.resource_field_ref.is_some()),
        format!("{path}.downwardAPI.items.resourceFieldRef"),
        "resources as files",
    );
    let kind = volume_kind(volume);
    let is_built = matches!(
        kind.as_str(),
        "configMap"
            | "csi"
            | "downwardAPI"
            | "emptyDir"
            | "ephemeral"
            | "hostPath"
            | "image"
            | "nfs"
            | "persistentVolumeClaim"
            | "projected"
            | "secret"
    );
    found.when(!is_built, format!("{path}.{kind}"), "volumes of this kind");
}

/// Name of the field that says where the volume comes from.
fn volume_kind(volume: &Volume) -> String {
    let json = serde_json::to_value(volume).unwrap_or_default();
    let mut fields = json.as_object().into_iter().flat_map(|o| o.keys());
    fields
        .find(|field| *field != "name")
        .cloned()
        .unwrap_or_else(|| "source".to_owned())
}

fn projections(volume: &Volume) -> impl Iterator<Item = &VolumeProjection> {
    let sources = volume.projected.iter().map(|projected| &projected.sources);
    sources.flatten().flatten()
}

fn container(container: &Container, path: &str, found: &mut Found) {
    found.when(
        some(container.env_from.as_ref()),
        format!("{path}.envFrom"),
        "config maps and secrets",
    );
    found.when(
        container.restart_policy.is_some(),
        format!("{path}.restartPolicy"),
        "restart policies of single containers",
    );
    found.when(
        some(container.restart_policy_rules.as_ref()),
        format!("{path}.restartPolicyRules"),
        "restart rules of single containers",
    );
    for (index, variable) in container.env.iter().flatten().enumerate() {
        env_var(variable, &format!("{path}.env[{index}].valueFrom"), found);
    }
    if let Some(requirements) = &container.resources {
        found.when(
            some(requirements.claims.as_ref()),
            format!("{path}.resources.claims"),
            "dynamic resource allocation",
        );
        for name in resources::other_resources(requirements) {
            let path = format!("{path}.resources[{name}]");
            found.when(true, path, "resources other than cpu and memory");
        }
    }
    if let Some(context) = &container.security_context {
        found.when(
            context.windows_options.is_some(),
            format!("{path}.securityContext.windowsOptions"),
            "Windows",
        );
    }
    if let Some(lifecycle) = &container.lifecycle {
        for (hook, name) in [
            (&lifecycle.post_start, "postStart"),
            (&lifecycle.pre_stop, "preStop"),
        ] {
            if let Some(handler) = hook {
                lifecycle_handler(handler, &format!("{path}.lifecycle.{name}"), found);
            }
        }
    }
}

fn env_var(variable: &EnvVar, path: &str, found: &mut Found) {
    let Some(source) = &variable.value_from else {
        return;
    };
    found.when(
        source.config_map_key_ref.is_some(),
        format!("{path}.configMapKeyRef"),
        "config maps",
    );
    found.when(
        source.secret_key_ref.is_some(),
        format!("{path}.secretKeyRef"),
        "secrets",
    );
    found.when(
        source.resource_field_ref.is_some(),
        format!("{path}.resourceFieldRef"),
        "resources as variables",
    );
    found.when(
        source.file_key_ref.is_some(),
        format!("{path}.fileKeyRef"),
        "variables from files",
    );
    if let Some(field) = &source.field_ref {
        found.when(
            !env::is_known_field(&field.field_path),
            format!("{path}.fieldRef.fieldPath"),
            &format!("the field {:?}", field.field_path),
        );
    }
}

fn lifecycle_handler(handler: &LifecycleHandler, path: &str, found: &mut Found) {
    found.when(
        handler.tcp_socket.is_some(),
        format!("{path}.tcpSocket"),
        "tcpSocket hooks",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(spec: &str) -> Vec<String> {
        let spec: PodSpec = serde_json::from_str(spec).unwrap();
        unsupported(&Pod {
            spec: Some(spec),
            ..Pod::default()
        })
    }

    #[test]
    fn what_is_built_is_supported() {
        let found = check(
            r#"{"imagePullSecrets": [{"name": "s"}],
             "containers": [{"name": "a", "image": "i",
                "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
                "livenessProbe": {"exec": {"command": ["x"]}},
                "readinessProbe": {"httpGet": {"port": "web", "scheme": "HTTPS"}},
                "startupProbe": {"grpc": {"port": 1}},
                "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}],
             "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                         {"name": "c", "configMap": {"name": "c"}},
                         {"name": "h", "hostPath": {"path": "/"}}]}"#,
        );
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn what_is_not_built_is_named_by_path() {
        let found = check(
            r#"{"hostUsers": false,
             "initContainers": [{"name": "i", "restartPolicy": "Always"}],
             "containers": [{"name": "a",
                "envFrom": [{"secretRef": {"name": "s"}}],
                "env": [{"name": "X", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v", "subPath": "s"}],
                "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
             "volumes": [{"name": "v", "rbd": {"image": "i", "monitors": []}},
                         {"name": "e", "projected": {"sources": [
                            {"secret": {"name": "s"}}, {"podCertificate": {"keyType": "k", "signerName": "s"}}]}}]}"#,
        );
        let paths: Vec<&str> = found
            .iter()
            .map(|field| field.split(": ").next().unwrap())
            .collect();
        assert_eq!(
            paths,
            [
                "spec.hostUsers",
                "spec.volumes[0].rbd",
                "spec.volumes[1].projected.sources[1].podCertificate",
                "spec.initContainers[0].restartPolicy",
                "spec.containers[0].envFrom",
                "spec.containers[0].env[0].valueFrom.secretKeyRef",
                "spec.containers[0].resources[nvidia.com/gpu]",
            ]
        );
    }
}
