//! A process that can write to the log directories, such as a pod that mounts the node's
//! `/var/log`, can put links and pipes in the path of a container's log. Both binaries run as root:
//! neither may write, read, rename or remove a link's target.

use std::{
    fs, io,
    os::unix::fs::{PermissionsExt as _, symlink},
    path::{Path, PathBuf},
    process::{Command, Output},
    time::Duration,
};

use cri_proto::runtime::v1 as cri;
use e2e::{
    cri::{Cri, container, sandbox},
    node::{Node, binary},
};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(30);
/// The content of the node's files, in log format: it appears if a reader follows a link.
const OF_THE_NODE: &str = "2026-01-02T03:04:05.000000006Z stdout F of the node\n";

/// All paths below a directory with their contents.
fn contents(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let of = fs::symlink_metadata(&path).unwrap();
        if of.is_dir() {
            found.extend(contents(&path));
        } else if of.is_file() {
            found.push((path.clone(), fs::read_to_string(&path).unwrap()));
        } else {
            found.push((path, "no file".to_owned()));
        }
    }
    found.sort();
    found
}

/// A directory of the node with a file at each of these paths.
fn of_the_node(node: &Node, name: &str, files: &[&str]) -> PathBuf {
    let dir = node.path("outside").join(name);
    for file in files {
        let file = dir.join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, OF_THE_NODE).unwrap();
    }
    dir
}

fn pipe(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    let mode = Mode::RUSR | Mode::WUSR;
    mknodat(CWD, path, FileType::Fifo, mode, 0).unwrap();
}

// === the shim ===

/// A pod with logs below `logs/<name>`.
fn logging(node: &Node, name: &str) -> cri::PodSandboxConfig {
    let mut pod = sandbox(name);
    pod.log_directory = node.path("logs").join(name).display().to_string();
    pod
}

/// Starts a container with its log at `<container>/0.log` in its pod's log directory.
async fn start(
    cri: &mut Cri,
    pod: &cri::PodSandboxConfig,
    sandbox_id: &str,
    name: &str,
    script: &str,
) -> String {
    let mut config = container(name, &["sh", "-c", script]);
    config.log_path = format!("{name}/0.log");
    let id = cri.create(sandbox_id, config, pod).await.unwrap();
    cri.start(&id).await.unwrap();
    id
}

async fn written(node: &Node, log: &Path, text: &str) {
    node.await_until("the log is written", SOON, async |_| {
        Ok(fs::read_to_string(log).is_ok_and(|log| log.contains(text)))
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn the_shim_writes_no_log_through_a_link() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    for (place, files) in [
        ("", &["main/0.log"] as &[_]),
        ("main", &["0.log"]),
        ("main/0.log", &["0.log"]),
    ] {
        let name = format!("place-{}", place.len());
        let outside = of_the_node(&node, &name, files);
        let before = contents(&outside);
        let pod = logging(&node, &name);
        let directory = Path::new(&pod.log_directory);
        let link = match place {
            "" => directory.to_owned(),
            place => directory.join(place),
        };
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        let is_the_log = place.ends_with(".log");
        let target = if is_the_log {
            outside.join("0.log")
        } else {
            outside.clone()
        };
        symlink(target, &link).unwrap();

        let sandbox_id = cri.run(&pod).await.unwrap();
        let script = "echo first; sleep 1000";
        let id = start(&mut cri, &pod, &sandbox_id, "main", script).await;
        let log = directory.join("main/0.log");
        if !is_the_log {
            node.await_until("the log was tried", SOON, async |node| {
                let refused = node.shim_log().contains("cannot update the log");
                Ok(refused || contents(&outside) != before)
            })
            .await
            .unwrap();
            assert_eq!(contents(&outside), before, "through {place:?}");
            fs::remove_file(&link).unwrap();
        }
        written(&node, &log, "stdout F first\n").await;
        assert_eq!(contents(&outside), before, "through {place:?}");
        assert!(fs::symlink_metadata(&log).unwrap().is_file(), "{place:?}");

        // The log is rotated, with a link in the place of the next file.
        let rotated = log.with_extension("log.1");
        fs::rename(&log, &rotated).unwrap();
        symlink(outside.join(files[0]), &log).unwrap();
        let container_id = id.clone();
        let request = cri::ReopenContainerLogRequest { container_id };
        cri.runtime.reopen_container_log(request).await.unwrap();
        assert_eq!(contents(&outside), before, "reopened {place:?}");
        assert!(fs::symlink_metadata(&log).unwrap().is_file(), "{place:?}");
        cri.remove_pod(&sandbox_id).await.unwrap();
    }
}

#[tokio::test]
async fn pipes_in_the_place_of_logs_hold_up_no_other_log() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = logging(&node, "pipes");
    let directory = Path::new(&pod.log_directory);
    let sandbox_id = cri.run(&pod).await.unwrap();
    let script =
        "echo first; while [ ! -e /tmp/go ]; do usleep 100000; done; seq 1 50000; sleep 1000";
    for n in 0..4 {
        let name = format!("pipe-{n}");
        let log = directory.join(&name).join("0.log");
        let id = start(&mut cri, &pod, &sandbox_id, &name, script).await;
        written(&node, &log, " first\n").await;
        fs::rename(&log, log.with_extension("log.1")).unwrap();
        pipe(&log);
        let container_id = id.clone();
        let request = cri::ReopenContainerLogRequest { container_id };
        // The call may fail.
        let _ = cri.runtime.reopen_container_log(request).await;
        // More output than a pipe's buffer holds.
        cri.exec(&id, &["touch", "/tmp/go"], 10).await.unwrap();
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    start(
        &mut cri,
        &pod,
        &sandbox_id,
        "file",
        "echo other; sleep 1000",
    )
    .await;
    written(&node, &directory.join("file/0.log"), " other\n").await;
}

#[tokio::test]
async fn the_link_to_the_engines_log_is_made_and_removed_in_the_pods_own_directory() {
    let node = Node::with_shim_and(&["--log-format", "json-file"])
        .await
        .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let pod = logging(&node, "linked");
    let directory = Path::new(&pod.log_directory);
    fs::create_dir_all(directory).unwrap();
    let outside = of_the_node(&node, "linked", &["kept"]);
    symlink(outside.join("kept"), outside.join("0.log")).unwrap();
    let before = contents(&outside);
    symlink(&outside, directory.join("main")).unwrap();
    let sandbox_id = cri.run(&pod).await.unwrap();
    let id = start(&mut cri, &pod, &sandbox_id, "main", "sleep 1000").await;
    assert_eq!(contents(&outside), before);
    assert_eq!(
        fs::read_link(outside.join("0.log")).unwrap(),
        outside.join("kept")
    );
    cri.remove(&id).await.unwrap();
    assert!(fs::symlink_metadata(outside.join("0.log")).is_ok());
}

// === the kubelet ===

fn pod(name: &str, script: &str, extra: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  terminationGracePeriodSeconds: 0
{extra}
  containers:
  - name: main
    image: e2e.local/busybox:1
    command: [sh, -c, '{script}']
    terminationMessagePolicy: FallbackToLogsOnError
"
    )
}

/// The pod's log directory.
fn log_dir(node: &Node, pod: &Value) -> PathBuf {
    let of = |field: &str| pod["metadata"][field].as_str().unwrap().to_owned();
    let name = format!("default_{}_{}", of("name"), of("uid"));
    node.path("logs").join(name)
}

fn container_id(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str();
    id.unwrap().strip_prefix("docker://").unwrap().to_owned()
}

fn text(output: &Output) -> String {
    [&*output.stdout, &*output.stderr]
        .map(String::from_utf8_lossy)
        .concat()
}

/// Replaces a path for the duration of `work`.
fn instead<T>(path: &Path, put: impl FnOnce(&Path), work: impl FnOnce() -> T) -> T {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".aside");
    fs::rename(path, &aside).unwrap();
    put(path);
    let done = work();
    fs::remove_file(path).unwrap();
    fs::rename(&aside, path).unwrap();
    done
}

#[tokio::test]
async fn the_kubelet_shows_nothing_that_a_link_in_the_place_of_a_log_leads_to() {
    let node = Node::with_kubelet().await.unwrap();
    let manifest = pod("web", "echo a line; sleep 1000", "");
    node.write_manifest("web.yaml", &manifest).unwrap();
    let web = node.await_running("web", SOON).await.unwrap();
    let root = node.path("kubelet").display().to_string();
    let kubelet = binary("kubelet").unwrap().display().to_string();
    let read = || {
        let logs = [&kubelet, "logs", "web", "--root-dir", &root];
        let output = Command::new("timeout").arg("20").args(logs).output();
        text(&output.unwrap())
    };
    node.await_until(
        "the line is there",
        SOON,
        async |_| Ok(read() == "a line\n"),
    )
    .await
    .unwrap();

    let pod_dir = log_dir(&node, &web);
    let log = pod_dir.join("main/0.log");
    let outside = of_the_node(&node, "shown", &["0.log", "main/0.log"]);
    let id = container_id(&web);
    // A file of the node with a name that the container's log could have.
    let named = outside.join(format!("{id}-json.log"));
    symlink(outside.join("0.log"), &named).unwrap();
    let leads_to = |target: PathBuf| move |path: &Path| symlink(target, path).unwrap();
    for (place, shown) in [
        (
            "a link",
            instead(&log, leads_to(outside.join("0.log")), read),
        ),
        ("two links", instead(&log, leads_to(named), read)),
        ("a pipe", instead(&log, pipe, read)),
        (
            "a link for its directory",
            instead(&pod_dir.join("main"), leads_to(outside.clone()), read),
        ),
        (
            "a link for the pod's",
            instead(&pod_dir, leads_to(outside.clone()), read),
        ),
    ] {
        assert!(!shown.contains("of the node"), "{place}: {shown}");
        assert!(
            shown.contains("failed to open log file"),
            "{place}: {shown}"
        );
    }
    assert_eq!(read(), "a line\n");
}

#[tokio::test]
async fn the_kubelet_reads_the_engines_own_log_through_the_runtimes_link() {
    let mut node = Node::with_shim_and(&["--log-format", "json-file"])
        .await
        .unwrap();
    node.start_kubelet().await.unwrap();
    let manifest = pod("web", "echo a line; sleep 1000", "");
    node.write_manifest("web.yaml", &manifest).unwrap();
    let web = node.await_running("web", SOON).await.unwrap();
    let log = log_dir(&node, &web).join("main/0.log");
    assert!(fs::symlink_metadata(log).unwrap().is_symlink());
    node.await_until("the line is there", SOON, async |node| {
        Ok(text(&node.kubelet_command(&["logs", "web"])?) == "a line\n")
    })
    .await
    .unwrap();

    // The fallback to the end of the log (`FallbackToLogsOnError`) also works with such a log.
    let manifest = pod("fails", "echo the end; exit 1", "  restartPolicy: Never");
    node.write_manifest("fails.yaml", &manifest).unwrap();
    let fails = node
        .await_pod("fails", SOON, |pod| pod["status"]["phase"] == "Failed")
        .await
        .unwrap();
    let ended = &fails["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(ended["message"], "the end\n");
}

#[tokio::test]
async fn a_message_at_the_end_of_a_log_is_not_read_through_a_link() {
    let node = Node::with_kubelet().await.unwrap();
    let outside = of_the_node(&node, "message", &["0.log"]);
    let script = "while [ ! -e /tmp/end ]; do usleep 100000; done; exit 1";
    let manifest = pod("fails", script, "  restartPolicy: Never");
    node.write_manifest("fails.yaml", &manifest).unwrap();
    let fails = node.await_running("fails", SOON).await.unwrap();
    let log = log_dir(&node, &fails).join("main/0.log");
    fs::remove_file(&log).unwrap();
    symlink(outside.join("0.log"), &log).unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let id = container_id(&fails);
    // Delayed, because the container could end before the exec call returns.
    let end = ["sh", "-c", "(sleep 1; touch /tmp/end) >/dev/null 2>&1 &"];
    cri.exec(&id, &end, 10).await.unwrap();
    let fails = node
        .await_pod("fails", SOON, |pod| pod["status"]["phase"] == "Failed")
        .await
        .unwrap();
    let ended = &fails["status"]["containerStatuses"][0]["state"]["terminated"];
    let message = ended["message"].as_str().unwrap_or_default();
    assert!(!message.contains("of the node"), "{message}");
}

#[tokio::test]
async fn rotation_touches_nothing_that_a_link_leads_to() {
    let mut node = Node::with_shim().await.unwrap();
    let rotation = "containerLogMaxSize: 4Ki\ncontainerLogMonitorInterval: 3s\n";
    node.start_kubelet_with(rotation, &[]).await.unwrap();
    let script = "while true; do seq 1 100; sleep 1; done";
    for name in ["file", "dir"] {
        node.write_manifest(&format!("{name}.yaml"), &pod(name, script, ""))
            .unwrap();
    }
    let secret = of_the_node(&node, "rotated", &["secret"]).join("secret");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();

    // A link in the place of a rotated file: the next rotation would compress its target.
    let file = node.await_running("file", SOON).await.unwrap();
    let file_dir = log_dir(&node, &file).join("main");
    symlink(&secret, file_dir.join("0.log.20200101-000000")).unwrap();

    // A link to another directory: the large files in it would be rotated.
    let dir = node.await_running("dir", SOON).await.unwrap();
    let dir_dir = log_dir(&node, &dir).join("main");
    let outside = of_the_node(&node, "renamed", &["0.log"]);
    fs::write(outside.join("0.log"), OF_THE_NODE.repeat(1000)).unwrap();
    fs::write(outside.join("0.log.20200101-000000"), OF_THE_NODE).unwrap();
    let before = contents(&outside);
    fs::rename(&dir_dir, dir_dir.with_extension("aside")).unwrap();
    symlink(&outside, &dir_dir).unwrap();

    let rotated = |dir: &Path| -> io::Result<usize> {
        let names = fs::read_dir(dir)?.flatten().map(|entry| entry.file_name());
        Ok(names
            .filter(|name| name.to_string_lossy().starts_with("0.log.2"))
            .count())
    };
    node.await_until("the log was rotated three times", 2 * SOON, async |_| {
        Ok(rotated(&file_dir)? > 3)
    })
    .await
    .unwrap();
    for entry in fs::read_dir(&file_dir).unwrap().flatten() {
        if entry.path().extension().is_some_and(|end| end == "gz") {
            let shown = node.in_net(&["zcat", &entry.path().display().to_string()]);
            let shown = text(&shown.unwrap());
            assert!(!shown.contains("of the node"), "{:?}", entry.path());
        }
    }
    assert_eq!(contents(&outside), before);
}
