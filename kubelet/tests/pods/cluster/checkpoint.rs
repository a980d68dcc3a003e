//! Starts without the API server, from an earlier kubelet's checkpoint.

use std::{
    fs,
    ops::{Deref, DerefMut},
    path::PathBuf,
};

use fake_runtime::{Behaviour, FakeRuntime};
use kubelet::kubelet::options::KubeletOptions;
use kubelet_checkpoint::CheckpointOptions;
use kubelet_host::mount_info;
use serde_json::{Value, json};

use super::{Joined, MINUTE, Member};
use crate::node::{IMAGE, SECOND, until};

/// A node whose mounts are removed when the test ends, even after a panic.
struct Edge(Joined);

impl Deref for Edge {
    type Target = Joined;

    fn deref(&self) -> &Joined {
        &self.0
    }
}

impl DerefMut for Edge {
    fn deref_mut(&mut self) -> &mut Joined {
        &mut self.0
    }
}

impl Drop for Edge {
    fn drop(&mut self) {
        unmount_all(self);
    }
}

fn unmount_all(joined: &Joined) {
    for mount in mount_info::within(joined.node.dir.path()).unwrap() {
        let flags = rustix::mount::UnmountFlags::DETACH;
        let _ = rustix::mount::unmount(mount.mount_point, flags);
    }
}

/// A node whose kubelets write a checkpoint.
fn joined() -> Edge {
    let mut joined = Joined::new();
    joined.checkpoint = Some(CheckpointOptions {
        dir: joined.node.dir.path().join("checkpoint"),
        key_file: None,
    });
    Edge(joined)
}

/// Like [`joined`], with a key, so that secrets are kept too.
fn joined_with_key() -> Edge {
    let mut joined = joined();
    let key = joined.node.dir.path().join("key");
    fs::write(&key, [7; 32]).unwrap();
    joined.checkpoint.as_mut().unwrap().key_file = Some(key);
    joined
}

/// A reboot: the runtime's state and the pods' directories are lost.
fn reboot(joined: &mut Joined) {
    joined.node.runtime = FakeRuntime::new();
    joined.node.runtime.add_image(IMAGE);
    unmount_all(joined);
    let pods = joined.node.dir.path().join("kubelet/pods");
    if pods.exists() {
        fs::remove_dir_all(pods).unwrap();
    }
}

fn set_away(joined: &Joined) {
    joined.api.set_away(true);
    joined.objects.set_away(Some("connection refused"));
}

fn set_back(joined: &Joined, member: &mut Member) {
    joined.api.set_away(false);
    joined.objects.set_away(None);
    member.register.take().unwrap().send(()).unwrap();
}

/// Starts a kubelet that cannot reach the API server.
async fn start_alone(joined: &Joined) -> Member {
    set_away(joined);
    joined.unregistered(joined.node.options()).await
}

fn runs(joined: &Joined, uid: &str) -> bool {
    let sandboxes = joined.node.ready_sandboxes();
    let containers = joined.node.runtime.running("c").into_iter();
    let runtime = &joined.node.runtime;
    let all = runtime.sandboxes();
    let own = all.iter().filter(|sandbox| sandbox.pod_uid() == uid);
    let own: Vec<&str> = own.map(|sandbox| sandbox.id.as_str()).collect();
    let mut own_containers = containers.filter(|c| own.contains(&c.sandbox_id.as_str()));
    sandboxes.iter().any(|id| own.contains(&id.as_str())) && own_containers.next().is_some()
}

async fn until_runs(joined: &Joined, uid: &str) {
    until(&format!("{uid} to run"), 5 * MINUTE, || runs(joined, uid)).await;
}

fn kept(joined: &Joined, path: &str) -> PathBuf {
    joined.node.dir.path().join("checkpoint").join(path)
}

fn file_in_volume(joined: &Joined, uid: &str, plugin: &str, path: &str) -> String {
    let pods = joined.node.dir.path().join("kubelet/pods");
    let volumes = pods.join(uid).join("volumes");
    let file = volumes.join(format!("kubernetes.io~{plugin}")).join(path);
    fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()))
}

fn with_volume(mut volume: Value) -> Value {
    volume["name"] = json!("v");
    json!({
        "volumes": [volume],
        "containers": [{
            "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "volumeMounts": [{"name": "v", "mountPath": "/v"}]
        }]
    })
}

fn with_config_map(name: &str) -> Value {
    let mut spec = with_volume(json!({"configMap": {"name": name}}));
    let from = json!({"configMapKeyRef": {"name": "settings", "key": "mode"}});
    spec["containers"][0]["env"] = json!([{"name": "MODE", "valueFrom": from}]);
    spec
}

#[tokio::test(start_paused = true)]
async fn pods_start_without_the_api_server_with_their_config_maps() {
    let mut joined = joined();
    for name in ["settings", "files"] {
        joined
            .objects
            .put_data("configmap", "default", name, json!({"mode": name}));
    }
    let api_server = json!({
        "metadata": {"name": "kubernetes", "namespace": "default"},
        "spec": {"clusterIP": "10.96.0.1", "ports": [{"port": 443}]}
    });
    joined.objects.put("service", api_server);
    let member = joined.start().await;
    joined.run("web", with_config_map("files")).await;
    member.stop().await;

    reboot(&mut joined);
    let mut member = start_alone(&joined).await;
    // The kubelet waits ten seconds for the API server's list of pods.
    tokio::time::sleep(9 * SECOND).await;
    assert_eq!(joined.node.runtime.sandboxes().len(), 0);
    until("it to run", 10 * SECOND, || runs(&joined, "web")).await;
    assert_eq!(
        file_in_volume(&joined, "web", "configmap", "v/mode"),
        "files"
    );
    let running = joined.node.runtime.running("c");
    let value = |key: &str| {
        let mut envs = running[0].config.envs.iter();
        let env = envs.find(|env| env.key == key).unwrap();
        String::from_utf8(env.value.clone()).unwrap()
    };
    assert_eq!(value("MODE"), "settings");
    assert_eq!(value("KUBERNETES_SERVICE_HOST"), "10.96.0.1");

    // The API server has the same pod, so only its status is sent.
    set_back(&joined, &mut member);
    until("the pod to be ready", 2 * MINUTE, || {
        joined.api.condition("web", "Ready") == "True"
    })
    .await;
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(joined.node.runtime.creations("web", "c"), 1);
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_the_api_server_says_wins() {
    let mut joined = joined();
    let data = json!({"mode": "old"});
    joined
        .objects
        .put_data("configmap", "default", "settings", data);
    let member = joined.start().await;
    for name in ["gone", "changed", "same"] {
        joined.run(name, with_config_map("settings")).await;
    }
    member.stop().await;
    assert!(kept(&joined, "configmaps/default/settings").exists());

    reboot(&mut joined);
    joined.node.runtime.add_image("busybox:2");
    let mut member = start_alone(&joined).await;
    for uid in ["gone", "changed", "same"] {
        until_runs(&joined, uid).await;
    }
    // Pods keep running while the API server is unreachable.
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(joined.node.runtime.running("c").len(), 3);

    joined.api.delete("gone", 0);
    joined.api.edit("changed", |pod| {
        pod["spec"]["containers"][0]["image"] = json!("busybox:2");
    });
    set_back(&joined, &mut member);
    until("the end of what is gone", 2 * MINUTE, || {
        !runs(&joined, "gone")
    })
    .await;
    until("the other image", 2 * MINUTE, || {
        joined.node.runtime.creations("changed", "c") == 2 && runs(&joined, "changed")
    })
    .await;
    assert!(runs(&joined, "same"));
    assert_eq!(joined.node.runtime.creations("same", "c"), 1);
    until("its file to go", MINUTE, || {
        !kept(&joined, "pods/default/gone").exists()
    })
    .await;
    assert!(kept(&joined, "pods/default/same").exists());

    // Objects that no pod references are not kept.
    joined.api.delete("changed", 0);
    joined.api.delete("same", 0);
    until("the config map to go", 2 * MINUTE, || {
        !kept(&joined, "configmaps/default/settings").exists()
    })
    .await;
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_deleted_while_the_node_was_down_does_not_start_if_the_server_answers() {
    let mut joined = joined();
    let member = joined.start().await;
    joined.run("web", json!({})).await;
    member.stop().await;
    joined.api.delete("web", 0);
    reboot(&mut joined);
    let member = joined.start().await;
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(joined.node.runtime.creations("web", "c"), 0);
    assert!(!kept(&joined, "pods/default/web").exists());
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_file_costs_its_pod_alone() {
    let mut joined = joined();
    let member = joined.start().await;
    joined.run("bad", json!({})).await;
    joined.run("good", json!({})).await;
    member.stop().await;
    let file = kept(&joined, "pods/default/bad");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&file, bytes).unwrap();

    reboot(&mut joined);
    let mut member = start_alone(&joined).await;
    until_runs(&joined, "good").await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(joined.node.runtime.creations("bad", "c"), 0);
    set_back(&joined, &mut member);
    until_runs(&joined, "bad").await;
    member.stop().await;

    // The file has been written again.
    reboot(&mut joined);
    let member = start_alone(&joined).await;
    until_runs(&joined, "bad").await;
    member.stop().await;
}

/// The volume that the API server's admission adds to every pod.
fn with_token() -> Value {
    with_volume(json!({"projected": {"sources": [
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [
            {"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}
        ]}}
    ]}}))
}

#[tokio::test(start_paused = true)]
async fn secrets_and_tokens_are_kept_with_a_key() {
    let mut joined = joined_with_key();
    let ca = json!({"ca.crt": "CA"});
    joined
        .objects
        .put_data("configmap", "default", "kube-root-ca.crt", ca);
    let secret = json!({"password": "c2VjcmV0"});
    joined
        .objects
        .put_data("secret", "default", "login", secret);
    let member = joined.start().await;
    joined.run("web", with_token()).await;
    let secret = with_volume(json!({"secret": {"secretName": "login"}}));
    joined.run("db", secret).await;
    member.stop().await;
    let file = fs::read(kept(&joined, "secrets/default/login")).unwrap();
    assert!(!file.windows(8).any(|part| part == b"c2VjcmV0"));

    reboot(&mut joined);
    let member = start_alone(&joined).await;
    until_runs(&joined, "web").await;
    until_runs(&joined, "db").await;
    let projected = |path: &str| file_in_volume(&joined, "web", "projected", path);
    assert_eq!(projected("v/token"), "default:default:");
    assert_eq!(projected("v/ca.crt"), "CA");
    assert_eq!(projected("v/namespace"), "default");
    let password = file_in_volume(&joined, "db", "secret", "v/password");
    assert_eq!(password, "secret");
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn without_a_key_pods_with_tokens_wait_for_the_api_server() {
    let mut joined = joined();
    let ca = json!({"ca.crt": "CA"});
    joined
        .objects
        .put_data("configmap", "default", "kube-root-ca.crt", ca);
    let member = joined.start().await;
    joined.run("web", with_token()).await;
    joined.run("plain", json!({})).await;
    member.stop().await;
    assert!(!kept(&joined, "tokens").exists());

    reboot(&mut joined);
    let mut member = start_alone(&joined).await;
    until_runs(&joined, "plain").await;
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(joined.node.runtime.creations("web", "c"), 0);
    set_back(&joined, &mut member);
    until_runs(&joined, "web").await;
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_ended_is_not_started_again() {
    let mut joined = joined();
    let member = joined.start().await;
    joined.run("job", json!({"restartPolicy": "Never"})).await;
    set_away(&joined);
    joined.node.runtime.exit_container("c", 0);
    tokio::time::sleep(MINUTE).await;
    member.stop().await;
    assert_eq!(joined.api.phase("job"), "Running");

    reboot(&mut joined);
    let mut member = start_alone(&joined).await;
    tokio::time::sleep(5 * MINUTE).await;
    set_back(&joined, &mut member);
    joined.until_phase("job", "Succeeded", 2 * MINUTE).await;
    assert_eq!(joined.node.runtime.creations("job", "c"), 0);
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn an_end_is_sent_though_the_server_takes_statuses_before_it_tells_pods() {
    let mut joined = joined();
    let member = joined.start().await;
    joined.run("job", json!({"restartPolicy": "Never"})).await;
    set_away(&joined);
    joined.node.runtime.exit_container("c", 0);
    tokio::time::sleep(MINUTE).await;
    member.stop().await;

    reboot(&mut joined);
    let mut member = start_alone(&joined).await;
    tokio::time::sleep(5 * MINUTE).await;
    joined.api.set_away(false);
    tokio::time::sleep(5 * MINUTE).await;
    set_back(&joined, &mut member);
    joined.until_phase("job", "Succeeded", 2 * MINUTE).await;
    assert_eq!(joined.node.runtime.creations("job", "c"), 0);
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_ended_is_not_started_again_by_a_server_that_does_not_know() {
    let mut joined = joined();
    let member = joined.start().await;
    joined.run("job", json!({"restartPolicy": "Never"})).await;
    joined.run("web", json!({})).await;
    set_away(&joined);
    let running = joined.node.runtime.running("c");
    let sandboxes = joined.node.runtime.sandboxes();
    let job = sandboxes.iter().find(|s| s.pod_uid() == "job").unwrap();
    let container = running.iter().find(|c| c.sandbox_id == job.id).unwrap();
    joined.node.runtime.exit_container(&container.id, 0);
    tokio::time::sleep(MINUTE).await;
    member.stop().await;
    joined.api.set_away(false);
    joined.objects.set_away(None);
    assert_eq!(joined.api.phase("job"), "Running");

    reboot(&mut joined);
    let member = joined.start().await;
    joined.until_phase("job", "Succeeded", 2 * MINUTE).await;
    until_runs(&joined, "web").await;
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(joined.node.runtime.creations("job", "c"), 0);
    assert_eq!(joined.api.phase("job"), "Succeeded");
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_would_be_rejected_waits_for_the_api_server() {
    let mut joined = joined();
    let tuned = json!({"securityContext": {
        "sysctls": [{"name": "kernel.msgmax", "value": "1"}]
    }});
    let options = KubeletOptions {
        allowed_unsafe_sysctls: vec!["kernel.msg*".to_owned()],
        ..joined.node.options()
    };
    let member = joined.start_with(options).await;
    joined.run("tuned", tuned).await;
    joined.run("plain", json!({})).await;
    member.stop().await;

    reboot(&mut joined);
    let mut member = start_alone(&joined).await;
    until_runs(&joined, "plain").await;
    tokio::time::sleep(MINUTE).await;
    assert_eq!(joined.node.runtime.creations("tuned", "c"), 0);
    assert_eq!(joined.api.phase("tuned"), "Running");
    member.stop().await;
    // The rejection was not final, so it is not kept.
    let options = KubeletOptions {
        allowed_unsafe_sysctls: vec!["kernel.msg*".to_owned()],
        ..joined.node.options()
    };
    member = joined.unregistered(options).await;
    until_runs(&joined, "tuned").await;
    member.stop().await;

    // With the API server, the pod is rejected.
    reboot(&mut joined);
    member = start_alone(&joined).await;
    until_runs(&joined, "plain").await;
    set_back(&joined, &mut member);
    joined.until_phase("tuned", "Failed", 2 * MINUTE).await;
    let status = joined.api.pod("tuned").unwrap().status.unwrap();
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    assert!(runs(&joined, "plain"));
    member.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_was_being_deleted_is_ended() {
    let mut joined = joined();
    let member = joined.start().await;
    let slow = Behaviour {
        stops_after: Some(20 * SECOND),
        ..Behaviour::default()
    };
    joined.node.runtime.behave("c", slow);
    joined.run("web", json!({})).await;
    joined.api.delete("web", 30);
    tokio::time::sleep(2 * SECOND).await;
    member.stop().await;

    reboot(&mut joined);
    let mut member = start_alone(&joined).await;
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(joined.node.runtime.creations("web", "c"), 0);
    set_back(&joined, &mut member);
    until("its end", 2 * MINUTE, || joined.api.pod("web").is_none()).await;
    assert_eq!(joined.node.runtime.creations("web", "c"), 0);
    member.stop().await;
}
