use cri_proto::csi::v1::{self as csi, NodePublishVolumeRequest, VolumeUsage};
use fake_csi::{FakeCsi, Serving};
use kubelet_metrics::{Collector as _, Exposition};
use tonic::Status;

use super::*;
use crate::csi::driver_store::Driver;

const DRIVER: &str = "d.example.com";

/// A published volume of a registered driver.
struct Published {
    driver: FakeCsi,
    volume: CsiVolume,
    _serving: Serving,
    _dir: tempfile::TempDir,
}

async fn published() -> Published {
    let dir = tempfile::tempdir().unwrap();
    let endpoint = dir.path().join("csi.sock");
    let driver = FakeCsi::new(DRIVER);
    let serving = driver
        .serve(&dir.path().join("reg.sock"), &endpoint)
        .unwrap();
    let drivers = Arc::<DriverStore>::default();
    let known = Driver {
        endpoint,
        version: "1.0.0".parse().unwrap(),
    };
    drivers.put(DRIVER, known).unwrap();
    let path = dir.path().join("mount");
    let request = NodePublishVolumeRequest {
        volume_id: "handle".to_owned(),
        target_path: text(&path),
        ..NodePublishVolumeRequest::default()
    };
    std::fs::create_dir_all(&path).unwrap();
    let client = drivers.client(DRIVER).unwrap();
    client.publish(request).await.unwrap();
    Published {
        driver,
        volume: CsiVolume {
            drivers,
            driver: DRIVER.to_owned(),
            handle: "handle".to_owned(),
            path,
        },
        _serving: serving,
        _dir: dir,
    }
}

fn item(unit: i32, [total, available, used]: [i64; 3]) -> VolumeUsage {
    VolumeUsage {
        available,
        total,
        used,
        unit,
    }
}

fn answer(abnormal: bool, message: &str) -> NodeGetVolumeStatsResponse {
    NodeGetVolumeStatsResponse {
        usage: vec![
            item(Unit::Bytes.into(), [100, 60, 40]),
            item(Unit::Inodes.into(), [10, -1, 3]),
            item(7, [1, 1, 1]),
        ],
        volume_condition: Some(csi::VolumeCondition {
            abnormal,
            message: message.to_owned(),
        }),
    }
}

const EXPECTED: [Amounts; 2] = [
    Amounts {
        total: 100,
        available: 60,
        used: 40,
    },
    Amounts {
        total: 10,
        available: 0,
        used: 3,
    },
];

#[tokio::test]
async fn a_driver_reports_what_it_supports() {
    let it = published().await;
    it.driver.set_stats("handle", answer(true, "disk is ill"));
    assert_eq!(it.volume.usage().await.unwrap(), None);

    it.driver.set_capabilities(&[Capability::GetVolumeStats]);
    let usage = it.volume.usage().await.unwrap().unwrap();
    assert_eq!([usage.bytes, usage.inodes], EXPECTED);
    assert_eq!(usage.condition, None);

    let both = [Capability::GetVolumeStats, Capability::VolumeCondition];
    it.driver.set_capabilities(&both);
    let usage = it.volume.usage().await.unwrap().unwrap();
    assert_eq!([usage.bytes, usage.inodes], EXPECTED);
    let condition = usage.condition.unwrap();
    assert!(condition.is_abnormal);
    assert_eq!(condition.message, "disk is ill");

    // The driver only reports a condition if there is something to report.
    it.driver
        .set_stats("handle", NodeGetVolumeStatsResponse::default());
    let usage = it.volume.usage().await.unwrap().unwrap();
    assert_eq!(usage.bytes, Amounts::default());
    assert_eq!(usage.condition, Some(VolumeCondition::default()));
    it.driver.set_capabilities(&[Capability::GetVolumeStats]);
    let error = it.volume.usage().await.unwrap_err();
    assert!(error.to_string().contains("usage is nil"), "{error}");
}

#[tokio::test]
async fn failed_calls_are_errors_and_all_calls_are_metrics() {
    let it = published().await;
    it.driver.set_capabilities(&[Capability::GetVolumeStats]);
    it.driver
        .fail("GetVolumeStats", Status::cancelled("stopping"));
    let error = it.volume.usage().await.unwrap_err();
    assert!(error.to_string().contains("stopping"), "{error}");
    let mut page = Exposition::default();
    it.volume.drivers.collect(&mut page);
    let text = page.into_text();
    for (rpc, code) in [
        ("NodePublishVolume", "OK"),
        ("NodeGetCapabilities", "OK"),
        ("NodeGetVolumeStats", "Canceled"),
    ] {
        let sample = format!(
            "csi_operations_seconds_count{{driver_name=\"{DRIVER}\",\
             method_name=\"/csi.v1.Node/{rpc}\",grpc_status_code=\"{code}\",migrated=\"false\"}} 1\n"
        );
        assert!(text.contains(&sample), "{sample}: {text}");
    }
    let unknown = CsiVolume {
        drivers: Arc::default(),
        ..it.volume
    };
    let error = unknown.usage().await.unwrap_err();
    assert!(error.to_string().contains("not found in the list"));
}

#[test]
fn long_messages_are_cut() {
    let usage = usage(answer(true, &"ä".repeat(5000)), true).unwrap();
    let message = usage.condition.unwrap().message;
    assert_eq!(message.chars().count(), MAX_MESSAGE);
}
