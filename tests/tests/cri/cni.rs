//! `dockershim --network-plugin cni` with the real plugins and a real engine.

use std::{collections::BTreeMap, fs, os::unix::fs::PermissionsExt as _, time::Duration};

use bollard::query_parameters::RemoveContainerOptionsBuilder;
use cri_proto::runtime::v1::{self as cri, PodSandboxState};
use e2e::{
    cni::{
        SUBNET, await_ready, bridge, configure, ensure_nothing_is_left, leases, network_condition,
        node_with_bridge,
    },
    cri::{Cri, container, host_sandbox, sandbox},
    node::Node,
};
use serde_json::{Value, json};
use tonic::Code;

/// The time for the shim to notice changes of the engine or of the configuration directory; less than
/// the interval at which it compares its model, which finds missed events.
const SOON: Duration = Duration::from_secs(25);
async fn ip(cri: &mut Cri, pod: &str) -> String {
    let network = cri.pod_status(pod).await.unwrap().network;
    network.unwrap_or_default().ip
}

/// Asserts that the plugins' `CHECK` succeeds for a pod; the loopback network has none.
async fn assert_checked(cri: &mut Cri, pod: &str) {
    let request = cri::PodSandboxStatusRequest {
        pod_sandbox_id: pod.to_owned(),
        verbose: true,
    };
    let status = cri.runtime.pod_sandbox_status(request).await.unwrap();
    let info: Value = serde_json::from_str(&status.into_inner().info["info"]).unwrap();
    let checks: Vec<_> = info["cni"].as_array().unwrap().iter().collect();
    assert_eq!(checks.len(), 2, "{info}");
    for check in checks {
        let expected = if check["ifName"] == "lo" {
            "CHECK is disabled or not supported by the network"
        } else {
            "ok"
        };
        assert_eq!(check["check"], expected, "{info}");
    }
}

#[tokio::test]
async fn pods_reach_each_other_and_are_reached_by_a_port_of_the_node() {
    let (node, mut cri) = node_with_bridge().await.unwrap();
    let mut web = sandbox("web");
    web.port_mappings = vec![cri::PortMapping {
        container_port: 80,
        host_port: 8080,
        ..Default::default()
    }];
    web.dns_config = Some(cri::DnsConfig {
        servers: vec!["192.0.2.53".to_owned()],
        searches: vec!["svc.test".to_owned()],
        options: vec!["ndots:5".to_owned()],
    });
    let serve = ["httpd", "-f", "-p", "80", "-h", "/www"];
    let server = cri.run(&web).await.unwrap();
    let id = cri
        .create(&server, container("main", &serve), &web)
        .await
        .unwrap();
    cri.start(&id).await.unwrap();
    let (other, client) = cri.run_pod("client", &["sleep", "1000"]).await.unwrap();
    let (server_ip, client_ip) = (ip(&mut cri, &server).await, ip(&mut cri, &other).await);
    assert!(server_ip.starts_with(SUBNET), "{server_ip}");
    assert!(
        client_ip.starts_with(SUBNET) && client_ip != server_ip,
        "{client_ip}"
    );

    let page = b"hello from the pod\n";
    let url = format!("http://{server_ip}/");
    let mut inside = cri.clone();
    node.await_until("the pod is reached from a pod", SOON, async |_| {
        let wget = ["wget", "-q", "-O", "-", &url];
        Ok(inside.clone().exec(&client, &wget, 10).await?.stdout == page)
    })
    .await
    .unwrap();
    for url in ["http://127.0.0.1:8080/", &url] {
        node.await_until(&format!("{url} is served"), SOON, async |node| {
            let wget = ["timeout", "5", "busybox", "wget", "-q", "-O", "-", url];
            Ok(node.in_net(&wget)?.stdout == page)
        })
        .await
        .unwrap();
    }
    let loopback = ["wget", "-q", "-O", "-", "http://127.0.0.1/"];
    let own = inside.exec(&id, &loopback, 10).await.unwrap();
    assert_eq!(own.stdout, page);
    let names = cri
        .exec(&id, &["cat", "/etc/resolv.conf"], 10)
        .await
        .unwrap();
    let names = String::from_utf8(names.stdout).unwrap();
    for line in [
        "nameserver 192.0.2.53",
        "search svc.test",
        "options ndots:5",
    ] {
        assert!(names.contains(line), "{names}");
    }
    let hostname = cri.exec(&id, &["hostname"], 10).await.unwrap();
    assert_eq!(hostname.stdout, b"web\n");

    // The server pod is omitted: this old version of portmap checks IPv6 rules that it never
    // creates.
    assert_checked(&mut cri, &other).await;

    cri.stop_pod(&server).await.unwrap();
    assert_eq!(ip(&mut cri, &server).await, "");
    cri.stop_pod(&server).await.unwrap();
    let wget = [
        "timeout",
        "3",
        "busybox",
        "wget",
        "-q",
        "-O",
        "-",
        "http://127.0.0.1:8080/",
    ];
    assert!(!node.in_net(&wget).unwrap().status.success());
    for pod in [&server, &other] {
        cri.remove_pod(pod).await.unwrap();
        cri.remove_pod(pod).await.unwrap();
    }
    ensure_nothing_is_left(&node).await.unwrap();
}

#[tokio::test]
async fn the_network_is_ready_when_its_configuration_is_there() {
    let mut node = Node::with_cni().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let condition = network_condition(&cri).await.unwrap();
    assert_eq!(
        (condition.status, &*condition.reason),
        (false, "NetworkPluginNotReady")
    );
    let directory = node.path("cni/net.d").display().to_string();
    assert!(condition.message.contains(&directory), "{condition:?}");
    let refused = cri.run(&sandbox("web")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    let reason = format!("no CNI configuration in {directory}");
    assert!(refused.message().contains(&reason), "{refused:?}");
    let all = bollard::query_parameters::ListContainersOptionsBuilder::new()
        .all(true)
        .build();
    let made = node
        .docker()
        .unwrap()
        .list_containers(Some(all))
        .await
        .unwrap();
    assert!(made.is_empty(), "{made:?}");
    // A pod on the host network needs no plugin.
    let host = cri.run(&host_sandbox("host")).await.unwrap();
    cri.stop_pod(&host).await.unwrap();

    // The node's pod CIDR is not known yet.
    let mut config = bridge(&node);
    config["plugins"][0]["capabilities"] = json!({"ipRanges": true});
    config["plugins"][0]["ipam"]["ranges"].take();
    configure(&node, &config).unwrap();
    node.await_until("the range is missed", SOON, async |_| {
        Ok(network_condition(&cri).await?.message.contains("PodCIDR"))
    })
    .await
    .unwrap();
    let update = |cidr: &str| cri::UpdateRuntimeConfigRequest {
        runtime_config: Some(cri::RuntimeConfig {
            network_config: Some(cri::NetworkConfig {
                pod_cidr: cidr.to_owned(),
            }),
        }),
    };
    let refused = cri.runtime.update_runtime_config(update("10.89.0.0")).await;
    let refused = refused.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().contains("pod_cidr"), "{refused:?}");
    let both = update("10.89.0.0/24,fd00:89::/64");
    cri.runtime.update_runtime_config(both).await.unwrap();
    await_ready(&node, &cri).await.unwrap();
    let pod = cri.run(&sandbox("web")).await.unwrap();
    let network = cri.pod_status(&pod).await.unwrap().network.unwrap();
    assert!(network.ip.starts_with("10.89.0."), "{network:?}");
    assert!(
        network.additional_ips[0].ip.starts_with("fd00:89::"),
        "{network:?}"
    );
    cri.remove_pod(&pod).await.unwrap();
    ensure_nothing_is_left(&node).await.unwrap();

    // The kubelet sends the pod CIDR only once, so the shim stores it.
    node.kill_shim().unwrap();
    node.start_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    await_ready(&node, &cri).await.unwrap();
    let pod = cri.run(&sandbox("again")).await.unwrap();
    let ip = ip(&mut cri, &pod).await;
    assert!(ip.starts_with("10.89.0."), "{ip}");
}

#[tokio::test]
async fn a_failing_plugin_leaves_nothing_behind() {
    let (node, mut cri) = node_with_bridge().await.unwrap();
    let script = node.path("cni/bin/moody");
    let write = |verb: &str| {
        let text = format!(
            "#!/bin/sh\n[ $CNI_COMMAND != {verb} ] || {{ echo '{{\"code\":100,\"msg\":\"not today\"}}'; exit 1; }}\n\
             [ $CNI_COMMAND != ADD ] || sed 's/.*\"prevResult\":\\({{.*}}\\),\"type\".*/\\1/'\n"
        );
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    };
    write("ADD");
    let mut config = bridge(&node);
    config["plugins"]
        .as_array_mut()
        .unwrap()
        .push(json!({"type": "moody"}));
    configure(&node, &config).unwrap();
    node.await_until("the pod is refused by the plugin", SOON, async |_| {
        let mut cri = cri.clone();
        Ok(match cri.run(&sandbox("web")).await {
            Ok(pod) => {
                cri.remove_pod(&pod).await?;
                false
            }
            Err(refused) => refused.message().contains("not today"),
        })
    })
    .await
    .unwrap();
    assert!(cri.pods(Default::default()).await.unwrap().is_empty());
    ensure_nothing_is_left(&node).await.unwrap();

    write("DEL");
    let pod = cri.run(&sandbox("web")).await.unwrap();
    for refused in [cri.stop_pod(&pod).await, cri.remove_pod(&pod).await] {
        let refused = refused.unwrap_err();
        assert!(refused.message().contains("not today"), "{refused:?}");
    }
    // It is stopped nevertheless, and can be removed without a plugin that is gone. Once the plugin
    // is back, nothing is left of it.
    let status = cri.pod_status(&pod).await.unwrap();
    assert_eq!(status.state(), PodSandboxState::SandboxNotready);
    fs::remove_file(&script).unwrap();
    cri.stop_pod(&pod).await.unwrap();
    write("NOTHING");
    cri.remove_pod(&pod).await.unwrap();
    ensure_nothing_is_left(&node).await.unwrap();
}

#[tokio::test]
async fn a_lost_cache_does_not_lose_addresses() {
    let (mut node, mut cri) = node_with_bridge().await.unwrap();
    let (pod, _) = cri.run_pod("web", &["sleep", "1000"]).await.unwrap();
    let before = cri.pod_status(&pod).await.unwrap();
    node.kill_shim().unwrap();
    fs::remove_dir_all(node.path("cni/cache")).unwrap();
    node.start_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    assert_eq!(cri.pod_status(&pod).await.unwrap(), before);
    await_ready(&node, &cri).await.unwrap();
    cri.stop_pod(&pod).await.unwrap();
    cri.remove_pod(&pod).await.unwrap();
    ensure_nothing_is_left(&node).await.unwrap();
}

#[tokio::test]
async fn a_killed_shim_takes_networks_down_as_they_were_put_up() {
    let (mut node, mut cri) = node_with_bridge().await.unwrap();
    let (kept, _) = cri.run_pod("kept", &["sleep", "1000"]).await.unwrap();
    let gone = cri.run(&sandbox("gone")).await.unwrap();
    let half = cri.run(&sandbox("half")).await.unwrap();
    let before = cri.pod_status(&kept).await.unwrap();
    node.kill_shim().unwrap();

    // The shim does not see the removal.
    let force = RemoveContainerOptionsBuilder::new().force(true).build();
    let docker = node.docker().unwrap();
    docker.remove_container(&gone, Some(force)).await.unwrap();
    // The cache as plugins leave it before they return a result.
    let file = node.path(&format!("cni/cache/results/pods-{half}-eth0"));
    let mut cached: BTreeMap<String, Value> =
        serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    assert_eq!(cached["kind"], "cniCacheV1");
    cached.remove("result").unwrap();
    fs::write(&file, json!(cached).to_string()).unwrap();
    // The configured network is no longer the sandboxes' network.
    let mut other = bridge(&node);
    other["name"] = "other".into();
    configure(&node, &other).unwrap();

    node.start_shim().await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    assert_eq!(cri.pod_status(&kept).await.unwrap(), before);
    assert_checked(&mut cri, &kept).await;
    let listed = cri.pods(Default::default()).await.unwrap();
    assert_eq!(
        listed.iter().map(|pod| &pod.id).collect::<Vec<_>>(),
        [&kept]
    );
    node.await_until("what is gone is detached", SOON, async |node| {
        let (addresses, attachments) = leases(node);
        Ok(addresses.len() == 1 && attachments.len() == 2)
    })
    .await
    .unwrap();
    cri.stop_pod(&kept).await.unwrap();
    cri.remove_pod(&kept).await.unwrap();
    ensure_nothing_is_left(&node).await.unwrap();
}

#[tokio::test]
async fn a_sandbox_that_ended_by_itself_is_detached() {
    let (node, mut cri) = node_with_bridge().await.unwrap();
    let docker = node.docker().unwrap();
    let ended = cri.run(&sandbox("ended")).await.unwrap();
    docker.kill_container(&ended, None).await.unwrap();
    node.await_until("the kill is seen", SOON, async |_| {
        let status = cri.clone().pod_status(&ended).await?;
        Ok(status.state() == PodSandboxState::SandboxNotready)
    })
    .await
    .unwrap();
    cri.stop_pod(&ended).await.unwrap();
    let removed = cri.run(&sandbox("removed")).await.unwrap();
    let force = RemoveContainerOptionsBuilder::new().force(true).build();
    docker
        .remove_container(&removed, Some(force))
        .await
        .unwrap();
    node.await_until("the removal is seen", SOON, async |_| {
        Ok(cri.clone().pods(Default::default()).await?.len() == 1)
    })
    .await
    .unwrap();
    cri.stop_pod(&removed).await.unwrap();
    ensure_nothing_is_left(&node).await.unwrap();
}
