//! SELinux on this node: the label of containers' files, and what can carry labels.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::SELinuxOptions;
use rustix::fs::{XattrFlags, lsetxattr};
use tracing::warn;

use crate::mount_info::MountTable;

/// Label of the directories that pods of plugins share with the kubelet.
const PLUGINS_LABEL: &str = "system_u:object_r:container_file_t:s0";
const ATTRIBUTE: &str = "security.selinux";
/// Where distributions have the labels of containers, in the order of preference; the second
/// is below the directory of the policy.
const CONTEXTS: &str = "usr/share/containers/selinux/contexts";
const POLICY_CONTEXTS: &str = "contexts/lxc_contexts";

/// SELinux, on a node where it is enabled.
#[derive(Clone, Debug)]
pub struct SeLinux {
    /// Label of containers' files by the node's policy; `None` when the policy has none.
    file_label: Option<Label>,
    mounts: MountTable,
}

/// `user:role:type:level`; the level may have colons of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Label {
    user: String,
    /// Role and type.
    kind: String,
}

impl SeLinux {
    /// SELinux of the node whose file system is at `root`; `None` when it is not enabled.
    /// Blocks on small files of the node.
    pub fn of(root: &Path) -> Option<Self> {
        let mounts = MountTable::of(root);
        // Containers without SELinux see it read-only.
        let is_enabled = |mounts: MountTable| {
            let mut all = mounts.read().ok()?.into_iter();
            all.find(|mount| mount.fs_type == "selinuxfs" && !mount.has_option("ro"))
        };
        is_enabled(mounts.clone())?;
        Some(Self {
            file_label: read_contexts(root).as_deref().and_then(file_label),
            mounts,
        })
    }

    /// Label of the files of a container's process with these options: the policy's, of the
    /// user and the level of the options. `None` when the options name no level, or the
    /// policy has no label: the runtime then chooses a level, which is unknown before.
    pub fn file_label(&self, options: &SELinuxOptions) -> Option<String> {
        let level = options.level.as_deref().filter(|level| !level.is_empty())?;
        let Label { user, kind } = self.file_label.as_ref()?;
        let own = options.user.as_deref().filter(|user| !user.is_empty());
        Some(format!("{}:{kind}:{level}", own.unwrap_or(user)))
    }

    /// Whether files at a path have labels of their own. Those of a mount without, such as
    /// one with `-o context=`, all have that of the mount.
    ///
    /// # Errors
    /// The mounts cannot be read, or the path's parent cannot be resolved.
    pub fn has_labels(&self, path: &Path) -> io::Result<bool> {
        let mount = self.mounts.holding(path)?;
        Ok(mount.is_some_and(|mount| mount.has_option("seclabel")))
    }
}

/// Gives the directories that pods of plugins share with the kubelet the label that lets them
/// in. Plugins that are privileged need none.
pub fn label_plugin_dirs(root_dir: &Path) {
    for name in ["device-plugins", "plugins", "plugins_registry"] {
        let dir = root_dir.join(name);
        let label = PLUGINS_LABEL.as_bytes();
        if let Err(error) = lsetxattr(&dir, ATTRIBUTE, label, XattrFlags::empty()) {
            warn!(
                dir = %dir.display(), %error,
                "cannot label a directory; plugins in unprivileged pods might not work"
            );
        }
    }
}

fn read_contexts(root: &Path) -> Option<String> {
    let of_policy = || -> Option<PathBuf> {
        let dir = root.join("etc/selinux");
        let config = fs::read_to_string(dir.join("config")).ok()?;
        let policy = value(&config, "SELINUXTYPE")?;
        Some(dir.join(policy).join(POLICY_CONTEXTS))
    };
    let first = fs::read_to_string(root.join(CONTEXTS)).ok();
    first.or_else(|| fs::read_to_string(of_policy()?).ok())
}

/// The label of containers' files in a file of contexts.
fn file_label(contexts: &str) -> Option<Label> {
    let label = value(contexts, "file")?;
    let mut parts = label.splitn(4, ':');
    let (user, role, kind) = (parts.next()?, parts.next()?, parts.next()?);
    Some(Label {
        user: user.to_owned(),
        kind: format!("{role}:{kind}"),
    })
}

/// The value of a line such as `key = "value"`.
fn value<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        (name.trim() == key).then(|| value.trim().trim_matches('"'))
    });
    values.into_iter().find(|value| !value.is_empty())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const WITH: &str = "22 1 8:1 / / rw - xfs /dev/a rw,seclabel\n\
        23 1 0:5 / /sys/fs/selinux rw - selinuxfs selinuxfs rw\n\
        24 1 8:2 / /mnt rw - ext4 /dev/b rw,context=system_u:object_r:t:s0\n";

    fn node(files: &[(&str, &str)]) -> (tempfile::TempDir, Option<SeLinux>) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        let selinux = SeLinux::of(dir.path());
        (dir, selinux)
    }

    fn options(options: serde_json::Value) -> SELinuxOptions {
        serde_json::from_value(options).unwrap()
    }

    #[test]
    fn it_is_enabled_where_its_file_system_is_mounted_to_write_to() {
        let mounts = "proc/self/mountinfo";
        assert!(node(&[]).1.is_none());
        assert!(
            node(&[(mounts, "22 1 8:1 / / rw - xfs /dev/a rw\n")])
                .1
                .is_none()
        );
        assert!(
            node(&[(mounts, &WITH.replace("selinux rw", "selinux ro"))])
                .1
                .is_none()
        );
        assert!(node(&[(mounts, WITH)]).1.is_some());
    }

    #[test]
    fn files_have_the_policys_label_and_the_level_of_their_pod() {
        let mounts = ("proc/self/mountinfo", WITH);
        let config = (
            "etc/selinux/config",
            "# SELINUXTYPE=x\nSELINUXTYPE=targeted\n",
        );
        let contexts = (
            "etc/selinux/targeted/contexts/lxc_contexts",
            "process = \"system_u:system_r:container_t:s0\"\n\
             file = \"system_u:object_r:container_file_t:s0\"\n",
        );
        let (_dir, selinux) = node(&[mounts, config, contexts]);
        let selinux = selinux.unwrap();
        let label = |given| selinux.file_label(&options(given));
        let expected = "system_u:object_r:container_file_t:s0:c1,c2";
        // The type is that of the process.
        let given = json!({"level": "s0:c1,c2", "type": "spc_t", "role": "r"});
        assert_eq!(label(given).as_deref(), Some(expected));
        let given = json!({"level": "s0", "user": "u"});
        assert_eq!(
            label(given).as_deref(),
            Some("u:object_r:container_file_t:s0")
        );
        // The runtime chooses the level.
        assert_eq!(label(json!({"type": "spc_t"})), None);
        assert_eq!(label(json!({"level": ""})), None);

        // What the containers' tools bring comes first; without either there is none.
        let tools = (
            "usr/share/containers/selinux/contexts",
            "file=\"a:b:c:s0\"\n",
        );
        let (_dir, selinux) = node(&[mounts, config, contexts, tools]);
        let found = selinux
            .unwrap()
            .file_label(&options(json!({"level": "s1"})));
        assert_eq!(found.as_deref(), Some("a:b:c:s1"));
        let (_dir, selinux) = node(&[mounts]);
        let found = selinux
            .unwrap()
            .file_label(&options(json!({"level": "s1"})));
        assert_eq!(found, None);
    }

    #[test]
    fn labels_are_where_the_mount_has_them() {
        let (_dir, selinux) = node(&[("proc/self/mountinfo", WITH)]);
        let selinux = selinux.unwrap();
        assert!(selinux.has_labels(Path::new("/usr")).unwrap());
        assert!(!selinux.has_labels(Path::new("/mnt")).unwrap());
    }
}
