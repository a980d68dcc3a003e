use jiff::Timestamp;
use serde_json::json;

use super::*;

fn pod(name: &str, uid: &str, spec: serde_json::Value) -> Arc<Pod> {
    Arc::new(
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": "default", "uid": uid},
            "spec": spec,
        }))
        .unwrap(),
    )
}

fn set(pods: Vec<Arc<Pod>>) -> PodSet {
    PodSet {
        pods,
        complete: true,
    }
}

fn taken(receiver: &mut mpsc::Receiver<PodUpdate>) -> Vec<(PodOperation, Vec<String>)> {
    std::iter::from_fn(|| receiver.try_recv().ok())
        .map(|update| {
            let mut names: Vec<String> = update
                .pods
                .iter()
                .map(|pod| identity::name(pod).to_owned())
                .collect();
            names.sort();
            (update.operation, names)
        })
        .collect()
}

#[tokio::test]
async fn a_set_becomes_what_changed() {
    let (config, mut updates) = PodConfig::new();
    let file = config.source(Source::File);
    let (a, b) = (pod("a", "1", json!({})), pod("b", "2", json!({})));
    file.set(set(vec![a.clone(), b.clone()])).await.unwrap();
    assert_eq!(
        taken(&mut updates),
        [(PodOperation::Add, vec!["a".into(), "b".into()])]
    );

    file.set(set(vec![a.clone(), b.clone()])).await.unwrap();
    assert_eq!(taken(&mut updates), []);

    let changed = pod("b", "2", json!({"hostNetwork": true}));
    let c = pod("c", "3", json!({}));
    file.set(set(vec![c, changed])).await.unwrap();
    assert_eq!(
        taken(&mut updates),
        [
            (PodOperation::Remove, vec!["a".into()]),
            (PodOperation::Add, vec!["c".into()]),
            (PodOperation::Update, vec!["b".into()]),
        ]
    );
}

#[tokio::test]
async fn deletion_and_status_are_told_apart_from_updates() {
    let (config, mut updates) = PodConfig::new();
    let api = config.source(Source::Api);
    let a = pod("a", "1", json!({}));
    api.set(set(vec![a.clone()])).await.unwrap();
    taken(&mut updates);

    let mut running = Pod::clone(&a);
    running.status.get_or_insert_default().phase = Some("Running".into());
    api.set(set(vec![Arc::new(running.clone())])).await.unwrap();
    assert_eq!(
        taken(&mut updates),
        [(PodOperation::Reconcile, vec!["a".into()])]
    );

    running.metadata.deletion_grace_period_seconds = Some(30);
    running.metadata.deletion_timestamp = Some(
        k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::UNIX_EPOCH),
    );
    api.set(set(vec![Arc::new(running)])).await.unwrap();
    assert_eq!(
        taken(&mut updates),
        [(PodOperation::Delete, vec!["a".into()])]
    );
}

#[tokio::test]
async fn pods_say_where_they_are_from_and_since_when() {
    let (config, mut updates) = PodConfig::new();
    let file = config.source(Source::File);
    file.set(set(vec![pod("a", "1", json!({}))])).await.unwrap();
    let first = updates.recv().await.unwrap().pods.remove(0);
    assert_eq!(identity::annotation(&first, CONFIG_SOURCE), Some("file"));
    let seen = identity::annotation(&first, CONFIG_SEEN).unwrap();
    assert!(seen.parse::<Timestamp>().is_ok(), "{seen}");

    file.set(set(vec![pod("a", "1", json!({"hostPID": true}))]))
        .await
        .unwrap();
    let second = updates.recv().await.unwrap().pods.remove(0);
    assert_eq!(identity::annotation(&second, CONFIG_SEEN), Some(seen));
}

#[tokio::test]
async fn the_second_of_a_name_is_left_out() {
    let (config, mut updates) = PodConfig::new();
    let file = config.source(Source::File);
    file.set(set(vec![
        pod("a", "1", json!({})),
        pod("a", "2", json!({})),
    ]))
    .await
    .unwrap();
    let update = updates.recv().await.unwrap();
    assert_eq!(update.pods.len(), 1);
    assert_eq!(update.pods[0].metadata.uid.as_deref(), Some("1"));
}

#[tokio::test]
async fn sources_are_ready_when_all_are_complete_and_heard() {
    let (config, mut updates) = PodConfig::new();
    let file = config.source(Source::File);
    let api = config.source(Source::Api);
    api.set(set(Vec::new())).await.unwrap();
    assert!(!config.seen_all_sources(), "the file source said nothing");

    let a = pod("a", "1", json!({}));
    file.set(PodSet {
        pods: vec![a.clone()],
        complete: false,
    })
    .await
    .unwrap();
    assert_eq!(taken(&mut updates).len(), 2);
    assert!(
        !config.seen_all_sources(),
        "the file source does not know all"
    );

    file.set(set(vec![a])).await.unwrap();
    assert!(!config.seen_all_sources(), "not heard yet");
    assert_eq!(
        taken(&mut updates),
        [(PodOperation::Add, Vec::<String>::new())]
    );
    assert!(config.seen_all_sources());

    file.set(PodSet::default()).await.unwrap();
    assert!(config.seen_all_sources(), "stays so");
}

#[tokio::test]
async fn what_is_restored_lasts_until_the_source_speaks() {
    let (config, mut updates) = PodConfig::new();
    let api = config.source(Source::Api);
    let (a, b) = (pod("a", "1", json!({})), pod("b", "2", json!({})));
    api.restore(vec![a, b]).await.unwrap();
    assert_eq!(
        taken(&mut updates),
        [(PodOperation::Restore, vec!["a".into(), "b".into()])]
    );
    assert!(!config.seen_all_sources(), "the source did not speak");
    let changed = pod("b", "2", json!({"hostPID": true}));
    api.set(set(vec![changed])).await.unwrap();
    assert_eq!(
        taken(&mut updates),
        [
            (PodOperation::Remove, vec!["a".into()]),
            (PodOperation::Update, vec!["b".into()]),
        ]
    );
    assert!(config.seen_all_sources());
    api.restore(vec![pod("b", "2", json!({}))]).await.unwrap();
    assert_eq!(taken(&mut updates), []);
}

#[tokio::test]
async fn a_source_learns_that_nobody_listens() {
    let (config, updates) = PodConfig::new();
    drop(updates);
    let file = config.source(Source::File);
    assert_eq!(
        file.set(set(vec![pod("a", "1", json!({}))])).await,
        Err(Closed)
    );
}
