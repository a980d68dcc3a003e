//! Compares the tests' API server with Kubernetes' own, if the machine has it: a kubelet's requests
//! get the same answers from both.

mod differences;
mod identity;
mod node;
mod pods;
mod side;

use e2e::{
    control_plane::{ControlPlane, Programs},
    network_namespace::NetworkNamespace,
};
use tempfile::TempDir;

use self::side::Side;

async fn exchange(plane: ControlPlane, request: &str) -> Side {
    let mut on = Side::of(plane).await.unwrap();
    node::exchange(&mut on).await.unwrap();
    pods::exchange(&mut on).await.unwrap();
    identity::exchange(&mut on, request).await.unwrap();
    on
}

#[tokio::test]
async fn a_kubelet_gets_the_same_answers_of_both() {
    let test = "a_kubelet_gets_the_same_answers_of_both";
    let Some(programs) = Programs::at_hand(&format!("real_api_server::{test}")).unwrap() else {
        return;
    };
    let request = identity::certificate_request().unwrap();
    let directories = [TempDir::new().unwrap(), TempDir::new().unwrap()];
    let [double, real] = directories.each_ref().map(TempDir::path);
    let namespace = NetworkNamespace::new(double).await.unwrap();
    let plane = ControlPlane::double(&namespace).await.unwrap();
    let double = exchange(plane, &request).await;
    let namespace = NetworkNamespace::new(real).await.unwrap();
    let plane = ControlPlane::kubernetes(&namespace, real, &programs).await;
    let real = exchange(plane.unwrap(), &request).await;
    let differences = differences::between(&double.answers, &real.answers);
    assert!(differences.is_empty(), "{}", differences.join("\n"));
}
