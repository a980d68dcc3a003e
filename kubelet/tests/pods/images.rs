//! Image pulls: policies, back-off and credentials.

use std::{fs, os::unix::fs::symlink, sync::Arc, time::Duration};

use fake_runtime::{Fault, Times, Verb};
use k8s_openapi::{ByteString, api::core::v1::Pod};
use kubelet_image::credentials::plugin::config::CredentialProvider;
use serde_json::{Value, json};
use tonic::Status;

use crate::{
    metrics::metrics,
    node::{IMAGE, Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

const PRIVATE: &str = "reg.example/team/app:1";

fn with_image(name: &str, image: &str, policy: &str) -> Pod {
    let container = json!({"name": "c", "image": image, "imagePullPolicy": policy});
    pod(name, name, json!({"containers": [container]}))
}

#[tokio::test(start_paused = true)]
async fn the_policy_decides_what_is_pulled() {
    let node = Node::new();
    node.runtime.add_pullable_image(IMAGE);
    node.runtime.add_pullable_image("other:latest");
    let kubelet = node.start();
    for (name, image, policy, pulls) in [
        ("present", IMAGE, "IfNotPresent", 0),
        ("never", IMAGE, "Never", 0),
        ("always", IMAGE, "Always", 1),
        ("absent", "other", "IfNotPresent", 2),
    ] {
        kubelet.add(with_image(name, image, policy)).await;
        kubelet.until_phase(name, "Running", 5 * SECOND).await;
        assert_eq!(node.runtime.pulls().len(), pulls, "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_ready_to_start_containers_while_its_image_is_pulled() {
    let node = Node::new();
    node.runtime.add_pullable_image("other:latest");
    let pull = Fault::Delay(15 * SECOND);
    node.runtime.fault(Verb::PullImage, pull, Times::Once);
    let kubelet = node.start();
    let told = || {
        let conditions = kubelet.status("slow").conditions.unwrap_or_default();
        let mut conditions = conditions.into_iter();
        let ready = conditions.find(|it| it.type_ == "PodReadyToStartContainers");
        ready.map(|it| it.status)
    };
    kubelet.add(with_image("slow", "other", "Always")).await;
    until("the sandbox", 3 * SECOND, || {
        told().as_deref() == Some("True")
    })
    .await;
    assert!(node.runtime.pulls().is_empty());
    // Nor does a later report of the same sync take it back.
    for _ in 0..200 {
        tokio::time::sleep(SECOND / 10).await;
        assert_eq!(told().as_deref(), Some("True"));
    }
    assert_eq!(kubelet.phase("slow"), "Running");
}

#[tokio::test(start_paused = true)]
async fn images_that_cannot_be_pulled_are_shown_with_the_reason() {
    let node = Node::new();
    let kubelet = node.start();
    for (name, image, policy, reason) in [
        ("never", "absent:1", "Never", "ErrImageNeverPull"),
        ("invalid", "Not Valid", "IfNotPresent", "InvalidImageName"),
    ] {
        kubelet.add(with_image(name, image, policy)).await;
        until(reason, 5 * SECOND, || kubelet.waiting(name) == reason).await;
        assert_eq!(kubelet.phase(name), "Pending");
    }
    assert!(node.runtime.pulls().is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_that_were_refused_together_do_not_come_again_together() {
    let node = Node::new();
    node.runtime.add_pullable_image(IMAGE);
    let mut options = node.options();
    options.runtime.image.serialize_pulls = false;
    options.runtime.image.registry_qps = 3;
    options.runtime.image.registry_burst = 3;
    let kubelet = node.start_with(options);
    let names: Vec<String> = (0..30).map(|n| format!("pod-{n}")).collect();
    let pods = names.iter().map(|name| with_image(name, IMAGE, "Always"));
    kubelet.add_all(pods.collect()).await;
    // Without jitter, only three would succeed each time the back-off doubles.
    until("all run", 150 * SECOND, || {
        names.iter().all(|name| kubelet.phase(name) == "Running")
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn failed_pulls_back_off_and_recover() {
    let node = Node::new();
    node.runtime.add_pullable_image("other:1");
    let fault = Fault::Error(Status::unknown("registry is away"));
    node.runtime.fault(Verb::PullImage, fault, Times::Always);
    let kubelet = node.start();
    let begun = tokio::time::Instant::now();
    kubelet
        .add(with_image("web", "other:1", "IfNotPresent"))
        .await;
    until("the error", 3 * SECOND, || {
        kubelet.waiting("web") == "ErrImagePull"
    })
    .await;
    until("the back-off", 5 * SECOND, || {
        kubelet.waiting("web") == "ImagePullBackOff"
    })
    .await;
    let waiting = kubelet.container("web").state.unwrap().waiting.unwrap();
    assert_eq!(
        waiting.message.unwrap(),
        "Back-off pulling image \"other:1\": ErrImagePull: registry is away"
    );
    // The delays are 10, 20 and 40 seconds, each with up to half of jitter.
    until("the fourth pull", 110 * SECOND, || {
        node.runtime.calls(Verb::PullImage) == 4
    })
    .await;
    assert!(begun.elapsed() >= 70 * SECOND, "{:?}", begun.elapsed());
    node.runtime.clear_faults();
    // After 80 seconds more, plus up to half of jitter.
    kubelet.until_phase("web", "Running", 125 * SECOND).await;
    assert!(begun.elapsed() >= 150 * SECOND, "{:?}", begun.elapsed());
}

#[tokio::test(start_paused = true)]
async fn pulls_run_one_by_one_unless_told_otherwise() {
    for (serialize, limit, seconds) in [(true, None, 40), (false, Some(2), 20), (false, None, 10)] {
        let node = Node::new();
        let delay = Fault::Delay(10 * SECOND);
        node.runtime.fault(Verb::PullImage, delay, Times::Always);
        let mut options = node.options();
        options.runtime.image.serialize_pulls = serialize;
        options.runtime.image.max_parallel_pulls = limit;
        let kubelet = node.start_with(options);
        let begun = tokio::time::Instant::now();
        for index in 0..4 {
            let image = format!("image-{index}:1");
            node.runtime.add_pullable_image(&image);
            let name = format!("web-{index}");
            kubelet.add(with_image(&name, &image, "IfNotPresent")).await;
        }
        for index in 0..4 {
            let name = format!("web-{index}");
            kubelet.until_phase(&name, "Running", 60 * SECOND).await;
        }
        let took = begun.elapsed().as_secs();
        assert!(
            (seconds..seconds + 5).contains(&took),
            "{took} s for {seconds} s"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_image_that_runs_as_root_is_refused_where_it_must_not() {
    let node = Node::new();
    let id = node.runtime.add_image("root:1");
    node.runtime.set_image_user(&id, Some(0), "");
    let kubelet = node.start();
    let spec = json!({
        "securityContext": {"runAsNonRoot": true},
        "containers": [{"name": "c", "image": "root:1", "imagePullPolicy": "Never"}]
    });
    kubelet.add(pod("web", "u1", spec)).await;
    let reason = "CreateContainerConfigError";
    until(reason, 5 * SECOND, || kubelet.waiting("web") == reason).await;
}

/// Waits until the pod's container waits for `reason`; returns the message.
async fn until_waiting(kubelet: &Running, name: &str, reason: &str) -> String {
    let what = format!("{name} to wait for {reason}");
    until(&what, 5 * SECOND, || kubelet.waiting(name) == reason).await;
    let state = kubelet.container(name).state.unwrap();
    state.waiting.unwrap().message.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_failed_pull_says_why_in_the_runtimes_words() {
    for (status, reason, message) in [
        (
            Status::unknown("RegistryUnavailable: no route to host"),
            "RegistryUnavailable",
            "image pull failed for other:1 because the registry is unavailable: no route to host",
        ),
        (
            Status::unknown("SignatureValidationFailed: no key"),
            "SignatureValidationFailed",
            "image pull failed for other:1 because the signature validation failed: no key",
        ),
        (
            Status::not_found("no such tag"),
            "ErrImagePull",
            "rpc error: code = NotFound desc = no such tag",
        ),
    ] {
        let node = Node::new();
        let fault = Fault::Error(status);
        node.runtime.fault(Verb::PullImage, fault, Times::Always);
        let kubelet = node.start();
        kubelet
            .add(with_image("web", "other:1", "IfNotPresent"))
            .await;
        assert_eq!(until_waiting(&kubelet, "web", reason).await, message);
        let back_off = until_waiting(&kubelet, "web", "ImagePullBackOff").await;
        assert_eq!(
            back_off,
            format!("Back-off pulling image \"other:1\": {reason}: {message}")
        );
    }
}

#[tokio::test(start_paused = true)]
async fn too_many_pulls_at_once_fail_and_are_made_later() {
    let node = Node::new();
    let mut options = node.options();
    options.runtime.image.serialize_pulls = false;
    options.runtime.image.registry_qps = 1;
    options.runtime.image.registry_burst = 2;
    let kubelet = node.start_with(options);
    let names: Vec<String> = (0..5).map(|index| format!("web-{index}")).collect();
    let pods = names.iter().map(|name| {
        let image = format!("image-{name}:1");
        node.runtime.add_pullable_image(&image);
        with_image(name, &image, "IfNotPresent")
    });
    kubelet.add_all(pods.collect()).await;
    until("pulls over the limit", 3 * SECOND, || {
        let over = names.iter().filter(|name| {
            let state = kubelet.container(name).state.unwrap_or_default();
            state.waiting.is_some_and(|waiting| {
                waiting.reason.as_deref() == Some("ErrImagePull")
                    && waiting.message.as_deref() == Some("pull QPS exceeded")
            })
        });
        over.count() >= 2
    })
    .await;
    for name in &names {
        kubelet.until_phase(name, "Running", 120 * SECOND).await;
    }
    assert_eq!(node.runtime.pulls().len(), 5);
}

fn docker_config(registry: &str, user: &str) -> Value {
    json!({"auths": {registry: {"username": user, "password": "p"}}})
}

fn put_pull_secret(objects: &MemoryObjects, name: &str, registry: &str, user: &str) {
    let data = ByteString(docker_config(registry, user).to_string().into_bytes());
    objects.put(
        "secret",
        json!({
            "metadata": {"namespace": "default", "name": name},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": data}
        }),
    );
}

fn with_secrets(name: &str, policy: &str, secrets: &[&str]) -> Pod {
    let secrets: Vec<Value> = secrets.iter().map(|name| json!({"name": name})).collect();
    let container = json!({"name": "c", "image": PRIVATE, "imagePullPolicy": policy});
    let spec = json!({"imagePullSecrets": secrets, "containers": [container]});
    pod(name, name, spec)
}

/// The user names of all pull attempts.
fn users(node: &Node) -> Vec<String> {
    let pulls = node.runtime.pulls().into_iter();
    pulls
        .map(|pull| pull.auth.map_or_else(String::new, |auth| auth.username))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn credentials_are_tried_from_the_most_particular_on() {
    let mut node = Node::new();
    node.runtime.add_private_image(PRIVATE, "node-all");
    let objects = MemoryObjects::default();
    put_pull_secret(&objects, "wide", "*.example", "pod-wide");
    put_pull_secret(&objects, "narrow", "reg.example/team", "pod-narrow");
    put_pull_secret(&objects, "other", "other.example", "pod-other");
    node.objects = Arc::new(objects);
    let root_dir = node.options().node.root_dir;
    fs::create_dir_all(&root_dir).unwrap();
    let config = docker_config("https://reg.example/v1/", "node-all");
    fs::write(root_dir.join("config.json"), config.to_string()).unwrap();
    let kubelet = node.start();
    let secrets = ["", "absent", "wide", "narrow", "other"];
    kubelet.add(with_secrets("web", "Always", &secrets)).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    assert_eq!(users(&node), ["pod-narrow", "pod-wide", "node-all"]);
    // The node's password changes.
    node.runtime.add_private_image(PRIVATE, "new");
    let config = docker_config("reg.example", "new");
    fs::write(root_dir.join("config.json"), config.to_string()).unwrap();
    kubelet.add(with_secrets("next", "Always", &[])).await;
    kubelet.until_phase("next", "Running", 5 * SECOND).await;
    assert_eq!(users(&node)[3..], ["new"]);
}

#[tokio::test(start_paused = true)]
async fn a_private_image_on_the_node_is_for_its_owners() {
    let mut node = Node::new();
    node.runtime.add_private_image(PRIVATE, "owner");
    let objects = MemoryObjects::default();
    put_pull_secret(&objects, "key", "reg.example", "owner");
    put_pull_secret(&objects, "copy", "reg.example", "owner");
    put_pull_secret(&objects, "wrong", "reg.example", "other");
    node.objects = Arc::new(objects);
    let kubelet = node.start();
    kubelet
        .add(with_secrets("first", "IfNotPresent", &["key"]))
        .await;
    kubelet.until_phase("first", "Running", 5 * SECOND).await;
    kubelet.stop().await;

    // The records of pulls and their credentials survive a kubelet restart.
    let kubelet = node.start();
    for (name, policy, secrets) in [
        ("same", "IfNotPresent", &["key"][..]),
        ("never", "Never", &["key"]),
        ("copied", "IfNotPresent", &["copy"]),
    ] {
        kubelet.add(with_secrets(name, policy, secrets)).await;
        kubelet.until_phase(name, "Running", 5 * SECOND).await;
    }
    assert_eq!(node.runtime.pulls().len(), 1);
    for (name, policy, secrets, reason) in [
        ("without", "IfNotPresent", &[][..], "ErrImagePull"),
        ("wrong", "IfNotPresent", &["wrong"], "ErrImagePull"),
        ("never-wrong", "Never", &["wrong"], "ErrImageNeverPull"),
    ] {
        kubelet.add(with_secrets(name, policy, secrets)).await;
        until_waiting(&kubelet, name, reason).await;
    }
    let page = metrics(&kubelet);
    let requests = "kubelet_image_manager_ensure_image_requests_total";
    for line in [
        &format!(
            "{requests}{{pull_policy=\"ifnotpresent\",present_locally=\"true\",pull_required=\"false\"}} 2\n"
        ),
        &format!(
            "{requests}{{pull_policy=\"never\",present_locally=\"true\",pull_required=\"false\"}} 1\n"
        ),
        &format!(
            "{requests}{{pull_policy=\"never\",present_locally=\"true\",pull_required=\"true\"}} "
        ),
        "kubelet_imagemanager_image_mustpull_checks_total{result=\"credentialRecordFound\"} 3\n",
        "kubelet_imagemanager_image_mustpull_checks_total{result=\"mustAuthenticate\"} ",
    ] {
        assert!(page.contains(line), "{line} is not in {page}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pull_that_ended_with_its_pod_is_not_held_against_the_image() {
    let node = Node::new();
    node.runtime
        .fault(Verb::PullImage, Fault::Hang, Times::Always);
    let kubelet = node.start();
    let hanging = with_image("web", "other:1", "IfNotPresent");
    kubelet.add(hanging.clone()).await;
    until("the pull", 5 * SECOND, || {
        node.runtime.calls(Verb::PullImage) == 1
    })
    .await;
    let pulling = node.options().node.root_dir.join("image_manager/pulling");
    assert_eq!(fs::read_dir(&pulling).unwrap().count(), 1);
    kubelet.remove(hanging).await;
    until("the pull's end", 60 * SECOND, || {
        fs::read_dir(&pulling).unwrap().count() == 0
    })
    .await;
    // Something other than the kubelet puts the image on the node.
    node.runtime.add_image("other:1");
    kubelet
        .add(with_image("next", "other:1", "IfNotPresent"))
        .await;
    kubelet.until_phase("next", "Running", 5 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn what_an_aborted_pull_with_a_secret_brought_is_for_its_owners() {
    let mut node = Node::new();
    node.runtime.add_private_image(PRIVATE, "owner");
    let objects = MemoryObjects::default();
    put_pull_secret(&objects, "key", "reg.example", "owner");
    node.objects = Arc::new(objects);
    node.runtime
        .fault(Verb::PullImage, Fault::Hang, Times::Once);
    let kubelet = node.start();
    let hanging = with_secrets("first", "IfNotPresent", &["key"]);
    kubelet.add(hanging.clone()).await;
    until("the pull", 5 * SECOND, || {
        node.runtime.calls(Verb::PullImage) == 1
    })
    .await;
    kubelet.remove(hanging).await;
    until("the pod's end", 60 * SECOND, || {
        node.ready_sandboxes().is_empty()
    })
    .await;
    // The runtime completed the pull anyway.
    node.runtime.add_image(PRIVATE);
    for (name, policy, reason) in [
        ("without", "IfNotPresent", "ErrImagePull"),
        ("never", "Never", "ErrImageNeverPull"),
    ] {
        kubelet.add(with_secrets(name, policy, &[])).await;
        until_waiting(&kubelet, name, reason).await;
    }
    kubelet
        .add(with_secrets("owner", "IfNotPresent", &["key"]))
        .await;
    kubelet.until_phase("owner", "Running", 5 * SECOND).await;
    kubelet.add(with_secrets("late", "Never", &[])).await;
    until_waiting(&kubelet, "late", "ErrImageNeverPull").await;
}

// Real time, because paused time does not wait for the plugin's process.
#[tokio::test]
async fn plugins_are_asked_for_credentials() {
    let node = Node::new();
    node.runtime.add_private_image(PRIVATE, "plugin");
    let program = node.dir.path().join("plugin");
    symlink("/bin/sh", &program).unwrap();
    let answer = json!({
        "kind": "CredentialProviderResponse",
        "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Image",
        "auth": {"reg.example/team": {"username": "plugin", "password": "p"}}
    });
    let mut options = node.options();
    options.runtime.image.credential_providers = vec![CredentialProvider {
        name: "plugin".to_owned(),
        program,
        match_images: vec!["*.example".to_owned()],
        default_cache_duration: Duration::ZERO,
        api_version: "credentialprovider.kubelet.k8s.io/v1".to_owned(),
        args: vec!["-c".to_owned(), r#"echo "$ANSWER""#.to_owned()],
        env: vec![("ANSWER".to_owned(), answer.to_string())],
        token_attributes: None,
    }];
    let kubelet = node.start_with(options);
    kubelet
        .add(with_image("web", PRIVATE, "IfNotPresent"))
        .await;
    kubelet.until_phase("web", "Running", 30 * SECOND).await;
    assert_eq!(users(&node), ["plugin"]);
}
