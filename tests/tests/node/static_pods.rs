//! Static pods from the manifest to running containers, through both binaries, on a real engine.

use std::{collections::BTreeSet, fs, time::Duration};

use cri_proto::runtime::v1 as cri;
use e2e::{cri::Cri, node::Node};
use rustix::process::Signal;
use serde_json::Value;
use test_run::process;

/// The time for one step of a pod's life.
const SOON: Duration = Duration::from_secs(30);

fn web(name: &str, extra: &str) -> String {
    format!(
        "apiVersion: v1
kind: Pod
metadata:
  name: {name}
  labels: {{app: {name}}}
spec:
  terminationGracePeriodSeconds: 2
  containers:
  - name: server
    image: e2e.local/busybox:1
    command: [httpd, -f, -p, '80', -h, /www]
    ports: [{{containerPort: 80}}]
{extra}"
    )
}

fn container_id(pod: &Value) -> String {
    let id = pod["status"]["containerStatuses"][0]["containerID"]
        .as_str()
        .unwrap();
    id.strip_prefix("docker://").unwrap().to_owned()
}

fn restarts(pod: &Value) -> u64 {
    pod["status"]["containerStatuses"][0]["restartCount"]
        .as_u64()
        .unwrap()
}

async fn page(node: &Node, pod: &Value) -> anyhow::Result<bool> {
    let ip = pod["status"]["podIP"].as_str().unwrap();
    let url = format!("http://{ip}/");
    let page = node.in_net(&["timeout", "5", "busybox", "wget", "-q", "-O", "-", &url])?;
    Ok(page.stdout == b"hello from the pod\n")
}

/// IDs of all sandboxes and containers of the shim.
async fn held(node: &Node) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut cri = Cri::of(node).await.unwrap();
    let pods = cri.pods(cri::PodSandboxFilter::default()).await.unwrap();
    let containers = cri.containers(cri::ContainerFilter::default()).await;
    (
        pods.into_iter().map(|p| p.id).collect(),
        containers.unwrap().into_iter().map(|c| c.id).collect(),
    )
}

#[tokio::test]
async fn a_manifest_becomes_a_pod_that_serves() {
    let node = Node::with_kubelet().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    let pod = node.await_running("web", SOON).await.unwrap();
    node.await_until("the page is served", SOON, async |node| {
        page(node, &pod).await
    })
    .await
    .unwrap();
    let status = &pod["status"];
    assert_eq!(pod["metadata"]["namespace"], "default");
    assert_eq!(
        pod["metadata"]["annotations"]["kubernetes.io/config.source"],
        "file"
    );
    assert_eq!(status["podIPs"][0]["ip"], status["podIP"]);
    assert_eq!(status["qosClass"], "BestEffort");
    assert!(status["startTime"].is_string());
    let server = &status["containerStatuses"][0];
    assert!(server["state"]["running"]["startedAt"].is_string());
    assert_eq!(
        (&server["ready"], &server["restartCount"]),
        (&true.into(), &0.into())
    );
}

#[tokio::test]
async fn a_killed_container_is_restarted_and_counted() {
    let node = Node::with_kubelet().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    let pod = node.await_running("web", SOON).await.unwrap();
    let first = container_id(&pod);
    let inspected = node
        .docker()
        .unwrap()
        .inspect_container(&first, None)
        .await
        .unwrap();
    let pid = inspected.state.unwrap().pid.unwrap();
    process::signal(u32::try_from(pid).unwrap(), Signal::KILL).unwrap();
    let pod = node
        .await_pod("web", SOON, |pod| {
            e2e::node::is_ready(pod) && container_id(pod) != first
        })
        .await
        .unwrap();
    assert_eq!(restarts(&pod), 1);
    let last = &pod["status"]["containerStatuses"][0]["lastState"]["terminated"];
    assert_eq!(last["exitCode"], 137);
    assert_eq!(last["containerID"], format!("docker://{first}"));
}

#[tokio::test]
async fn a_deleted_manifest_removes_everything_within_the_grace_period() {
    let node = Node::with_kubelet().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    node.await_running("web", SOON).await.unwrap();
    node.remove_manifest("web.yaml").unwrap();
    node.await_until("nothing is left", SOON, async |node| {
        let (pods, containers) = held(node).await;
        Ok(pods.is_empty() && containers.is_empty() && node.pods().await?.is_empty())
    })
    .await
    .unwrap();
    let docker = node.docker().unwrap();
    let all = bollard::query_parameters::ListContainersOptionsBuilder::new()
        .all(true)
        .build();
    assert!(docker.list_containers(Some(all)).await.unwrap().is_empty());
    // Log directories are removed after the pod has terminated.
    node.await_until("no log directory is left", SOON, async |node| {
        Ok(fs::read_dir(node.path("logs"))?.count() == 0)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn an_edited_manifest_recreates_the_pod() {
    let node = Node::with_kubelet().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    let old = node.await_running("web", SOON).await.unwrap();
    let edited = web("web", "    env: [{name: EDITION, value: second}]\n");
    node.write_manifest("web.yaml", &edited).unwrap();
    let new = node
        .await_pod("web", SOON, |pod| {
            e2e::node::is_ready(pod) && pod["metadata"]["uid"] != old["metadata"]["uid"]
        })
        .await
        .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let show = ["sh", "-c", "echo $EDITION"];
    let done = cri.exec(&container_id(&new), &show, 10).await.unwrap();
    assert_eq!(done.stdout, b"second\n");
    node.await_until("one sandbox is left", SOON, async |node| {
        let (pods, containers) = held(node).await;
        Ok(pods.len() == 1 && containers.len() == 1)
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_broken_manifest_names_file_and_field_and_changes_nothing() {
    let node = Node::with_kubelet().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    node.write_manifest("other.yaml", &web("other", ""))
        .unwrap();
    let web_pod = node.await_running("web", SOON).await.unwrap();
    let other = node.await_running("other", SOON).await.unwrap();

    let invalid = web("web", "").replace("containerPort: 80", "containerPort: 99999");
    node.write_manifest("web.yaml", &invalid).unwrap();
    node.write_manifest("syntax.yaml", "kind: Pod\n  metadata: [\n")
        .unwrap();
    let logged = async |words: &[&str]| {
        node.await_until(&format!("{words:?} are logged"), SOON, async |node| {
            let log = node.kubelet_log();
            Ok(log
                .lines()
                .any(|line| words.iter().all(|word| line.contains(word))))
        })
        .await
        .unwrap();
    };
    logged(&[
        "web.yaml",
        "spec.containers[0].ports[0].containerPort",
        "99999",
    ])
    .await;
    logged(&["syntax.yaml"]).await;
    // Once a pod of a later manifest is running, the broken ones have been read.
    node.write_manifest("third.yaml", &web("third", ""))
        .unwrap();
    node.await_running("third", SOON).await.unwrap();
    for (name, before) in [("web", &web_pod), ("other", &other)] {
        let pod = node.pod(name).await.unwrap().unwrap();
        assert_eq!(pod["metadata"]["uid"], before["metadata"]["uid"], "{name}");
        assert_eq!(container_id(&pod), container_id(before), "{name}");
        assert_eq!(restarts(&pod), 0, "{name}");
    }
}

#[tokio::test]
async fn restart_policies_are_kept() {
    let node = Node::with_kubelet().await.unwrap();
    let job = |name: &str, policy: &str, code: u8| {
        web(name, &format!("  restartPolicy: {policy}\n")).replace(
            "[httpd, -f, -p, '80', -h, /www]",
            &format!("[sh, -c, exit {code}]"),
        )
    };
    for (name, policy, code) in [
        ("done", "OnFailure", 0),
        ("failed", "Never", 7),
        ("retried", "OnFailure", 7),
        ("looping", "Always", 0),
    ] {
        node.write_manifest(&format!("{name}.yaml"), &job(name, policy, code))
            .unwrap();
    }
    let phase = |phase: &'static str| move |pod: &Value| pod["status"]["phase"] == phase;
    let done = node.await_pod("done", SOON, phase("Succeeded")).await;
    let state = &done.unwrap()["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(state["reason"], "Completed");
    let failed = node.await_pod("failed", SOON, phase("Failed")).await;
    let state = &failed.unwrap()["status"]["containerStatuses"][0]["state"]["terminated"];
    assert_eq!(
        (&state["reason"], &state["exitCode"]),
        (&"Error".into(), &7.into())
    );
    for name in ["retried", "looping"] {
        node.await_pod(name, SOON, |pod| {
            let server = &pod["status"]["containerStatuses"][0];
            server["state"]["waiting"]["reason"] == "CrashLoopBackOff" && restarts(pod) >= 1
        })
        .await
        .unwrap();
    }
}

#[tokio::test]
async fn an_image_that_is_nowhere_is_told_and_comes_up_once_it_is_there() {
    let node = Node::with_kubelet().await.unwrap();
    let image = "127.0.0.1:5009/late:1";
    let manifest = web("late", "").replace("e2e.local/busybox:1", image);
    node.write_manifest("late.yaml", &manifest).unwrap();
    node.await_pod("late", SOON, |pod| {
        let reason = &pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"];
        reason == "ErrImagePull" || reason == "ImagePullBackOff"
    })
    .await
    .unwrap();
    let docker = node.docker().unwrap();
    e2e::images::load(&docker, image, &[]).await.unwrap();
    node.await_running("late", Duration::from_secs(60))
        .await
        .unwrap();
}

#[tokio::test]
async fn either_binary_killed_leaves_the_pods_running_and_picks_up_again() {
    let mut node = Node::with_kubelet().await.unwrap();
    for name in ["one", "two"] {
        node.write_manifest(&format!("{name}.yaml"), &web(name, ""))
            .unwrap();
    }
    for name in ["one", "two"] {
        node.await_running(name, SOON).await.unwrap();
    }
    let before = held(&node).await;

    node.kill_kubelet().unwrap();
    assert_eq!(held(&node).await, before);
    node.start_kubelet().await.unwrap();
    let one = node.await_running("one", SOON).await.unwrap();
    assert_eq!(restarts(&one), 0);

    node.kill_shim().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.start_shim().await.unwrap();
    assert_eq!(held(&node).await, before);

    // The delay reveals pods that would still change.
    node.write_manifest("three.yaml", &web("three", ""))
        .unwrap();
    node.await_running("three", SOON).await.unwrap();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = held(&node).await;
    assert!(before.0.is_subset(&after.0) && before.1.is_subset(&after.1));
    assert_eq!((after.0.len(), after.1.len()), (3, 3));

    // A manifest that was removed while the kubelet was down is noticed.
    node.kill_kubelet().unwrap();
    node.remove_manifest("one.yaml").unwrap();
    node.start_kubelet().await.unwrap();
    node.await_until("the orphan is gone", SOON, async |node| {
        let (pods, containers) = held(node).await;
        Ok(pods.len() == 2 && containers.len() == 2)
    })
    .await
    .unwrap();
    // Pods keep running after a regular stop too.
    let left = held(&node).await;
    node.stop_kubelet().unwrap();
    node.stop_shim().await.unwrap();
    node.start_shim().await.unwrap();
    assert_eq!(held(&node).await, left);
}

#[tokio::test]
async fn the_engine_restarted_the_pods_come_back_by_themselves() {
    let mut node = Node::with_kubelet().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    let before = container_id(&node.await_running("web", SOON).await.unwrap());
    node.engine_mut().stop().unwrap();
    tokio::time::sleep(Duration::from_secs(2)).await;
    node.engine_mut().start_again().await.unwrap();
    let pod = node
        .await_pod("web", Duration::from_secs(60), |pod| {
            e2e::node::is_ready(pod) && container_id(pod) != before
        })
        .await
        .unwrap();
    node.await_until("the page is served", SOON, async |node| {
        page(node, &pod).await
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn fifty_pods_at_once_all_run() {
    let node = Node::with_kubelet().await.unwrap();
    let names: Vec<_> = (0..50).map(|n| format!("pod-{n}")).collect();
    for name in &names {
        node.write_manifest(&format!("{name}.yaml"), &web(name, ""))
            .unwrap();
    }
    node.await_until("all run", Duration::from_secs(240), async |node| {
        let pods = node.pods().await?;
        Ok(pods.len() == 50 && pods.iter().all(e2e::node::is_ready))
    })
    .await
    .unwrap();
    let pods = node.pods().await.unwrap();
    assert!(pods.iter().all(|pod| restarts(pod) == 0));
    let (sandboxes, containers) = held(&node).await;
    assert_eq!((sandboxes.len(), containers.len()), (50, 50));
}

#[tokio::test]
async fn the_status_table_and_the_http_endpoints_show_the_pods() {
    let node = Node::with_kubelet().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    let pod = node.await_running("web", SOON).await.unwrap();

    let table = node.kubelet_command(&["status"]).unwrap();
    let text = String::from_utf8(table.stdout).unwrap();
    let rows: Vec<Vec<_>> = text
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    assert_eq!(
        rows[0],
        [
            "NAMESPACE",
            "NAME",
            "READY",
            "STATUS",
            "RESTARTS",
            "IP",
            "AGE"
        ]
    );
    let ip = pod["status"]["podIP"].as_str().unwrap();
    assert_eq!(
        rows[1][..6],
        ["default", "web-node", "1/1", "Running", "0", ip]
    );

    let get = |port: u16, path: &str| {
        let url = format!("http://127.0.0.1:{port}{path}");
        let got = node.in_net(&["timeout", "5", "busybox", "wget", "-q", "-O", "-", &url]);
        String::from_utf8(got.unwrap().stdout).unwrap()
    };
    assert_eq!(get(10248, "/healthz"), "ok");
    assert_eq!(get(10255, "/healthz"), "ok");
    let list: Value = serde_json::from_str(&get(10255, "/pods")).unwrap();
    assert_eq!(
        (&list["kind"], &list["apiVersion"]),
        (&"PodList".into(), &"v1".into())
    );
    assert_eq!(list["items"][0]["metadata"]["name"], "web-node");
    assert_eq!(list["items"][0]["metadata"]["uid"], pod["metadata"]["uid"]);
}

#[tokio::test]
async fn run_once_starts_the_pods_and_ends() {
    let mut node = Node::with_shim().await.unwrap();
    node.write_manifest("web.yaml", &web("web", "")).unwrap();
    let endpoint = node.cri_endpoint();
    let manifests = node.manifests().display().to_string();
    let cgroups = node.cgroups.path();
    let ran = node
        .kubelet_command(&[
            "--runonce",
            "--cgroup-root",
            &cgroups,
            "--pod-manifest-path",
            &manifests,
            "--container-runtime-endpoint",
            &endpoint,
            "--hostname-override",
            "node",
        ])
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stderr).into_owned();
    assert!(ran.status.success(), "{said}");
    // Elsewhere, the pod's cgroup would stay on the machine.
    assert!(node.cgroups.has("kubepods/besteffort"), "{said}");
    let mut cri = Cri::of(&node).await.unwrap();
    let running = cri.containers(cri::ContainerFilter::default()).await;
    let running = running.unwrap();
    assert_eq!(running.len(), 1);
    assert_eq!(running[0].state(), cri::ContainerState::ContainerRunning);
    node.stop_shim().await.unwrap();
}
