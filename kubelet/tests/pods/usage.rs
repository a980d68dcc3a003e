//! The usage of pods' volumes and logs.

use std::{fs, sync::Arc, time::Duration};

use kubelet_metrics::Exposition;
use kubelet_pod_spec::identity::PodUid;
use kubelet_resource_analyzer::PodUsage;
use kubelet_server::NodeView;
use serde_json::json;

use crate::{
    node::{IMAGE, Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

/// What a pod uses, by its UID.
pub(crate) fn usage(kubelet: &Running, uid: &str) -> Option<Arc<PodUsage>> {
    let usages = kubelet.kubelet.pod_usages();
    usages.get(&PodUid::from(uid)).cloned()
}

pub(crate) fn metrics(kubelet: &Running) -> String {
    let mut page = Exposition::default();
    NodeView::collect(&kubelet.kubelet, &mut page);
    page.into_text()
}

#[tokio::test(start_paused = true)]
async fn volumes_and_logs_are_measured_while_the_pod_is_active() {
    let objects = Arc::<MemoryObjects>::default();
    objects.put(
        "configmap",
        json!({"metadata": {"namespace": "default", "name": "c"}, "data": {"a": "x"}}),
    );
    let mut node = Node::new();
    node.objects = objects;
    let kubelet = node.start();
    let volumes = json!([
        {"name": "scratch", "emptyDir": {}},
        {"name": "config", "configMap": {"name": "c"}},
        {"name": "host", "hostPath": {"path": "/"}},
        {"name": "unused", "emptyDir": {}},
    ]);
    let mounts = ["scratch", "config", "host"];
    let mounts = mounts.map(|name| json!({"name": name, "mountPath": format!("/{name}")}));
    let container = json!({
        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts
    });
    let web = pod(
        "web",
        "u1",
        json!({"volumes": volumes, "containers": [container]}),
    );
    kubelet.add(web.clone()).await;
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    let pod_dir = node.dir.path().join("kubelet/pods/u1");
    let scratch = pod_dir.join("volumes/kubernetes.io~empty-dir/scratch");
    fs::write(scratch.join("file"), vec![1; 100_000]).unwrap();
    let logs = node.dir.path().join("logs/default_web_u1/c");
    fs::create_dir_all(&logs).unwrap();
    fs::write(logs.join("0.log"), vec![1; 100_000]).unwrap();

    let is_measured = || {
        let usage = usage(&kubelet, "u1")?;
        let scratch = usage.volumes.get("scratch")?;
        let files = usage.files.as_ref()?;
        let logs = files.container_logs.get("c")?;
        Some((scratch.bytes.used >= 100_000, logs.bytes >= 100_000))
    };
    until("the measurement", 3 * 60 * SECOND, || {
        is_measured() == Some((true, true))
    })
    .await;
    let usage = usage(&kubelet, "u1").unwrap();
    let names: Vec<&String> = usage.volumes.keys().collect();
    assert_eq!(names, ["config", "scratch"]);
    assert!(usage.volumes.values().all(|it| it.is_local_ephemeral));
    assert_eq!(usage.volumes["scratch"].inodes.used, 2);
    let files = usage.files.as_ref().unwrap();
    assert_eq!(files.container_logs["c"].inodes, 1);
    assert_eq!(files.etc_hosts.map(|hosts| hosts.inodes), Some(1));
    let sample = format!(
        "kubelet_container_log_filesystem_used_bytes\
         {{uid=\"u1\",namespace=\"default\",pod=\"web\",container=\"c\"}} {}\n",
        files.container_logs["c"].bytes
    );
    let text = metrics(&kubelet);
    assert!(text.contains(&sample), "{sample}: {text}");

    kubelet.remove(web).await;
    until("the pod to be forgotten", 5 * 60 * SECOND, || {
        kubelet.kubelet.pod_usages().is_empty()
    })
    .await;
    kubelet.stop().await;
}

#[tokio::test(start_paused = true)]
async fn nothing_is_measured_without_a_period() {
    let node = Node::new();
    let mut options = node.options();
    assert_eq!(options.volume_stats_period, Some(Duration::from_secs(60)));
    options.volume_stats_period = None;
    let kubelet = node.start_with(options);
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 60 * SECOND).await;
    tokio::time::sleep(10 * 60 * SECOND).await;
    assert!(kubelet.kubelet.pod_usages().is_empty());
    kubelet.stop().await;
}
