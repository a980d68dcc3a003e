//! Rules of containers, their ports and their mounts.

use std::collections::HashSet;

use k8s_openapi::api::core::v1::{Container, ContainerPort, Volume, VolumeMount};

use super::{context::PodContext, env, probe, resources, restart, security};
use crate::{
    field::{Faults, Path},
    names,
};

/// A host port: protocol, address, number.
pub(super) type HostPort<'a> = (&'a str, &'a str, i32);

pub(super) fn validate(
    container: &Container,
    init: bool,
    pod: &PodContext<'_>,
    path: &Path,
    faults: &mut Faults,
) {
    faults.required_text(&path.child("name"), &container.name, names::dns1123_label);
    let image = container.image.as_deref().unwrap_or_default();
    faults.required_text(&path.child("image"), image, |image| {
        if image.trim() == image {
            Ok(())
        } else {
            Err("must not have leading or trailing whitespace")
        }
    });
    faults.one_of(
        &path.child("imagePullPolicy"),
        container.image_pull_policy.as_deref().unwrap_or_default(),
        &["Always", "IfNotPresent", "Never"],
    );
    faults.one_of(
        &path.child("terminationMessagePolicy"),
        container
            .termination_message_policy
            .as_deref()
            .unwrap_or_default(),
        &["File", "FallbackToLogsOnError"],
    );
    restart::validate(container, pod.never_restarts, path, faults);
    validate_ports(
        container.ports.as_deref().unwrap_or_default(),
        pod.host_network,
        &path.child("ports"),
        faults,
    );
    env::validate(container, pod, path, faults);
    validate_mounts(container, pod, path, faults);
    if let Some(requirements) = &container.resources {
        resources::validate(requirements, &path.child("resources"), faults);
    }
    if let Some(context) = &container.security_context {
        security::validate_container(context, pod, &path.child("securityContext"), faults);
    }
    probe::validate(container, init, pod, path, faults);
}

fn validate_ports(ports: &[ContainerPort], host_network: bool, path: &Path, faults: &mut Faults) {
    let mut seen = HashSet::new();
    for (index, port) in ports.iter().enumerate() {
        let path = path.index(index);
        if let Some(name) = port.name.as_deref().filter(|name| !name.is_empty()) {
            faults.text(&path.child("name"), name, names::port_name);
            if !seen.insert(name) {
                faults.duplicate(&path.child("name"), name);
            }
        }
        if port.container_port == 0 {
            faults.required(&path.child("containerPort"), "");
        } else {
            faults.port(&path.child("containerPort"), port.container_port);
        }
        let host_port = port.host_port.unwrap_or_default();
        if host_port != 0 {
            faults.port(&path.child("hostPort"), host_port);
        }
        if host_network && host_port != port.container_port {
            faults.invalid(
                &path.child("containerPort"),
                port.container_port,
                "must match `hostPort` when `hostNetwork` is true",
            );
        }
        faults.one_of(
            &path.child("protocol"),
            port.protocol.as_deref().unwrap_or_default(),
            &["TCP", "UDP", "SCTP"],
        );
        if let Some(address) = port
            .host_ip
            .as_deref()
            .filter(|address| !address.is_empty())
        {
            faults.text(&path.child("hostIP"), address, names::ip);
        }
    }
}

/// Checks that only one container of the pod uses each host port.
pub(super) fn validate_host_ports<'a>(
    container: &'a Container,
    taken: &mut HashSet<HostPort<'a>>,
    path: &Path,
    faults: &mut Faults,
) {
    for (index, port) in container.ports.iter().flatten().enumerate() {
        let Some(number) = port.host_port.filter(|number| *number != 0) else {
            continue;
        };
        let protocol = port.protocol.as_deref().unwrap_or_default();
        let address = port.host_ip.as_deref().unwrap_or_default();
        if !taken.insert((protocol, address, number)) {
            faults.duplicate(
                &path.child("ports").index(index).child("hostPort"),
                format!("{protocol}/{address}/{number}"),
            );
        }
    }
}

fn validate_mounts(container: &Container, pod: &PodContext<'_>, path: &Path, faults: &mut Faults) {
    let privileged = container
        .security_context
        .as_ref()
        .is_some_and(|context| context.privileged == Some(true));
    let mut mount_paths = HashSet::new();
    for (index, mount) in container.volume_mounts.iter().flatten().enumerate() {
        let path = path.child("volumeMounts").index(index);
        if mount.name.is_empty() {
            faults.required(&path.child("name"), "");
        } else {
            match pod.volumes.get(mount.name.as_str()) {
                Some(volume) => validate_mount_of(volume, mount, &path, faults),
                None => faults.not_found(&path.child("name"), &mount.name),
            }
        }
        if mount.mount_path.is_empty() {
            faults.required(&path.child("mountPath"), "");
        } else if !mount_paths.insert(mount.mount_path.as_str()) {
            faults.invalid(
                &path.child("mountPath"),
                &mount.mount_path,
                "must be unique",
            );
        }
        validate_mount(mount, privileged, &path, faults);
    }
    for (index, device) in container.volume_devices.iter().flatten().enumerate() {
        let path = path.child("volumeDevices").index(index);
        match pod.volumes.get(device.name.as_str()) {
            None => faults.not_found(&path.child("name"), &device.name),
            Some(volume)
                if volume.persistent_volume_claim.is_none() && volume.ephemeral.is_none() =>
            {
                faults.invalid(
                    &path.child("name"),
                    &device.name,
                    "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode",
                );
            }
            Some(_) => {}
        }
    }
}

fn validate_mount(mount: &VolumeMount, privileged: bool, path: &Path, faults: &mut Faults) {
    let sub_path = mount.sub_path.as_deref().unwrap_or_default();
    let sub_path_expr = mount.sub_path_expr.as_deref().unwrap_or_default();
    faults.text(&path.child("subPath"), sub_path, names::descending_path);
    faults.text(
        &path.child("subPathExpr"),
        sub_path_expr,
        names::descending_path,
    );
    if !sub_path.is_empty() && !sub_path_expr.is_empty() {
        faults.invalid(
            &path.child("subPathExpr"),
            sub_path_expr,
            "subPathExpr and subPath are mutually exclusive",
        );
    }
    if let Some(propagation) = mount.mount_propagation.as_deref() {
        faults.one_of(
            &path.child("mountPropagation"),
            propagation,
            &["Bidirectional", "HostToContainer", "None"],
        );
        if propagation == "Bidirectional" && !privileged {
            faults.forbidden(
                &path.child("mountPropagation"),
                "Bidirectional mount propagation is available only to privileged containers",
            );
        }
    }
    if let Some(recursive) = mount.recursive_read_only.as_deref() {
        faults.one_of(
            &path.child("recursiveReadOnly"),
            recursive,
            &["Disabled", "Enabled", "IfPossible"],
        );
        if recursive != "Disabled" && mount.read_only != Some(true) {
            faults.forbidden(
                &path.child("recursiveReadOnly"),
                "may only be specified when readOnly is true",
            );
        }
    }
}

fn validate_mount_of(volume: &Volume, mount: &VolumeMount, path: &Path, faults: &mut Faults) {
    let propagates = mount
        .mount_propagation
        .as_deref()
        .is_some_and(|propagation| propagation != "None");
    if volume.image.is_some() && propagates {
        faults.forbidden(
            &path.child("mountPropagation"),
            "must not be specified for an image volume",
        );
    }
}
