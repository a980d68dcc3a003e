//! Evictions of pods of the API server.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering::Relaxed},
};

use futures::future::BoxFuture;
use kubelet::{
    kubelet::options::KubeletOptions,
    node_pressure::{MeasurementSource, Measurements},
};
use kubelet_eviction::{
    EvictionOptions, Observation, Observed, PodUsage, PodUsages, Signal, Threshold, UsageDepth,
};
use kubelet_host::clock;
use kubelet_pod_spec::{amount_or_share::AmountOrShare, identity::PodUid, quantity::NANOS};
use serde_json::json;

use super::Joined;
use crate::node::{IMAGE, SECOND, pod, until};

/// Memory that can become scarce, and what each pod uses of it.
#[derive(Debug)]
struct Memory {
    is_scarce: AtomicBool,
    used: [(&'static str, u64); 2],
}

impl Measurements for Memory {
    fn observe(&self) -> BoxFuture<'_, Result<Observed, String>> {
        let memory = Observation {
            available: if self.is_scarce.load(Relaxed) { 1 } else { 500 },
            capacity: 1000,
            at: clock::now(),
        };
        let observed = Observed {
            signals: [(Signal::MemoryAvailable, memory)].into(),
            layout: None,
        };
        Box::pin(async { Ok(observed) })
    }

    fn usages(&self, _: UsageDepth) -> BoxFuture<'_, Result<PodUsages, String>> {
        let usages = self.used.map(|(uid, bytes)| {
            let usage = PodUsage {
                memory: Some(bytes),
                ..PodUsage::default()
            };
            (PodUid::from(uid), usage)
        });
        Box::pin(async move { Ok(PodUsages::from(usages)) })
    }
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_asked_for_in_vain_does_not_protect_it() {
    let joined = Joined::new();
    let memory = Arc::new(Memory {
        is_scarce: AtomicBool::new(false),
        used: [("greedy", 600 << 20), ("modest", 200 << 20)],
    });
    let threshold = Threshold::hard(Signal::MemoryAvailable, AmountOrShare::Amount(100 * NANOS));
    let options = KubeletOptions {
        eviction: EvictionOptions {
            thresholds: vec![threshold],
            ..EvictionOptions::default()
        },
        measurements: MeasurementSource::Given(memory.clone()),
        ..joined.node.options()
    };
    let _member = joined.start_with(options).await;
    for name in ["greedy", "modest"] {
        let resources = json!({"requests": {"memory": "100Mi"}});
        let containers = json!([{"name": "c", "image": IMAGE, "resources": resources}]);
        joined
            .api
            .bind(pod(name, name, json!({ "containers": containers })));
        joined.until_phase(name, "Running", 10 * SECOND).await;
    }
    joined.api.edit("greedy", |pod| {
        pod["spec"]["containers"][0]["resources"]["requests"]["memory"] = json!("1000Ti");
    });
    until("the refusal", 10 * SECOND, || {
        joined.api.condition("greedy", "PodResizePending") == "True"
    })
    .await;
    memory.is_scarce.store(true, Relaxed);
    until("an eviction", 30 * SECOND, || {
        let failed = |name| joined.api.phase(name) == "Failed";
        assert!(!failed("modest"));
        failed("greedy")
    })
    .await;
}
