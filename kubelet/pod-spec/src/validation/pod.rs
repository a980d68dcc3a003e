//! Rules of a pod, and of `spec` as a whole.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, Pod, PodDNSConfig, PodSpec, Toleration};

use super::{container, context::PodContext, metadata, resources, security, volume};
use crate::{
    field::{Faults, FieldError, Path},
    names,
};

const MAX_NAME_SERVERS: usize = 3;
const MAX_SEARCH_DOMAINS: usize = 32;
const MAX_SEARCH_CHARACTERS: usize = 2048;
const MAX_HOSTNAME: usize = 64;

/// Validates a pod whose defaults are set. Returns all errors; empty if the pod is valid.
pub fn validate_pod(pod: &Pod) -> Vec<FieldError> {
    let mut faults = Faults::default();
    metadata::validate(&pod.metadata, &mut faults);
    match &pod.spec {
        Some(spec) => {
            security::validate_annotations(pod, spec, &mut faults);
            validate_spec(spec, &Path::new("spec"), &mut faults);
        }
        None => faults.required(&Path::new("spec"), ""),
    }
    faults.into_vec()
}

fn validate_spec(spec: &PodSpec, path: &Path, faults: &mut Faults) {
    let volumes_path = path.child("volumes");
    volume::validate_all(
        spec.volumes.as_deref().unwrap_or_default(),
        &volumes_path,
        faults,
    );
    let context = PodContext {
        volumes: spec
            .volumes
            .iter()
            .flatten()
            .map(|volume| (volume.name.as_str(), volume))
            .collect(),
        host_network: spec.host_network == Some(true),
        user_namespace: spec.host_users == Some(false),
        termination_grace_period: spec.termination_grace_period_seconds.unwrap_or_default(),
        never_restarts: spec.restart_policy.as_deref() == Some("Never"),
        names_os: spec.os.is_some(),
    };
    validate_containers(spec, &context, path, faults);
    validate_policies(spec, path, faults);
    validate_dns(spec, path, faults);
    validate_hostname(spec, path, faults);
    if let Some(context) = &spec.security_context {
        security::validate_pod(spec, context, &path.child("securityContext"), faults);
    }
    if let Some(requirements) = &spec.resources {
        resources::validate_pod(spec, requirements, &path.child("resources"), faults);
    }
    if let Some(overhead) = &spec.overhead {
        resources::validate_overhead(overhead, &path.child("overhead"), faults);
    }
    for (index, alias) in spec.host_aliases.iter().flatten().enumerate() {
        let path = path.child("hostAliases").index(index);
        faults.text(&path.child("ip"), &alias.ip, names::ip);
        for host in alias.hostnames.iter().flatten() {
            faults.text(&path.child("hostnames"), host, names::dns1123_subdomain);
        }
    }
    for (index, toleration) in spec.tolerations.iter().flatten().enumerate() {
        validate_toleration(toleration, &path.child("tolerations").index(index), faults);
    }
}

fn validate_containers(spec: &PodSpec, context: &PodContext<'_>, path: &Path, faults: &mut Faults) {
    let containers_path = path.child("containers");
    if spec.containers.is_empty() {
        faults.required(&containers_path, "");
    }
    let mut seen = HashSet::new();
    let mut host_ports = HashSet::new();
    let groups: [(&Path, &[Container], bool); 2] = [
        (
            &path.child("initContainers"),
            spec.init_containers.as_deref().unwrap_or_default(),
            true,
        ),
        (&containers_path, &spec.containers, false),
    ];
    for (path, containers, init) in groups {
        for (index, container) in containers.iter().enumerate() {
            let path = path.index(index);
            if !container.name.is_empty() && !seen.insert(container.name.as_str()) {
                faults.duplicate(&path.child("name"), &container.name);
            }
            container::validate(container, init, context, &path, faults);
            // An init container has exited before later containers use its host ports.
            let stays = !init || container.restart_policy.as_deref() == Some("Always");
            if stays {
                container::validate_host_ports(container, &mut host_ports, &path, faults);
            }
        }
    }
    if spec.ephemeral_containers.iter().flatten().next().is_some() {
        faults.forbidden(
            &path.child("ephemeralContainers"),
            "cannot be set on create",
        );
    }
}

fn validate_policies(spec: &PodSpec, path: &Path, faults: &mut Faults) {
    faults.one_of(
        &path.child("restartPolicy"),
        spec.restart_policy.as_deref().unwrap_or_default(),
        &["Always", "OnFailure", "Never"],
    );
    faults.one_of(
        &path.child("dnsPolicy"),
        spec.dns_policy.as_deref().unwrap_or_default(),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
    );
    if let Some(policy) = &spec.preemption_policy {
        faults.one_of(
            &path.child("preemptionPolicy"),
            policy,
            &["PreemptLowerPriority", "Never"],
        );
    }
    if let Some(os) = &spec.os {
        faults.one_of(&path.child("os").child("name"), &os.name, &["linux"]);
    }
    if let Some(deadline) = spec.active_deadline_seconds {
        faults.range(
            &path.child("activeDeadlineSeconds"),
            deadline,
            1,
            i64::from(i32::MAX),
        );
    }
    for (field, value, rule) in [
        (
            "hostname",
            &spec.hostname,
            names::dns1123_label as fn(&str) -> names::Rule,
        ),
        ("subdomain", &spec.subdomain, names::dns1123_label),
        (
            "priorityClassName",
            &spec.priority_class_name,
            names::dns1123_subdomain,
        ),
        (
            "runtimeClassName",
            &spec.runtime_class_name,
            names::dns1123_subdomain,
        ),
        (
            "serviceAccountName",
            &spec.service_account_name,
            names::dns1123_subdomain,
        ),
        ("nodeName", &spec.node_name, names::dns1123_subdomain),
    ] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty()) {
            faults.text(&path.child(field), value, rule);
        }
    }
    if spec.share_process_namespace == Some(true) && spec.host_pid == Some(true) {
        faults.invalid(
            &path.child("shareProcessNamespace"),
            true,
            "ShareProcessNamespace and HostPID cannot both be enabled",
        );
    }
    if spec.host_users == Some(false) {
        for (field, shared) in [
            ("hostNetwork", spec.host_network),
            ("HostPID", spec.host_pid),
            ("HostIPC", spec.host_ipc),
        ] {
            if shared == Some(true) {
                faults.forbidden(&path.child(field), "when `hostUsers` is false");
            }
        }
    }
    for (key, value) in spec.node_selector.iter().flatten() {
        let path = path.child("nodeSelector");
        faults.text(&path, key, names::qualified_name);
        faults.text(&path, value, names::label_value);
    }
}

fn validate_hostname(spec: &PodSpec, path: &Path, faults: &mut Faults) {
    let Some(hostname) = &spec.hostname_override else {
        return;
    };
    let path = path.child("hostnameOverride");
    if spec.set_hostname_as_fqdn == Some(true) {
        faults.forbidden(&path, "may not be specified when setHostnameAsFQDN is true");
    }
    if spec.host_network == Some(true) {
        faults.forbidden(&path, "may not be specified when hostNetwork is true");
    }
    faults.at_most(&path, hostname, MAX_HOSTNAME);
    faults.text(&path, hostname, names::dns1123_subdomain);
}

fn validate_dns(spec: &PodSpec, path: &Path, faults: &mut Faults) {
    let path = path.child("dnsConfig");
    let nothing = PodDNSConfig::default();
    let config = spec.dns_config.as_ref().unwrap_or(&nothing);
    let servers = config.nameservers.as_deref().unwrap_or_default();
    let servers_path = path.child("nameservers");
    if spec.dns_policy.as_deref() == Some("None") {
        if spec.dns_config.is_none() {
            return faults.required(&path, "must provide `dnsConfig` when `dnsPolicy` is None");
        }
        if servers.is_empty() {
            return faults.required(
                &servers_path,
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            );
        }
    }
    if servers.len() > MAX_NAME_SERVERS {
        faults.invalid(
            &servers_path,
            servers,
            format_args!("must not have more than {MAX_NAME_SERVERS} nameservers"),
        );
    }
    for (index, server) in servers.iter().enumerate() {
        faults.text(&servers_path.index(index), server, names::ip);
    }
    let searches = config.searches.as_deref().unwrap_or_default();
    let searches_path = path.child("searches");
    if searches.len() > MAX_SEARCH_DOMAINS {
        faults.invalid(
            &searches_path,
            searches,
            format_args!("must not have more than {MAX_SEARCH_DOMAINS} search paths"),
        );
    }
    let characters = searches
        .iter()
        .map(|domain| domain.len() + 1)
        .sum::<usize>();
    if characters > MAX_SEARCH_CHARACTERS + 1 {
        faults.invalid(
            &searches_path,
            searches,
            format_args!(
                "must not have more than {MAX_SEARCH_CHARACTERS} characters (including spaces) in the search list"
            ),
        );
    }
    for (index, domain) in searches.iter().enumerate() {
        // The root domain and names with a trailing dot are valid search domains.
        let name = domain.strip_suffix('.').unwrap_or(domain);
        if domain != "." {
            let underscored = name.replace('_', "-");
            faults.text(
                &searches_path.index(index),
                &underscored,
                names::dns1123_subdomain,
            );
        }
    }
    for (index, option) in config.options.iter().flatten().enumerate() {
        if option.name.as_deref().unwrap_or_default().is_empty() {
            faults.required(&path.child("options").index(index), "must not be empty");
        }
    }
}

fn validate_toleration(toleration: &Toleration, path: &Path, faults: &mut Faults) {
    let key = toleration.key.as_deref().unwrap_or_default();
    let value = toleration.value.as_deref().unwrap_or_default();
    let operator = toleration.operator.as_deref().unwrap_or_default();
    let effect = toleration.effect.as_deref().unwrap_or_default();
    if !key.is_empty() {
        faults.text(&path.child("key"), key, names::qualified_name);
    } else if operator != "Exists" {
        faults.invalid(
            &path.child("operator"),
            operator,
            "operator must be Exists when `key` is empty, which means \"match all values and all keys\"",
        );
    }
    faults.one_of(
        &path.child("operator"),
        operator,
        &["", "Equal", "Exists", "Lt", "Gt"],
    );
    if operator == "Exists" && !value.is_empty() {
        faults.invalid(
            &path.child("operator"),
            operator,
            "value must be empty when `operator` is 'Exists'",
        );
    }
    faults.text(&path.child("value"), value, names::label_value);
    faults.one_of(
        &path.child("effect"),
        effect,
        &["", "NoSchedule", "PreferNoSchedule", "NoExecute"],
    );
    if toleration.toleration_seconds.is_some() && effect != "NoExecute" {
        faults.invalid(
            &path.child("effect"),
            effect,
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        );
    }
}
