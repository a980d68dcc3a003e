use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;

use super::{attempts::RETRY_BASE, *};
use crate::spec::{VolumeMode, VolumeSource, VolumeSpec};

fn volume(uid: &str) -> PodVolume {
    PodVolume {
        uid: PodUid::from(uid),
        plugin: "test".to_owned(),
        name: "pv".to_owned(),
        mode: VolumeMode::Filesystem,
    }
}

fn device() -> Device {
    Device {
        plugin: "test".to_owned(),
        name: "disk".to_owned(),
    }
}

fn request(uid: &str) -> MountRequest {
    let inline = serde_json::from_value(serde_json::json!({"name": "v"})).unwrap();
    MountRequest {
        pod: Arc::new(Pod::default()),
        spec: VolumeSpec {
            name: "v".to_owned(),
            source: VolumeSource::Inline(Box::new(inline)),
            read_only: false,
            mode: VolumeMode::Filesystem,
            capacity: None,
            migrated: false,
        },
        volume: volume(uid),
        dir: PathBuf::new(),
        device: Some(device()),
        attachment: Some("test/disk".to_owned()),
        fs_group: None,
        fs_user: None,
        selinux_label: None,
        ownership_progress: Arc::default(),
    }
}

fn want(world: &mut StateOfWorld, uid: &str, refresh: bool) {
    let wanted = vec![(request(uid), refresh)];
    world.want(&PodUid::from(uid), wanted, Resolution::Complete);
}

fn begin(world: &mut StateOfWorld) -> Vec<VolumeOperation> {
    world.begin(Instant::now()).0
}

fn kinds(jobs: &[VolumeOperation]) -> Vec<String> {
    let kind = |job: &VolumeOperation| match job {
        VolumeOperation::SetUp { request, stage, .. } => {
            let stage = if *stage { "stage, " } else { "" };
            format!("{stage}set up {}", request.volume.uid)
        }
        VolumeOperation::TearDown { volume, .. } => format!("tear down {}", volume.uid),
        VolumeOperation::Unstage(device) => format!("unstage {}", device.name),
    };
    jobs.iter().map(kind).collect()
}

/// Runs all operations that are due, and returns their descriptions.
fn settle(world: &mut StateOfWorld) -> Vec<String> {
    let mut done = Vec::new();
    loop {
        let jobs = begin(world);
        if jobs.is_empty() {
            return done;
        }
        done.extend(kinds(&jobs));
        for job in jobs {
            let mounted = matches!(job, VolumeOperation::SetUp { .. });
            world.end(&job, Ok(mounted.then_some(Mounted::Image)));
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_device_is_staged_for_the_first_and_unstaged_after_the_last() {
    let mut world = StateOfWorld::default();
    want(&mut world, "a", false);
    want(&mut world, "b", false);
    assert_eq!(settle(&mut world), ["stage, set up a", "set up b"]);
    assert_eq!(settle(&mut world), Vec::<String>::new());
    world.release(&PodUid::from("a"));
    assert_eq!(settle(&mut world), ["tear down a"]);
    world.release(&PodUid::from("b"));
    assert_eq!(settle(&mut world), ["tear down b", "unstage disk"]);
    assert!(world.mounts.is_empty() && world.devices.is_empty());
}

#[tokio::test(start_paused = true)]
async fn pods_that_share_a_device_are_set_up_one_after_the_other() {
    let mut world = StateOfWorld::default();
    for uid in ["a", "b", "c"] {
        want(&mut world, uid, true);
    }
    for expected in ["stage, set up a", "set up b", "set up c"] {
        let jobs = begin(&mut world);
        assert_eq!(kinds(&jobs), [expected]);
        world.end(&jobs[0], Ok(Some(Mounted::Image)));
    }
    // A failed set-up does not delay the others.
    for uid in ["a", "b"] {
        want(&mut world, uid, true);
    }
    let jobs = begin(&mut world);
    assert_eq!(kinds(&jobs), ["set up a"]);
    world.end(&jobs[0], Err("no".to_owned()));
    let jobs = begin(&mut world);
    assert_eq!(kinds(&jobs), ["set up b"]);
    // They are torn down together, but never during a set-up.
    world.release(&PodUid::from("a"));
    world.release(&PodUid::from("c"));
    assert!(begin(&mut world).is_empty());
    world.end(&jobs[0], Ok(Some(Mounted::Image)));
    let jobs = begin(&mut world);
    assert_eq!(kinds(&jobs), ["tear down a", "tear down c"]);
    want(&mut world, "b", true);
    for job in &jobs {
        assert!(begin(&mut world).is_empty());
        world.end(job, Ok(None));
    }
    assert_eq!(kinds(&begin(&mut world)), ["set up b"]);
}

#[tokio::test(start_paused = true)]
async fn failures_back_off_and_leave_what_is_mounted() {
    let mut world = StateOfWorld::default();
    let uid = PodUid::from("a");
    want(&mut world, "a", true);
    let mut delays = Vec::new();
    for _ in 0..10 {
        let jobs = begin(&mut world);
        assert_eq!(jobs.len(), 1);
        // Nothing else starts in the meantime.
        assert!(begin(&mut world).is_empty());
        world.end(&jobs[0], Err("no".to_owned()));
        let (jobs, next) = world.begin(Instant::now());
        assert!(jobs.is_empty());
        let delay = next.unwrap() - Instant::now();
        delays.push(delay.as_millis());
        tokio::time::sleep(delay).await;
    }
    assert_eq!(delays[..3], [500, 1000, 2000]);
    assert_eq!(delays[8..], [122_000, 122_000]);
    assert_eq!(world.errors(&uid), ["pv: no"]);
    assert_eq!(world.unmounted(&uid, &["v".to_owned()]), ["v"]);
    settle(&mut world);
    assert!(world.unmounted(&uid, &["v".to_owned()]).is_empty());

    want(&mut world, "a", true);
    let jobs = begin(&mut world);
    world.end(&jobs[0], Err("no".to_owned()));
    assert!(world.mounted(&uid, "v").is_some());
    // The failed refresh is retried.
    tokio::time::sleep(RETRY_BASE).await;
    assert_eq!(settle(&mut world), ["set up a"]);
}

#[tokio::test(start_paused = true)]
async fn what_was_found_is_left_until_its_pod_is_heard_of() {
    let mut world = StateOfWorld::default();
    for uid in ["a", "b"] {
        world.found(volume(uid), Some((device(), None)));
    }
    assert_eq!(settle(&mut world), Vec::<String>::new());
    want(&mut world, "a", false);
    assert_eq!(settle(&mut world), ["stage, set up a"]);
    world.release(&PodUid::from("b"));
    assert_eq!(settle(&mut world), ["tear down b"]);
}

#[tokio::test(start_paused = true)]
async fn a_volume_that_is_not_known_now_is_kept() {
    let mut world = StateOfWorld::default();
    let uid = PodUid::from("a");
    want(&mut world, "a", false);
    settle(&mut world);
    world.want(&uid, Vec::new(), Resolution::Partial);
    assert_eq!(settle(&mut world), Vec::<String>::new());
    assert!(world.mounted(&uid, "v").is_some());
    world.want(&uid, Vec::new(), Resolution::Complete);
    assert_eq!(settle(&mut world)[0], "tear down a");
}

#[tokio::test(start_paused = true)]
async fn devices_that_nobody_names_are_unstaged_in_the_end() {
    let mut world = StateOfWorld::default();
    world.found_device(device(), None);
    assert_eq!(settle(&mut world), Vec::<String>::new());
    world.settle();
    assert_eq!(settle(&mut world), ["unstage disk"]);
}

#[tokio::test(start_paused = true)]
async fn what_a_pod_of_an_earlier_kubelet_gave_back_last_is_unstaged_at_once() {
    let mut world = StateOfWorld::default();
    for uid in ["a", "b"] {
        world.found(volume(uid), Some((device(), None)));
    }
    world.release(&PodUid::from("a"));
    // The other pod has not been seen yet.
    assert_eq!(settle(&mut world), ["tear down a"]);
    world.release(&PodUid::from("b"));
    assert_eq!(settle(&mut world), ["tear down b", "unstage disk"]);
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_goes_while_its_volume_is_made_leaves_nothing() {
    let mut world = StateOfWorld::default();
    want(&mut world, "a", false);
    let jobs = begin(&mut world);
    world.release(&PodUid::from("a"));
    assert!(begin(&mut world).is_empty());
    world.end(&jobs[0], Err("half of it".to_owned()));
    world.settle();
    assert_eq!(settle(&mut world), ["tear down a", "unstage disk"]);
    assert!(world.left(&PodUid::from("a")).is_empty());
}

#[tokio::test(start_paused = true)]
async fn what_is_attached_is_in_use_until_it_is_unstaged() {
    let mut world = StateOfWorld::default();
    assert_eq!(world.in_use(), None);
    world.found_all();
    let nothing = Some(Vec::new());
    let disk = Some(vec!["test/disk".to_owned()]);
    assert_eq!(world.in_use(), nothing);
    let uid = PodUid::from("a");
    want(&mut world, "a", false);
    assert_eq!(world.in_use(), disk);
    settle(&mut world);
    world.release(&uid);
    let jobs = begin(&mut world);
    assert_eq!(kinds(&jobs), ["tear down a"]);
    world.end(&jobs[0], Ok(None));
    let jobs = begin(&mut world);
    assert_eq!(kinds(&jobs), ["unstage disk"]);
    assert_eq!(world.in_use(), disk);
    world.end(&jobs[0], Ok(None));
    begin(&mut world);
    assert_eq!(world.in_use(), nothing);

    // A volume that was wanted only briefly does not stay in use.
    want(&mut world, "a", false);
    world.release(&uid);
    begin(&mut world);
    assert_eq!(world.in_use(), nothing);

    // A device on disk counts as attached, unless a pod's request says otherwise.
    world.found(volume("a"), Some((device(), Some("test/disk".to_owned()))));
    assert_eq!(world.in_use(), disk);
    let mut unattached = request("a");
    unattached.attachment = None;
    world.want(&uid, vec![(unattached, false)], Resolution::Complete);
    world.found_device(device(), Some("test/disk".to_owned()));
    assert_eq!(world.in_use(), nothing);
}

#[tokio::test(start_paused = true)]
async fn what_is_attached_at_last_does_not_wait_on() {
    let mut world = StateOfWorld::default();
    want(&mut world, "a", false);
    let jobs = begin(&mut world);
    world.end(&jobs[0], Err("not attached".to_owned()));
    assert!(begin(&mut world).is_empty());
    world.retry(&BTreeSet::from([&"test/other".to_owned()]));
    assert!(begin(&mut world).is_empty());
    world.retry(&BTreeSet::from([&"test/disk".to_owned()]));
    assert_eq!(kinds(&begin(&mut world)), ["stage, set up a"]);
}
