//! OOM kills that the runtime did not notice.

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    path::PathBuf,
};

use kubelet::kubelet::options::KubeletOptions;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use serde_json::json;

use crate::node::{Node, Running, SECOND, pod};

fn options(node: &Node, kernel_log: PathBuf) -> KubeletOptions {
    KubeletOptions {
        kernel_log: Some(kernel_log),
        ..node.options()
    }
}

/// A node's kernel log, with its only writer.
fn log(node: &Node) -> (PathBuf, File) {
    let path = node.dir.path().join("kmsg");
    mknodat(CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let mut options = OpenOptions::new();
    let kernel = options.read(true).write(true).open(&path).unwrap();
    (path, kernel)
}

fn kill(cgroup: &str) -> String {
    format!(
        "6,1,2,-;oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=a,mems_allowed=0,\
         oom_memcg={cgroup},task_memcg={cgroup},task=a,pid=7,uid=0\n"
    )
}

/// Starts the pod `web` that is not restarted, and returns the ID of its container.
async fn web(node: &Node, kubelet: &Running) -> String {
    let spec = json!({"restartPolicy": "Never"});
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 3 * SECOND).await;
    node.runtime.running("c").remove(0).id
}

fn reason(kubelet: &Running) -> String {
    let ended = kubelet.container("web").state.unwrap().terminated;
    ended.unwrap().reason.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_container_that_ended_after_a_kill_was_oom_killed() {
    let other = "f".repeat(64);
    for (code, of_runtime, phase, reported) in [
        (137, "", "Failed", "OOMKilled"),
        (137, "Error", "Failed", "OOMKilled"),
        (1, "Error", "Failed", "OOMKilled"),
        // Not the process on which the container depends.
        (0, "Completed", "Succeeded", "Completed"),
    ] {
        let node = Node::new();
        let (path, mut kernel) = log(&node);
        let kubelet = node.start_with(options(&node, path));
        let id = web(&node, &kubelet).await;
        kernel
            .write_all(kill(&format!("/kubepods/podu1/{id}")).as_bytes())
            .unwrap();
        node.runtime.exit_container_because("c", code, of_runtime);
        kubelet.until_phase("web", phase, 5 * SECOND).await;
        assert_eq!(reason(&kubelet), reported, "{code} {of_runtime}");
    }
    let node = Node::new();
    let (path, mut kernel) = log(&node);
    let kubelet = node.start_with(options(&node, path));
    let id = web(&node, &kubelet).await;
    for cgroup in [
        "/kubepods/podu2".to_owned(),
        format!("/kubepods/podu2/{other}/{id}"),
    ] {
        kernel.write_all(kill(&cgroup).as_bytes()).unwrap();
    }
    node.runtime.exit_container_because("c", 137, "Error");
    kubelet.until_phase("web", "Failed", 5 * SECOND).await;
    assert_eq!(reason(&kubelet), "Error", "others were killed");
}

#[tokio::test(start_paused = true)]
async fn the_reason_outlives_a_kubelet() {
    let node = Node::new();
    let (path, mut kernel) = log(&node);
    let kubelet = node.start_with(options(&node, path));
    let id = web(&node, &kubelet).await;
    let kill = kill(&format!("/kubepods/podu1/{id}"));
    kernel.write_all(kill.as_bytes()).unwrap();
    node.runtime.exit_container_because("c", 137, "Error");
    kubelet.until_phase("web", "Failed", 5 * SECOND).await;
    kubelet.stop().await;

    let kept = node.dir.path().join("kept");
    fs::write(&kept, kill).unwrap();
    let kubelet = node.start_with(options(&node, kept));
    kubelet
        .add(pod("web", "u1", json!({"restartPolicy": "Never"})))
        .await;
    kubelet.until_phase("web", "Failed", 5 * SECOND).await;
    assert_eq!(reason(&kubelet), "OOMKilled");
}
