//! The usage and the condition of volumes, as their drivers report them.

use cri_proto::csi::v1::{
    NodeGetVolumeStatsResponse, VolumeCondition, VolumeUsage,
    node_service_capability::rpc::Type as Capability, volume_usage::Unit,
};
use fake_csi::Fault;
use kubelet_api_client::events::EventRecorder;
use kubelet_resource_analyzer::VolumeUsage as Usage;
use serde_json::json;

use super::{Cluster, access::has_event, claimed, claimed_device};
use crate::{
    node::{Running, SECOND, until},
    usage::{metrics, usage},
};

fn stats(used: i64, abnormal: bool) -> NodeGetVolumeStatsResponse {
    NodeGetVolumeStatsResponse {
        usage: vec![VolumeUsage {
            available: 100 - used,
            total: 100,
            used,
            unit: Unit::Bytes.into(),
        }],
        volume_condition: Some(VolumeCondition {
            abnormal,
            message: "the disk is ill".to_owned(),
        }),
    }
}

fn volume(kubelet: &Running, uid: &str) -> Option<Usage> {
    usage(kubelet, uid)?.volumes.get("v").cloned()
}

#[tokio::test(start_paused = true)]
async fn claims_are_measured_by_their_drivers() {
    for is_device in [false, true] {
        let mut on = Cluster::new();
        let (recorder, mut events) = EventRecorder::new("node");
        on.node.events = recorder;
        let mut web = claimed("web");
        if is_device {
            on.put_volume(json!({"volumeMode": "Block"}), "1Gi");
            web = claimed_device("web");
        }
        on.driver.set_capabilities(&[
            Capability::StageUnstageVolume,
            Capability::GetVolumeStats,
            Capability::VolumeCondition,
        ]);
        on.driver.set_stats("handle-1", stats(40, true));
        let _driver = on.serve();
        let kubelet = on.node.start();
        kubelet.add(web).await;
        kubelet.until_phase("web", "Running", 60 * SECOND).await;
        until("the usage", 3 * 60 * SECOND, || {
            volume(&kubelet, "web").is_some()
        })
        .await;
        let usage = volume(&kubelet, "web").unwrap();
        assert_eq!((usage.bytes.total, usage.bytes.used), (100, 40));
        assert_eq!(usage.is_abnormal, Some(true));
        assert!(!usage.is_local_ephemeral);
        let text = "Volume v: the disk is ill";
        assert!(has_event(&mut events, "VolumeConditionAbnormal", text));
        let page = metrics(&kubelet);
        let labels = "{namespace=\"default\",persistentvolumeclaim=\"data\"}";
        for (name, value) in [("used_bytes", 40), ("health_status_abnormal", 1)] {
            let sample = format!("kubelet_volume_stats_{name}{labels} {value}\n");
            assert!(page.contains(&sample), "{sample}: {page}");
        }
        let call = "csi_operations_seconds_count{driver_name=\"d.example.com\",\
                    method_name=\"/csi.v1.Node/NodeGetVolumeStats\",grpc_status_code=\"OK\",\
                    migrated=\"false\"}";
        assert!(page.contains(call), "{page}");

        // While the driver hangs, the last usage counts; after it has failed, there is none.
        on.driver.fault("GetVolumeStats", Fault::Hang);
        on.driver.set_stats("handle-1", stats(50, false));
        tokio::time::sleep(100 * SECOND).await;
        assert_eq!(volume(&kubelet, "web").unwrap().bytes.used, 40);
        until("the end of the call", 5 * 60 * SECOND, || {
            volume(&kubelet, "web").is_none()
        })
        .await;
        on.driver.clear_faults();
        until("the usage", 5 * 60 * SECOND, || {
            volume(&kubelet, "web").is_some_and(|usage| usage.bytes.used == 50)
        })
        .await;
        assert_eq!(volume(&kubelet, "web").unwrap().is_abnormal, Some(false));
        kubelet.stop().await;
    }
}
