use serde_json::{Value, json};

use super::*;

fn pod(name: &str, uid: &str, config_map: &str, status: Value) -> Arc<Pod> {
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": uid},
        "spec": {"containers": [], "volumes": [{"name": "v", "configMap": {"name": config_map}}]},
        "status": status
    });
    Arc::new(serde_json::from_value(pod).unwrap())
}

fn entry(kind: EntryKind, name: &str) -> Entry {
    let namespace = if kind.is_namespaced() { "default" } else { "" };
    Entry::new(kind, namespace, name).unwrap()
}

fn fetched(entry: &Entry, version: &str, names: &[Entry]) -> FetchedObject {
    FetchedObject {
        entry: entry.clone(),
        version: Some(version.to_owned()),
        text: version.as_bytes().to_vec(),
        names: names.iter().cloned().collect(),
    }
}

/// The pending operations: `true` for a write.
fn due(state: &mut CheckpointState) -> Vec<(String, bool)> {
    let due = state.take_due().into_iter();
    due.map(|(entry, text)| (entry.to_string(), text.is_some()))
        .collect()
}

#[test]
fn a_pod_is_written_when_it_changes_and_removed_with_what_it_named() {
    let mut state = CheckpointState::default();
    let web = pod("web", "1", "settings", json!({"phase": "Pending"}));
    state.set_pods(std::slice::from_ref(&web));
    assert_eq!(due(&mut state), [("pods/default/web".to_owned(), true)]);
    let settings = entry(EntryKind::ConfigMap, "settings");
    assert!(state.wants(&settings, Some("1")));
    assert!(!state.wants(&entry(EntryKind::ConfigMap, "other"), Some("1")));
    state.keep(fetched(&settings, "1", &[]));
    assert_eq!(due(&mut state), [(settings.to_string(), true)]);
    assert!(!state.wants(&settings, Some("1")));
    assert!(state.wants(&settings, Some("2")));

    state.put_pod(&pod("web", "1", "settings", json!({"phase": "Running"})));
    assert_eq!(due(&mut state), []);
    state.remove_pod(&pod("web", "another", "settings", json!({})));
    assert_eq!(due(&mut state), []);
    state.put_pod(&pod("web", "1", "others", json!({"phase": "Running"})));
    assert_eq!(
        due(&mut state),
        [
            ("pods/default/web".to_owned(), true),
            (settings.to_string(), false)
        ]
    );
    state.remove_pod(&web);
    assert_eq!(due(&mut state), [("pods/default/web".to_owned(), false)]);
}

#[test]
fn an_end_stays_whatever_the_server_has() {
    let mut state = CheckpointState::default();
    let running = pod("job", "1", "settings", json!({"phase": "Running"}));
    state.set_pods(std::slice::from_ref(&running));
    let succeeded = json!({"phase": "Succeeded"});
    let status: Arc<PodStatus> = Arc::new(serde_json::from_value(succeeded).unwrap());
    state.note(|_| Some(Arc::clone(&status)));
    assert!(known_status::has_ended(&state.pods()[0]));
    assert!(!state.wants(&entry(EntryKind::ConfigMap, "settings"), None));
    due(&mut state);
    state.set_pods(std::slice::from_ref(&running));
    assert_eq!(due(&mut state), []);
    assert!(known_status::has_ended(&state.pods()[0]));
    // Another pod of the same name has its own status.
    let next = pod("job", "2", "settings", json!({"phase": "Pending"}));
    state.set_pods(std::slice::from_ref(&next));
    assert!(!known_status::has_ended(&state.pods()[0]));
}

#[test]
fn nothing_goes_until_the_server_has_spoken() {
    let mut state = CheckpointState::default();
    let (claim, volume) = (
        entry(EntryKind::Claim, "data"),
        entry(EntryKind::Volume, "pv"),
    );
    let (token, corrupt) = (
        entry(EntryKind::Token, "1.ab"),
        entry(EntryKind::Pod, "corrupt"),
    );
    let web = entry(EntryKind::Pod, "web");
    for entry in [&volume, &token, &corrupt, &web] {
        state.found(entry.clone(), BTreeSet::new());
    }
    state.found(claim.clone(), [volume.clone()].into());
    let mut spec = Pod::clone(&pod("web", "1", "settings", json!({})));
    let claims = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    spec.spec.get_or_insert_default().volumes = serde_json::from_value(claims).unwrap();
    state.found_pod(web, spec.clone());
    state.settle();
    assert_eq!(due(&mut state), []);

    state.set_pods(&[Arc::new(spec)]);
    assert_eq!(due(&mut state), [(corrupt.to_string(), false)]);
    assert!(state.wants(&volume, Some("1")) && state.wants(&token, None));
    state.set_pods(&[]);
    let gone: Vec<String> = due(&mut state).into_iter().map(|(name, _)| name).collect();
    assert_eq!(
        gone,
        [
            "pods/default/web",
            "tokens/default/1.ab",
            "persistentvolumeclaims/default/data",
            "persistentvolumes/pv",
        ]
    );
}

#[test]
fn a_start_is_kept_before_the_server_knows_of_it() {
    let started = |state: &CheckpointState| {
        let pods = state.pods();
        let status = pods[0].status.clone().unwrap();
        let all = status.container_statuses.unwrap_or_default();
        all.into_iter().filter(|c| c.state.is_some()).count()
    };
    let mut state = CheckpointState::default();
    let pending = json!({"phase": "Pending", "containerStatuses": [
        {"name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0}
    ]});
    let job = pod("job", "1", "settings", pending);
    state.set_pods(std::slice::from_ref(&job));
    due(&mut state);
    let mut running = job.status.clone().unwrap();
    running.container_statuses.as_mut().unwrap()[0].state =
        serde_json::from_value(json!({"running": {}})).unwrap();
    let running = Arc::new(running);
    state.note(|_| Some(Arc::clone(&running)));
    assert_eq!(due(&mut state), [("pods/default/job".to_owned(), true)]);
    assert_eq!(started(&state), 1);
    // The API server sends the old status until it has received the new one.
    state.note(|_| Some(Arc::clone(&running)));
    state.put_pod(&job);
    assert_eq!(due(&mut state), []);
    assert_eq!(started(&state), 1);
    assert!(state.wants(&entry(EntryKind::ConfigMap, "settings"), None));
}

#[test]
fn what_failed_is_done_again_unless_something_else_is_due() {
    let mut state = CheckpointState::default();
    let (web, db) = (
        pod("web", "1", "settings", json!({})),
        pod("db", "2", "settings", json!({})),
    );
    state.set_pods(&[Arc::clone(&web), db]);
    let taken = state.take_due();
    state.remove_pod(&web);
    for (entry, text) in &taken {
        state.failed(entry, text);
    }
    let (web, db) = (entry(EntryKind::Pod, "web"), entry(EntryKind::Pod, "db"));
    assert_eq!(state.due(&web), Some(&None));
    assert_eq!(state.due(&db), taken.get(&db));
    // Failed operations are not pending before the retry.
    assert_eq!(due(&mut state), [(web.to_string(), false)]);
    state.retry();
    assert_eq!(due(&mut state), [(db.to_string(), true)]);
    assert_eq!(state.due(&db), None);
}

#[test]
fn without_a_key_nothing_secret_is_needed() {
    let mut state = CheckpointState::new(false);
    let (secret, web) = (
        entry(EntryKind::Secret, "login"),
        entry(EntryKind::Pod, "web"),
    );
    let token = entry(EntryKind::Token, "1.ab");
    let mut spec = Pod::clone(&pod("web", "1", "settings", json!({})));
    let secrets = json!([{"name": "v", "secret": {"secretName": "login"}}]);
    spec.spec.get_or_insert_default().volumes = serde_json::from_value(secrets).unwrap();
    for entry in [&secret, &token, &web] {
        state.found(entry.clone(), BTreeSet::new());
    }
    state.found_pod(web, spec.clone());
    state.settle();
    assert_eq!(due(&mut state), []);
    state.set_pods(&[Arc::new(spec)]);
    let gone = [(secret.to_string(), false), (token.to_string(), false)];
    assert_eq!(due(&mut state), gone);
}
