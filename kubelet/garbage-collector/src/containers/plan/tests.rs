use proptest::prelude::*;

use super::*;

const HOUR: Duration = Duration::from_secs(3600);

fn now() -> Timestamp {
    "2026-03-01T12:00:00Z".parse().unwrap()
}

fn dead(pod: &str, name: &str, created_at: i64) -> DeadContainer {
    DeadContainer {
        id: format!("{pod}/{name}/{created_at}"),
        pod_uid: PodUid::from(pod),
        name: name.to_owned(),
        created_at,
        grace_period: None,
        log: None,
    }
}

fn options(max_per_pod_container: i32, max_containers: i32) -> ContainerGcOptions {
    ContainerGcOptions {
        max_per_pod_container,
        max_containers,
        ..ContainerGcOptions::default()
    }
}

/// The removed containers, in order, as `pod/name/created_at`.
fn removed(dead: &[DeadContainer], options: ContainerGcOptions) -> Vec<String> {
    let removed = containers(dead.to_vec(), &options, |uid| uid.as_str() == "gone");
    removed.into_iter().map(|(it, _)| it.id).collect()
}

#[test]
fn the_newest_dead_containers_of_each_name_are_kept() {
    let all = [
        dead("p", "a", 1),
        dead("p", "a", 3),
        dead("p", "a", 2),
        dead("p", "b", 1),
        dead("q", "a", 5),
        dead("q", "a", 4),
    ];
    assert_eq!(removed(&all, options(1, -1)), ["p/a/1", "p/a/2", "q/a/4"]);
    assert_eq!(removed(&all, options(2, -1)), ["p/a/1"]);
    assert_eq!(removed(&all, options(0, -1)).len(), 6);
    assert_eq!(removed(&all, options(-1, -1)), [""; 0]);
}

#[test]
fn containers_of_pods_that_are_gone_are_removed_oldest_first() {
    let all = [
        dead("gone", "a", 2),
        dead("gone", "a", 1),
        dead("p", "a", 2),
    ];
    assert_eq!(removed(&all, options(-1, -1)), ["gone/a/1", "gone/a/2"]);
    let all = containers(all.to_vec(), &options(0, 0), |uid| uid.as_str() == "gone");
    let reasons: Vec<_> = all.iter().map(|(_, reason)| *reason).collect();
    let expected = [
        ContainerReason::PodGone,
        ContainerReason::PodGone,
        ContainerReason::PerContainerLimit,
    ];
    assert_eq!(reasons, expected);
}

#[test]
fn the_total_limit_leaves_each_name_a_share_and_then_the_newest() {
    let two_each: Vec<DeadContainer> = ["p", "q", "r"]
        .into_iter()
        .flat_map(|pod| [dead(pod, "a", 1), dead(pod, "a", 2)])
        .collect();
    assert_eq!(removed(&two_each, options(-1, 6)), [""; 0]);
    // A share is one container, although four would do.
    let shares = ["p/a/1", "q/a/1", "r/a/1"];
    assert_eq!(removed(&two_each, options(-1, 4)), shares);
    let last = ["p/a/1", "q/a/1", "r/a/1", "p/a/2"];
    assert_eq!(removed(&two_each, options(-1, 2)), last);
    assert_eq!(removed(&two_each, options(1, 0)).len(), 6);
    let one: Vec<DeadContainer> = (0..5).map(|at| dead("p", "a", at)).collect();
    assert_eq!(removed(&one, options(-1, 4)), ["p/a/0"]);
    // Containers of pods that are gone do not count.
    let gone = [dead("gone", "a", 9), dead("p", "a", 1)];
    assert_eq!(removed(&gone, options(-1, 1)), ["gone/a/9"]);
}

fn listed(id: &str, state: v1::ContainerState, created_at: i64) -> v1::Container {
    v1::Container {
        id: id.to_owned(),
        pod_sandbox_id: "s".to_owned(),
        metadata: Some(v1::ContainerMetadata {
            name: "c".to_owned(),
            attempt: 0,
        }),
        state: state.into(),
        created_at,
        ..v1::Container::default()
    }
}

fn sandbox(id: &str, uid: &str, created_at: i64, is_ready: bool) -> v1::PodSandbox {
    let state = match is_ready {
        true => v1::PodSandboxState::SandboxReady,
        false => v1::PodSandboxState::SandboxNotready,
    };
    v1::PodSandbox {
        id: id.to_owned(),
        metadata: Some(v1::PodSandboxMetadata {
            uid: uid.to_owned(),
            ..v1::PodSandboxMetadata::default()
        }),
        state: state.into(),
        created_at,
        ..v1::PodSandbox::default()
    }
}

#[test]
fn containers_that_run_or_are_young_or_have_no_pod_are_not_dead() {
    let at = |age: Duration| {
        let nanos = now().as_nanosecond() - i128::try_from(age.as_nanos()).unwrap();
        i64::try_from(nanos).unwrap()
    };
    let old = at(HOUR);
    let mut stray = listed("stray", v1::ContainerState::ContainerExited, old);
    stray.pod_sandbox_id = "unknown".to_owned();
    let mut labelled = stray.clone();
    labelled.id = "labelled".to_owned();
    labelled
        .labels
        .insert(labels::POD_UID.to_owned(), "other".to_owned());
    let all = [
        listed("running", v1::ContainerState::ContainerRunning, old),
        listed("exited", v1::ContainerState::ContainerExited, old),
        listed("created", v1::ContainerState::ContainerCreated, old),
        listed("unknown", v1::ContainerState::ContainerUnknown, old),
        listed("young", v1::ContainerState::ContainerExited, old + 1),
        listed("future", v1::ContainerState::ContainerExited, i64::MAX),
        stray,
        labelled,
    ];
    let sandboxes = [
        sandbox("s", "p", 0, false),
        sandbox("unknown", "..", 0, false),
    ];
    let dead = dead_containers(&all, &sandboxes, HOUR, now());
    let found: Vec<_> = dead
        .iter()
        .map(|it| (&*it.id, it.pod_uid.as_str()))
        .collect();
    let expected = [
        ("exited", "p"),
        ("created", "p"),
        ("unknown", "p"),
        ("labelled", "other"),
    ];
    assert_eq!(found, expected);
    let stopped = dead.iter().filter(|it| it.grace_period.is_some());
    assert_eq!(stopped.map(|it| &*it.id).collect::<Vec<_>>(), ["unknown"]);
    // Nothing is young without a minimum age.
    assert_eq!(
        dead_containers(&all, &sandboxes, Duration::ZERO, now()).len(),
        5
    );
    assert_eq!(dead_containers(&all, &sandboxes, Duration::MAX, now()), []);
}

#[test]
fn the_grace_period_is_that_of_the_containers_creation() {
    let period = |annotations: &[(&str, &str)]| {
        let mut container = listed("c", v1::ContainerState::ContainerUnknown, 0);
        for (key, value) in annotations {
            container
                .annotations
                .insert((*key).to_owned(), (*value).to_owned());
        }
        grace_period(&container).as_secs()
    };
    let (deletion, termination) = (
        labels::POD_DELETION_GRACE_PERIOD,
        labels::POD_TERMINATION_GRACE_PERIOD,
    );
    assert_eq!(period(&[]), 2);
    assert_eq!(period(&[(termination, "30")]), 30);
    assert_eq!(period(&[(termination, "30"), (deletion, "5")]), 5);
    assert_eq!(period(&[(termination, "0")]), 2);
    assert_eq!(period(&[(termination, "86400")]), 60);
    assert_eq!(period(&[(termination, "-1")]), 2);
}

#[test]
fn a_log_of_two_containers_stays() {
    let with_log = |id: &str, restarts: &str, state| {
        let mut container = listed(id, state, 0);
        for (key, value) in [
            (labels::POD_NAMESPACE, "ns"),
            (labels::POD_NAME, "web"),
            (labels::POD_UID, "u"),
            (labels::CONTAINER_NAME, "c"),
        ] {
            container.labels.insert(key.to_owned(), value.to_owned());
        }
        let restart_count = labels::CONTAINER_RESTART_COUNT.to_owned();
        container
            .annotations
            .insert(restart_count, restarts.to_owned());
        container
    };
    let all = [
        with_log("own", "1", v1::ContainerState::ContainerExited),
        with_log("shared", "2", v1::ContainerState::ContainerExited),
        with_log("running", "2", v1::ContainerState::ContainerRunning),
    ];
    let dead = dead_containers(&all, &[], Duration::ZERO, now());
    let logs: Vec<_> = dead.iter().map(|it| (&*it.id, it.log.is_some())).collect();
    assert_eq!(logs, [("own", true), ("shared", false)]);
}

#[test]
fn sandboxes_without_containers_are_removed_but_the_newest() {
    let all = [
        sandbox("ready", "p", 3, true),
        sandbox("dead 2", "p", 2, false),
        sandbox("used", "p", 1, false),
        sandbox("dead 0", "p", 0, false),
        sandbox("newest", "q", 1, false),
        sandbox("older but ready", "q", 0, true),
        sandbox("gone", "gone", 1, false),
        sandbox("gone but ready", "gone", 2, true),
        sandbox("gone but used", "gone", 3, false),
        sandbox("no pod", "", 0, false),
    ];
    let used = BTreeSet::from(["used", "gone but used"]);
    let removed = sandboxes(&all, &used, |uid| uid.as_str() == "gone");
    let removed: Vec<&str> = removed.into_iter().map(|(_, id)| id).collect();
    assert_eq!(removed, ["gone", "dead 0", "dead 2"]);
}

proptest! {
    #[test]
    fn the_limits_hold_and_the_newest_stay(
        all in prop::collection::vec((0_usize..4, 0_usize..3, 0_i64..50), 0..40),
        per_container in -1_i32..4,
        total in -1_i32..20,
    ) {
        let pods = ["gone", "p", "q", "r"];
        let names = ["a", "b", "c"];
        let dead: Vec<DeadContainer> = all
            .iter()
            .enumerate()
            .map(|(index, (pod, name, at))| DeadContainer {
                id: index.to_string(),
                ..dead(pods[*pod], names[*name], *at)
            })
            .collect();
        let options = options(per_container, total);
        let is_gone = |uid: &PodUid| uid.as_str() == "gone";
        let removed = containers(dead.clone(), &options, is_gone);
        let ids: BTreeSet<&str> = removed.iter().map(|(it, _)| it.id.as_str()).collect();
        prop_assert_eq!(ids.len(), removed.len(), "none is removed twice");
        let (gone, kept): (Vec<&DeadContainer>, Vec<&DeadContainer>) =
            dead.iter().partition(|it| ids.contains(it.id.as_str()));
        prop_assert!(kept.iter().all(|it| !is_gone(&it.pod_uid)));
        if let Some(total) = options.total() {
            prop_assert!(kept.len() <= total);
        }
        for kept_one in &kept {
            let same = |it: &&&DeadContainer| {
                it.pod_uid == kept_one.pod_uid && it.name == kept_one.name
            };
            if let Some(most) = options.per_container() {
                prop_assert!(kept.iter().filter(same).count() <= most);
            }
            for older in gone.iter().filter(same) {
                prop_assert!(older.created_at <= kept_one.created_at);
            }
        }
        // Without limits, all of the other pods stay.
        if options.per_container().is_none() && options.total().is_none() {
            prop_assert!(gone.iter().all(|it| is_gone(&it.pod_uid)));
        }
    }
}
