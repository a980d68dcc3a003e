//! Volumes of the kinds that Kubernetes had built in before CSI.

use fake_csi::FakeCsi;
use serde_json::json;

use super::{Cluster, claimed, gone, with};
use crate::{
    metrics::metrics,
    node::{IMAGE, SECOND, pod},
};

const AZURE: &str = "disk.csi.azure.com";
const GOOGLE: &str = "pd.csi.storage.gke.io";

/// A cluster with a driver that took over a kind.
fn cluster(driver: &str) -> Cluster {
    let mut on = Cluster::new();
    on.driver = FakeCsi::new(driver);
    let object = json!({"metadata": {"name": driver}, "spec": {"attachRequired": false}});
    on.objects.put("csidriver", object);
    on
}

#[tokio::test(start_paused = true)]
async fn the_driver_of_a_kind_mounts_it_for_a_pod() {
    let on = cluster(AZURE);
    let _driver = on.serve();
    let kubelet = on.node.start();
    let source = json!({"azureDisk": {"diskName": "d", "diskURI": "/s/disks/d", "readOnly": true}});
    let mounts = json!([{"name": "v", "mountPath": "/v", "subPath": "part"}]);
    let container = json!({
        "name": "c", "image": IMAGE, "imagePullPolicy": "IfNotPresent", "volumeMounts": mounts
    });
    let spec = with(source, json!({"containers": [container]}));
    kubelet.add(pod("a", "a", spec.clone())).await;
    kubelet.until_phase("a", "Running", 200 * SECOND).await;
    let request = &on.publishes()[0];
    assert_eq!(request.volume_id, "/s/disks/d");
    assert!(request.readonly);
    assert_eq!(request.volume_context["kind"], "Managed");
    // The slashes of the disk's name are no directories.
    let target = on.published("a", "~s~disks~d");
    assert_eq!(request.target_path, target.to_str().unwrap());
    assert!(on.path("pods/a/volume-subpaths/~s~disks~d/c/0").exists());
    let page = metrics(&kubelet);
    let labels = format!(
        "driver_name=\"{AZURE}\",method_name=\"/csi.v1.Node/NodePublishVolume\",grpc_status_code=\"OK\",migrated=\"true\""
    );
    assert!(page.contains(&labels), "{page}");

    // A kubelet that starts while the volume is mounted finds it by its directory.
    kubelet.stop().await;
    let kubelet = on.node.start();
    kubelet.add(pod("b", "b", spec)).await;
    gone(&kubelet, &on, "a").await;
    assert_eq!(
        on.driver.verbs(),
        ["Stage", "Publish", "Publish", "Unpublish"]
    );
}

#[tokio::test(start_paused = true)]
async fn the_driver_of_a_kind_mounts_it_for_a_claim() {
    let on = cluster(GOOGLE);
    on.put_volume(
        json!({"csi": null, "gcePersistentDisk": {"pdName": "d", "fsType": "ext4"}}),
        "1Gi",
    );
    let _driver = on.serve();
    let kubelet = on.node.start();
    kubelet.add(claimed("a")).await;
    kubelet.until_phase("a", "Running", 200 * SECOND).await;
    let request = &on.publishes()[0];
    let handle = "projects/UNSPECIFIED/zones/UNSPECIFIED/disks/d";
    assert_eq!(request.volume_id, handle);
    assert_eq!(
        request.target_path,
        on.published("a", "pv").to_str().unwrap()
    );
    kubelet.remove(claimed("a")).await;
    gone(&kubelet, &on, "a").await;
}
