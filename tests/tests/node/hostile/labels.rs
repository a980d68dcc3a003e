//! Labels. The engine merges an image's labels into those of its containers, in the same map as the
//! pod's labels and the shim's own.

use std::{collections::BTreeMap, path::Path, time::Duration};

use cri_proto::runtime::v1 as cri;
use e2e::{
    cri::{Cri, container, image_spec, sandbox},
    images,
    node::Node,
};

/// The time for the shim to see a new image.
const SOON: Duration = Duration::from_secs(60);

/// Every key with a meaning to the shim or cri-dockerd, with a value that would have an effect if
/// trusted. `DIRECTORY` is replaced by a directory of the test.
const HOSTILE: &[(&str, &str)] = &[
    ("io.kubernetes.docker.type", "podsandbox"),
    ("io.kubernetes.sandbox.id", "0123456789abcdef"),
    ("io.kubernetes.container.logpath", "DIRECTORY/hostile.log"),
    ("io.kubernetes.pod.uid", "uid-of-another"),
    ("io.kubernetes.pod.terminationGracePeriod", "3600"),
    (
        "annotation.io.kubernetes.container.preStopHandler",
        r#"{"httpGet":{"host":"127.0.0.1","port":1}}"#,
    ),
    ("annotation.vendor", "evil"),
    ("vendor", "evil"),
    ("dockershim.name", "k8s_evil_evil_evil_evil_7"),
    (
        "dockershim.keys",
        r#"{"labels":["vendor"],"annotations":["vendor"]}"#,
    ),
    ("dockershim.label.io.kubernetes.pod.uid", "uid-of-another"),
    ("dockershim.runtime-handler", "evil"),
    ("dockershim.user-specified-image", "evil:1"),
    ("dockershim.unified", r#"{"DIRECTORY/written":"evil"}"#),
    ("dockershim.log-format", "json-file"),
    ("dockershim.labels-from-image", r#"["app"]"#),
    (
        "dockershim.image-mounts",
        r#"{"/etc":{"image":"evil:1","image_ref":"sha256:00"}}"#,
    ),
    ("dockershim.user", r#"{"uid":0,"gid":0,"groups":[0]}"#),
    ("dockershim.scratch", "true"),
];

fn hostile(directory: &Path) -> impl Iterator<Item = (&'static str, String)> {
    let directory = directory.display().to_string();
    HOSTILE
        .iter()
        .map(move |(key, value)| (*key, value.replace("DIRECTORY", &directory)))
}

/// A status without the fields that differ between any two containers.
fn comparable(status: cri::ContainerStatus) -> cri::ContainerStatus {
    cri::ContainerStatus {
        id: String::new(),
        metadata: None,
        created_at: 0,
        started_at: 0,
        image: None,
        image_ref: String::new(),
        image_id: String::new(),
        log_path: String::new(),
        ..status
    }
}

/// A pod whose containers log to `directory`.
fn pod(directory: &Path) -> cri::PodSandboxConfig {
    cri::PodSandboxConfig {
        log_directory: directory.join("logs").display().to_string(),
        ..sandbox("hostile")
    }
}

fn sleeper(index: usize, image: &str) -> cri::ContainerConfig {
    cri::ContainerConfig {
        image: Some(image_spec(image)),
        log_path: format!("{index}.log"),
        ..container(&format!("c{index}"), &["sleep", "1000"])
    }
}

/// The names in the test's directory except `logs`.
fn written(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name != "logs").collect()
}

#[tokio::test]
async fn an_image_label_in_the_shims_words_changes_nothing() {
    let mut node = Node::with_shim().await.unwrap();
    let docker = node.docker().unwrap();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut cri = Cri::of(&node).await.unwrap();
    let config = pod(directory);
    let sandbox = cri.run(&config).await.unwrap();
    let app = BTreeMap::from([("app".to_owned(), "same".to_owned())]);

    let mut ids = Vec::new();
    let all: Vec<_> = hostile(directory).collect();
    for (index, (key, value)) in [("plain", String::new())].iter().chain(&all).enumerate() {
        let image = format!("e2e.local/hostile-{index}:1");
        let label = format!("LABEL {key:?}={value:?}");
        images::load(&docker, &image, &[&label]).await.unwrap();
        let listed = async |_: &Node| Ok(cri.clone().image(&image).await?.is_some());
        node.await_until("the image is listed", SOON, listed)
            .await
            .unwrap();
        let mut wanted = sleeper(index, &image);
        wanted.labels = app.clone();
        let id = cri.create(&sandbox, wanted, &config).await.unwrap();
        cri.start(&id).await.unwrap();
        ids.push((*key, index, image, id));
    }
    for restarted in [false, true] {
        if restarted {
            // The shim cleans up after its crash, and reads all labels again.
            node.kill_shim().unwrap();
            node.start_shim().await.unwrap();
            cri = Cri::of(&node).await.unwrap();
        }
        let mut plain = None;
        for (key, index, image, id) in &ids {
            let status = cri.status(id).await.unwrap();
            assert_eq!(
                status.state(),
                cri::ContainerState::ContainerRunning,
                "{key}"
            );
            let metadata = status.metadata.clone().unwrap();
            assert_eq!(metadata.name, format!("c{index}"), "{key}");
            assert_eq!(metadata.attempt, 0, "{key}");
            let log = directory.join("logs").join(format!("{index}.log"));
            assert_eq!(Path::new(&status.log_path), log, "{key}");
            let told = status.image.clone().unwrap();
            assert_eq!(told.user_specified_image, *image, "{key}");
            assert_eq!(status.labels, app, "{key}");
            let comparable = comparable(status);
            let plain = plain.get_or_insert_with(|| comparable.clone());
            assert_eq!(comparable, *plain, "{key}, restarted: {restarted}");
        }
        let listed = cri.containers(cri::ContainerFilter {
            pod_sandbox_id: sandbox.clone(),
            ..Default::default()
        });
        assert_eq!(listed.await.unwrap().len(), ids.len());
        assert_eq!(written(directory), Vec::<String>::new());
    }
}

#[tokio::test]
async fn a_pods_label_in_the_shims_words_is_a_label_of_the_pod() {
    let mut node = Node::with_shim().await.unwrap();
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path();
    let mut cri = Cri::of(&node).await.unwrap();
    let labels: BTreeMap<_, _> = hostile(directory)
        .map(|(key, value)| (key.to_owned(), value))
        .collect();
    let mut config = pod(directory);
    (config.labels, config.annotations) = (labels.clone(), labels.clone());
    let sandbox = cri.run(&config).await.unwrap();
    let mut wanted = sleeper(0, images::BUSYBOX);
    (wanted.labels, wanted.annotations) = (labels.clone(), labels.clone());
    let hostile = cri.create(&sandbox, wanted, &config).await.unwrap();
    let plain = cri.create(&sandbox, sleeper(1, images::BUSYBOX), &config);
    let plain = plain.await.unwrap();
    for id in [&hostile, &plain] {
        cri.start(id).await.unwrap();
    }
    for restarted in [false, true] {
        if restarted {
            node.kill_shim().unwrap();
            node.start_shim().await.unwrap();
            cri = Cri::of(&node).await.unwrap();
        }
        let pod = cri.pod_status(&sandbox).await.unwrap();
        assert_eq!(pod.metadata, config.metadata);
        assert_eq!(pod.runtime_handler, "");
        assert_eq!((&pod.labels, &pod.annotations), (&labels, &labels));
        let status = cri.status(&hostile).await.unwrap();
        assert_eq!(status.metadata.as_ref().unwrap().name, "c0");
        assert_eq!((&status.labels, &status.annotations), (&labels, &labels));
        let log = directory.join("logs/0.log").display().to_string();
        assert_eq!(status.log_path, log);
        let without_labels = |status: cri::ContainerStatus| cri::ContainerStatus {
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            ..comparable(status)
        };
        let plain = cri.status(&plain).await.unwrap();
        assert_eq!(without_labels(status), without_labels(plain));
        assert_eq!(written(directory), Vec::<String>::new());
    }
}
