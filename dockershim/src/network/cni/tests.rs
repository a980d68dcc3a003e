//! Tests with scripts as plugins that record their requests.

mod node;

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

use cri_proto::runtime::v1::{PodSandboxState, PodSandboxStatus};
use serde_json::{Map, Value, json};

use self::node::Node;
use super::*;
use crate::model::{Model, Record, Sandbox};

const ID: &str = "0123456789abcdef";

fn net(version: &str) -> Value {
    json!({
        "name": "net",
        "cniVersion": version,
        "plugins": [
            {"type": "one", "mtu": 1400},
            {"type": "two", "capabilities": {"portMappings": true, "dns": false}},
        ],
    })
}

fn pod() -> Pod<'static> {
    Pod {
        id: ID,
        namespace: "default",
        name: "web",
        uid: "uid",
    }
}

/// Attaches the pod; only the attachment holds the namespace.
async fn attach(cni: &Cni, arguments: Map<String, Value>) -> Result<(), CniError> {
    cni.attach(&pod(), &NetNs::own(), arguments).await
}

fn arguments() -> Map<String, Value> {
    let arguments = json!({"portMappings": [{"hostPort": 80}], "dns": {"servers": ["1.1.1.1"]}});
    arguments.as_object().unwrap().clone()
}

#[tokio::test]
async fn plugins_are_added_in_order_and_deleted_in_reverse() {
    let node = Node::new(&["one", "two"]);
    node.configure(&net("1.0.0"));
    let cni = node.cni();
    attach(&cni, arguments()).await.unwrap();
    let calls = node.calls();
    assert_eq!(
        (&calls[0]["plugin"], &calls[1]["plugin"]),
        (&json!("one"), &json!("two"))
    );
    let first = &calls[0]["config"];
    assert_eq!(
        *first,
        json!({"type": "one", "mtu": 1400, "name": "net", "cniVersion": "1.0.0"})
    );
    let second = &calls[1]["config"];
    assert_eq!(second["prevResult"]["by"], "one");
    assert_eq!(second["prevResult"]["cniVersion"], "1.0.0");
    assert_eq!(
        second["runtimeConfig"],
        json!({"portMappings": [{"hostPort": 80}]})
    );
    assert_eq!(
        calls[0]["args"],
        format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web;\
             K8S_POD_INFRA_CONTAINER_ID={ID};K8S_POD_UID=uid"
        )
    );
    assert_eq!(cni.network_status(ID).unwrap().ip, "10.1.0.2");

    // The namespace that it was attached in is held, even if the sandbox is gone.
    let netns = &calls[0]["netns"];
    let inode = |path: &str| fs::metadata(path).unwrap().ino();
    assert_eq!(
        inode(netns.as_str().unwrap()),
        inode("/proc/self/ns/net"),
        "{netns}"
    );

    cni.detach(&pod(), None).await.unwrap();
    let calls = node.calls();
    assert_eq!(
        (&calls[0]["plugin"], &calls[1]["plugin"]),
        (&json!("two"), &json!("one"))
    );
    for call in &calls {
        assert_eq!((&call["verb"], &call["netns"]), (&json!("DEL"), netns));
        assert_eq!(call["config"]["prevResult"]["by"], "two");
    }
    assert_eq!((cni.network_status(ID), node.remembered()), (None, 0));
    cni.detach(&pod(), None).await.unwrap();
    assert_eq!(node.asked(), [""; 0]);
}

#[tokio::test]
async fn a_failed_add_is_undone_as_a_whole() {
    let node = Node::new(&["one", "two"]);
    node.configure(&net("1.0.0"));
    let cni = node.cni();
    node.fail("ADD", "two", true);
    let error = attach(&cni, Map::new()).await.unwrap_err().to_string();
    for part in [
        "ADD",
        "\"two\"",
        "\"net\"",
        "broken",
        "on purpose",
        "noise",
        "999",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(node.asked(), ["ADD one", "ADD two", "DEL two", "DEL one"]);
    assert_eq!((cni.network_status(ID), node.remembered()), (None, 0));
}

#[tokio::test]
async fn what_was_attached_is_detached_as_it_was_attached() {
    let node = Node::new(&["one", "two", "three"]);
    node.configure(&net("1.0.0"));
    attach(&node.cni(), arguments()).await.unwrap();
    node.configure(&json!({"name": "new", "plugins": [{"type": "three"}]}));
    let cni = node.cni();
    assert_eq!(cni.network_status(ID).unwrap().ip, "10.1.0.2");
    node.calls();
    // The sandbox has exited, and the first attempt fails.
    node.fail("DEL", "one", true);
    cni.detach_known(ID, None).await.unwrap_err();
    assert_eq!(
        (node.asked(), node.remembered()),
        (vec!["DEL two".into(), "DEL one".into()], 1)
    );
    node.fail("DEL", "one", false);
    cni.detach_known(ID, None).await.unwrap();
    let calls = node.calls();
    assert_eq!(calls[0]["netns"], "");
    assert_eq!(
        calls[0]["config"]["runtimeConfig"],
        json!({"portMappings": [{"hostPort": 80}]})
    );
    assert_eq!(node.remembered(), 0);
}

#[tokio::test]
async fn what_a_crash_left_behind_is_swept() {
    let node = Node::new(&["one", "two"]);
    node.configure(&net("1.1.0"));
    let model = Model::new();
    let cni = node.cni();
    attach(&cni, Map::new()).await.unwrap();
    // As in the middle of an `ADD`: cached, without a result.
    let file = node.path(&format!("cache/results/net-{ID}-eth0"));
    let mut cached: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    cached.as_object_mut().unwrap().remove("result");
    fs::write(&file, cached.to_string()).unwrap();
    // An attachment of another runtime in the same directory.
    cached["containerId"] = "other".into();
    cached["netns"] = "/run/netns/cni-1".into();
    fs::write(
        node.path("cache/results/net-other-eth0"),
        cached.to_string(),
    )
    .unwrap();
    node.calls();
    let cni_again = node.cni();
    assert_eq!(cni_again.network_status(ID), None);
    cni_again.sweep(&model).await;
    assert_eq!(
        (node.asked(), node.remembered()),
        (vec!["DEL two".into(), "DEL one".into()], 1)
    );
    cni_again.collect_garbage(&model).await;
    let calls = node.calls();
    assert_eq!(calls.len(), 2);
    let valid = json!([{"containerID": "other", "ifname": "eth0"}]);
    assert_eq!(calls[0]["verb"], "GC");
    assert_eq!(calls[0]["config"]["cni.dev/valid-attachments"], valid);
}

/// Adds a CNI sandbox to the model.
fn put_sandbox(model: &Model, id: &str) {
    let sandbox = Sandbox {
        status: PodSandboxStatus {
            id: id.into(),
            state: PodSandboxState::SandboxReady.into(),
            ..Default::default()
        },
        docker_name: String::new(),
        pid: 7,
        started: true,
        cni: true,
        runtime: String::new(),
        cgroup_parent: String::new(),
        provisional: false,
    };
    model.put(&model.ticket(), id, Some(Record::Sandbox(sandbox.into())));
}

#[tokio::test]
async fn no_live_sandbox_is_garbage_whatever_is_remembered() {
    let node = Node::new(&["one"]);
    node.configure(&json!({"name": "net", "cniVersion": "1.1.0", "plugins": [{"type": "one"}]}));
    let cni = node.cni();
    let model = Model::new();
    put_sandbox(&model, ID);
    attach(&cni, Map::new()).await.unwrap();
    // The cache has been emptied, and another sandbox is being attached.
    fs::remove_dir_all(node.path("cache/results")).unwrap();
    put_sandbox(&model, "fedcba9876543210");
    node.calls();
    cni.collect_garbage(&model).await;
    let valid = json!([
        {"containerID": ID, "ifname": "eth0"},
        {"containerID": "fedcba9876543210", "ifname": "eth0"},
    ]);
    let told = &node.calls()[0]["config"]["cni.dev/valid-attachments"];
    assert_eq!(*told, valid);
}

#[tokio::test]
async fn what_another_engines_shim_attached_is_its_own() {
    let node = Node::new(&["one", "two"]);
    node.configure(&net("1.0.0"));
    let model = Model::new();
    attach(&node.cni(), Map::new()).await.unwrap();
    node.asked();
    let other = node.cni_of("other-root", &[]);
    other.sweep(&model).await;
    assert_eq!((node.asked(), node.remembered()), (vec![], 1));
    // The sandbox is this engine's after all, as if the shim's own files were lost; from then on it
    // is known to be.
    put_sandbox(&model, ID);
    node.cni_of("new-root", &[]).sweep(&model).await;
    model.remove(ID);
    node.cni().sweep(&model).await;
    assert_eq!((node.asked(), node.remembered()), (vec![], 1));
    node.cni_of("new-root", &[]).sweep(&model).await;
    assert_eq!(node.asked(), ["DEL two", "DEL one"]);
    assert_eq!(node.remembered(), 0);
}

#[tokio::test]
async fn the_pod_cidr_that_was_told_survives_a_restart() {
    let node = Node::new(&[]);
    let cidrs = |flag: &[&str]| (*node.cni_of("root", flag).pod_cidrs()).clone();
    assert_eq!(cidrs(&["10.1.0.0/24"]), ["10.1.0.0/24"]);
    let told = vec!["10.2.0.0/24".to_owned(), "fd00::/64".to_owned()];
    let before = node.cni_of("root", &["10.1.0.0/24"]);
    before.set_pod_cidrs(told.clone()).await;
    assert_eq!(cidrs(&["10.1.0.0/24"]), told);
    // The flag has changed, so it takes precedence.
    assert_eq!(cidrs(&["10.3.0.0/24"]), ["10.3.0.0/24"]);
}

#[tokio::test]
async fn a_loopback_plugin_is_run_first_and_deleted_last() {
    let node = Node::new(&["one", "two", "loopback"]);
    node.configure(&net("1.0.0"));
    attach(&node.cni(), Map::new()).await.unwrap();
    assert_eq!(node.asked(), ["ADD loopback", "ADD one", "ADD two"]);
    node.fail("DEL", "loopback", true);
    node.cni().detach(&pod(), None).await.unwrap();
    assert_eq!(node.asked(), ["DEL two", "DEL one", "DEL loopback"]);
    assert_eq!(node.remembered(), 0);
}

#[tokio::test]
async fn what_is_attached_can_be_checked() {
    for (version, disabled, expected) in [
        ("1.0.0", false, "ok"),
        (
            "1.0.0",
            true,
            "CHECK is disabled or not supported by the network",
        ),
        (
            "0.3.1",
            false,
            "CHECK is disabled or not supported by the network",
        ),
    ] {
        let node = Node::new(&["one", "two"]);
        let mut config = net(version);
        config["disableCheck"] = disabled.into();
        node.configure(&config);
        let cni = node.cni();
        attach(&cni, Map::new()).await.unwrap();
        node.calls();
        let described = cni.describe(ID, Some(&NetNs::own())).await;
        assert_eq!(described[0]["check"], expected, "{version}");
        assert_eq!(described[0]["result"]["by"], "two");
        let checked = if expected == "ok" { 2 } else { 0 };
        assert_eq!(node.asked().len(), checked);
        node.fail("CHECK", "one", true);
        let described = cni.describe(ID, Some(&NetNs::own())).await;
        let broken = described[0]["check"].as_str().unwrap().contains("broken");
        assert_eq!(broken, expected == "ok");
    }
}

#[tokio::test]
async fn readiness_follows_configuration_plugins_and_ranges() {
    let node = Node::new(&["one"]);
    let cni = node.cni();
    let reason = async |cni: &Cni| cni.ready().await.unwrap_err().to_string();
    let none = format!("no CNI configuration in {}", node.path("net.d").display());
    assert!(
        reason(&cni).await.ends_with(&none),
        "{}",
        reason(&cni).await
    );
    let error = attach(&cni, Map::new()).await.unwrap_err();
    assert_eq!(error.code(), tonic::Code::FailedPrecondition);

    node.configure(&json!({"name": "net", "plugins": [
        {"type": "one", "capabilities": {"ipRanges": true}},
        {"type": "late"},
    ]}));
    assert!(
        reason(&cni).await.contains("PodCIDR"),
        "{}",
        reason(&cni).await
    );
    cni.set_pod_cidrs(vec!["10.1.0.0/24".into()]).await;
    assert!(
        reason(&cni).await.contains("\"late\""),
        "{}",
        reason(&cni).await
    );
    fs::copy(node.path("bin/one"), node.path("bin/late")).unwrap();
    cni.ready().await.unwrap();
    fs::remove_file(node.path("net.d/10-net.conflist")).unwrap();
    cni.config_loader.reload();
    assert!(
        reason(&cni).await.ends_with(&none),
        "{}",
        reason(&cni).await
    );
    fs::write(node.path("net.d/10-net.conflist"), "{").unwrap();
    assert!(
        reason(&cni).await.contains("no valid CNI configuration"),
        "{}",
        reason(&cni).await
    );
}

#[test]
fn a_configuration_that_cannot_be_read_holds_up_nobody_else() {
    let node = Node::new(&["one"]);
    let cni = node.cni();
    // A reader blocks until something writes.
    let fifo = node.path("net.d/10-net.conf");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status();
    assert!(made.unwrap().success());
    let (done, finished) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(async {
            let asked = tokio::spawn(async move { cni.ready().await.unwrap_err().to_string() });
            tokio::task::yield_now().await;
            done.send("others go on".to_owned()).unwrap();
            // The request gets the previous result.
            done.send(asked.await.unwrap()).unwrap();
        });
        runtime.shutdown_background();
    });
    let told = || finished.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(told().unwrap(), "others go on");
    assert!(told().unwrap().contains("no CNI configuration"));
    // Unblocks the reader.
    drop(fs::OpenOptions::new().write(true).open(&fifo).unwrap());
}

#[tokio::test]
async fn plugins_that_tell_their_status_are_asked() {
    let node = Node::new(&["one", "two"]);
    node.configure(&net("1.1.0"));
    node.fail("STATUS", "two", true);
    let cni = Arc::new(node.cni());
    let asked = cni.ready().await.unwrap_err().to_string();
    assert!(asked.contains("waiting for STATUS"), "{asked}");
    let stop = tokio_util::sync::CancellationToken::new();
    let running = tokio::spawn(cni.clone().run(Arc::new(Model::new()), stop.clone()));
    let until = async |wanted: &dyn Fn(&Result<(), CniError>) -> bool| {
        let deadline = tokio::time::Instant::now() + std::time::Duration::from_secs(20);
        loop {
            let ready = cni.ready().await;
            if wanted(&ready) {
                return;
            }
            assert!(tokio::time::Instant::now() < deadline, "{ready:?}");
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let broken = |error: &CniError| error.to_string().contains("broken");
    until(&|ready| ready.as_ref().is_err_and(broken)).await;
    node.fail("STATUS", "two", false);
    // A change of the directory triggers a status request at once.
    let mut changed = net("1.1.0");
    changed["disableGC"] = true.into();
    node.configure(&changed);
    until(&Result::is_ok).await;
    stop.cancel();
    running.await.unwrap();
}

#[tokio::test]
async fn no_address_is_no_network() {
    let node = Node::new(&["one"]);
    node.configure(&json!({"name": "net", "plugins": [{"type": "one"}]}));
    let script = "#!/bin/sh\n[ $CNI_COMMAND != ADD ] || echo '{\"cniVersion\":\"1.0.0\"}'\n";
    fs::write(node.path("bin/one"), script).unwrap();
    let error = attach(&node.cni(), Map::new()).await.unwrap_err();
    assert!(error.to_string().contains("no address for eth0"), "{error}");
    fs::write(node.path("bin/one"), "#!/bin/sh\necho nonsense\n").unwrap();
    let error = attach(&node.cni(), Map::new()).await.unwrap_err();
    assert!(error.to_string().contains("an invalid result"), "{error}");
    assert!(Path::new(&node.path("cache")).is_dir());
    assert_eq!(node.remembered(), 0);
}
