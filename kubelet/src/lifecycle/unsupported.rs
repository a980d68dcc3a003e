//! Fields of the pod spec that this kubelet does not support. Every field that affects how a pod
//! runs is either implemented or listed here.

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, Volume, VolumeProjection};
use kubelet_pod_spec::{
    ephemeral::as_container,
    identity, json,
    resources::{self, Amounts},
};

/// The pod's unsupported fields, as `path: what`; empty when it can run. Extended resources must be
/// in `allocatable` for a static pod; with `None` they are not checked.
pub fn unsupported(pod: &Pod, allocatable: Option<&Amounts>) -> Vec<String> {
    let mut found = UnsupportedFields {
        allocatable,
        fields: Vec::new(),
    };
    if let Some(spec) = &pod.spec {
        pod_spec(pod, spec, &mut found);
    }
    found.fields
}

struct UnsupportedFields<'a> {
    allocatable: Option<&'a Amounts>,
    fields: Vec<String>,
}

impl UnsupportedFields<'_> {
    fn when(&mut self, asked: bool, path: impl Into<String>, what: &str) {
        if asked {
            self.fields.push(format!("{}: {what}", path.into()));
        }
    }

    fn is_given(&self, resource: &str) -> bool {
        self.allocatable
            .is_none_or(|allocatable| allocatable.contains_key(resource))
    }
}

fn pod_spec(pod: &Pod, spec: &PodSpec, found: &mut UnsupportedFields<'_>) {
    for (index, volume) in spec.volumes.iter().flatten().enumerate() {
        volume_source(volume, &format!("spec.volumes[{index}]"), found);
    }
    for (index, init) in spec.init_containers.iter().flatten().enumerate() {
        let path = format!("spec.initContainers[{index}]");
        container(pod, init, &path, found);
    }
    for (index, regular) in spec.containers.iter().enumerate() {
        container(pod, regular, &format!("spec.containers[{index}]"), found);
    }
    for (index, ephemeral) in spec.ephemeral_containers.iter().flatten().enumerate() {
        let path = format!("spec.ephemeralContainers[{index}]");
        container(pod, &as_container(ephemeral), &path, found);
    }
}

fn volume_source(volume: &Volume, path: &str, found: &mut UnsupportedFields<'_>) {
    for (index, item) in projections(volume).enumerate() {
        let path = format!("{path}.projected.sources[{index}]");
        found.when(
            item.pod_certificate.is_some(),
            format!("{path}.podCertificate"),
            "pod certificates",
        );
    }
    let kind = volume_kind(volume);
    let is_built = matches!(
        kind.as_str(),
        "awsElasticBlockStore"
            | "azureDisk"
            | "azureFile"
            | "cinder"
            | "configMap"
            | "csi"
            | "downwardAPI"
            | "emptyDir"
            | "ephemeral"
            | "fc"
            | "flexVolume"
            | "gcePersistentDisk"
            | "hostPath"
            | "image"
            | "iscsi"
            | "nfs"
            | "persistentVolumeClaim"
            | "portworxVolume"
            | "projected"
            | "secret"
            | "vsphereVolume"
    );
    found.when(!is_built, format!("{path}.{kind}"), "volumes of this kind");
}

/// Name of the volume's source field.
fn volume_kind(volume: &Volume) -> String {
    let json = json::to_value(volume).unwrap_or_default();
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

fn container(pod: &Pod, container: &Container, path: &str, found: &mut UnsupportedFields<'_>) {
    // The scheduler may know resources of the cluster that no node has. A static pod was not scheduled.
    if identity::is_static(pod)
        && let Some(requirements) = &container.resources
    {
        for name in resources::extended_resources(requirements) {
            let path = format!("{path}.resources[{name}]");
            let is_missing = !found.is_given(name);
            found.when(is_missing, path, "extended resources from device plugins");
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

    use super::*;

    fn check(spec: &str) -> Vec<String> {
        let spec: PodSpec = serde_json::from_str(spec).unwrap();
        let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
        let pod = Pod {
            metadata: ObjectMeta {
                annotations: Some([source].into()),
                ..ObjectMeta::default()
            },
            spec: Some(spec),
            ..Pod::default()
        };
        unsupported(&pod, Some(&Amounts::from([("x.y/given".to_owned(), 1)])))
    }

    #[test]
    fn what_is_built_is_supported() {
        let found = check(
            r#"{"hostUsers": false, "hostnameOverride": "h", "overhead": {"cpu": "1"},
             "resources": {"limits": {"cpu": "2"}}, "runtimeClassName": "gvisor",
             "activeDeadlineSeconds": 10,
             "securityContext": {"windowsOptions": {"runAsUserName": "ContainerUser"}},
             "imagePullSecrets": [{"name": "s"}],
             "initContainers": [{"name": "s", "restartPolicy": "Always",
                "lifecycle": {"postStart": {"sleep": {"seconds": 1}}}}],
             "ephemeralContainers": [{"name": "e", "targetContainerName": "a"}],
             "containers": [{"name": "a", "image": "i", "restartPolicy": "Never",
                "restartPolicyRules": [{"action": "RestartAllContainers",
                    "exitCodes": {"operator": "In", "values": [1]}}],
                "env": [{"name": "X", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                        {"name": "Y", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}],
                "securityContext": {"windowsOptions": {"hostProcess": true}},
                "envFrom": [{"secretRef": {"name": "s"}}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi", "hugepages-2Mi": "2Mi", "x.y/given": "1"}},
                "livenessProbe": {"exec": {"command": ["x"]}},
                "readinessProbe": {"httpGet": {"port": "web", "scheme": "HTTPS"}},
                "startupProbe": {"grpc": {"port": 1}},
                "lifecycle": {"preStop": {"exec": {"command": ["x"]}}}}],
             "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
                         {"name": "c", "configMap": {"name": "c"}},
                         {"name": "f", "flexVolume": {"driver": "example.com/d"}},
                         {"name": "t", "projected": {"sources": [
                            {"clusterTrustBundle": {"name": "b", "path": "ca.pem"}}]}},
                         {"name": "h", "hostPath": {"path": "/"}}]}"#,
        );
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn what_is_not_built_is_named_by_path() {
        let found = check(
            r#"{"containers": [{"name": "a",
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
                "spec.volumes[0].rbd",
                "spec.volumes[1].projected.sources[1].podCertificate",
                "spec.containers[0].resources[nvidia.com/gpu]",
            ]
        );
    }
}
