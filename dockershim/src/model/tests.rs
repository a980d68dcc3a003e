use crate::LookupError;
use std::time::Duration;

use cri_proto::runtime::v1::{ContainerState, ContainerStatus};

use super::*;

fn container(id: &str, sandbox: &str, state: ContainerState) -> Record {
    Record::Container(Arc::new(Container {
        status: ContainerStatus {
            id: id.into(),
            state: state.into(),
            ..Default::default()
        },
        sandbox_id: sandbox.into(),
        docker_name: String::new(),
        pid: 0,
        engine_log: String::new(),
        cri_log: false,
        unified: Default::default(),
        image_mounts: Default::default(),
        upper_dir: String::new(),
        provisional: false,
    }))
}

fn state(model: &Model, id: &str) -> Option<ContainerState> {
    Some(model.snapshot().container(id).ok()?.status.state())
}

use ContainerState::{ContainerCreated as Created, ContainerRunning as Running};

#[test]
fn a_slow_inspect_does_not_undo_a_later_change() {
    let model = Model::new();
    let slow = model.ticket();
    let after_the_change = model.ticket();
    assert!(model.put(&after_the_change, "a", Some(container("a", "s", Running))));
    drop(after_the_change);
    assert!(!model.put(&slow, "a", Some(container("a", "s", Created))));
    assert_eq!(state(&model, "a"), Some(Running));
}

#[test]
fn a_slow_inspect_does_not_bring_back_what_was_removed() {
    let model = Model::new();
    model.put(&model.ticket(), "a", Some(container("a", "s", Running)));
    let slow = model.ticket();
    model.remove("a");
    assert!(!model.put(&slow, "a", Some(container("a", "s", Running))));
    assert_eq!(state(&model, "a"), None);
    assert!(!model.put_if_absent(&slow, "a", container("a", "s", Running)));
    assert_eq!(state(&model, "a"), None);
}

#[test]
fn nothing_is_remembered_of_the_removed_once_no_inspect_is_out() {
    let model = Model::new();
    let slow = model.ticket();
    for id in ["a", "b", "c"] {
        model.put(&model.ticket(), id, Some(container(id, "s", Running)));
        model.remove(id);
    }
    assert_eq!(model.writer.lock().as_of.len(), 3);
    drop(slow);
    assert_eq!(model.writer.lock().as_of.len(), 0);
}

#[test]
fn containers_are_found_by_sandbox_and_by_prefix() {
    let model = Model::new();
    for (id, sandbox) in [("aa1", "s1"), ("aa2", "s2"), ("bb1", "s1")] {
        model.put(&model.ticket(), id, Some(container(id, sandbox, Running)));
    }
    let snapshot = model.snapshot();
    let of_s1: Vec<_> = snapshot
        .containers_of("s1")
        .map(|c| c.id().to_owned())
        .collect();
    assert_eq!(of_s1, ["aa1", "bb1"]);
    assert_eq!(snapshot.container("b").unwrap().id(), "bb1");
    assert_eq!(
        snapshot.container("aa").unwrap_err(),
        LookupError::Ambiguous
    );
    assert_eq!(snapshot.container("").unwrap_err(), LookupError::Missing);
    assert_eq!(snapshot.container("c").unwrap_err(), LookupError::Missing);
    model.remove("aa1");
    assert_eq!(model.snapshot().containers_of("s1").count(), 1);
}

#[test]
fn a_snapshot_does_not_change_under_its_reader() {
    let model = Model::new();
    model.put(&model.ticket(), "a", Some(container("a", "s", Running)));
    let before = model.snapshot();
    model.remove("a");
    assert!(before.container("a").is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_waiter_wakes_when_its_condition_holds() {
    let model = Model::new();
    model.put(&model.ticket(), "a", Some(container("a", "s", Created)));
    let wait = model.wait_for(|s| s.container("a").is_ok_and(|c| c.status.state() == Running));
    let change = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        model.put(&model.ticket(), "a", Some(container("a", "s", Running)));
    };
    let both = async { tokio::join!(wait, change) };
    tokio::time::timeout(Duration::from_secs(60), both)
        .await
        .unwrap();
}

#[test]
fn who_hears_of_a_change_finds_it() {
    let model = Arc::new(Model::new());
    model.set_synced();
    let mut events = model.events.listen();
    let listener = std::thread::spawn({
        let model = Arc::clone(&model);
        move || {
            let mut missing = 0;
            for _ in 0..500 {
                let event = loop {
                    if let Ok(event) = events.try_recv() {
                        break event;
                    }
                };
                missing += usize::from(!model.snapshot().contains(&event.id));
            }
            missing
        }
    });
    for n in 0..500 {
        let id = format!("c{n}");
        model.put(&model.ticket(), &id, Some(container(&id, "s", Created)));
    }
    assert_eq!(listener.join().unwrap(), 0);
}
