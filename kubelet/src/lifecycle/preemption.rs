//! Preemption: selects pods to end so that a critical pod can run.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Pod, PodSpec};
use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_pod_spec::{
    identity::{self, PodUid},
    priority,
    qos::QosClass,
    resources,
    shortage::Shortage,
};
use tracing::info;

use crate::{
    pod_worker::{Kill, PodSyncer, PodWorkers},
    status::Verdict,
};

/// The outcome of a preempted pod, in upstream's words.
pub fn verdict() -> Verdict {
    Verdict {
        always_fails: false,
        reason: "Preempting".to_owned(),
        message: "Preempted in order to admit critical pod".to_owned(),
        disruption: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
    }
}

/// Ends the victims to make room for the critical `pod`; returns their UIDs.
pub(crate) fn end<S: PodSyncer>(
    victims: &[Arc<Pod>],
    pod: &Pod,
    workers: &PodWorkers<S>,
    events: &EventRecorder,
) -> Vec<PodUid> {
    let end = |victim: &Arc<Pod>| {
        let uid = PodUid::of(victim);
        info!(
            pod = identity::full_name(victim), pod_uid = %uid,
            for_pod = identity::full_name(pod), "preempting a pod to make room for a critical pod"
        );
        let verdict = verdict();
        events.warning(Subject::Pod(victim), reason::PREEMPTING, &verdict.message);
        let kill = Kill {
            verdict: Some(verdict),
            ..Kill::default()
        };
        workers.kill(&uid, kill);
        uid
    };
    victims.iter().map(end).collect()
}

/// QoS classes, the last to be preempted first.
const CLASSES: [QosClass; 3] = [
    QosClass::Guaranteed,
    QosClass::Burstable,
    QosClass::BestEffort,
];

/// The missing amount of a resource.
#[derive(Clone, Debug)]
struct Missing {
    resource: String,
    amount: i64,
}

/// The pods of `others` to preempt for `pod`.
///
/// # Errors
/// Preemption cannot free enough.
pub(super) fn victims(
    pod: &Pod,
    others: &[Arc<Pod>],
    shortages: &[Shortage],
) -> Result<Vec<Arc<Pod>>, String> {
    let missing: Vec<Missing> = shortages
        .iter()
        .map(|shortage| Missing {
            resource: shortage.resource.clone(),
            amount: shortage.missing(),
        })
        .collect();
    let of_class = |class| -> Vec<Arc<Pod>> {
        let may_go = others.iter().filter(|other| may_preempt(pod, other));
        may_go
            .filter(|other| other.spec.as_ref().map(QosClass::of) == Some(class))
            .cloned()
            .collect()
    };
    let mut classes = CLASSES.map(of_class);
    let all: Vec<Arc<Pod>> = classes.iter().flatten().cloned().collect();
    nothing_of(&without(&missing, &all))?;
    // Preempt from a class only what all lower classes together cannot free.
    let mut chosen = Vec::new();
    for class in 0..classes.len() {
        let lesser: Vec<Arc<Pod>> = classes[class + 1..].iter().flatten().cloned().collect();
        let left = without(&without(&missing, &lesser), &chosen);
        chosen.extend(nearest(std::mem::take(&mut classes[class]), left)?);
    }
    chosen.reverse();
    Ok(chosen)
}

/// Whether `pod` may preempt `other`.
fn may_preempt(pod: &Pod, other: &Pod) -> bool {
    if priority::is_critical(pod) && !priority::is_critical(other) {
        return true;
    }
    match (priority_of(pod), priority_of(other)) {
        (Some(own), Some(other)) => own > other,
        _ => false,
    }
}

/// Selects pods that together free the missing resources: each time the one closest to it; among
/// equals the one with the lower priority, which upstream ignores, and then the one with smaller
/// requests.
fn nearest(mut pods: Vec<Arc<Pod>>, mut missing: Vec<Missing>) -> Result<Vec<Arc<Pod>>, String> {
    let mut chosen = Vec::new();
    while !missing.is_empty() {
        let best = pods
            .iter()
            .enumerate()
            .min_by(|(_, a), (_, b)| {
                let distances = distance(&missing, a).total_cmp(&distance(&missing, b));
                distances
                    .then_with(|| priority_of(a).cmp(&priority_of(b)))
                    .then_with(|| size(a).cmp(&size(b)))
            })
            .map(|(index, _)| index);
        let Some(best) = best else {
            return nothing_of(&missing).map(|()| chosen);
        };
        let pod = pods.swap_remove(best);
        missing = without(&missing, std::slice::from_ref(&pod));
        chosen.push(pod);
    }
    Ok(chosen)
}

/// The distance of a pod's requests from the missing amounts: the sum of the squared fractions that
/// remain missing.
fn distance(missing: &[Missing], pod: &Pod) -> f64 {
    missing
        .iter()
        .map(|missing| {
            let left = missing
                .amount
                .saturating_sub(request(pod, &missing.resource));
            let fraction = left.max(0) as f64 / missing.amount.max(1) as f64;
            fraction * fraction
        })
        .sum()
}

fn priority_of(pod: &Pod) -> Option<i32> {
    pod.spec.as_ref()?.priority
}

fn size(pod: &Pod) -> (i64, i64) {
    (request(pod, "memory"), request(pod, "cpu"))
}

/// The amounts still missing without `pods`.
fn without(missing: &[Missing], pods: &[Arc<Pod>]) -> Vec<Missing> {
    missing
        .iter()
        .filter_map(|missing| {
            let given: i64 = pods.iter().map(|pod| request(pod, &missing.resource)).sum();
            let amount = missing.amount.saturating_sub(given);
            (amount > 0).then(|| Missing {
                resource: missing.resource.clone(),
                amount,
            })
        })
        .collect()
}

fn nothing_of(missing: &[Missing]) -> Result<(), String> {
    if missing.is_empty() {
        return Ok(());
    }
    let list: String = missing
        .iter()
        .map(|missing| format!("(res: {}, q: {}), ", missing.resource, missing.amount))
        .collect();
    Err(format!(
        "preemption: error finding a set of pods to preempt: no set of running pods found to \
         reclaim resources: [{list}]"
    ))
}

/// A pod's request for a resource; each pod counts as one of `pods`.
fn request(pod: &Pod, resource: &str) -> i64 {
    let of_spec = |spec: &PodSpec| {
        let requests = resources::requests(spec);
        requests.get(resource).copied().unwrap_or_default()
    };
    match resource {
        "pods" => 1,
        _ => resources::counted(resource, pod.spec.as_ref().map(of_spec).unwrap_or_default()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(name: &str, priority: i32, resources: Value) -> Arc<Pod> {
        let pod = json!({"metadata": {"name": name}, "spec": {
            "priority": priority, "containers": [{"name": "c", "resources": resources}]
        }});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn burstable(name: &str, cpu: &str) -> Arc<Pod> {
        pod(name, 0, json!({"requests": {"cpu": cpu}}))
    }

    fn guaranteed(name: &str, cpu: &str) -> Arc<Pod> {
        let list = json!({"cpu": cpu, "memory": "1Mi"});
        pod(name, 0, json!({"requests": list, "limits": list}))
    }

    fn chosen(missing: &[(&str, i64)], others: &[Arc<Pod>]) -> Result<Vec<String>, String> {
        let critical = pod("critical", 2_000_000_000, json!({}));
        let shortages: Vec<Shortage> = missing
            .iter()
            .map(|(resource, amount)| Shortage::find(resource, *amount, 0, 0).unwrap())
            .collect();
        let victims = victims(&critical, others, &shortages)?;
        Ok(victims
            .iter()
            .filter_map(|pod| pod.metadata.name.clone())
            .collect())
    }

    #[test]
    fn the_least_important_and_the_best_fitting_go() {
        let others = [
            guaranteed("g", "1"),
            burstable("b1", "300m"),
            burstable("b2", "600m"),
            pod("effort", 0, json!({})),
            pod(
                "critical too",
                2_000_000_000,
                json!({"requests": {"cpu": "4"}}),
            ),
        ];
        let of = |missing| chosen(missing, &others).unwrap();
        assert_eq!(of(&[("cpu", 200)]), ["b1"]);
        assert_eq!(of(&[("cpu", 500)]), ["b2"]);
        assert_eq!(of(&[("cpu", 800)]), ["b1", "b2"]);
        assert_eq!(of(&[("cpu", 1000)]), ["g"]);
        assert_eq!(of(&[("pods", 1)]), ["effort"]);
    }

    #[test]
    fn several_resources_are_made_up_for_together() {
        let has = |name: &str, cpu: &str, memory: &str| {
            pod(name, 0, json!({"requests": {"cpu": cpu, "memory": memory}}))
        };
        let others = [
            has("cpu", "1", "1Mi"),
            has("memory", "10m", "1Gi"),
            has("half of each", "500m", "512Mi"),
            guaranteed("g", "4"),
        ];
        let of = |missing: &[(&str, i64)]| chosen(missing, &others);
        const MIB: i64 = 1 << 20;
        // The pod closest to all missing resources, not to a single one.
        let both = [("cpu", 500), ("memory", 512 * MIB)];
        assert_eq!(of(&both).unwrap(), ["half of each"]);
        let all = [("cpu", 1510), ("memory", 1537 * MIB)];
        assert_eq!(of(&all).unwrap().len(), 3);
        // With one millicore more, a guaranteed pod must go.
        assert_eq!(of(&[("cpu", 1511), ("memory", MIB)]).unwrap(), ["g"]);
        // The error lists only what is still missing.
        let error = of(&[("cpu", 1000), ("memory", 4096 * MIB), ("pods", 9)]).unwrap_err();
        let told = format!(
            "[(res: memory, q: {}), (res: pods, q: 5), ]",
            4096 * MIB - 1538 * MIB
        );
        assert!(error.ends_with(&told), "{error}");
    }

    #[test]
    fn what_a_pod_lacks_counts_by_its_fraction_and_squared() {
        let has = |name: &str, cpu: &str, memory: &str| {
            pod(name, 0, json!({"requests": {"cpu": cpu, "memory": memory}}))
        };
        let missing = [("cpu", 1000), ("memory", 1000 << 20)];
        let names = |mut chosen: Vec<String>| {
            chosen.sort_unstable();
            chosen
        };
        // Two halves are closer than all of one resource.
        let others = [
            has("all cpu", "1", "1Mi"),
            has("half", "500m", "500Mi"),
            has("other half", "500m", "500Mi"),
        ];
        let halves = names(chosen(&missing, &others).unwrap());
        assert_eq!(halves, ["half", "other half"]);
        // Most of the memory counts less than lacking little of both.
        let others = [
            has("most memory", "100m", "900Mi"),
            has("most cpu", "900m", "500Mi"),
            has("rest", "100m", "500Mi"),
        ];
        let both = names(chosen(&missing, &others).unwrap());
        assert_eq!(both, ["most cpu", "rest"]);
    }

    #[test]
    fn of_equals_the_less_important_and_then_the_smaller_goes() {
        let has = |name: &str, priority: i32, cpu: &str, memory: &str| {
            let requests = json!({"cpu": cpu, "memory": memory});
            pod(name, priority, json!({"requests": requests}))
        };
        let one = [("pods", 1)];
        for (others, goes) in [
            (
                [has("low", -7, "2", "2Mi"), has("high", 5, "1", "1Mi")],
                "low",
            ),
            (
                [
                    has("more memory", 5, "1", "2Mi"),
                    has("more cpu", 5, "2", "1Mi"),
                ],
                "more cpu",
            ),
            (
                [has("more cpu", 5, "2", "1Mi"), has("less", 5, "1", "1Mi")],
                "less",
            ),
        ] {
            assert_eq!(chosen(&one, &others).unwrap(), [goes]);
            let [a, b] = others;
            assert_eq!(chosen(&one, &[b, a]).unwrap(), [goes]);
        }
    }

    #[test]
    fn a_critical_pod_has_the_room_of_a_less_critical_one_and_of_no_other() {
        let (node, cluster) = (2_000_001_000, 2_000_000_000);
        let for_one = |own, other| {
            let others = [pod("other", other, json!({}))];
            let shortage = Shortage::find("pods", 1, 1, 1).unwrap();
            victims(&pod("own", own, json!({})), &others, &[shortage]).is_ok()
        };
        assert!(for_one(node, cluster));
        assert!(!for_one(cluster, node));
        assert!(!for_one(cluster, cluster));
    }

    #[test]
    fn nobody_goes_in_vain() {
        let others = [burstable("b", "300m")];
        let error = chosen(&[("cpu", 400)], &others).unwrap_err();
        assert!(
            error.ends_with("reclaim resources: [(res: cpu, q: 100), ]"),
            "{error}"
        );
        let low = pod("low", -1, json!({}));
        assert!(victims(&low, &others, &[Shortage::find("pods", 1, 1, 1).unwrap()]).is_err());
    }
}
