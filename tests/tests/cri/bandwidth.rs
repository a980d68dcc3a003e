//! Bandwidth limits on the engine's bridge.

use std::time::Duration;

use bollard::query_parameters::InspectContainerOptions;
use cri_proto::runtime::v1::PodSandboxFilter;
use e2e::{
    cri::{Cri, sandbox},
    node::Node,
};
use tonic::Code;

const PATIENCE: Duration = Duration::from_secs(60);

/// The rates of the token bucket filters of a network namespace.
fn filters(listed: &[u8]) -> Vec<String> {
    let text = String::from_utf8_lossy(listed);
    let filters = text.lines().filter(|line| line.starts_with("qdisc tbf"));
    let mut rates: Vec<_> = filters
        .filter_map(|line| line.split_once(" rate ")?.1.split(' ').next())
        .map(str::to_owned)
        .collect();
    rates.sort();
    rates
}

struct Pod {
    id: String,
    pid: String,
}

async fn run(node: &Node, cri: &mut Cri, name: &str, annotations: &[(&str, &str)]) -> Pod {
    let mut config = sandbox(name);
    let limits = annotations.iter();
    config.annotations = limits
        .map(|(direction, rate)| {
            let annotation = format!("kubernetes.io/{direction}-bandwidth");
            (annotation, (*rate).to_owned())
        })
        .collect();
    let id = cri.run(&config).await.unwrap();
    let docker = node.docker().unwrap();
    let inspected = docker.inspect_container(&id, None::<InspectContainerOptions>);
    let pid = inspected.await.unwrap().state.unwrap().pid.unwrap();
    let pid = pid.to_string();
    Pod { id, pid }
}

/// The limits at the bridge, and those in the pod.
fn limits(node: &Node, pod: &Pod) -> (Vec<String>, Vec<String>) {
    let show = ["tc", "qdisc", "show"];
    let here = node.in_net(&show).unwrap();
    let inside = ["nsenter", "--target", &pod.pid, "--net", "--"];
    let inside = node.in_net(&[inside.as_slice(), &show].concat()).unwrap();
    (filters(&here.stdout), filters(&inside.stdout))
}

#[tokio::test]
async fn annotations_limit_what_a_pod_receives_and_sends() {
    let mut node = Node::with_shim().await.unwrap();
    node.stop_shim().await.unwrap();
    node.start_shim_beside_the_engine(&[]).await.unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    let none = (Vec::new(), Vec::new());
    let one = |rate: &str| vec![rate.to_owned()];
    let plain = run(&node, &mut cri, "plain", &[]).await;
    assert_eq!(limits(&node, &plain), none);
    let receiver = run(&node, &mut cri, "receiver", &[("ingress", "10M")]).await;
    assert_eq!(limits(&node, &receiver), (one("10Mbit"), Vec::new()));
    cri.remove_pod(&receiver.id).await.unwrap();
    let both = run(
        &node,
        &mut cri,
        "both",
        &[("ingress", "10M"), ("egress", "1.5G")],
    )
    .await;
    let expected = (one("10Mbit"), one("1500Mbit"));
    assert_eq!(limits(&node, &both), expected);

    // As if the shim had been killed before it set them.
    node.stop_shim().await.unwrap();
    let inside = ["nsenter", "--target", &both.pid, "--net", "--"];
    let remove = ["tc", "qdisc", "del", "dev", "eth0", "root"];
    let removed = node.in_net(&[inside.as_slice(), &remove].concat()).unwrap();
    assert!(removed.status.success());
    node.start_shim_beside_the_engine(&[]).await.unwrap();
    node.await_until("the limits to return", PATIENCE, async |node| {
        Ok(limits(node, &both) == expected)
    })
    .await
    .unwrap();

    let mut cri = Cri::of(&node).await.unwrap();
    let mut wrong = sandbox("wrong");
    let annotation = "kubernetes.io/egress-bandwidth";
    wrong.annotations = [(annotation.to_owned(), "fast".to_owned())].into();
    let error = cri.run(&wrong).await.unwrap_err();
    assert_eq!(error.code(), Code::InvalidArgument);
    assert!(error.message().contains(annotation), "{error}");
    assert_eq!(
        cri.pods(PodSandboxFilter::default()).await.unwrap().len(),
        2
    );
}
