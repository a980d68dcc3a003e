//! Drivers here are scripts that log their calls and respond as each test says.

mod attachable;
mod cluster;
mod hostile;
mod pods;

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use kubelet_host::mount_info;
use rustix::mount::UnmountFlags;
use serde_json::{Value, json};

use self::cluster::Cluster;
use super::*;
use crate::{
    plugin::tests,
    spec::{Capacity, VolumeMode, VolumeSource},
};

const DRIVER: &str = "example.com/fake";
const SUCCESS: &str = r#"echo '{"status": "Success"}'"#;
/// Mounts a tmpfs with a file.
const MOUNT: &str =
    r#"mount -t tmpfs fake "$2" && echo data > "$2/file" && echo '{"status": "Success"}'"#;
const UNMOUNT: &str = r#"umount "$2" && echo '{"status": "Success"}'"#;

/// A node with a driver that mounts for each pod.
struct Node {
    dir: tempfile::TempDir,
    cluster: Cluster,
    plugin: FlexVolume,
}

impl Node {
    fn new() -> Self {
        Self::with(r#"{"attach": false}"#, Cluster::default())
    }

    fn with(capabilities: &str, cluster: Cluster) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let plugin = Self::start(dir.path(), &cluster);
        let node = Self {
            dir,
            cluster,
            plugin,
        };
        node.install();
        let init = format!(r#"echo '{{"status": "Success", "capabilities": {capabilities}}}'"#);
        node.on("init", &init);
        node.on("mount", MOUNT);
        node.on("unmount", UNMOUNT);
        node
    }

    /// A kubelet that starts.
    fn start(dir: &Path, cluster: &Cluster) -> FlexVolume {
        let mut host = tests::host(&dir.join("kubelet"));
        host.objects = Arc::new(cluster.clone());
        FlexVolume::new(host, &dir.join("exec"))
    }

    fn restart(&mut self) {
        self.plugin = Self::start(self.dir.path(), &self.cluster);
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn driver_dir(&self) -> PathBuf {
        self.path("exec/example.com~fake")
    }

    fn install(&self) {
        let root = self.dir.path().display();
        let script = format!(
            "#!/bin/sh\n\
             echo \"$*\" >> {root}/log\n\
             [ -e {root}/on-$1 ] && . {root}/on-$1 && exit\n\
             [ -e {root}/on-$1 ] || echo '{{\"status\": \"Not supported\"}}'\n\
             exit 1\n"
        );
        fs::create_dir_all(self.driver_dir()).unwrap();
        // Complete from the start, as an installer should do it.
        let new = self.driver_dir().join(".fake");
        fs::write(&new, script).unwrap();
        fs::set_permissions(&new, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(new, self.driver_dir().join("fake")).unwrap();
    }

    /// What the driver does at a call.
    fn on(&self, call: &str, script: &str) {
        fs::write(self.path(&format!("on-{call}")), script).unwrap();
    }

    /// The driver no longer supports a call.
    fn not_supported(&self, call: &str) {
        fs::remove_file(self.path(&format!("on-{call}"))).unwrap();
    }

    /// The calls since the last time.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let _ = fs::remove_file(self.path("log"));
        log.lines().map(str::to_owned).collect()
    }

    /// The verbs of the calls since the last time.
    fn calls(&self) -> Vec<String> {
        let log = self.log().into_iter();
        log.map(|line| line.split(' ').next().unwrap().to_owned())
            .collect()
    }

    fn request_of(&self, source: VolumeSource) -> MountRequest {
        let spec = VolumeSpec {
            name: "v".to_owned(),
            source,
            read_only: false,
            mode: VolumeMode::Filesystem,
            capacity: None,
            migrated: false,
        };
        let pod = json!({
            "metadata": {"name": "p", "namespace": "shop"},
            "spec": {"containers": [], "serviceAccountName": "seller"}
        });
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        let name = self.plugin.name_for(&spec);
        let mut request = tests::request(pod, spec, &name);
        request.dir = self.plugin.host.volume_dir(&request.volume);
        request
    }

    fn inline(&self, mut more: Value) -> MountRequest {
        more["driver"] = json!(DRIVER);
        let volume = json!({"name": "v", "flexVolume": more});
        let volume = serde_json::from_value(volume).unwrap();
        self.request_of(VolumeSource::Inline(Box::new(volume)))
    }

    fn persistent(&self, mut more: Value) -> MountRequest {
        more["driver"] = json!(DRIVER);
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"flexVolume": more}});
        let volume = serde_json::from_value(volume).unwrap();
        self.request_of(VolumeSource::Persistent(Arc::new(volume)))
    }

    async fn error(&self, request: &MountRequest) -> String {
        let error = self.plugin.set_up(request).await.unwrap_err();
        error.to_string()
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        for mount in mount_info::within(self.dir.path()).unwrap() {
            rustix::mount::unmount(&mount.mount_point, UnmountFlags::DETACH).unwrap();
        }
    }
}

/// The options in a line of the log.
fn options(line: &str) -> Value {
    serde_json::from_str(
        line.split_once('{')
            .map(|(_, rest)| format!("{{{rest}"))
            .unwrap()
            .as_str(),
    )
    .unwrap()
}
