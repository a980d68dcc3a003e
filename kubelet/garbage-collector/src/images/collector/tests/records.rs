//! Ages of images across restarts.

use super::*;

#[tokio::test(start_paused = true)]
async fn images_are_removed_once_they_were_unused_for_too_long() {
    let node = Node::new();
    let with_age = |options: &mut ImageGcOptions| {
        options.maximum_age = 10 * HOUR;
        options.high_threshold_percent = 100;
    };
    let (collector, _events) = node.start(with_age);
    node.runtime.add_image("a:1");
    node.runtime.add_image("b:1");
    let id = node.run("p", "a:1", &[]).await;
    let run = |collector: &Arc<ImageCollector>| {
        let (collector, cancel) = (Arc::clone(collector), CancellationToken::new());
        let token = cancel.clone();
        let task = tokio::spawn(async move { collector.run(token).await });
        (task, cancel)
    };
    let (task, cancel) = run(&collector);
    tokio::time::sleep(6 * HOUR).await;
    node.cri().remove_container(&id).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    cancel.cancel();
    task.await.unwrap();

    // The time without a kubelet does not count.
    tokio::time::sleep(100 * HOUR).await;
    let (collector, _events) = node.start(with_age);
    node.runtime.add_image("c:1");
    let (task, cancel) = run(&collector);
    tokio::time::sleep(3 * HOUR).await;
    assert_eq!(node.left(), set(&["a:1", "b:1", "c:1"]));
    tokio::time::sleep(HOUR + 10 * MINUTE).await;
    assert_eq!(node.left(), set(&["a:1", "c:1"]));
    tokio::time::sleep(7 * HOUR).await;
    assert_eq!(node.left(), set(&[]), "unused for 11 hours in all");
    cancel.cancel();
    task.await.unwrap();
    let mut page = Exposition::default();
    Collector::collect(&*collector, &mut page);
    let line = "kubelet_image_garbage_collected_total{reason=\"age\"} 3\n";
    assert!(page.into_text().contains(line));
}

#[tokio::test(start_paused = true)]
async fn records_survive_a_crash_and_are_seldom_written() {
    let node = Node::new();
    let (collector, _events) = node.start(|_| {});
    let path = node.dir.path().join("image_manager/usage.json");
    let written = || std::fs::read_to_string(&path).unwrap_or_default();
    node.runtime.add_image("a:1");
    node.runtime.add_image("b:1");
    let id = node.run("p", "a:1", &[]).await;
    collector.collect_garbage().await.unwrap();
    let first = written();
    for _ in 0..11 {
        tokio::time::sleep(5 * MINUTE).await;
        collector.collect_garbage().await.unwrap();
    }
    assert_eq!(written(), first, "nothing has changed for 55 minutes");
    tokio::time::sleep(5 * MINUTE).await;
    collector.collect_garbage().await.unwrap();
    let second = written();
    assert_ne!(second, first, "an hour has passed");
    node.cri().remove_container(&id).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    collector.collect_garbage().await.unwrap();
    assert_ne!(written(), second, "an image is no longer used");
    drop(collector);

    // Another process that asks for candidates sees what is unused, and changes nothing.
    tokio::time::sleep(10 * MINUTE).await;
    let before = written();
    node.host.0.lock().space = Some(DiskSpace {
        capacity: 10 * SIZE,
        available: SIZE,
    });
    let (collector, _events) = node.start(|_| {});
    let planned = collector.candidates().await.unwrap();
    let unused: Vec<_> = planned.images.iter().map(|it| it.unused_for).collect();
    assert_eq!(unused.len(), 1);
    assert!(
        unused[0] >= 71 * MINUTE && unused[0] < 72 * MINUTE,
        "{unused:?}"
    );
    assert_eq!(written(), before);
    // A kubelet that has just started removes nothing for a while, and then b before a.
    let error = collector.collect_garbage().await.unwrap_err();
    assert!(
        matches!(error, ImageGcError::Insufficient { freed: 0, .. }),
        "{error}"
    );
    tokio::time::sleep(2 * MINUTE).await;
    collector.collect_garbage().await.unwrap();
    assert_eq!(node.left(), set(&["a:1"]));
}

#[tokio::test(start_paused = true)]
async fn a_corrupt_file_is_no_error() {
    let node = Node::new();
    let dir = node.dir.path().join("image_manager");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("usage.json"), "{\"version\":1,").unwrap();
    let (collector, _events) = node.start(|_| {});
    node.runtime.add_image("a:1");
    assert_eq!(collector.remove_unused().await.unwrap().count, 0);
    let text = std::fs::read_to_string(dir.join("usage.json")).unwrap();
    assert!(
        text.contains("firstDetected") && text.ends_with('}'),
        "{text}"
    );
}

#[tokio::test(start_paused = true)]
async fn images_are_detected_without_a_reason_to_remove_them() {
    let node = Node::new();
    let (collector, mut events) = node.start(|options| options.high_threshold_percent = 100);
    node.runtime.add_image("a:1");
    let away = Fault::Error(tonic::Status::unavailable("away"));
    node.runtime.fault(Verb::ListImages, away, Times::N(2));
    let token = CancellationToken::new();
    let run = {
        let (collector, token) = (Arc::clone(&collector), token.clone());
        tokio::spawn(async move { collector.run(token).await })
    };
    tokio::time::sleep(13 * MINUTE).await;
    assert_eq!(told(&mut events), []);
    assert_eq!(collector.remove_unused().await.unwrap().count, 1);
    token.cancel();
    run.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn records_are_written_at_the_end_of_the_kubelet() {
    let node = Node::new();
    let path = node.dir.path().join("image_manager/usage.json");
    node.runtime.add_image("a:1");
    for minutes in [20, 41] {
        let (collector, _events) = node.start(|_| {});
        let cancel = CancellationToken::new();
        let token = cancel.clone();
        let run = tokio::spawn(async move { collector.run(token).await });
        tokio::time::sleep(20 * MINUTE + MINUTE / 2).await;
        cancel.cancel();
        run.await.unwrap();
        let (collector, _events) = node.start(|options| options.maximum_age = MINUTE);
        let planned = collector.candidates().await.unwrap();
        let age = planned.images[0].unused_for.as_secs() / 60;
        assert_eq!(age, minutes, "the time of each kubelet counts");
    }
    // A kubelet that cannot ask the runtime knows nothing to write.
    let before = std::fs::read_to_string(&path).unwrap();
    let away = Fault::Error(tonic::Status::unavailable("away"));
    node.runtime.fault(Verb::ListImages, away, Times::Always);
    let (collector, _events) = node.start(|_| {});
    let cancel = CancellationToken::new();
    let token = cancel.clone();
    let run = tokio::spawn(async move { collector.run(token).await });
    tokio::time::sleep(MINUTE).await;
    cancel.cancel();
    run.await.unwrap();
    assert_eq!(std::fs::read_to_string(&path).unwrap(), before);
}

#[tokio::test(start_paused = true)]
async fn candidates_for_their_age_count_as_freed() {
    let node = Node::new();
    let (collector, _events) = node.start(|options| options.maximum_age = HOUR);
    node.runtime.add_image("old:1");
    collector.collect_garbage().await.unwrap();
    tokio::time::sleep(HOUR).await;
    for tag in ["a:1", "b:1", "c:1"] {
        node.runtime.add_image(tag);
    }
    collector.collect_garbage().await.unwrap();
    tokio::time::sleep(10 * MINUTE).await;
    node.host.0.lock().space = Some(DiskSpace {
        capacity: 10 * SIZE,
        available: 0,
    });
    let planned = collector.candidates().await.unwrap();
    let reasons: Vec<_> = planned.images.iter().map(|it| it.reason).collect();
    assert_eq!(reasons, [ImageReason::Age, ImageReason::Space]);
    assert_eq!(planned.bytes_to_free, SIZE);
    assert!(planned.images[0].names[0].ends_with("old:1"));
}
