mod node;
mod records;

use fake_runtime::{Fault, Times, Verb};
use kubelet_pod_spec::identity::PodUid;

use self::node::{Node, SIZE, set, told};
use super::*;
use crate::images::host::ImageVolumes;

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test(start_paused = true)]
async fn the_least_recently_used_images_go_until_enough_is_free() {
    let node = Node::new();
    let (collector, mut events) = node.start(|_| {});
    for tag in ["a:1", "b:1", "c:1", "d:1", "e:1"] {
        node.runtime.add_image(tag);
        collector.collect_garbage().await.unwrap();
        tokio::time::sleep(MINUTE).await;
    }
    let first = node.run("p", "a:1", &[]).await;
    let second = node.run("q", "b:1", &[]).await;
    collector.collect_garbage().await.unwrap();
    let cri = node.cri();
    cri.remove_container(&first).await.unwrap();
    node.runtime.exit_container(&second, 0);
    tokio::time::sleep(HOUR).await;
    collector.collect_garbage().await.unwrap();
    assert_eq!(node.left().len(), 5, "below the threshold");
    node.used(84);
    collector.collect_garbage().await.unwrap();
    assert_eq!(node.left().len(), 5, "below the threshold");

    // An exited container uses its image; the image of a removed one was used last.
    node.host.0.lock().space = Some(DiskSpace {
        capacity: 10 * SIZE,
        available: SIZE / 2,
    });
    let planned = collector.candidates().await.unwrap();
    assert_eq!(planned.bytes_to_free, 3 * SIZE / 2);
    let names: Vec<_> = planned.images.iter().map(|it| &it.names[0][..]).collect();
    let expected = ["docker.io/library/c:1", "docker.io/library/d:1"];
    assert_eq!(names, expected);
    assert!(
        planned
            .images
            .iter()
            .all(|it| it.reason == ImageReason::Space)
    );
    assert!(planned.images[0].unused_for > HOUR);
    assert_eq!(node.left().len(), 5, "candidates stay");

    let freed = collector.collect_garbage().await.unwrap();
    assert_eq!((freed.count, freed.bytes), (2, 2 * SIZE));
    assert_eq!(node.left(), set(&["a:1", "b:1", "e:1"]));
    let removed = std::mem::take(&mut node.host.0.lock().removed);
    let planned: Vec<_> = planned.images.into_iter().map(|it| it.id).collect();
    assert_eq!(removed, planned);

    // The next are e and a; b remains.
    let freed = collector.collect_garbage().await.unwrap();
    assert_eq!(freed.count, 2);
    assert_eq!(node.left(), set(&["b:1"]));
    assert_eq!(told(&mut events), []);
    let mut page = Exposition::default();
    Collector::collect(&*collector, &mut page);
    let line = "kubelet_image_garbage_collected_total{reason=\"space\"} 4\n";
    assert!(page.into_text().contains(line));
}

#[tokio::test(start_paused = true)]
async fn too_little_space_is_reported() {
    let node = Node::new();
    let (collector, mut events) = node.start(|options| options.minimum_age = Duration::ZERO);
    node.runtime.add_image("a:1");
    node.used(95);
    let error = collector.collect_garbage().await.unwrap_err().to_string();
    let message = "Insufficient free disk space on the node's image filesystem (95% of 100.0 MiB \
                   used). Failed to free sufficient space by deleting unused images (freed 1048576 \
                   bytes). ";
    assert!(error.starts_with(message), "{error}");
    let told_one = |reason: &str, error: &str| vec![(reason.to_owned(), error.to_owned())];
    assert_eq!(told(&mut events), told_one("FreeDiskSpaceFailed", &error));

    node.host.0.lock().space = Some(DiskSpace::default());
    let error = collector.collect_garbage().await.unwrap_err().to_string();
    assert_eq!(error, "invalid capacity 0 on image filesystem");
    assert_eq!(told(&mut events), told_one("InvalidDiskCapacity", &error));

    node.host.0.lock().space = None;
    let error = collector.collect_garbage().await.unwrap_err();
    assert!(matches!(error, ImageGcError::FileSystem(_)), "{error}");
    node.host.0.lock().hangs = true;
    let error = collector.collect_garbage().await.unwrap_err();
    assert!(matches!(error, ImageGcError::FileSystemHangs(_)), "{error}");
    assert_eq!(told(&mut events), []);
}

#[tokio::test(start_paused = true)]
async fn an_image_that_cannot_be_removed_does_not_save_the_others() {
    let node = Node::new();
    let (collector, _events) = node.start(|options| options.minimum_age = Duration::ZERO);
    node.runtime.add_image("a:1");
    node.runtime.add_image("b:1");
    let refused = Fault::Error(tonic::Status::failed_precondition("it is mounted"));
    node.runtime.fault(Verb::RemoveImage, refused, Times::Once);
    let error = collector.remove_unused().await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("removed 1 unused images of 1048576 bytes and failed to remove 1: "));
    assert!(text.contains("it is mounted"), "{text}");
    assert_eq!(node.left().len(), 1);
    assert_eq!(node.host.0.lock().removed.len(), 1);
    collector.remove_unused().await.unwrap();
    assert_eq!(node.left().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn all_unused_images_are_removed_on_request_but_pinned_and_young_ones() {
    let node = Node::new();
    let (collector, _events) = node.start(|options| {
        options.high_threshold_percent = 100;
        options.maximum_age = Duration::ZERO;
    });
    let pinned = node.runtime.add_image("pause:1");
    node.runtime
        .edit_image(&pinned, |image| image.pinned = true);
    node.runtime.add_image("used:1");
    node.runtime.add_image("unused:1");
    node.run("p", "used:1", &[]).await;
    assert_eq!(collector.remove_unused().await.unwrap().count, 0);
    tokio::time::sleep(2 * MINUTE).await;
    node.runtime.add_image("young:1");
    let freed = collector.remove_unused().await.unwrap();
    assert_eq!(freed.count, 1);
    assert_eq!(node.left(), set(&["pause:1", "used:1", "young:1"]));
    // Without a threshold, nothing else is removed.
    node.used(100);
    tokio::time::sleep(HOUR).await;
    let planned = collector.candidates().await.unwrap();
    assert_eq!((planned.images.len(), planned.space), (0, None));
    assert_eq!(collector.collect_garbage().await.unwrap().count, 0);
}

#[tokio::test(start_paused = true)]
async fn images_of_volumes_are_used() {
    let node = Node::new();
    let (collector, _events) = node.start(|options| options.minimum_age = Duration::ZERO);
    node.runtime.add_image("app:1");
    node.runtime.add_image("data:1");
    let renamed = node.runtime.add_image("data:old");
    node.run("p", "app:1", &[&renamed]).await;
    // The mounted image has lost its name to data:1.
    node.runtime
        .edit_image(&renamed, |image| image.repo_tags.clear());
    node.host.0.lock().volumes = vec![ImageVolumes {
        pod_uid: PodUid::from("p"),
        references: vec!["data:1".to_owned()],
    }];
    assert_eq!(collector.remove_unused().await.unwrap().count, 0);
    node.runtime.exit_container("c", 0);
    assert_eq!(collector.remove_unused().await.unwrap().count, 1);
    assert_eq!(node.left(), set(&["app:1", "data:1"]));
    node.host.0.lock().volumes.clear();
    collector.remove_unused().await.unwrap();
    assert_eq!(node.left(), set(&["app:1"]));
}

#[tokio::test(start_paused = true)]
async fn an_image_that_came_into_use_during_the_collection_stays() {
    let node = Node::new();
    let (collector, _events) = node.start(|options| options.minimum_age = Duration::ZERO);
    node.runtime.add_image("a:1");
    node.runtime.add_image("b:1");
    let slow = Fault::Delay(MINUTE / 2);
    node.runtime.fault(Verb::RemoveImage, slow, Times::Once);
    let collection = {
        let collector = Arc::clone(&collector);
        tokio::spawn(async move { collector.remove_unused().await })
    };
    tokio::time::sleep(MINUTE / 4).await;
    let planned = collector.candidates().await.unwrap();
    assert_eq!(planned.images.len(), 0, "candidates do not wait");
    // The removal of one is in progress; both are used now.
    node.run("p", "a:1", &[]).await;
    node.run("q", "b:1", &[]).await;
    let error = collection.await.unwrap().unwrap_err();
    assert!(matches!(error, ImageGcError::Removals { .. }), "{error}");
    assert_eq!(node.runtime.calls(Verb::RemoveImage), 1);
    assert_eq!(node.left().len(), 2);
}

#[tokio::test(start_paused = true)]
async fn failures_are_reported_from_the_second_in_a_row() {
    let node = Node::new();
    let (collector, mut events) = node.start(|_| {});
    let away = Fault::Error(tonic::Status::unavailable("away"));
    node.runtime.fault(Verb::ListImages, away, Times::N(3));
    let token = CancellationToken::new();
    let run = {
        let (collector, token) = (Arc::clone(&collector), token.clone());
        tokio::spawn(async move { collector.run(token).await })
    };
    tokio::time::sleep(MINUTE).await;
    assert_eq!(told(&mut events), []);
    tokio::time::sleep(10 * MINUTE).await;
    let reported = told(&mut events);
    assert_eq!(reported.len(), 2);
    assert_eq!(reported[0].0, "ImageGCFailed");
    assert!(reported[0].1.contains("away"), "{reported:?}");
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(told(&mut events), []);
    assert_eq!(
        node.runtime.calls(Verb::ListImages),
        5,
        "every five minutes"
    );
    // A runtime that hangs neither stops nor hurries the loop.
    node.runtime
        .fault(Verb::ListContainers, Fault::Hang, Times::Always);
    tokio::time::sleep(HOUR).await;
    assert_eq!(
        node.runtime.calls(Verb::ListImages),
        15,
        "every six minutes"
    );
    token.cancel();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_runtime_that_dies_during_a_collection_is_asked_once_more() {
    let node = Node::new();
    let (collector, _events) = node.start(|options| options.minimum_age = Duration::ZERO);
    for tag in ["a:1", "b:1", "c:1"] {
        node.runtime.add_image(tag);
    }
    node.runtime
        .fault(Verb::RemoveImage, Fault::Hang, Times::Always);
    let collection = {
        let collector = Arc::clone(&collector);
        tokio::spawn(async move { collector.remove_unused().await })
    };
    tokio::time::sleep(MINUTE / 2).await;
    node.runtime
        .fault(Verb::ListContainers, Fault::Hang, Times::Always);
    let error = collection.await.unwrap().unwrap_err();
    assert!(matches!(error, ImageGcError::Runtime(_)), "{error}");
    assert_eq!(node.runtime.calls(Verb::RemoveImage), 1);
}

#[tokio::test(start_paused = true)]
async fn one_collection_runs_at_a_time() {
    let node = Node::new();
    let (collector, _events) = node.start(|options| options.minimum_age = Duration::ZERO);
    node.runtime.add_image("a:1");
    let slow = Fault::Delay(MINUTE / 2);
    node.runtime.fault(Verb::RemoveImage, slow, Times::Always);
    let (first, second) = tokio::join!(collector.remove_unused(), collector.remove_unused());
    assert_eq!((first.unwrap().count, second.unwrap().count), (1, 0));
    assert_eq!(node.runtime.calls(Verb::RemoveImage), 1);
}
