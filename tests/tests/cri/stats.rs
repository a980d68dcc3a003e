//! Stats of `dockershim` with a real engine, compared with the containers' actual usage.

use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::Path,
    time::Duration,
};

use cri_proto::runtime::v1::{self as cri, UInt64Value};
use e2e::{
    cri::{Cri, container, host_container, host_sandbox, sandbox},
    images::{self, BUSYBOX},
    node::Node,
};
use futures::TryStreamExt as _;
use tonic::Code;

const MIB: u64 = 1 << 20;
const SECOND: f64 = 1e9;
/// The time for the live model to follow the engine, and for a small layer to be measured.
const SOON: Duration = Duration::from_secs(60);

fn number(value: Option<UInt64Value>) -> u64 {
    value.unwrap().value
}

async fn stats(cri: &mut Cri, id: &str) -> cri::ContainerStats {
    let container_id = id.to_owned();
    let request = cri::ContainerStatsRequest { container_id };
    let response = cri.runtime.container_stats(request).await.unwrap();
    response.into_inner().stats.unwrap()
}

async fn list(cri: &mut Cri, filter: cri::ContainerStatsFilter) -> Vec<cri::ContainerStats> {
    let filter = Some(filter);
    let request = cri::ListContainerStatsRequest { filter };
    let response = cri.runtime.list_container_stats(request).await.unwrap();
    response.into_inner().stats
}

async fn pod_stats(cri: &mut Cri, id: &str) -> cri::LinuxPodSandboxStats {
    let pod_sandbox_id = id.to_owned();
    let request = cri::PodSandboxStatsRequest { pod_sandbox_id };
    let response = cri.runtime.pod_sandbox_stats(request).await.unwrap();
    let stats = response.into_inner().stats.unwrap();
    assert_eq!(stats.attributes.unwrap().id, id);
    stats.linux.unwrap()
}

fn ids(stats: &[cri::ContainerStats]) -> Vec<&str> {
    let attributes = stats.iter().map(|s| s.attributes.as_ref().unwrap());
    attributes.map(|a| a.id.as_str()).collect()
}

#[tokio::test]
async fn cpu_and_memory_are_what_a_container_uses() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, busy) = cri
        .run_pod("busy", &["sh", "-c", "while :; do :; done"])
        .await
        .unwrap();
    // A shell that holds 50 MiB in a variable.
    let hold = "x=$(yes | busybox head -c 52428800); while :; do sleep 1; done";
    let (_, big) = cri.run_pod("big", &["sh", "-c", hold]).await.unwrap();
    let (_, idle) = cri.run_pod("idle", &["sleep", "1000"]).await.unwrap();

    let first = stats(&mut cri, &busy).await;
    let cpu = first.cpu.unwrap();
    assert!(cpu.timestamp > 0);
    assert_eq!(cpu.usage_nano_cores, None, "one sample makes no rate");
    stats(&mut cri, &idle).await;
    let pod_first = pod_stats(&mut cri, &pod).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    let later = stats(&mut cri, &busy).await.cpu.unwrap();
    let pod_later = pod_stats(&mut cri, &pod).await;

    let used = number(later.usage_core_nano_seconds) - number(cpu.usage_core_nano_seconds);
    let elapsed = (later.timestamp - cpu.timestamp) as f64;
    let rate = used as f64 / elapsed;
    assert!(rate > 0.05, "a busy loop got {rate} of a core");
    let told = number(later.usage_nano_cores) as f64 / SECOND;
    assert!((told - rate).abs() < 0.2, "{told} is not near {rate}");
    let idle_rate = stats(&mut cri, &idle).await.cpu.unwrap();
    assert!(number(idle_rate.usage_nano_cores) < 50_000_000);

    // The pod's CPU time includes that of its containers and of the pause process.
    let of = |linux: &cri::LinuxPodSandboxStats| {
        number(linux.cpu.as_ref().unwrap().usage_core_nano_seconds)
    };
    assert!(of(&pod_first) >= number(cpu.usage_core_nano_seconds));
    assert!(of(&pod_later) - of(&pod_first) >= used / 2);
    assert!(pod_later.cpu.unwrap().usage_nano_cores.is_some());

    let mut watcher = cri.clone();
    node.await_until("50 MiB are held", SOON, async |_| {
        let memory = stats(&mut watcher.clone(), &big).await.memory.unwrap();
        let held = [memory.working_set_bytes, memory.rss_bytes].map(number);
        Ok(held.into_iter().all(|bytes| bytes >= 50 * MIB))
    })
    .await
    .unwrap();
    let memory = stats(&mut watcher, &big).await.memory.unwrap();
    assert!(number(memory.working_set_bytes) <= number(memory.usage_bytes));
    assert!(number(memory.rss_bytes) >= 50 * MIB);
    assert!(number(memory.page_faults) > 0);
    assert_eq!(memory.available_bytes, None, "it has no limit");
    let idle = stats(&mut watcher, &idle).await.memory.unwrap();
    assert!(number(idle.working_set_bytes) < 20 * MIB);
}

#[tokio::test]
async fn a_limit_tells_what_is_available() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let config = sandbox("limited");
    let pod = cri.run(&config).await.unwrap();
    let mut limited = container("main", &["sleep", "1000"]);
    limited.linux = Some(cri::LinuxContainerConfig {
        resources: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 64 * i64::try_from(MIB).unwrap(),
            ..Default::default()
        }),
        ..Default::default()
    });
    let id = cri.create(&pod, limited, &config).await.unwrap();
    cri.start(&id).await.unwrap();
    let memory = stats(&mut cri, &id).await.memory.unwrap();
    let sum = number(memory.available_bytes) + number(memory.working_set_bytes);
    assert_eq!(sum, 64 * MIB);
}

#[tokio::test]
async fn a_pod_tells_its_network_and_its_processes() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let serve = ["httpd", "-f", "-p", "80", "-h", "/www"];
    let (pod, main) = cri.run_pod("web", &serve).await.unwrap();
    let before = pod_stats(&mut cri, &pod).await;
    let ip = cri.pod_status(&pod).await.unwrap().network.unwrap().ip;
    let url = format!("http://{ip}/index.html");
    node.await_until("served", SOON, async |node| {
        let output = node.in_net(&["busybox", "wget", "-q", "-O-", &url])?;
        Ok(output.status.success())
    })
    .await
    .unwrap();
    let after = pod_stats(&mut cri, &pod).await;
    let bytes = |linux: &cri::LinuxPodSandboxStats| {
        let network = linux.network.as_ref().unwrap();
        let default = network.default_interface.as_ref().unwrap();
        assert_eq!(default.name, "eth0");
        (number(default.rx_bytes), number(default.tx_bytes))
    };
    assert!(bytes(&after).0 > bytes(&before).0 && bytes(&after).1 > bytes(&before).1);
    // The pause process and the server, once its child for the request has exited.
    let asker = cri.clone();
    node.await_until("two processes", SOON, async |_| {
        let linux = pod_stats(&mut asker.clone(), &pod).await;
        Ok(number(linux.process.unwrap().process_count) == 2)
    })
    .await
    .unwrap();
    assert_eq!(ids(&after.containers), [main.as_str()]);
    let memory = after.memory.unwrap();
    let of_main = after.containers[0].memory.as_ref().unwrap();
    assert!(number(memory.usage_bytes) > 0);
    assert!(number(memory.page_faults) >= number(of_main.page_faults));

    let config = host_sandbox("host");
    let host = cri.run(&config).await.unwrap();
    let id = cri
        .create(&host, host_container("main", &["sleep", "1000"]), &config)
        .await
        .unwrap();
    cri.start(&id).await.unwrap();
    let linux = pod_stats(&mut cri, &host).await;
    assert_eq!(linux.network, None, "the node's network is not the pod's");
    assert!(linux.cpu.is_some());
}

#[tokio::test]
async fn a_cgroup_parent_is_the_pods_cgroup() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let mut config = sandbox("grouped");
    let parent = format!("/e2e-stats-{}", node.shim_pid().unwrap());
    config.linux = Some(cri::LinuxPodSandboxConfig {
        cgroup_parent: parent.clone(),
        ..Default::default()
    });
    let pod = cri.run(&config).await.unwrap();
    let main = container("main", &["sleep", "1000"]);
    let id = cri.create(&pod, main, &config).await.unwrap();
    cri.start(&id).await.unwrap();
    let linux = pod_stats(&mut cri, &pod).await;
    // The pause process and `sleep`, counted by their parent cgroup.
    assert_eq!(number(linux.process.unwrap().process_count), 2);
    let own = linux.containers[0].cpu.as_ref().unwrap();
    let whole = number(linux.cpu.unwrap().usage_core_nano_seconds);
    assert!(whole > number(own.usage_core_nano_seconds));

    // The engine does not remove the parent cgroup that it created.
    cri.stop_pod(&pod).await.unwrap();
    cri.remove_pod(&pod).await.unwrap();
    let root = Path::new("/sys/fs/cgroup");
    for entry in root.read_dir().unwrap().flatten() {
        let _ = fs::remove_dir(entry.path().join(&parent[1..]));
    }
    let _ = fs::remove_dir(root.join(&parent[1..]));
}

#[tokio::test]
async fn lists_filter_and_streams_are_the_same() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let sleep = ["sleep", "1000"];
    let (web, web_main) = cri.run_pod("web", &sleep).await.unwrap();
    let (db, db_main) = cri.run_pod("db", &sleep).await.unwrap();
    let label = |value: &str| BTreeMap::from([("app".to_owned(), value.to_owned())]);

    type Filter = cri::ContainerStatsFilter;
    let mut both = vec![web_main.as_str(), db_main.as_str()];
    both.sort();
    let all = list(&mut cri, Filter::default()).await;
    assert_eq!(ids(&all), both);
    assert!(all.iter().all(|s| s.cpu.is_some() && s.memory.is_some()));
    let only = |filter: Filter| {
        let mut cri = cri.clone();
        async move { list(&mut cri, filter).await }
    };
    let by_id = Filter {
        id: web_main[..12].to_owned(),
        ..Filter::default()
    };
    assert_eq!(ids(&only(by_id).await), [web_main.as_str()]);
    let by_sandbox = Filter {
        pod_sandbox_id: db.clone(),
        ..Filter::default()
    };
    assert_eq!(ids(&only(by_sandbox).await), [db_main.as_str()]);
    let by_label = Filter {
        label_selector: label("main"),
        ..Filter::default()
    };
    assert_eq!(ids(&only(by_label).await), both);
    let by_other = Filter {
        label_selector: label("other"),
        ..Filter::default()
    };
    assert!(only(by_other).await.is_empty());

    let request = cri::StreamContainerStatsRequest { filter: None };
    let stream = cri.runtime.stream_container_stats(request).await.unwrap();
    let parts: Vec<_> = stream.into_inner().try_collect().await.unwrap();
    let streamed: Vec<_> = parts.into_iter().flat_map(|p| p.container_stats).collect();
    assert_eq!(ids(&streamed), both);

    let mut pods = async |id: &str, app: Option<&str>| {
        let filter = Some(cri::PodSandboxStatsFilter {
            id: id.to_owned(),
            label_selector: app.map(label).unwrap_or_default(),
        });
        let request = cri::ListPodSandboxStatsRequest {
            filter: filter.clone(),
        };
        let listed = cri.runtime.list_pod_sandbox_stats(request).await.unwrap();
        let listed = listed.into_inner().stats;
        let request = cri::StreamPodSandboxStatsRequest { filter };
        let stream = cri.runtime.stream_pod_sandbox_stats(request).await.unwrap();
        let parts: Vec<_> = stream.into_inner().try_collect().await.unwrap();
        let streamed = parts.into_iter().flat_map(|p| p.pod_sandbox_stats);
        let name = |s: cri::PodSandboxStats| s.attributes.unwrap().id;
        let listed: Vec<_> = listed.into_iter().map(name).collect();
        assert_eq!(streamed.map(name).collect::<Vec<_>>(), listed);
        listed
    };
    assert_eq!(pods("", None).await.len(), 2);
    assert_eq!(pods(&web[..12], None).await, [web.as_str()]);
    assert_eq!(pods("", Some("db")).await, [db.as_str()]);

    // A stopped container has no usage; a missing one is not found.
    cri.stop(&web_main, 0).await.unwrap();
    let stopped = stats(&mut cri, &web_main).await;
    assert_eq!(stopped.attributes.unwrap().id, web_main);
    assert_eq!((stopped.cpu, stopped.memory), (None, None));
    assert_eq!(list(&mut cri, Filter::default()).await.len(), 2);
    cri.stop_pod(&db).await.unwrap();
    let stopped = pod_stats(&mut cri, &db).await;
    assert_eq!((stopped.cpu, stopped.network), (None, None));
    let request = cri::ListPodSandboxStatsRequest { filter: None };
    let ready = cri.runtime.list_pod_sandbox_stats(request).await.unwrap();
    assert_eq!(ready.into_inner().stats.len(), 1);
    let request = cri::ContainerStatsRequest {
        container_id: "nope".into(),
    };
    let missing = cri.runtime.container_stats(request).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
    let request = cri::PodSandboxStatsRequest {
        pod_sandbox_id: "nope".into(),
    };
    let missing = cri.runtime.pod_sandbox_stats(request).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);
}

#[tokio::test]
async fn every_metric_has_its_descriptor() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (pod, main) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let request = cri::ListMetricDescriptorsRequest {};
    let response = cri.runtime.list_metric_descriptors(request).await.unwrap();
    let descriptors: HashMap<String, Vec<String>> = response
        .into_inner()
        .descriptors
        .into_iter()
        .map(|d| (d.name, d.label_keys))
        .collect();

    let request = cri::ListPodSandboxMetricsRequest {};
    let response = cri.runtime.list_pod_sandbox_metrics(request).await.unwrap();
    let [metrics] = &response.into_inner().pod_metrics[..] else {
        panic!("one pod");
    };
    assert_eq!(metrics.pod_sandbox_id, pod);
    let [of_main] = &metrics.container_metrics[..] else {
        panic!("one container");
    };
    assert_eq!(of_main.container_id, main);
    for metric in metrics.metrics.iter().chain(&of_main.metrics) {
        let keys = &descriptors[&metric.name];
        assert_eq!(keys.len(), metric.label_values.len(), "{}", metric.name);
        assert!(metric.timestamp > 0 && metric.value.is_some());
    }
    let value = |name: &str| {
        let metric = of_main.metrics.iter().find(|m| m.name == name);
        let metric = metric.unwrap_or_else(|| panic!("no {name}"));
        let keys = descriptors[name].iter().cloned();
        let labels: HashMap<_, _> = keys.zip(metric.label_values.iter().cloned()).collect();
        (number(metric.value), labels)
    };
    let (working_set, labels) = value("container_memory_working_set_bytes");
    assert!(working_set > 0);
    let expected = [
        ("id", main.as_str()),
        ("name", "k8s_main_web_default_uid-web_0"),
        ("container", "main"),
        ("pod", "web"),
        ("namespace", "default"),
    ];
    for (key, wanted) in expected {
        assert_eq!(labels[key], wanted, "{key}");
    }
    assert_eq!(value("container_processes").0, 1);
    assert!(value("container_start_time_seconds").0 > 1_700_000_000);
    assert!(value("container_fs_limit_bytes").0 > 0);
    value("container_cpu_usage_seconds_total");
    let network = "container_network_receive_bytes_total";
    assert!(metrics.metrics.iter().any(|m| m.name == network));

    let request = cri::StreamPodSandboxMetricsRequest {};
    let stream = cri.runtime.stream_pod_sandbox_metrics(request).await;
    let parts: Vec<_> = stream.unwrap().into_inner().try_collect().await.unwrap();
    assert_eq!(parts[0].pod_sandbox_metrics[0].pod_sandbox_id, pod);
}

#[tokio::test]
async fn what_a_container_wrote_shows() {
    let node = Node::with_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let (_, id) = cri.run_pod("writer", &["sleep", "1000"]).await.unwrap();
    let write = "yes | busybox head -c 8388608 > /tmp/file; touch /tmp/other";
    let done = cri.exec(&id, &["sh", "-c", write], 30).await.unwrap();
    assert_eq!(done.exit_code, 0, "{done:?}");
    let watcher = cri.clone();
    node.await_until("the layer is measured", SOON, async |_| {
        let stats = stats(&mut watcher.clone(), &id).await;
        Ok(stats.writable_layer.is_some())
    })
    .await
    .unwrap();
    let layer = stats(&mut cri, &id).await.writable_layer.unwrap();
    assert!(number(layer.used_bytes) >= 8 * MIB, "{layer:?}");
    assert!(number(layer.inodes_used) >= 3, "{layer:?}");
    assert!(layer.timestamp > 0);

    let request = cri::ImageFsInfoRequest {};
    let info = cri
        .images
        .image_fs_info(request)
        .await
        .unwrap()
        .into_inner();
    let written = &info.container_filesystems[0];
    assert_eq!(written.fs_id, layer.fs_id);
    assert!(number(written.used_bytes) >= 8 * MIB);
    assert!(number(info.image_filesystems[0].used_bytes) > 0);
}

#[tokio::test]
async fn layers_that_images_share_count_once() {
    let node = Node::with_shim().await.unwrap();
    let docker = node.docker().unwrap();
    // Another image on the same root file system.
    let shares = "e2e.local/shares:1";
    images::load(&docker, shares, &["USER 1000"]).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let watcher = cri.clone();
    let listed = async || {
        let request = cri::ListImagesRequest { filter: None };
        let images = watcher.clone().images.list_images(request).await.unwrap();
        images.into_inner().images
    };
    let has = |images: &[cri::Image], name: &str| {
        let mut names = images.iter().flat_map(|image| &image.repo_tags);
        names.any(|tag| tag == name)
    };
    node.await_until("both images are listed", SOON, async |_| {
        let images = listed().await;
        Ok(has(&images, BUSYBOX) && has(&images, shares))
    })
    .await
    .unwrap();
    let size = cri.image(shares).await.unwrap().unwrap().size;
    let sum: u64 = listed().await.iter().map(|image| image.size).sum();
    let request = cri::ImageFsInfoRequest {};
    let info = cri.images.image_fs_info(request).await.unwrap();
    let used = number(info.into_inner().image_filesystems[0].used_bytes);
    assert!(size > 0);
    assert_eq!(used, sum - size);
}
