//! Conditions of volumes, and metrics.

use futures::future::{BoxFuture, FutureExt as _, ready};
use kubelet_volume::{
    VolumeError,
    usage::{DriverUsage, DriverVolume, VolumeCondition},
};

use super::*;

/// A driver with a fixed answer.
#[derive(Debug)]
struct Driver(Option<DriverUsage>);

impl DriverVolume for Driver {
    fn driver(&self) -> &str {
        "d.example.com"
    }

    fn usage(&self) -> BoxFuture<'_, Result<Option<DriverUsage>, VolumeError>> {
        ready(Ok(self.0.clone())).boxed()
    }
}

fn driver(used: u64, condition: Option<bool>) -> UsageSource {
    UsageSource::Driver(Arc::new(Driver(Some(DriverUsage {
        bytes: Amounts {
            total: 100,
            available: 100 - used,
            used,
        },
        inodes: Amounts {
            total: 10,
            available: 9,
            used: 1,
        },
        condition: condition.map(|is_abnormal| VolumeCondition {
            is_abnormal,
            message: "the disk is ill".to_owned(),
        }),
    }))))
}

fn claimed(name: &str, claim: &str) -> Value {
    json!({"name": name, "persistentVolumeClaim": {"claimName": claim}})
}

fn page(it: &Running) -> String {
    let mut page = Exposition::default();
    it.analyzer.collect(&mut page);
    page.into_text()
}

#[tokio::test(start_paused = true)]
async fn claims_have_upstreams_metrics() {
    let it = Running::start();
    assert_eq!(page(&it), "");
    let dir = memory();
    let spec = json!([claimed("a", "data"), claimed("b", "other"), {"name": "e", "emptyDir": {}}]);
    let sources = [
        ("a", driver(40, Some(true))),
        ("b", driver(7, None)),
        ("e", directory(dir.path())),
    ];
    let none = UsageSource::Driver(Arc::new(Driver(None)));
    let silent = json!([claimed("n", "none"), claimed("a", "data")]);
    it.set(vec![
        pod("u", spec, &sources),
        // Another pod with the same claim.
        pod("w", silent, &[("n", none), ("a", driver(41, Some(false)))]),
    ]);
    it.measured("u", "e").await;
    it.measured("w", "a").await;
    let text = page(&it);
    let of_claims = |line: &&str| line.starts_with("kubelet_volume_stats");
    let samples: Vec<&str> = text.lines().filter(of_claims).collect();
    let expected = [
        ("capacity_bytes", "data", 100),
        ("capacity_bytes", "other", 100),
        ("available_bytes", "data", 60),
        ("available_bytes", "other", 93),
        ("used_bytes", "data", 40),
        ("used_bytes", "other", 7),
        ("inodes", "data", 10),
        ("inodes", "other", 10),
        ("inodes_free", "data", 9),
        ("inodes_free", "other", 9),
        ("inodes_used", "data", 1),
        ("inodes_used", "other", 1),
        ("health_status_abnormal", "data", 1),
    ];
    let expected = expected.map(|(name, claim, value)| {
        let labels = format!("namespace=\"ns\",persistentvolumeclaim=\"{claim}\"");
        format!("kubelet_volume_stats_{name}{{{labels}}} {value}")
    });
    assert_eq!(samples, expected);
    let head = "# HELP kubelet_volume_stats_capacity_bytes [ALPHA] Capacity in bytes of the volume\n\
                # TYPE kubelet_volume_stats_capacity_bytes gauge\n";
    assert!(text.contains(head), "{text}");
    for source in ["du", "d.example.com"] {
        let sample = format!(
            "kubelet_volume_metric_collection_duration_seconds_bucket\
             {{metric_source=\"{source}\",le=\"0.005\"}}"
        );
        assert!(text.contains(&sample), "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn abnormal_volumes_are_events() {
    let mut it = Running::start();
    let spec = json!([claimed("a", "data"), claimed("b", "other")]);
    let sources = [("a", driver(1, Some(false))), ("b", driver(1, Some(true)))];
    it.set(vec![pod("u", spec, &sources)]);
    let event = it.events.recv().await.unwrap();
    assert_eq!(event.type_.as_deref(), Some("Warning"));
    assert_eq!(event.reason.as_deref(), Some("VolumeConditionAbnormal"));
    let message = event.message.unwrap();
    assert_eq!(message, "Volume b: the disk is ill");
    assert_eq!(event.involved_object.uid.as_deref(), Some("u"));
    assert_eq!(it.measured("u", "a").await.is_abnormal, Some(false));
    assert_eq!(it.measured("u", "b").await.is_abnormal, Some(true));
}

#[tokio::test]
async fn logs_have_upstreams_metric() {
    let dir = memory();
    std::fs::create_dir(dir.path().join("c")).unwrap();
    std::fs::write(dir.path().join("c/0.log"), "x").unwrap();
    let it = Running::start();
    let mut pod = pod("u", json!([]), &[]);
    pod.log_dir = dir.path().to_owned();
    it.set(vec![pod]);
    let expected = "# HELP kubelet_container_log_filesystem_used_bytes [ALPHA] Bytes used by the \
                    container's logs on the filesystem.\n\
                    # TYPE kubelet_container_log_filesystem_used_bytes gauge\n\
                    kubelet_container_log_filesystem_used_bytes\
                    {uid=\"u\",namespace=\"ns\",pod=\"pod-u\",container=\"c\"} 4096\n";
    in_time(until(|| (page(&it) == expected).then_some(()))).await;
}
