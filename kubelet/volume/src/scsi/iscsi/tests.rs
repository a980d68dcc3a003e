use std::{
    fs,
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    process::Command,
};

use kubelet_host::mount_info;
use kubelet_pod_spec::identity::PodUid;
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

use super::*;
use crate::{
    plugin::{self, FsGroup, MountRequest, Mounted, VolumePlugin as _},
    scsi::DiskPlugin,
    spec::{VolumeMode, VolumeSource},
};

const IQN: &str = "iqn.2003-01.com.example:shop";

/// A node with an `iscsiadm` that opens sessions in a directory, where their disks are links to
/// `disk`.
struct Node {
    dir: tempfile::TempDir,
    plugin: DiskPlugin<Iscsi>,
}

impl Node {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().to_str().unwrap();
        let script = format!(
            r#"#!/bin/sh
echo "$*" >> {root}/log
portal=none
for a; do [ "$p" = -p ] && portal=$a; p=$a; done
n=$(printf %s "$portal" | tail -c 1)
s={root}/sys/class/iscsi_host/host$n/device/session$n
case "$*" in
*--discover)
  [ -e {root}/down ] && {{ echo "cannot make connection" >&2; exit 4; }} ;;
*--login)
  [ -e {root}/refuses ] && {{ echo "initiator failed authorization" >&2; exit 24; }}
  c=$s/connection$n:0/iscsi_connection/connection$n:0
  mkdir -p $c $s/iscsi_session/session$n {root}/sys/class/scsi_host/host$n
  echo {IQN} > $s/iscsi_session/session$n/targetname
  for k in address persistent_address; do echo "${{portal%:*}}" > $c/$k; done
  for k in port persistent_port; do echo "${{portal##*:}}" > $c/$k; done
  for l in 0 1; do
    mkdir -p $s/target$n:0:0/$n:0:0:$l/block/sd$n$l {root}/sys/block/sd$n$l/device {root}/dev
    touch {root}/sys/block/sd$n$l/device/delete
    if [ -e {root}/disk ]; then ln -sfn {root}/disk {root}/dev/sd$n$l; else touch {root}/dev/sd$n$l; fi
  done ;;
*--logout)
  [ -e $s ] || exit 21
  rm -r $s {root}/dev/sd$n? ;;
*show)
  printf '# BEGIN\niface.iscsi_ifacename = default\niface.net_ifacename = <empty>\niface.transport_name = tcp\n' ;;
*auth.password*)
  [ -e {root}/no-chap ] && {{ echo "bad value ${{a}}" >&2; exit 7; }} ;;
esac
exit 0
"#
        );
        let program = dir.path().join("iscsiadm");
        // `multipath -f DEVICE`
        let flush = format!("#!/bin/sh\nrm -r {root}/sys/block/${{2##*/}}\n");
        for (path, text) in [(&program, script), (&dir.path().join("multipath"), flush)] {
            fs::write(path, text).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        let host = plugin::tests::host(&dir.path().join("kubelet"));
        let transport = Iscsi {
            kernel: Kernel {
                sys: dir.path().join("sys"),
                dev: dir.path().join("dev"),
                multipath: dir.path().join("multipath"),
            },
            iscsiadm: Iscsiadm { program },
            turns: Turns::default(),
        };
        let plugin = DiskPlugin { host, transport };
        Self { dir, plugin }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn touch(&self, name: &str) {
        fs::write(self.path(name), "").unwrap();
    }

    /// What `iscsiadm` was called with since the last time.
    fn log(&self) -> Vec<String> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let _ = fs::remove_file(self.path("log"));
        log.lines().map(str::to_owned).collect()
    }

    /// How often `iscsiadm` logged in and out since the last time.
    fn logins(&self) -> (usize, usize) {
        let log = self.log();
        let count = |end: &str| log.iter().filter(|line| line.ends_with(end)).count();
        (count("--login"), count("--logout"))
    }

    fn request(&self, mode: VolumeMode, source: Value) -> MountRequest {
        let volume = json!({"metadata": {"name": "pv"}, "spec": {"iscsi": source}});
        let volume = serde_json::from_value(volume).unwrap();
        let spec = VolumeSpec {
            name: "v".to_owned(),
            source: VolumeSource::Persistent(Arc::new(volume)),
            read_only: false,
            mode,
            capacity: None,
            migrated: false,
        };
        self.request_of(spec)
    }

    fn request_of(&self, spec: VolumeSpec) -> MountRequest {
        let pod = json!({"metadata": {"name": "p", "namespace": "shop"}});
        let pod = Arc::new(serde_json::from_value(pod).unwrap());
        let mut request = plugin::tests::request(pod, spec, Iscsi::NAME);
        request.dir = self.plugin.host.volume_dir(&request.volume);
        request
    }

    fn device(&self, request: &MountRequest) -> String {
        let device = self.plugin.device(&request.spec).now_or_never();
        device.unwrap().unwrap().unwrap()
    }

    /// Names of the devices that a restarted kubelet finds.
    async fn devices(&self) -> Vec<String> {
        let found = self.plugin.devices_on_disk().await.unwrap();
        found.into_iter().map(|device| device.name).collect()
    }
}

fn disk(lun: u8) -> Value {
    json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": lun})
}

#[tokio::test(start_paused = true)]
async fn a_device_is_there_as_long_as_a_pod_has_it() {
    let node = Node::new();
    let request = node.request(VolumeMode::Block, disk(1));
    let device = node.device(&request);
    assert_eq!(
        device,
        format!("volumeDevices/iface-default/10.0.0.1:3260-{IQN}-lun-1")
    );
    node.plugin.stage(&request).await.unwrap();
    let database = "-m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default";
    let record = format!("-m node -p 10.0.0.1:3260 -T {IQN} -I default");
    let login = [
        format!("{database} -o new"),
        format!("{database} --discover"),
        format!("{record} -o update -n node.session.scan -v manual"),
        format!("{record} --login"),
        format!("{record} -o update -n node.startup -v manual"),
    ];
    assert_eq!(node.log(), login);
    let scanned = fs::read_to_string(node.path("sys/class/scsi_host/host0/scan"));
    assert_eq!(scanned.unwrap(), "0 0 1");

    // The same again needs no further session.
    node.plugin.stage(&request).await.unwrap();
    let mounted = node.plugin.set_up(&request).await.unwrap();
    assert_eq!(mounted, Mounted::Device(request.dir.clone()));
    assert_eq!(node.plugin.set_up(&request).await.unwrap(), mounted);
    assert_eq!(
        fs::canonicalize(&request.dir).unwrap(),
        node.path("dev/sd01")
    );
    assert_eq!(node.log(), [""; 0]);

    // A restarted kubelet finds it.
    assert_eq!(node.devices().await, [device.as_str()]);
    let found = node.plugin.device_on_disk(&request.volume).await.unwrap();
    assert_eq!(found.unwrap().name, device);
    // Upstream's link leads to the device itself.
    let held = node.plugin.dirs().path(&device).join("u");
    fs::remove_file(&request.dir).unwrap();
    symlink(node.path("dev/sd01"), &request.dir).unwrap();
    let found = node.plugin.device_on_disk(&request.volume).await.unwrap();
    assert_eq!(found.unwrap().name, device);

    node.plugin.tear_down(&request.volume).await.unwrap();
    node.plugin.tear_down(&request.volume).await.unwrap();
    assert!(fs::symlink_metadata(&request.dir).is_err());
    assert!(fs::symlink_metadata(&held).is_err());
    node.plugin.unstage(&device).await.unwrap();
    let removed = fs::read_to_string(node.path("sys/block/sd01/device/delete"));
    assert_eq!(removed.unwrap(), "1");
    let logout = [format!("{record} --logout"), format!("{record} -o delete")];
    assert_eq!(node.log(), logout);
    assert_eq!(node.devices().await, [""; 0]);
    node.plugin.unstage(&device).await.unwrap();
    assert_eq!(node.log(), [""; 0]);
}

#[tokio::test(start_paused = true)]
async fn sessions_end_with_the_last_disk_of_their_target() {
    let node = Node::new();
    let requests = [0, 1].map(|lun| node.request(VolumeMode::Block, disk(lun)));
    for request in &requests {
        node.plugin.stage(request).await.unwrap();
    }
    assert_eq!(node.logins(), (1, 0));
    let [first, second] = requests.map(|request| node.device(&request));
    node.plugin.unstage(&first).await.unwrap();
    assert_eq!(node.logins(), (0, 0));
    let kept = fs::read_to_string(node.path("sys/block/sd01/device/delete"));
    assert_eq!(kept.unwrap(), "");
    // The record is lost, and the name tells the disk.
    fs::remove_file(node.plugin.dirs().path(&second).join("iscsi.json")).unwrap();
    node.plugin.unstage(&second).await.unwrap();
    assert_eq!(node.logins(), (0, 1));
}

#[tokio::test(start_paused = true)]
async fn a_target_is_the_same_by_all_of_its_portals() {
    let node = Node::new();
    let mut second = disk(1);
    second["targetPortal"] = json!("10.0.0.1:3261");
    let requests = [disk(0), second].map(|source| node.request(VolumeMode::Block, source));
    for request in &requests {
        node.plugin.stage(request).await.unwrap();
    }
    assert_eq!(node.logins(), (2, 0));
    let [first, second] = requests.map(|request| node.device(&request));
    node.plugin.unstage(&first).await.unwrap();
    assert_eq!(node.logins(), (0, 0));
    node.plugin.unstage(&second).await.unwrap();
    assert_eq!(node.logins(), (0, 1));
}

#[tokio::test]
async fn no_field_leads_to_the_directory_of_another_disk() {
    let node = Node::new();
    let used = node.request(VolumeMode::Filesystem, disk(0));
    let device = node.device(&used);
    let dir = node.plugin.dirs().path(&device);
    mount::make_dir(&dir, 0o700).unwrap();
    let mut hostile = disk(0);
    hostile["targetPortal"] = json!("../iface-default/10.0.0.1:3260");
    let request = node.request(VolumeMode::Filesystem, hostile);
    let error = node
        .plugin
        .device(&request.spec)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("iscsi.targetPortal"), "{error}");
    let other = device.replace("iface-default/", "iface-default/../iface-default/");
    node.plugin.unstage(&other).await.unwrap_err();
    assert!(dir.exists());
}

#[tokio::test(start_paused = true)]
async fn a_target_that_cannot_be_reached_is_told_and_leaves_nothing() {
    let node = Node::new();
    let request = node.request(VolumeMode::Block, disk(0));
    node.touch("down");
    let error = node.plugin.stage(&request).await.unwrap_err().to_string();
    assert!(
        error.contains("--discover") && error.contains("cannot make connection"),
        "{error}"
    );
    let log = node.log();
    assert!(log.last().unwrap().ends_with("-o delete"), "{log:?}");
    fs::remove_file(node.path("down")).unwrap();
    node.touch("refuses");
    let error = node.plugin.stage(&request).await.unwrap_err().to_string();
    assert!(error.contains("initiator failed authorization"), "{error}");
    let log = node.log();
    assert!(log.last().unwrap().ends_with("-o delete"), "{log:?}");
    // It may have a session in spite of the error.
    let device = node.device(&request);
    assert_eq!(node.devices().await, [device.as_str()]);
    node.plugin.unstage(&device).await.unwrap();
    assert_eq!(node.devices().await, [""; 0]);

    let mut program = Node::new();
    program.plugin.transport.iscsiadm.program = "/nonexistent/iscsiadm".into();
    let request = program.request(VolumeMode::Block, disk(0));
    let error = program
        .plugin
        .stage(&request)
        .await
        .unwrap_err()
        .to_string();
    assert!(error.contains("install open-iscsi"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn all_portals_are_used_and_joined() {
    let node = Node::new();
    let mut source = disk(1);
    source["portals"] = json!(["10.0.0.1:3261"]);
    let request = node.request(VolumeMode::Block, source);
    let map = node.path("sys/block/dm-4/slaves");
    fs::create_dir_all(&map).unwrap();
    fs::write(map.join("sd11"), "").unwrap();
    fs::create_dir_all(node.path("sys/block/dm-4/dm")).unwrap();
    fs::write(node.path("sys/block/dm-4/dm/uuid"), "mpath-1").unwrap();
    fs::create_dir_all(node.path("dev")).unwrap();
    node.touch("dev/dm-4");
    node.plugin.stage(&request).await.unwrap();
    assert_eq!(node.logins(), (2, 0));
    node.plugin.set_up(&request).await.unwrap();
    assert_eq!(
        fs::canonicalize(&request.dir).unwrap(),
        node.path("dev/dm-4")
    );
    node.plugin.tear_down(&request.volume).await.unwrap();
    node.plugin.unstage(&node.device(&request)).await.unwrap();
    assert_eq!(node.logins(), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn an_initiator_name_has_an_interface_of_its_own() {
    let node = Node::new();
    let mut source = disk(0);
    source["initiatorName"] = json!("iqn.2003-01.com.example:node");
    let request = node.request(VolumeMode::Block, source);
    node.plugin.stage(&request).await.unwrap();
    let own = "-m iface -I 10.0.0.1:3260:pv";
    let log = node.log();
    let made = [
        "-m iface -I default -o show".to_owned(),
        format!("{own} -o new"),
        format!("{own} -o update -n iface.initiatorname -v iqn.2003-01.com.example:node"),
        format!("{own} -o update -n iface.transport_name -v tcp"),
    ];
    assert_eq!(log[..4], made);
    assert!(log[4].ends_with("-I 10.0.0.1:3260:pv -o new"), "{log:?}");
    node.plugin.unstage(&node.device(&request)).await.unwrap();
    assert_eq!(*node.log().last().unwrap(), format!("{own} -o delete"));
}

#[test]
fn credentials_are_used_and_never_told() {
    let node = Node::new();
    let request = node.request(VolumeMode::Block, disk(0));
    let disk = Iscsi::source(&request.spec, "").unwrap().disk.disk;
    let secret = [
        ("node.session.auth.username", "me"),
        ("node.session.auth.password", "hunter2"),
        ("discovery.sendtargets.auth.password", "hunter3"),
        ("other", "x"),
    ];
    let mut credentials = Credentials {
        secret: secret
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into(),
        ..Credentials::default()
    };
    let log_in = |credentials: &Credentials| {
        let done = node
            .plugin
            .transport
            .iscsiadm
            .log_in(&disk, "10.0.0.1:3260", credentials);
        let log = node.log().into_iter();
        let set: Vec<String> = log.filter(|line| line.contains("auth")).collect();
        (done, set)
    };
    assert_eq!(log_in(&credentials).1, [""; 0]);
    credentials.chap.session = true;
    let record = format!("-m node -p 10.0.0.1:3260 -T {IQN} -I default -o update -n");
    let session = [
        format!("{record} node.session.auth.authmethod -v CHAP"),
        format!("{record} node.session.auth.username -v me"),
        format!("{record} node.session.auth.password -v hunter2"),
    ];
    assert_eq!(log_in(&credentials).1, session);
    credentials.chap.discovery = true;
    let (done, set) = log_in(&credentials);
    done.unwrap();
    assert_eq!(set.len(), 5);
    assert!(
        set[1].ends_with("-n discovery.sendtargets.auth.password -v hunter3"),
        "{set:?}"
    );
    node.touch("no-chap");
    let error = log_in(&credentials).0.unwrap_err().to_string();
    assert!(
        error.contains("auth.password") && !error.contains("hunter"),
        "{error}"
    );
}

/// A disk of the machine that is a file.
struct LoopDevice(String);

impl LoopDevice {
    fn new(file: &Path) -> Self {
        fs::File::create(file).unwrap().set_len(16 << 20).unwrap();
        let mut command = Command::new("losetup");
        command.args(["--find", "--show"]).arg(file);
        Self(mount::run(command).unwrap())
    }
}

/// Unstages a device without users. A process that another program starts may have a
/// copy of the mount for a moment, when it gets a mount namespace of its own.
async fn unstage_unused(node: &Node, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while let Err(error) = node.plugin.unstage(name).await {
        let busy = error.to_string().contains("busy");
        assert!(busy && Instant::now() < deadline, "{error}");
        sleep(Duration::from_millis(50)).await;
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.0).status();
    }
}

#[tokio::test]
async fn a_file_system_is_made_once_and_mounted_for_all_pods() {
    let node = Node::new();
    let device = LoopDevice::new(&node.path("file"));
    symlink(&device.0, node.path("disk")).unwrap();
    let mut request = node.request(VolumeMode::Filesystem, disk(0));
    request.fs_group = Some(FsGroup {
        gid: 1234,
        on_root_mismatch: false,
    });
    let name = node.device(&request);
    let global = node.plugin.dirs().path(&name);
    assert_eq!(name, format!("iface-default/10.0.0.1:3260-{IQN}-lun-0"));
    node.plugin.stage(&request).await.unwrap();
    assert_eq!(mount_info::at(&global).unwrap().unwrap().fs_type, "ext4");
    let mounted = node.plugin.set_up(&request).await.unwrap();
    assert_eq!(mounted, Mounted::Path(request.dir.clone()));
    fs::write(request.dir.join("data"), "kept").unwrap();
    let root = fs::metadata(&request.dir).unwrap();
    assert_eq!(root.gid(), 1234);
    assert_eq!(node.logins(), (1, 0));

    // Another pod has it read-only.
    let mut reader = request.clone();
    reader.spec.read_only = true;
    reader.volume.uid = PodUid::from("u2");
    reader.dir = node.plugin.host.volume_dir(&reader.volume);
    node.plugin.stage(&reader).await.unwrap();
    node.plugin.set_up(&reader).await.unwrap();
    assert!(
        mount_info::at(&reader.dir)
            .unwrap()
            .unwrap()
            .options
            .starts_with("ro")
    );
    assert_eq!(fs::read_to_string(reader.dir.join("data")).unwrap(), "kept");

    assert_eq!(node.devices().await, [name.as_str()]);
    let found = node.plugin.device_on_disk(&request.volume).await.unwrap();
    assert_eq!(found.unwrap().name, name);
    for volume in [&request.volume, &reader.volume] {
        node.plugin.tear_down(volume).await.unwrap();
    }
    unstage_unused(&node, &name).await;
    assert_eq!(mount_info::within(node.dir.path()).unwrap().len(), 0);
    assert_eq!(node.logins(), (0, 1));

    // A disk that is mounted elsewhere too stays, and so does its session.
    node.plugin.stage(&request).await.unwrap();
    node.logins();
    let other = node.path("other");
    mount::make_dir(&other, 0o700).unwrap();
    mount::mount_program(&device.0, &other, "ext4", &[]).unwrap();
    let error = node.plugin.unstage(&name).await.unwrap_err().to_string();
    assert!(error.contains("busy"), "{error}");
    assert_eq!(node.logins(), (0, 0));
    assert_eq!(node.devices().await, [name.as_str()]);
    mount::unmount_all(&other).unwrap();
    unstage_unused(&node, &name).await;
    assert_eq!(node.logins(), (0, 1));

    // The disk keeps its file system.
    node.plugin.stage(&request).await.unwrap();
    assert_eq!(fs::read_to_string(global.join("data")).unwrap(), "kept");
    unstage_unused(&node, &name).await;
}
