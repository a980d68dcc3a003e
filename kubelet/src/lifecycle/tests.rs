use std::collections::BTreeMap;

use k8s_openapi::{api::core::v1::PodStatus, apimachinery::pkg::api::resource::Quantity};
use kubelet_api_client::events::EventRecorder;
use kubelet_eviction::EvictionOptions;
use kubelet_pod_spec::resources;
use serde_json::{Value, json};

use super::*;

fn pod(name: &str, priority: i32, spec: Value) -> Arc<Pod> {
    let mut pod = json!({"metadata": {"name": name}, "spec": spec});
    pod["spec"]["containers"] = json!([
        {"name": "c", "resources": {"requests": spec["requests"]}, "ports": spec["ports"]}
    ]);
    pod["spec"]["priority"] = priority.into();
    Arc::new(serde_json::from_value(pod).unwrap())
}

pub(super) fn admission() -> Admission {
    Admission::new(
        &[],
        PodFeatures::default(),
        Arc::new(NodeShutdown::new(std::path::Path::new("/nonexistent"))),
        Arc::new(EvictionManager::new(
            EvictionOptions::default(),
            EventRecorder::default(),
        )),
        Arc::default(),
    )
}

/// The managers have what the pod asks for.
fn complete() -> Result<Admitted, Rejection> {
    Ok(Admitted::Complete)
}

fn admit(pod: &Pod, others: &[Arc<Pod>]) -> Result<AdmissionOutcome, Rejection> {
    let node = json!({
        "metadata": {"name": "node", "labels": {"kubernetes.io/os": "linux"}},
        "spec": {"taints": [{"key": "k", "effect": "NoExecute"}]},
        "status": {"allocatable": {"cpu": "2", "pods": "2"}},
    });
    let node = NodeFacts::of(&serde_json::from_value(node).unwrap());
    admission().admit(pod, &node, others, complete)
}

#[test]
fn reasons_are_upstreams() {
    let tolerates = |mut spec: Value| {
        spec["tolerations"] = json!([{"operator": "Exists"}]);
        spec
    };
    let other = pod(
        "o",
        0,
        tolerates(
            json!({"requests": {"cpu": "1"}, "ports": [{"containerPort": 1, "hostPort": 80}]}),
        ),
    );
    for (spec, reason) in [
        (tolerates(json!({"requests": {"cpu": "1"}})), None),
        (json!({}), Some("TaintToleration")),
        (
            tolerates(json!({"requests": {"cpu": "1001m"}})),
            Some("OutOfcpu"),
        ),
        (
            tolerates(json!({"nodeSelector": {"a": "b"}})),
            Some("NodeAffinity"),
        ),
        (tolerates(json!({"nodeName": "another"})), Some("NodeName")),
        (
            tolerates(json!({"ports": [{"containerPort": 1, "hostPort": 80}]})),
            Some("NodePorts"),
        ),
        (
            tolerates(json!({"securityContext": {"supplementalGroupsPolicy": "Strict"}})),
            Some("SupplementalGroupsPolicyNotSupported"),
        ),
        (
            tolerates(json!({"securityContext": {"supplementalGroupsPolicy": "Merge"}})),
            None,
        ),
        (
            tolerates(json!({"os": {"name": "windows"}})),
            Some("PodOSNotSupported"),
        ),
        (
            tolerates(
                json!({"securityContext": {"sysctls": [{"name": "kernel.nope", "value": "1"}]}}),
            ),
            Some("SysctlForbidden"),
        ),
    ] {
        let admitted = admit(&pod("p", 0, spec.clone()), std::slice::from_ref(&other));
        let rejected = admitted.err().map(|rejection| rejection.reason);
        assert_eq!(rejected.as_deref(), reason, "{spec}");
    }
}

#[test]
fn what_the_managers_lack_comes_before_what_the_node_lacks() {
    let lacking = || {
        Err(Rejection::new(
            "UnexpectedAdmissionError",
            "Allocate failed",
        ))
    };
    let tolerates = json!([{"operator": "Exists"}]);
    for (cpu, priority, asks, reason) in [
        ("1", 0, false, None),
        ("3", 0, true, Some("UnexpectedAdmissionError")),
        // Once there is room for it.
        ("2", 2_000_000_000, false, None),
    ] {
        let spec = json!({"requests": {"cpu": cpu}, "tolerations": tolerates});
        let other = pod(
            "o",
            0,
            json!({"requests": {"cpu": "1"}, "tolerations": tolerates}),
        );
        let node = json!({"status": {"allocatable": {"cpu": "2", "pods": "2"}}});
        let node = NodeFacts::of(&serde_json::from_value(node).unwrap());
        let asked = std::cell::Cell::new(false);
        let allocate = || {
            asked.set(true);
            lacking()
        };
        let admitted = admission().admit(&pod("p", priority, spec), &node, &[other], allocate);
        let rejected = admitted.err().map(|rejection| rejection.reason);
        assert_eq!(rejected.as_deref(), reason, "{cpu}");
        assert_eq!(asked.get(), asks, "{cpu}");
    }
}

#[test]
fn pod_level_resources_can_be_switched_off() {
    let admission = Admission {
        features: PodFeatures {
            pod_resources: false,
            pod_resize: false,
        },
        ..admission()
    };
    let spec =
        |resources: Value| json!({"tolerations": [{"operator": "Exists"}], "resources": resources});
    let node = room_for_one();
    for (resources, reason) in [
        (json!(null), None),
        (json!({"requests": {}}), None),
        (
            json!({"limits": {"memory": "1Gi"}}),
            Some("PodLevelResourcesNotSupported"),
        ),
    ] {
        let admitted = admission.admit(&pod("p", 0, spec(resources)), &node, &[], complete);
        let rejected = admitted.err().map(|rejection| rejection.reason);
        assert_eq!(rejected.as_deref(), reason);
    }
    let (small, large) = (
        pod("p", 0, spec(json!({"requests": {"cpu": "1m"}}))),
        pod("p", 0, spec(json!({"requests": {"cpu": "2m"}}))),
    );
    let refused = admission
        .admit_resize(&large, &small, &node, &[])
        .unwrap_err();
    assert_eq!(
        (refused.reason(), refused.message()),
        (
            "Infeasible",
            "InPlacePodLevelResourcesVerticalScaling is disabled"
        )
    );
}

#[test]
fn static_pods_need_not_tolerate_what_ends_pods() {
    let mut pod = Pod::clone(&pod("p", 0, json!({})));
    let rejection = admit(&pod, &[]).unwrap_err();
    assert_eq!(rejection.reason, "TaintToleration");
    for (source, is_static) in [("file", true), ("http", true), ("api", false)] {
        let source = ("kubernetes.io/config.source".to_owned(), source.to_owned());
        pod.metadata.annotations = Some([source].into());
        assert_eq!(admit(&pod, &[]).is_ok(), is_static);
    }
}

#[test]
fn what_cannot_be_done_is_held_back_but_for_static_pods() {
    let admission = admission();
    let mut pod = Pod::clone(&pod(
        "p",
        0,
        json!({
            "tolerations": [{"operator": "Exists"}],
            "volumes": [{"name": "v", "rbd": {"image": "i", "monitors": []}}]
        }),
    ));
    let node = room_for_one();
    assert_eq!(
        admission.admit(&pod, &node, &[], complete),
        Ok(AdmissionOutcome::Now)
    );
    for is_pending in [true, false] {
        let held = admission.hold_back(&pod, is_pending, &node).unwrap_err();
        assert_eq!(held.reason, "UnsupportedPodSpec");
    }

    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    pod.metadata.annotations = Some([source].into());
    assert_eq!(admission.hold_back(&pod, true, &node), Ok(()));
    let rejection = admission.admit(&pod, &node, &[], complete).unwrap_err();
    assert_eq!(rejection.reason, "UnsupportedPodSpec");
}

#[test]
fn a_profile_that_cannot_be_enforced_rejects_a_pod_that_was_not_started() {
    let admission = Admission {
        has_app_armor: false,
        ..admission()
    };
    let confined = json!({
        "tolerations": [{"operator": "Exists"}],
        "securityContext": {"appArmorProfile": {"type": "RuntimeDefault"}}
    });
    let mut pod = Pod::clone(&pod("p", 0, confined));
    let rejection = admission
        .admit(&pod, &room_for_one(), &[], complete)
        .unwrap_err();
    assert_eq!(rejection.reason, "AppArmor");
    assert_eq!(
        rejection.message,
        "Cannot enforce AppArmor: AppArmor is not enabled on the host"
    );
    pod.status = Some(PodStatus {
        phase: Some("Running".to_owned()),
        ..PodStatus::default()
    });
    let admitted = admission.admit(&pod, &room_for_one(), &[], complete);
    assert_eq!(admitted, Ok(AdmissionOutcome::Now));
}

/// A node that has room for a pod without requests.
fn room_for_one() -> NodeFacts {
    NodeFacts {
        allocatable: resources::amounts(&BTreeMap::from([(
            "pods".to_owned(),
            Quantity("1".to_owned()),
        )])),
        ..NodeFacts::default()
    }
}

#[test]
fn resources_that_somebody_gave_the_node_are_counted() {
    let spec = json!({
        "requests": {"x.y/card": "2"}, "tolerations": [{"operator": "Exists"}]
    });
    let mut pod = Pod::clone(&pod("p", 0, spec));
    let source = ("kubernetes.io/config.source".to_owned(), "file".to_owned());
    let node = |cards: &str| {
        let given = json!({"status": {"allocatable": {
            "cpu": "2", "pods": "9", "x.y/card": cards
        }}});
        NodeFacts::of(&serde_json::from_value(given).unwrap())
    };
    let without = NodeFacts::of(
        &serde_json::from_value(json!({
            "status": {"allocatable": {"cpu": "2", "pods": "9"}}
        }))
        .unwrap(),
    );
    let admission = admission();
    for is_static in [false, true] {
        if is_static {
            pod.metadata.annotations = Some([source.clone()].into());
        }
        let others = [Arc::new(pod.clone())];
        assert_eq!(admission.hold_back(&pod, true, &node("2")), Ok(()));
        let alone = admission.admit(&pod, &node("2"), &[], complete);
        assert_eq!(alone, Ok(AdmissionOutcome::Now));
        let rejection = admission
            .admit(&pod, &node("3"), &others, complete)
            .unwrap_err();
        // A static pod is critical, but there is none to preempt.
        let reason = match is_static {
            true => "UnexpectedAdmissionError",
            false => "OutOfx.y/card",
        };
        assert_eq!(rejection.reason, reason);
        let admitted = admission.admit(&pod, &without, &[], complete);
        if is_static {
            assert_eq!(admitted.unwrap_err().reason, "UnsupportedPodSpec");
        } else {
            // The scheduler may know resources that no node has.
            assert_eq!(admitted, Ok(AdmissionOutcome::Now));
            assert_eq!(admission.hold_back(&pod, true, &without), Ok(()));
        }
        // A running pod is not ended because the resources are gone.
        assert_eq!(admission.hold_back(&pod, false, &without), Ok(()));
    }
}

#[test]
fn a_critical_pod_runs_instead_of_others() {
    let spec = json!({"requests": {"cpu": "2"}, "tolerations": [{"operator": "Exists"}]});
    let critical = pod("critical", 2_000_000_000, spec);
    let others = [pod("a", 0, json!({"requests": {"cpu": "1"}}))];
    assert_eq!(
        admit(&critical, &others),
        Ok(AdmissionOutcome::AfterPreemption(others.to_vec()))
    );
    let others = [pod("a", 2_000_000_001, json!({"requests": {"cpu": "1"}}))];
    let rejection = admit(&critical, &others).unwrap_err();
    assert_eq!(rejection.reason, "UnexpectedAdmissionError");
    assert_eq!(
        rejection.message,
        "Unexpected error while attempting to recover from admission failure: preemption: \
         error finding a set of pods to preempt: no set of running pods found to reclaim \
         resources: [(res: cpu, q: 1000), ]"
    );
}
