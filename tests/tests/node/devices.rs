//! Containers with devices of a device plugin: what they get, and that they run on with the same
//! devices, whatever restarts.

use std::fs;

use anyhow::{Result, ensure};
use cri_proto::{
    deviceplugin::v1beta1::{ContainerAllocateResponse, DeviceSpec, Mount},
    podresources::{
        v1::{
            AllocatableResourcesRequest, ListPodResourcesRequest,
            pod_resources_lister_client::PodResourcesListerClient,
        },
        v1alpha1,
    },
};
use e2e::{cri::Cri, images, node::Node};
use fake_device_plugin::{FakeDevicePlugin, Serving, VARIABLE, device};
use parking_lot::Mutex;
use serde_json::json;

use super::cgroups::{SOON, container_id};

const GPU: &str = "vendor.example/gpu";

/// What restarts.
#[derive(Clone, Copy, Debug)]
enum Part {
    Kubelet,
    Plugin,
    Runtime,
}

#[tokio::test]
async fn on_docker_through_the_shim() {
    let mut node = Node::with_shim().await.unwrap();
    // With live restore, containers survive a restart of the engine.
    node.restart_runtime().await.unwrap();
    run(node).await.unwrap();
}

#[tokio::test]
async fn on_containerd() {
    run(Node::with_containerd().await.unwrap()).await.unwrap();
}

async fn run(mut node: Node) -> Result<()> {
    let library = node.path("library");
    fs::create_dir(&library)?;
    fs::write(library.join("version"), "5")?;
    let plugin = FakeDevicePlugin::new(GPU, &[]);
    plugin.set_devices(vec![device("card-0", &[0]), device("card-1", &[0])]);
    plugin.set_response(ContainerAllocateResponse {
        mounts: vec![Mount {
            container_path: "/usr/lib/gpu".to_owned(),
            host_path: library.display().to_string(),
            read_only: true,
        }],
        devices: vec![DeviceSpec {
            container_path: "/dev/gpu".to_owned(),
            host_path: "/dev/zero".to_owned(),
            permissions: "r".to_owned(),
        }],
        ..ContainerAllocateResponse::default()
    });
    node.start_kubelet().await?;
    let mut serving = Some(register(&node, &plugin).await?);
    // The plugin's devices may not be known yet.
    node.await_until("the devices are known", SOON, async |node| {
        let mut client = PodResourcesListerClient::new(node.pod_resources().await?);
        let request = AllocatableResourcesRequest {};
        let allocatable = client.get_allocatable_resources(request).await?;
        Ok(allocatable.into_inner().devices.len() == 2)
    })
    .await?;
    node.write_manifest("gpu.json", &pod("gpu"))?;
    let pod = node.await_running("gpu", SOON).await?;
    let id = container_id(&pod, "c")?.to_owned();
    let command = "cat /usr/lib/gpu/version; head -c 3 /dev/gpu | wc -c; \
                   touch /usr/lib/gpu/x 2>/dev/null || echo read-only";
    assert_eq!(printed(&node, &id, command).await?, "53\nread-only\n");
    assert_eq!(variable(&node, &id).await?, "card-0");
    assert_eq!(listed(&node).await?, ["card-0"]);
    assert_eq!(listed_v1alpha1(&node).await?, ["card-0"]);
    assert_eq!(
        health(&pod),
        json!([{"resourceID": "card-0", "health": "Healthy"}])
    );

    use Part::{Kubelet, Plugin, Runtime};
    for order in [
        [Kubelet, Plugin, Runtime],
        [Plugin, Runtime, Kubelet],
        [Runtime, Kubelet, Plugin],
    ] {
        for part in order {
            match part {
                Kubelet => {
                    node.kill_kubelet()?;
                    node.start_kubelet().await?;
                    // The plugin sees that its socket is gone.
                    drop(serving.take());
                    serving = Some(register(&node, &plugin).await?);
                }
                Plugin => {
                    drop(serving.take());
                    serving = Some(register(&node, &plugin).await?);
                }
                Runtime => node.restart_runtime().await?,
            }
            let pod = node.await_running("gpu", SOON).await?;
            ensure!(
                container_id(&pod, "c")? == id,
                "restarted by {part:?} in {order:?}"
            );
        }
        assert_eq!(variable(&node, &id).await?, "card-0");
        assert_eq!(listed(&node).await?, ["card-0"]);
    }
    plugin.set_healthy("card-0", false);
    let unhealthy = json!([{"resourceID": "card-0", "health": "Unhealthy"}]);
    let is_shown = async |node: &Node| {
        let pod = node.pod("gpu").await?;
        Ok(pod.is_some_and(|pod| health(&pod) == unhealthy))
    };
    node.await_until("the pod shows the failed device", SOON, is_shown)
        .await?;
    node.write_manifest("other.json", &self::pod("other"))?;
    let other = node.await_running("other", SOON).await?;
    let id = container_id(&other, "c")?;
    assert_eq!(variable(&node, id).await?, "card-1");
    let page = node.page("/metrics").await?;
    let count = "kubelet_device_plugin_registration_total{resource_name=\"vendor.example/gpu\"}";
    ensure!(page.contains(count), "{page}");
    Ok(())
}

async fn register(node: &Node, plugin: &FakeDevicePlugin) -> Result<Serving> {
    let dir = node.path("kubelet/device-plugins");
    let serving = plugin.serve(&dir)?;
    plugin.register(&dir).await?;
    Ok(serving)
}

fn pod(name: &str) -> String {
    let list = json!({GPU: "1"});
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name},
        "spec": {
            "hostNetwork": true, "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "c", "image": images::BUSYBOX, "command": ["sleep", "10000"],
                "resources": {"requests": list, "limits": list},
            }],
        },
    })
    .to_string()
}

/// The devices that a container has by its environment.
async fn variable(node: &Node, id: &str) -> Result<String> {
    let command = format!("printf %s \"${VARIABLE}\"");
    printed(node, id, &command).await
}

/// What a command prints in a container, once the runtime answers.
async fn printed(node: &Node, id: &str, command: &str) -> Result<String> {
    let command = ["sh", "-c", command];
    let printed = Mutex::new(Vec::new());
    let ran = async |node: &Node| {
        let output = Cri::of(node).await?.exec(id, &command, 60).await;
        Ok(match output {
            Ok(output) => {
                *printed.lock() = output.stdout;
                true
            }
            Err(_) => false,
        })
    };
    node.await_until("a command in the container", SOON, ran)
        .await?;
    Ok(String::from_utf8(printed.into_inner())?)
}

/// The devices of all containers by the pod resources API.
async fn listed(node: &Node) -> Result<Vec<String>> {
    let mut client = PodResourcesListerClient::new(node.pod_resources().await?);
    let listed = client.list(ListPodResourcesRequest {}).await?.into_inner();
    let containers = listed
        .pod_resources
        .into_iter()
        .flat_map(|pod| pod.containers);
    let devices = containers.flat_map(|container| container.devices);
    Ok(devices.flat_map(|device| device.device_ids).collect())
}

/// The devices of all containers by the oldest version of the pod resources API.
async fn listed_v1alpha1(node: &Node) -> Result<Vec<String>> {
    use v1alpha1::pod_resources_lister_client::PodResourcesListerClient;
    let mut client = PodResourcesListerClient::new(node.pod_resources().await?);
    let request = v1alpha1::ListPodResourcesRequest {};
    let pods = client.list(request).await?.into_inner().pod_resources;
    let containers = pods.into_iter().flat_map(|pod| pod.containers);
    let devices = containers.flat_map(|container| container.devices);
    Ok(devices.flat_map(|device| device.device_ids).collect())
}

fn health(pod: &serde_json::Value) -> serde_json::Value {
    let status = &pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"];
    status[0]["resources"].clone()
}
