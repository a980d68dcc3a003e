//! Mounting a volume with the SELinux label of its pod, instead of relabelling each file (KEP
//! 1710). As upstream by default, this applies to `ReadWriteOncePod` volumes; the runtime relabels
//! the files of the others.

use std::collections::BTreeSet;

use k8s_openapi::api::core::v1::{PodSpec, SELinuxOptions, SecurityContext, VolumeMount};
use kubelet_host::selinux::SeLinux;
use kubelet_pod_spec::{
    field::{Faults, Path},
    validation::mounts,
};

use super::{VolumeError, spec::VolumeSpec};

/// SELinux options that apply to a container, and the field that they come from.
struct Given<'a> {
    options: &'a SELinuxOptions,
    field: Path,
}

/// The SELinux label to mount a volume with, if the pod's containers agree on one; `None` if the
/// runtime relabels the files.
///
/// # Errors
/// A part of a label is not safe to pass to `mount`, or the containers have different labels.
pub(super) fn mount_label(
    selinux: &SeLinux,
    pod: &PodSpec,
    volume: &VolumeSpec,
) -> Result<Option<String>, VolumeError> {
    let context = pod.security_context.as_ref();
    let policy = context.and_then(|context| context.se_linux_change_policy.as_deref());
    if !volume.is_for_one_pod() || policy == Some("Recursive") {
        return Ok(None);
    }
    let mut labels = BTreeSet::new();
    for Given { options, field } in given(pod, &volume.name) {
        check(options, &field)?;
        labels.insert(selinux.file_label(options).unwrap_or_default());
    }
    if labels.len() > 1 {
        let labels: Vec<_> = labels.iter().map(String::as_str).collect();
        let why = format!("multiple SELinux labels found: {}", labels.join(","));
        return Err(VolumeError::invalid(&volume.name, why));
    }
    Ok(labels.pop_first().filter(|label| !label.is_empty()))
}

/// The mount option for a label. It is quoted, because labels contain commas.
pub(super) fn mount_option(label: &str) -> String {
    format!("context=\"{label}\"")
}

/// The SELinux options of the containers that mount a volume, where the pod specifies any.
fn given<'a>(pod: &'a PodSpec, volume: &str) -> Vec<Given<'a>> {
    let spec = Path::new("spec");
    let of_pod = pod.security_context.as_ref();
    let of_pod = of_pod.and_then(|context| context.se_linux_options.as_ref());
    let mut all = Vec::new();
    let mut look = |list: &str,
                    index: usize,
                    context: Option<&'a SecurityContext>,
                    mounts: &Option<Vec<VolumeMount>>| {
        if !mounts.iter().flatten().any(|mount| mount.name == volume) {
            return;
        }
        let own = context.and_then(|context| context.se_linux_options.as_ref());
        let holder = match own {
            Some(_) => spec.child(list).index(index),
            None => spec.clone(),
        };
        let field = holder.child("securityContext").child("seLinuxOptions");
        all.extend(own.or(of_pod).map(|options| Given { options, field }));
    };
    for (list, containers) in [
        ("initContainers", pod.init_containers.as_deref()),
        ("containers", Some(&*pod.containers)),
    ] {
        for (index, container) in containers.into_iter().flatten().enumerate() {
            let context = container.security_context.as_ref();
            look(list, index, context, &container.volume_mounts);
        }
    }
    for (index, container) in pod.ephemeral_containers.iter().flatten().enumerate() {
        let context = container.security_context.as_ref();
        look(
            "ephemeralContainers",
            index,
            context,
            &container.volume_mounts,
        );
    }
    all
}

/// Checks the parts that are used in the label.
fn check(options: &SELinuxOptions, field: &Path) -> Result<(), VolumeError> {
    let mut faults = Faults::default();
    for (name, part) in [("user", &options.user), ("level", &options.level)] {
        let part = part.as_deref().unwrap_or_default();
        faults.text(&field.child(name), part, mounts::selinux_part);
    }
    Ok(faults.into_result()?)
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use serde_json::{Value, json};

    use super::*;
    use crate::spec::{VolumeMode, VolumeSource};

    /// The label for a volume with this access mode in a pod; its last part is the level.
    fn label(mode: &str, pod: Value) -> Result<Option<String>, String> {
        let root = tempfile::tempdir().unwrap();
        let mounts = "23 1 0:5 / /sys/fs/selinux rw - selinuxfs selinuxfs rw\n";
        for (path, text) in [
            ("proc/self/mountinfo", mounts),
            (
                "usr/share/containers/selinux/contexts",
                "file = \"u:r:t:s0\"\n",
            ),
        ] {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let volume = json!({"spec": {"accessModes": [mode]}});
        let volume = VolumeSpec {
            name: "v".to_owned(),
            source: VolumeSource::Persistent(Arc::new(serde_json::from_value(volume).unwrap())),
            read_only: false,
            mode: VolumeMode::Filesystem,
            capacity: None,
            migrated: false,
        };
        let selinux = SeLinux::of(root.path()).unwrap();
        let pod = serde_json::from_value(pod).unwrap();
        mount_label(&selinux, &pod, &volume).map_err(|error| error.to_string())
    }

    fn container(level: Option<&str>) -> Value {
        let mut container =
            json!({"name": "c", "volumeMounts": [{"name": "v", "mountPath": "/v"}]});
        if let Some(level) = level {
            container["securityContext"] = json!({"seLinuxOptions": {"level": level}});
        }
        container
    }

    #[test]
    fn containers_that_agree_get_one_label() {
        let of_pod = json!({"seLinuxOptions": {"level": "s0:c1,c2"}});
        let both = json!([container(None), container(Some("s0:c1,c2"))]);
        let pod = json!({"securityContext": of_pod, "containers": both});
        let found = label("ReadWriteOncePod", pod.clone());
        assert_eq!(found, Ok(Some("u:r:t:s0:c1,c2".to_owned())));
        assert_eq!(label("ReadWriteOnce", pod.clone()), Ok(None));
        let mut recursive = pod;
        recursive["securityContext"]["seLinuxChangePolicy"] = json!("Recursive");
        assert_eq!(label("ReadWriteOncePod", recursive), Ok(None));

        // Containers without options, and containers with other volumes, do not count.
        let mut other = container(Some("s9"));
        other["volumeMounts"][0]["name"] = json!("other");
        let some = json!([container(None), container(Some("s1")), other]);
        let found = label("ReadWriteOncePod", json!({"containers": some}));
        assert_eq!(found, Ok(Some("u:r:t:s1".to_owned())));
        let none = json!({"containers": [container(None)]});
        assert_eq!(label("ReadWriteOncePod", none), Ok(None));
    }

    #[test]
    fn containers_that_do_not_agree_get_an_error() {
        let init = json!([container(Some("s1"))]);
        let pod = json!({"initContainers": init, "containers": [container(Some("s2"))]});
        assert_eq!(
            label("ReadWriteOncePod", pod).unwrap_err(),
            "volume \"v\": multiple SELinux labels found: u:r:t:s1,u:r:t:s2"
        );
    }

    #[test]
    fn no_label_ends_its_own_quotes() {
        for level in ["s0\",suid,x=\"", "s0 ", "s0\n", "s0\\"] {
            let pod = json!({"containers": [container(None), container(Some(level))]});
            let error = label("ReadWriteOncePod", pod).unwrap_err();
            let field = "spec.containers[1].securityContext.seLinuxOptions.level";
            assert!(error.contains(field), "{error}");
        }
    }
}
