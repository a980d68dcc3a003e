//! Reading and rotating the logs of containers.

use std::{fs, io::Write as _, path::PathBuf};

use fake_runtime::{Fault, Times, Verb};
use kubelet::kubelet::options::KubeletOptions;
use kubelet_logs::{LogOptions, LogParts, RotationPolicy};
use serde_json::json;
use tokio::time::sleep;
use tonic::Status;

use crate::node::{Node, Running, SECOND, pod, until};

/// The files in the log directory of the container.
fn files(node: &Node) -> Vec<String> {
    let dir = node.dir.path().join("logs/default_web_u1/c");
    let mut names: Vec<String> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A node that rotates logs larger than 100 bytes and keeps three files.
fn rotating() -> (Node, KubeletOptions) {
    let node = Node::new();
    let mut options = node.options();
    options.log_rotation = Some(RotationPolicy {
        max_size: 100,
        max_files: 3,
        max_workers: 2,
        monitor_interval: 10 * SECOND,
    });
    options.node.container_logs_dir = Some(node.dir.path().join("containers"));
    (node, options)
}

/// Appends to the log of a container's run, as a runtime does.
fn print(node: &Node, pod: &str, run: u32, text: &str) -> PathBuf {
    let path = node.dir.path().join(format!("logs/{pod}/c/{run}.log"));
    let mut file = fs::File::options()
        .create(true)
        .append(true)
        .open(&path)
        .unwrap();
    for line in text.lines() {
        writeln!(file, "2026-01-02T03:04:05.678Z stdout F {line}").unwrap();
    }
    path
}

async fn read(kubelet: &Running, name: &str, options: LogOptions) -> Result<String, String> {
    let log = kubelet.kubelet.container_log("default", name, "c", options);
    match log.await {
        Ok(parts) => Ok(rest(parts).await),
        Err(error) => Err(error.to_string()),
    }
}

async fn rest(mut parts: LogParts) -> String {
    let mut text = String::new();
    while let Some(part) = parts.recv().await {
        text += std::str::from_utf8(&part.unwrap()).unwrap();
    }
    text
}

fn previous() -> LogOptions {
    LogOptions {
        previous: true,
        ..LogOptions::default()
    }
}

#[tokio::test(start_paused = true)]
async fn a_containers_log_is_read_by_its_run() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    print(&node, "default_web_u1", 0, "first\nrun");
    let all = LogOptions::default();
    assert_eq!(
        read(&kubelet, "web", all.clone()).await.unwrap(),
        "first\nrun\n"
    );
    assert_eq!(
        read(&kubelet, "web", previous()).await.unwrap_err(),
        "previous terminated container \"c\" in pod \"web\" not found"
    );
    let tail = LogOptions {
        tail_lines: Some(1),
        timestamps: true,
        ..LogOptions::default()
    };
    assert_eq!(
        read(&kubelet, "web", tail).await.unwrap(),
        "2026-01-02T03:04:05.678000000Z run\n"
    );

    node.runtime.exit_container("c", 1);
    until("the second run", 30 * SECOND, || {
        kubelet.container("web").restart_count == 1
            && kubelet.container("web").state.unwrap().running.is_some()
    })
    .await;
    print(&node, "default_web_u1", 1, "second");
    assert_eq!(read(&kubelet, "web", all).await.unwrap(), "second\n");
    assert_eq!(
        read(&kubelet, "web", previous()).await.unwrap(),
        "first\nrun\n"
    );
}

#[tokio::test(start_paused = true)]
async fn a_followed_log_ends_with_its_container() {
    let node = Node::new();
    let kubelet = node.start();
    kubelet
        .add(pod("web", "u1", json!({"restartPolicy": "Never"})))
        .await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    print(&node, "default_web_u1", 0, "one");
    let follow = LogOptions {
        follow: true,
        ..LogOptions::default()
    };
    let log = kubelet.kubelet.container_log("default", "web", "c", follow);
    let log = tokio::spawn(rest(log.await.unwrap()));
    sleep(5 * SECOND).await;
    let path = print(&node, "default_web_u1", 0, "two");
    fs::rename(&path, path.with_extension("log.20260102-030405")).unwrap();
    print(&node, "default_web_u1", 0, "three");
    sleep(5 * SECOND).await;
    assert!(!log.is_finished());
    print(&node, "default_web_u1", 0, "last");
    node.runtime.exit_container("c", 0);
    assert_eq!(log.await.unwrap(), "one\ntwo\nthree\nlast\n");
}

#[tokio::test(start_paused = true)]
async fn what_has_no_log_says_why() {
    let node = Node::new();
    let kubelet = node.start();
    let spec =
        json!({"containers": [{"name": "c", "image": "none:1", "imagePullPolicy": "Never"}]});
    kubelet.add(pod("web", "u1", spec)).await;
    until("the reason", 5 * SECOND, || {
        kubelet.waiting("web") == "ErrImageNeverPull"
    })
    .await;
    let all = LogOptions::default();
    assert_eq!(
        read(&kubelet, "web", all.clone()).await.unwrap_err(),
        "container \"c\" in pod \"web\" is waiting to start: ErrImageNeverPull"
    );
    assert_eq!(
        read(&kubelet, "db", all.clone()).await.unwrap_err(),
        "pod \"db\" does not exist"
    );
    let none = kubelet.kubelet.container_log("default", "web", "d", all);
    assert_eq!(
        none.await.unwrap_err().to_string(),
        "container \"d\" not found in pod \"web\""
    );
}

#[tokio::test(start_paused = true)]
async fn a_long_log_is_rotated_and_old_ones_go() {
    let (node, options) = rotating();
    let kubelet = node.start_with(options);
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    print(&node, "default_web_u1", 0, "short");
    sleep(30 * SECOND).await;
    assert_eq!(files(&node), ["0.log"]);
    assert_eq!(node.runtime.calls(Verb::ReopenContainerLog), 0);
    for round in 1..=4 {
        print(&node, "default_web_u1", 0, &format!("{round}\n").repeat(5));
        until("a rotation", 30 * SECOND, || {
            node.runtime.calls(Verb::ReopenContainerLog) == round
        })
        .await;
        sleep(5 * SECOND).await;
    }
    let names = files(&node);
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(
        names[1].ends_with(".gz") && !names[2].ends_with(".gz"),
        "{names:?}"
    );
    let all = LogOptions::default();
    assert_eq!(read(&kubelet, "web", all).await.unwrap(), "");

    // The pod's logs and the links to them are removed with the pod.
    let links = node.dir.path().join("containers");
    assert_eq!(fs::read_dir(&links).unwrap().count(), 1);
    kubelet.remove(pod("web", "u1", json!({}))).await;
    until("the logs to go", 200 * SECOND, || {
        !node.dir.path().join("logs/default_web_u1").exists()
            && fs::read_dir(&links).unwrap().count() == 0
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_log_that_cannot_be_reopened_stays_as_it_is() {
    let (node, options) = rotating();
    let kubelet = node.start_with(options);
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    let fault = Fault::Error(Status::internal("on purpose"));
    node.runtime
        .fault(Verb::ReopenContainerLog, fault, Times::N(2));
    let path = print(&node, "default_web_u1", 0, &"line\n".repeat(9));
    until("the second attempt", 60 * SECOND, || {
        node.runtime.calls(Verb::ReopenContainerLog) == 2 && path.exists()
    })
    .await;
    assert_eq!(files(&node), ["0.log"]);
    assert!(fs::metadata(&path).unwrap().len() > 100);
    until("the rotation", 60 * SECOND, || files(&node).len() == 2).await;

    // The state after a kubelet is killed before it asks the runtime to reopen the log.
    fs::remove_file(&path).unwrap();
    until("a new log", 30 * SECOND, || path.exists()).await;
    drop(kubelet);
}
