//! The API server's defaults for pod fields. Static pods do not pass the API server, so the kubelet
//! sets the defaults itself.

use image_reference::{DEFAULT_TAG, ImageReference};
use k8s_openapi::api::core::v1::{
    Container, EmptyDirVolumeSource, EnvVar, Lifecycle, LifecycleHandler, ObjectFieldSelector, Pod,
    PodSecurityContext, PodSpec, Probe, ResourceRequirements, Volume,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity;
use crate::resources::{self, ResourceList, Side};

const DEFAULT_MODE: i32 = 0o644;

/// Sets all unset fields of a pod that have a default.
pub fn set_defaults(pod: &mut Pod) {
    set_field_defaults(pod);
    if let Some(spec) = &mut pod.spec {
        set_pod_resources(spec);
    }
}

/// Sets all unset fields that have a default, except for pod-level resources, which are computed.
pub(crate) fn set_field_defaults(pod: &mut Pod) {
    let spec = pod.spec.get_or_insert_default();
    text(&mut spec.dns_policy, "ClusterFirst");
    text(&mut spec.restart_policy, "Always");
    text(&mut spec.scheduler_name, "default-scheduler");
    spec.security_context
        .get_or_insert_with(PodSecurityContext::default);
    // As upstream.
    let grace = spec.termination_grace_period_seconds.get_or_insert(30);
    if *grace < 0 {
        *grace = 1;
    }
    spec.enable_service_links.get_or_insert(true);
    // `serviceAccount` is the deprecated name of the same field.
    if is_empty(&spec.service_account_name) {
        spec.service_account_name = spec.service_account.clone();
    }
    for volume in spec.volumes.iter_mut().flatten() {
        set_volume_defaults(volume);
    }
    let host_network = spec.host_network == Some(true);
    for container in containers(spec) {
        set_container_defaults(container, host_network);
    }
}

/// Sets defaults of pod-level resources, if the pod has any: from its containers, then from its
/// limits.
fn set_pod_resources(spec: &mut PodSpec) {
    let Some(mut own) = spec.resources.take() else {
        return;
    };
    let some = |list: &Option<ResourceList>| list.as_ref().is_some_and(|list| !list.is_empty());
    if some(&own.limits) || some(&own.requests) {
        let requested = own.requests.clone().unwrap_or_default();
        let pages = resources::of_containers(spec, Side::Limits)
            .into_iter()
            .filter(|(name, _)| resources::is_huge_pages(name) && !requested.contains_key(name));
        add_missing(&mut own.limits, pages);
    }
    if let Some(limits) = own.limits.clone().filter(|limits| !limits.is_empty()) {
        let computed = resources::of_containers(spec, Side::Requests)
            .into_iter()
            .filter(|(name, _)| matches!(name.as_str(), "cpu" | "memory"));
        add_missing(&mut own.requests, computed);
        let requests = own.requests.get_or_insert_default();
        for (name, limit) in limits {
            if resources::is_pod_level(&name) {
                requests.entry(name).or_insert(limit);
            }
        }
    }
    spec.resources = Some(own);
}

fn add_missing(list: &mut Option<ResourceList>, more: impl Iterator<Item = (String, i128)>) {
    for (name, amount) in more {
        let quantity = Quantity(quantity::format(&name, amount));
        list.get_or_insert_default().entry(name).or_insert(quantity);
    }
}

fn containers(spec: &mut PodSpec) -> impl Iterator<Item = &mut Container> {
    spec.init_containers
        .iter_mut()
        .flatten()
        .chain(&mut spec.containers)
}

fn set_container_defaults(container: &mut Container, host_network: bool) {
    let image = container.image.as_deref().unwrap_or_default();
    let pull_policy = pull_policy(image);
    text(&mut container.image_pull_policy, pull_policy);
    text(
        &mut container.termination_message_path,
        "/dev/termination-log",
    );
    text(&mut container.termination_message_policy, "File");
    if let Some(resources) = &mut container.resources {
        set_requests(resources);
    }
    for port in container.ports.iter_mut().flatten() {
        text(&mut port.protocol, "TCP");
        if host_network && port.host_port.unwrap_or_default() == 0 {
            port.host_port = Some(port.container_port);
        }
    }
    for variable in container.env.iter_mut().flatten() {
        set_env_defaults(variable);
    }
    for probe in [
        &mut container.liveness_probe,
        &mut container.readiness_probe,
        &mut container.startup_probe,
    ]
    .into_iter()
    .flatten()
    {
        set_probe_defaults(probe);
    }
    if let Some(Lifecycle {
        post_start,
        pre_stop,
        ..
    }) = &mut container.lifecycle
    {
        for handler in [post_start, pre_stop].into_iter().flatten() {
            set_handler_defaults(handler);
        }
    }
}

/// Requests default to the limits.
fn set_requests(resources: &mut ResourceRequirements) {
    let Some(limits) = &resources.limits else {
        return;
    };
    let requests = resources.requests.get_or_insert_default();
    for (name, limit) in limits {
        if !requests.contains_key(name) {
            requests.insert(name.clone(), limit.clone());
        }
    }
}

fn set_env_defaults(variable: &mut EnvVar) {
    let Some(source) = &mut variable.value_from else {
        return;
    };
    if let Some(field) = &mut source.field_ref {
        set_field_ref_defaults(field);
    }
    if let Some(key) = &mut source.file_key_ref {
        key.optional.get_or_insert(false);
    }
}

fn set_field_ref_defaults(field: &mut ObjectFieldSelector) {
    text(&mut field.api_version, "v1");
}

fn set_probe_defaults(probe: &mut Probe) {
    number(&mut probe.timeout_seconds, 1);
    number(&mut probe.period_seconds, 10);
    number(&mut probe.success_threshold, 1);
    number(&mut probe.failure_threshold, 3);
    if let Some(get) = &mut probe.http_get {
        text(&mut get.path, "/");
        text(&mut get.scheme, "HTTP");
    }
    if let Some(grpc) = &mut probe.grpc {
        grpc.service.get_or_insert_default();
    }
}

fn set_handler_defaults(handler: &mut LifecycleHandler) {
    if let Some(get) = &mut handler.http_get {
        text(&mut get.path, "/");
        text(&mut get.scheme, "HTTP");
    }
}

fn set_volume_defaults(volume: &mut Volume) {
    let unnamed = Volume {
        name: volume.name.clone(),
        ..Volume::default()
    };
    if *volume == unnamed {
        volume.empty_dir = Some(EmptyDirVolumeSource::default());
    }
    if let Some(path) = &mut volume.host_path {
        path.type_.get_or_insert_default();
    }
    if let Some(source) = &mut volume.secret {
        source.default_mode.get_or_insert(DEFAULT_MODE);
    }
    if let Some(source) = &mut volume.config_map {
        source.default_mode.get_or_insert(DEFAULT_MODE);
    }
    if let Some(source) = &mut volume.image {
        let policy = pull_policy(source.reference.as_deref().unwrap_or_default());
        text(&mut source.pull_policy, policy);
    }
    if let Some(template) = volume
        .ephemeral
        .as_mut()
        .and_then(|source| source.volume_claim_template.as_mut())
    {
        let mode = &mut template.spec.volume_mode;
        mode.get_or_insert_with(|| "Filesystem".to_owned());
    }
    set_in_tree_volume_defaults(volume);
    let mut files = Vec::new();
    if let Some(source) = &mut volume.downward_api {
        source.default_mode.get_or_insert(DEFAULT_MODE);
        files.extend(source.items.iter_mut().flatten());
    }
    if let Some(source) = &mut volume.projected {
        source.default_mode.get_or_insert(DEFAULT_MODE);
        for projection in source.sources.iter_mut().flatten() {
            if let Some(downward) = &mut projection.downward_api {
                files.extend(downward.items.iter_mut().flatten());
            }
            if let Some(token) = &mut projection.service_account_token {
                token.expiration_seconds.get_or_insert(3600);
            }
        }
    }
    for file in files {
        if let Some(field) = &mut file.field_ref {
            set_field_ref_defaults(field);
        }
    }
}

/// Defaults of the kinds of volumes that CSI drivers have replaced.
fn set_in_tree_volume_defaults(volume: &mut Volume) {
    if let Some(source) = &mut volume.iscsi {
        text(&mut source.iscsi_interface, "default");
    }
    if let Some(source) = &mut volume.rbd {
        text(&mut source.pool, "rbd");
        text(&mut source.user, "admin");
        text(&mut source.keyring, "/etc/ceph/keyring");
    }
    if let Some(source) = &mut volume.azure_disk {
        for (field, value) in [
            (&mut source.caching_mode, "ReadWrite"),
            (&mut source.fs_type, "ext4"),
            (&mut source.kind, "Shared"),
        ] {
            field.get_or_insert_with(|| value.to_owned());
        }
        source.read_only.get_or_insert(false);
    }
    if let Some(source) = &mut volume.scale_io {
        text(&mut source.storage_mode, "ThinProvisioned");
        text(&mut source.fs_type, "xfs");
    }
}

/// The default pull policy. An image with the tag `latest`, explicit or implied, may have changed.
fn pull_policy(image: &str) -> &'static str {
    let Ok(image) = ImageReference::parse(image) else {
        return "IfNotPresent";
    };
    match (image.tag(), image.digest()) {
        (None, None) | (Some(DEFAULT_TAG), _) => "Always",
        _ => "IfNotPresent",
    }
}

fn is_empty(field: &Option<String>) -> bool {
    field.as_deref().unwrap_or_default().is_empty()
}

fn text(field: &mut Option<String>, value: &str) {
    if is_empty(field) {
        *field = Some(value.to_owned());
    }
}

fn number(field: &mut Option<i32>, value: i32) {
    if field.unwrap_or_default() == 0 {
        *field = Some(value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn defaulted(spec: serde_json::Value) -> serde_json::Value {
        let mut pod: Pod = serde_json::from_value(json!({"spec": spec})).unwrap();
        set_defaults(&mut pod);
        serde_json::to_value(pod.spec).unwrap()
    }

    #[test]
    fn a_bare_pod_gets_the_api_servers_defaults() {
        let spec = defaulted(json!({"containers": [{"name": "a", "image": "web:1"}]}));
        assert_eq!(
            spec,
            json!({
                "containers": [{
                    "name": "a", "image": "web:1", "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                }],
                "dnsPolicy": "ClusterFirst",
                "enableServiceLinks": true,
                "restartPolicy": "Always",
                "schedulerName": "default-scheduler",
                "securityContext": {},
                "terminationGracePeriodSeconds": 30,
            })
        );
    }

    #[test]
    fn what_is_set_stays() {
        let spec = defaulted(
            json!({"containers": [], "restartPolicy": "Never", "terminationGracePeriodSeconds": 0}),
        );
        assert_eq!(spec["restartPolicy"], "Never");
        assert_eq!(spec["terminationGracePeriodSeconds"], 0);
    }

    #[test]
    fn a_negative_grace_period_becomes_a_second() {
        let spec = defaulted(json!({"containers": [], "terminationGracePeriodSeconds": -1}));
        assert_eq!(spec["terminationGracePeriodSeconds"], 1);
    }

    #[test]
    fn pull_policy_follows_the_tag() {
        for (image, policy) in [
            ("nginx", "Always"),
            ("nginx:latest", "Always"),
            ("registry:5000/nginx", "Always"),
            ("registry:5000/nginx:1.27", "IfNotPresent"),
            ("", "IfNotPresent"),
            ("Nginx", "IfNotPresent"),
        ] {
            assert_eq!(pull_policy(image), policy, "{image}");
        }
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(pull_policy(&format!("nginx@{digest}")), "IfNotPresent");
        assert_eq!(pull_policy(&format!("nginx:latest@{digest}")), "Always");
    }

    #[test]
    fn ports_probes_volumes_and_requests() {
        let spec = defaulted(json!({
            "hostNetwork": true,
            "containers": [{
                "name": "a",
                "ports": [{"containerPort": 80}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}, "requests": {"cpu": "500m"}},
                "livenessProbe": {"httpGet": {"port": 80}},
            }],
            "volumes": [{"name": "v"}, {"name": "h", "hostPath": {"path": "/"}}],
        }));
        let container = &spec["containers"][0];
        assert_eq!(
            container["ports"][0],
            json!({"containerPort": 80, "hostPort": 80, "protocol": "TCP"})
        );
        assert_eq!(
            container["resources"]["requests"],
            json!({"cpu": "500m", "memory": "1Gi"})
        );
        assert_eq!(
            container["livenessProbe"],
            json!({
                "httpGet": {"port": 80, "path": "/", "scheme": "HTTP"},
                "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3,
            })
        );
        assert_eq!(
            spec["volumes"],
            json!([{"name": "v", "emptyDir": {}}, {"name": "h", "hostPath": {"path": "/", "type": ""}}])
        );
    }
}
