//! Security contexts of containers, and rejected pods.

use cri_proto::runtime::v1::{
    LinuxContainerSecurityContext, NamespaceMode, security_profile::ProfileType,
};
use kubelet::kubelet::options::KubeletOptions;
use serde_json::{Value, json};

use crate::node::{IMAGE, Node, Running, SECOND, pod, until};

fn spec(pod: Value, container: Value) -> Value {
    json!({
        "securityContext": pod,
        "containers": [{
            "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent",
            "securityContext": container
        }]
    })
}

fn context(node: &Node) -> LinuxContainerSecurityContext {
    let linux = node.runtime.running("c")[0].config.linux.clone();
    linux.unwrap().security_context.unwrap()
}

fn message(kubelet: &Running, name: &str) -> String {
    let state = kubelet.container(name).state.unwrap_or_default();
    let waiting = state.waiting.unwrap_or_default();
    waiting.message.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn a_container_that_would_run_as_root_waits_for_another_image() {
    let node = Node::new();
    let kubelet = node.start();
    let image = node.runtime.add_image(IMAGE);
    node.runtime.set_image_user(&image, None, "www");
    let spec = spec(json!({"runAsNonRoot": true}), json!({}));
    kubelet.add(pod("web", "u1", spec)).await;
    until("the message", 5 * SECOND, || {
        message(&kubelet, "web")
            == "container has runAsNonRoot and image has non-numeric user (www), cannot verify \
                user is non-root (pod: \"web_default(u1)\", container: c)"
    })
    .await;
    assert_eq!(kubelet.waiting("web"), "CreateContainerConfigError");
    node.runtime.set_image_user(&image, Some(0), "");
    until("the other message", 120 * SECOND, || {
        message(&kubelet, "web")
            .starts_with("container has runAsNonRoot and image will run as root")
    })
    .await;
    node.runtime.set_image_user(&image, Some(33), "");
    kubelet.until_phase("web", "Running", 120 * SECOND).await;
    assert_eq!(context(&node).run_as_user.map(|uid| uid.value), Some(33));
}

#[tokio::test(start_paused = true)]
async fn the_seccomp_default_is_the_configurations() {
    for (seccomp_default, expected) in [
        (false, ProfileType::Unconfined),
        (true, ProfileType::RuntimeDefault),
    ] {
        let node = Node::new();
        let mut options = node.options();
        options.runtime.seccomp_default = seccomp_default;
        let kubelet = node.start_with(options);
        kubelet.add(pod("web", "u1", json!({}))).await;
        kubelet.until_phase("web", "Running", 5 * SECOND).await;
        let profile = context(&node).seccomp.unwrap();
        assert_eq!(profile.profile_type(), expected);
    }
}

#[tokio::test(start_paused = true)]
async fn sysctls_are_admitted_or_the_pod_is_rejected() {
    let node = Node::new();
    let kubelet = node.start_with(KubeletOptions {
        allowed_unsafe_sysctls: vec!["kernel.msg*".to_owned()],
        ..node.options()
    });
    let sysctls = |names: &[&str]| {
        let sysctls: Vec<Value> = names
            .iter()
            .map(|name| json!({"name": name, "value": "1"}))
            .collect();
        spec(json!({ "sysctls": sysctls }), json!({}))
    };
    let good = sysctls(&["net/ipv4/tcp_syncookies", "kernel.msgmax"]);
    kubelet.add(pod("good", "u1", good)).await;
    kubelet.until_phase("good", "Running", 5 * SECOND).await;
    let config = node.runtime.sandboxes()[0].config.clone();
    let set = config.linux.unwrap().sysctls;
    let names: Vec<&str> = set.keys().map(String::as_str).collect();
    assert_eq!(names, ["kernel.msgmax", "net.ipv4.tcp_syncookies"]);

    kubelet
        .add(pod("bad", "u2", sysctls(&["vm.swappiness"])))
        .await;
    kubelet.until_phase("bad", "Failed", 5 * SECOND).await;
    let status = kubelet.status("bad");
    assert_eq!(status.reason.as_deref(), Some("SysctlForbidden"));
    let message = status.message.unwrap_or_default();
    assert!(
        message.contains("forbidden sysctl: \"vm.swappiness\" not allowlisted"),
        "{message}"
    );
    let mut shared = sysctls(&["kernel.msgmax"]);
    shared["hostIPC"] = true.into();
    kubelet.add(pod("shared", "u3", shared)).await;
    kubelet.until_phase("shared", "Failed", 5 * SECOND).await;
    assert_eq!(node.runtime.sandboxes().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn groups_are_strict_where_the_runtime_has_policies() {
    let node = Node::new();
    let strict = || spec(json!({"supplementalGroupsPolicy": "Strict"}), json!({}));
    let kubelet = node.start();
    kubelet.add(pod("a", "u1", strict())).await;
    kubelet.until_phase("a", "Failed", 5 * SECOND).await;
    let status = kubelet.status("a");
    assert_eq!(
        status.reason.as_deref(),
        Some("SupplementalGroupsPolicyNotSupported")
    );
    assert_eq!(
        status.message.as_deref(),
        Some("Pod was rejected: SupplementalGroupsPolicy=Strict is not supported in this node")
    );
    kubelet.stop().await;

    node.runtime.set_group_policies(true);
    let kubelet = node.start();
    kubelet.add(pod("b", "u2", strict())).await;
    kubelet.until_phase("b", "Running", 5 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn pods_have_user_namespaces_where_the_runtime_has() {
    let node = Node::new();
    let kubelet = node.start();
    let isolated = || json!({"hostUsers": false});
    kubelet.add(pod("a", "u1", isolated())).await;
    until("the message", 5 * SECOND, || {
        message(&kubelet, "a")
            == "can't set `spec.hostUsers: false`, runtime does not support user namespaces"
    })
    .await;
    node.runtime.set_user_namespaces(true);
    kubelet.until_phase("a", "Running", 120 * SECOND).await;
    kubelet.add(pod("b", "u2", isolated())).await;
    kubelet.until_phase("b", "Running", 5 * SECOND).await;
    kubelet.add(pod("c", "u3", json!({}))).await;
    kubelet.until_phase("c", "Running", 5 * SECOND).await;

    let namespaces: Vec<_> = node
        .runtime
        .sandboxes()
        .into_iter()
        .map(|sandbox| {
            let context = sandbox.config.linux.unwrap().security_context.unwrap();
            context.namespace_options.unwrap().userns_options.unwrap()
        })
        .collect();
    let [a, b, c] = &*namespaces else {
        panic!("{namespaces:?}");
    };
    assert_eq!(
        (a.mode(), b.mode()),
        (NamespaceMode::Pod, NamespaceMode::Pod)
    );
    assert_eq!((a.uids[0].container_id, a.uids[0].length), (0, 65_536));
    assert_eq!(a.uids, a.gids);
    assert_ne!(a.uids, b.uids);
    assert_eq!(c.mode(), NamespaceMode::Node);

    // The container and its mounts use the pod's user namespace; restarts of the kubelet and of the
    // container do not change it.
    kubelet.stop().await;
    let kubelet = node.start();
    let pods = [("a", "u1"), ("b", "u2")];
    kubelet
        .add_all(pods.map(|(name, uid)| pod(name, uid, isolated())).to_vec())
        .await;
    node.runtime.exit_container("c", 0);
    until("two restarts", 60 * SECOND, || {
        let running = node.runtime.running("c");
        running.iter().filter(|c| c.attempt() == 1).count() == 2
    })
    .await;
    for container in node.runtime.running("c") {
        let linux = container.config.linux.unwrap();
        let options = linux.security_context.unwrap().namespace_options.unwrap();
        let ids = options.userns_options.unwrap().uids;
        assert!([&a.uids, &b.uids].contains(&&ids), "{ids:?}");
        assert!(
            container
                .config
                .mounts
                .iter()
                .all(|m| m.uid_mappings == ids)
        );
    }
}
