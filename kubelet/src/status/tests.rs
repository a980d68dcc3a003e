use k8s_openapi::api::core::v1::{Container, PodSpec};

use kubelet_api_client::objects::NoObjects;
use kubelet_dra_manager::DraParts;

use super::*;

fn report(manager: &StatusManager, verdict: Option<&Verdict>, ending: bool) -> Arc<ApiStatus> {
    let pod = Pod {
        spec: Some(PodSpec {
            containers: vec![Container::default()],
            ..PodSpec::default()
        }),
        ..Pod::default()
    };
    let facts = StatusInputs {
        status: &PodStatus::default(),
        sandbox_made: false,
        waiting: &BTreeMap::new(),
        runtime_name: "fake",
        ending,
        verdict,
        held_back: None,
        resize: None,
    };
    manager.update(&pod, facts);
    manager.get(&PodUid::of(&pod)).unwrap()
}

fn manager() -> StatusManager {
    let claims = DraManager::start(DraParts {
        root_dir: "/nonexistent".into(),
        objects: Arc::new(NoObjects),
        cluster: None,
    });
    let features = PodFeatures::default();
    StatusManager::new(
        HostIps::default(),
        Arc::default(),
        Arc::default(),
        claims,
        features,
        Arc::default(),
    )
}

#[test]
fn a_status_replaces_only_the_one_that_it_follows() {
    let manager = manager();
    let pod = Pod::default();
    let uid = PodUid::of(&pod);
    let status = |message: &str| ApiStatus {
        message: Some(message.to_owned()),
        ..ApiStatus::default()
    };
    let message = || manager.get(&uid).unwrap().message.clone().unwrap();
    assert!(manager.replace(&pod, None, status("first"), false));
    let first = manager.get(&uid);
    assert!(!manager.replace(&pod, None, status("late"), false));
    manager.set(&pod, status("adopted"), false);
    assert!(!manager.replace(&pod, first.as_ref(), status("late"), false));
    assert_eq!(message(), "adopted");
    let adopted = manager.get(&uid);
    assert!(manager.replace(&pod, adopted.as_ref(), status("next"), false));
    assert_eq!(message(), "next");
}

#[test]
fn the_status_of_a_mirror_pod_counts_while_the_same_containers_run() {
    let running = |id: &str, message: &str| -> ApiStatus {
        serde_json::from_value(serde_json::json!({
            "message": message,
            "containerStatuses": [{
                "name": "c", "image": "", "imageID": "", "ready": true, "restartCount": 0,
                "containerID": id, "state": {"running": {}},
            }],
        }))
        .unwrap()
    };
    let pod = Pod::default();
    for (id, expected) in [("fake://1", "earlier"), ("fake://2", "now")] {
        let manager = manager();
        manager.set(&pod, running("fake://1", "now"), false);
        let mirror = Pod {
            status: Some(running(id, "earlier")),
            ..Pod::default()
        };
        manager.adopt(&pod, &mirror);
        let status = manager.get(&PodUid::of(&pod)).unwrap();
        assert_eq!(status.message.as_deref(), Some(expected));
    }
}

#[test]
fn a_verdict_is_the_pods_last_phase_with_its_reason() {
    let manager = manager();
    report(&manager, None, false);
    let verdict = Verdict {
        always_fails: true,
        reason: "DeadlineExceeded".to_owned(),
        message: "too late".to_owned(),
        disruption: None,
    };
    report(&manager, Some(&verdict), false);
    let last = report(&manager, None, true);
    assert_eq!(last.phase.as_deref(), Some("Failed"));
    assert_eq!(last.reason.as_deref(), Some("DeadlineExceeded"));
    assert_eq!(last.message.as_deref(), Some("too late"));
}
