//! Environment variables from the pod, the node and objects of the API server.

use std::{collections::BTreeMap, sync::Arc};

use fake_runtime::FakeRuntime;
use kubelet::config::reservation::reservation;
use kubelet_api_client::objects::{ApiObjects, ApiObjectsParts, ChangeDetection};
use kubelet_host::machine::Machine;
use serde_json::{Value, json};
use test_api_server::by_path::ByPath;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    node::{IMAGE, Node, Running, SECOND, pod, until},
    objects::MemoryObjects,
};

fn spec(container: Value) -> Value {
    let mut c = json!({"name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent"});
    for (key, value) in container.as_object().unwrap() {
        c[key] = value.clone();
    }
    json!({ "containers": [c] })
}

/// The variables of the running container.
fn environment(runtime: &FakeRuntime) -> BTreeMap<String, String> {
    let running = runtime.running("c");
    let envs = running[0].config.envs.iter();
    envs.map(|env| {
        let value = String::from_utf8(env.value.clone()).unwrap();
        (env.key.clone(), value)
    })
    .collect()
}

fn message(kubelet: &Running, name: &str) -> String {
    let state = kubelet.container(name).state.unwrap_or_default();
    let waiting = state.waiting.unwrap_or_default();
    waiting.message.unwrap_or_default()
}

#[tokio::test(start_paused = true)]
async fn without_a_limit_a_variable_has_what_pods_can_use() {
    let node = Node::new();
    let cpus = Machine::read().cpus;
    let config = json!({"systemReserved": {"cpu": format!("{}m", cpus * 1000 - 500)}});
    let mut options = node.options();
    options.capacity.reservation = reservation(&serde_json::from_value(config).unwrap());
    let kubelet = node.start_with(options);
    let from = json!({"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}});
    let spec = spec(json!({"env": [{"name": "CPU", "valueFrom": from}]}));
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 120 * SECOND).await;
    assert_eq!(environment(&node.runtime)["CPU"], "500");
}

#[tokio::test(start_paused = true)]
async fn a_pod_waits_for_its_config_map() {
    let objects = Arc::new(MemoryObjects::default());
    let node = Node::with_objects(Arc::clone(&objects) as _);
    let kubelet = node.start();
    let from = json!({"configMapKeyRef": {"name": "settings", "key": "mode"}});
    let spec = spec(json!({"env": [{"name": "MODE", "valueFrom": from}]}));
    kubelet.add(pod("web", "u1", spec)).await;
    until("the reason", 5 * SECOND, || {
        kubelet.waiting("web") == "CreateContainerConfigError"
    })
    .await;
    assert_eq!(message(&kubelet, "web"), "configmap \"settings\" not found");
    assert_eq!(kubelet.phase("web"), "Pending");

    objects.put_data("configmap", "default", "settings", json!({"other": "1"}));
    until("the other message", 120 * SECOND, || {
        message(&kubelet, "web") == "couldn't find key mode in ConfigMap default/settings"
    })
    .await;

    objects.put_data("configmap", "default", "settings", json!({"mode": "fast"}));
    kubelet.until_phase("web", "Running", 120 * SECOND).await;
    assert_eq!(environment(&node.runtime)["MODE"], "fast");

    // A running container keeps its variables.
    objects.remove("configmap", "default", "settings");
    tokio::time::sleep(120 * SECOND).await;
    assert_eq!(kubelet.phase("web"), "Running");
    assert_eq!(kubelet.container("web").restart_count, 0);
}

#[tokio::test(start_paused = true)]
async fn a_pod_made_again_has_the_immutable_config_map_that_was_made_again() {
    const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";
    let server = ByPath::new();
    let config_map = |mode: &str| {
        let metadata = json!({"namespace": "default", "name": "settings"});
        json!({"metadata": metadata, "immutable": true, "data": {"mode": mode}})
    };
    let objects = ApiObjects::new(ApiObjectsParts {
        client: server.client(),
        node: watch::Sender::new(None).subscribe(),
        change_detection: ChangeDetection::Watch,
        sync_frequency: 60 * SECOND,
        tasks: TaskTracker::new(),
        cancel: CancellationToken::new(),
    });
    let node = Node::with_objects(Arc::new(objects));
    let kubelet = node.start();
    let from = json!({"configMapKeyRef": {"name": "settings", "key": "mode"}});
    let spec = spec(json!({"env": [{"name": "MODE", "valueFrom": from}]}));
    for (uid, mode) in [("u1", "slow"), ("u2", "fast")] {
        server.put(CONFIG_MAPS, config_map(mode));
        let web = pod("web", uid, spec.clone());
        kubelet.add(web.clone()).await;
        kubelet.until_phase("web", "Running", 120 * SECOND).await;
        assert_eq!(environment(&node.runtime)["MODE"], mode);
        kubelet.remove(web).await;
        until("the end", 120 * SECOND, || {
            node.runtime.running("c").is_empty()
        })
        .await;
        server.remove(CONFIG_MAPS, "settings");
    }
}

#[tokio::test(start_paused = true)]
async fn bytes_in_a_secret_do_not_keep_a_container_from_starting() {
    let objects = Arc::new(MemoryObjects::default());
    let metadata = json!({"namespace": "default", "name": "keys"});
    let data = json!({"STORE": "/mE=", "USER": "YWRtaW4="});
    objects.put("secret", json!({"metadata": metadata, "data": data}));
    let node = Node::with_objects(objects);
    let kubelet = node.start();
    let spec = spec(json!({"envFrom": [{"secretRef": {"name": "keys"}}]}));
    kubelet.add(pod("web", "u1", spec)).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let found = environment(&node.runtime);
    assert_eq!((&*found["STORE"], &*found["USER"]), ("\u{FFFD}a", "admin"));
}

#[tokio::test(start_paused = true)]
async fn a_node_alone_has_no_config_maps() {
    let node = Node::new();
    let kubelet = node.start();
    let spec = spec(json!({"envFrom": [{"configMapRef": {"name": "m", "optional": true}}]}));
    kubelet.add(pod("web", "u1", spec)).await;
    until("the message", 5 * SECOND, || {
        message(&kubelet, "web") == "couldn't get configMap default/m, no kubeClient defined"
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn variables_come_from_everywhere() {
    let objects = Arc::new(MemoryObjects::default());
    objects.put_data("configmap", "default", "m", json!({"a": "1", "b": "2"}));
    // `s3cret` and `x`, in base64.
    objects.put_data(
        "secret",
        "default",
        "s",
        json!({"key": "czNjcmV0", "b": "eA=="}),
    );
    objects.put(
        "node",
        json!({"metadata": {"name": "node"}, "status": {
            "allocatable": {"cpu": "3", "memory": "1Gi"}
        }}),
    );
    let service = |namespace: &str, name: &str, ip: &str| {
        json!({
            "metadata": {"namespace": namespace, "name": name},
            "spec": {"clusterIP": ip, "ports": [{"port": 80}]}
        })
    };
    objects.put("service", service("default", "kubernetes", "10.96.0.1"));
    objects.put("service", service("default", "my-db", "10.96.0.2"));
    objects.put("service", service("other", "web", "10.96.0.3"));
    let node = Node::with_objects(Arc::clone(&objects) as _);
    let kubelet = node.start();
    let from = |source: Value, name: &str| json!({"name": name, "valueFrom": source});
    let spec_of = spec(json!({
        "envFrom": [
            {"configMapRef": {"name": "m"}, "prefix": "M_"},
            {"secretRef": {"name": "s"}},
            {"secretRef": {"name": "gone", "optional": true}},
        ],
        "env": [
            from(json!({"secretKeyRef": {"name": "s", "key": "key"}}), "KEY"),
            from(json!({"secretKeyRef": {"name": "s", "key": "no", "optional": true}}), "NO"),
            from(json!({"configMapKeyRef": {"name": "no", "key": "a", "optional": true}}), "NEITHER"),
            from(json!({"resourceFieldRef": {"resource": "limits.cpu"}}), "CPUS"),
            from(json!({"resourceFieldRef": {"resource": "limits.memory", "divisor": "1Mi"}}), "MEMORY"),
            from(json!({"fieldRef": {"fieldPath": "spec.nodeName"}}), "NODE"),
            from(json!({"fieldRef": {"fieldPath": "status.hostIP"}}), "HOST"),
            {"name": "b", "value": "own $(M_a) $(b) $$(b) $(MY_DB_SERVICE_HOST) $(none)"},
        ],
        "command": ["sh", "$(b)", "$(KUBERNETES_SERVICE_PORT)"],
        "args": ["$(none) $$x"],
        "workingDir": "/work", "stdin": true, "stdinOnce": true, "tty": true
    }));
    kubelet.add(pod("web", "u1", spec_of)).await;
    kubelet.until_phase("web", "Running", 5 * SECOND).await;
    let env = environment(&node.runtime);
    for (name, value) in [
        ("M_a", "1"),
        ("M_b", "2"),
        ("key", "s3cret"),
        ("KEY", "s3cret"),
        ("CPUS", "3"),
        ("MEMORY", "1024"),
        ("NODE", "node"),
        ("HOST", "192.0.2.1"),
        ("b", "own 1 x $(b) 10.96.0.2 $(none)"),
        ("KUBERNETES_SERVICE_HOST", "10.96.0.1"),
        ("MY_DB_PORT_80_TCP", "tcp://10.96.0.2:80"),
    ] {
        assert_eq!(env.get(name).map(String::as_str), Some(value), "{name}");
    }
    for name in ["NO", "NEITHER", "WEB_SERVICE_HOST"] {
        assert_eq!(env.get(name), None, "{name}");
    }
    let config = node.runtime.running("c")[0].config.clone();
    assert_eq!(
        config.command,
        ["sh", "own 1 x $(b) 10.96.0.2 $(none)", "80"]
    );
    assert_eq!(config.args, ["$(none) $x"]);
    assert_eq!(config.working_dir, "/work");
    assert!(config.stdin && config.stdin_once && config.tty);

    // Without service links a pod still gets the address of the API server.
    let mut without = spec(json!({}));
    without["enableServiceLinks"] = false.into();
    kubelet.remove(pod("web", "u1", json!({}))).await;
    until("the end", 60 * SECOND, || {
        node.runtime.sandboxes().is_empty()
    })
    .await;
    kubelet.add(pod("alone", "u2", without)).await;
    kubelet.until_phase("alone", "Running", 5 * SECOND).await;
    let env = environment(&node.runtime);
    assert_eq!(env["KUBERNETES_SERVICE_HOST"], "10.96.0.1");
    assert_eq!(env.get("MY_DB_SERVICE_HOST"), None);
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_away_is_waited_for() {
    let objects = Arc::new(MemoryObjects::default());
    objects.set_away(Some("connection refused"));
    let node = Node::with_objects(Arc::clone(&objects) as _);
    let kubelet = node.start();
    let mut from_api_server = pod("web", "u1", json!({}));
    from_api_server.metadata.annotations = None;
    kubelet.add(from_api_server).await;
    until("the message", 5 * SECOND, || {
        message(&kubelet, "web").starts_with("failed to list services when setting up env vars")
    })
    .await;
    objects.set_away(None);
    kubelet.until_phase("web", "Running", 120 * SECOND).await;
}

#[tokio::test(start_paused = true)]
async fn a_static_pod_does_not_wait_for_the_api_server() {
    let objects = Arc::new(MemoryObjects::default());
    objects.set_away(Some("connection refused"));
    let node = Node::with_objects(Arc::clone(&objects) as _);
    let kubelet = node.start();
    kubelet.add(pod("web", "u1", json!({}))).await;
    kubelet.until_phase("web", "Running", 10 * SECOND).await;
    let env = environment(&node.runtime);
    assert_eq!(env.get("KUBERNETES_SERVICE_HOST"), None);
}

#[tokio::test(start_paused = true)]
async fn a_file_that_an_init_container_wrote_gives_variables() {
    let node = Node::new();
    let kubelet = node.start();
    let key = |name: &str, key: &str| {
        json!({"name": name, "valueFrom": {"fileKeyRef": {
            "volumeName": "v", "path": "out/env", "key": key
        }}})
    };
    // The kubelet does not set up a volume that no container mounts.
    let mut spec = spec(json!({
        "env": [key("TOKEN", "TOKEN")],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}]
    }));
    spec["volumes"] = json!([{"name": "v", "emptyDir": {}}]);
    kubelet.add(pod("web", "u1", spec)).await;
    until("the message", 5 * SECOND, || {
        message(&kubelet, "web").starts_with("couldn't parse env file")
    })
    .await;
    let pod_dir = node.options().node.root_dir.join("pods/u1");
    let out = pod_dir.join("volumes/kubernetes.io~empty-dir/v/out");
    std::fs::create_dir_all(&out).unwrap();
    std::fs::write(out.join("env"), "OTHER='x'\n").unwrap();
    until("the other message", 120 * SECOND, || {
        message(&kubelet, "web").starts_with("environment variable key \"TOKEN\" not found in file")
    })
    .await;
    std::fs::write(out.join("env"), "# made\nTOKEN='a $(b)\nc'\n").unwrap();
    kubelet.until_phase("web", "Running", 120 * SECOND).await;
    assert_eq!(environment(&node.runtime)["TOKEN"], "a $(b)\nc");
}
