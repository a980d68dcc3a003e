use jiff::Timestamp;
use kubelet_host::repeatable::Repeatable;
use serde_json::{Value, json};

use super::*;
use registry_credentials::Credential;

use crate::credentials::Coordinates;

const ID: &str = "sha256:1";

fn records(dir: &tempfile::TempDir) -> PullRecords {
    PullRecords::new(dir.path(), VerificationPolicy::default())
}

/// While the guard exists, dropping a pull updates the files synchronously. Tests have no other way
/// to wait for the update.
fn at_once() -> Repeatable {
    Repeatable::on_this_thread(0, Timestamp::UNIX_EPOCH)
}

fn secret(name: &str, uid: &str, hash: &str) -> TrackedCredential {
    tracked(
        hash,
        CredentialSource::Secret(Coordinates {
            namespace: "default".to_owned(),
            name: name.to_owned(),
            uid: uid.to_owned(),
        }),
    )
}

fn tracked(hash: &str, source: CredentialSource) -> TrackedCredential {
    TrackedCredential {
        credential: Credential::default(),
        hash: hash.to_owned(),
        source,
    }
}

/// Whether a pod with the credentials `held` may use the image under a name.
async fn may_use(records: &PullRecords, image: &str, held: &[TrackedCredential]) -> bool {
    match records.access(image, ID, Vec::new()).await {
        Access::Unverified | Access::Granted => true,
        Access::MustPull | Access::Unreadable => false,
        Access::Holders(holders) => records.is_held(image, ID, &holders, held).await,
    }
}

fn files(dir: &tempfile::TempDir, kind: &str) -> Vec<Value> {
    let entries = std::fs::read_dir(dir.path().join("image_manager").join(kind));
    let entries = entries.into_iter().flatten().flatten();
    entries
        .map(|entry| serde_json::from_slice(&std::fs::read(entry.path()).unwrap()).unwrap())
        .collect()
}

#[tokio::test]
async fn what_the_kubelet_did_not_pull_is_for_everybody() {
    let dir = tempfile::tempdir().unwrap();
    assert!(may_use(&records(&dir), "a:1", &[]).await);
    let strict = PullRecords::new(dir.path(), VerificationPolicy::AlwaysVerify);
    assert!(!may_use(&strict, "a:1", &[]).await);
}

#[tokio::test]
async fn what_was_pulled_without_secrets_is_for_everybody_under_its_name() {
    for credential in [None, Some(tracked("h", CredentialSource::Node))] {
        let dir = tempfile::tempdir().unwrap();
        let pull = records(&dir);
        let pull = pull.begin("a:1").await.unwrap();
        pull.done(ID, credential.as_ref()).await;
        // Another kubelet, which has only the files.
        let records = records(&dir);
        assert!(may_use(&records, "a:1", &[]).await);
        assert!(may_use(&records, "a:2", &[]).await);
        assert!(!may_use(&records, "b:1", &[]).await);
    }
}

#[tokio::test]
async fn what_was_pulled_with_a_secret_is_for_those_who_have_it() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir);
    let pull = records.begin("a:1").await.unwrap();
    pull.done(ID, Some(&secret("s", "u1", "h1"))).await;
    for (held, expected) in [
        (vec![], false),
        (vec![secret("other", "u2", "h2")], false),
        (vec![secret("s", "u1", "h1")], true),
        // The same credential in another secret, and a changed one in the same secret.
        (vec![secret("copy", "u3", "h1")], true),
        (vec![secret("s", "u1", "changed")], true),
        // Both have been recorded.
        (vec![secret("x", "u4", "changed")], true),
        (vec![tracked("h1", CredentialSource::Node)], false),
    ] {
        assert_eq!(may_use(&records, "a:1", &held).await, expected, "{held:?}");
    }
    let pulled = files(&dir, "pulled");
    assert_eq!(pulled.len(), 1);
    assert_eq!(pulled[0]["kind"], "ImagePulledRecord");
    assert_eq!(pulled[0]["apiVersion"], "kubelet.config.k8s.io/v1beta1");
    assert_eq!(pulled[0]["imageRef"], ID);
    let secrets = pulled[0]["credentialMapping"]["a"]["kubernetesSecrets"].clone();
    assert_eq!(
        secrets[1],
        json!({"namespace": "default", "name": "s", "uid": "u1", "credentialHash": "changed"})
    );
    assert_eq!(secrets.as_array().unwrap().len(), 3);
    // A pull without credentials opens the image to all pods.
    let pull = records.begin("a:1").await.unwrap();
    pull.done(ID, None).await;
    assert!(may_use(&records, "a:1", &[]).await);
}

#[tokio::test]
async fn service_accounts_are_told_apart() {
    let account = |uid: &str| {
        let coordinates = Coordinates {
            namespace: "default".to_owned(),
            name: "builder".to_owned(),
            uid: uid.to_owned(),
        };
        tracked("h", CredentialSource::ServiceAccount(coordinates))
    };
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir);
    let pull = records.begin("a:1").await.unwrap();
    pull.done(ID, Some(&account("1"))).await;
    assert!(may_use(&records, "a:1", &[account("1")]).await);
    assert!(!may_use(&records, "a:1", &[account("2")]).await);
}

#[tokio::test]
async fn pulls_that_end_badly_leave_nothing() {
    let _at_once = at_once();
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir);
    let first = records.begin("a:1").await.unwrap();
    let second = records.begin("a:1").await.unwrap();
    assert_eq!(files(&dir, "pulling")[0]["image"], "a:1");
    // An image is not open to all pods while it is being pulled.
    assert!(!may_use(&records, "a:1", &[]).await);
    drop(first);
    assert!(!may_use(&records, "a:1", &[]).await);
    drop(second);
    assert_eq!(files(&dir, "pulling").len(), 0);
    assert!(may_use(&records, "a:1", &[]).await);
}

#[tokio::test]
async fn a_pull_with_a_secret_that_got_no_answer_leaves_its_intent() {
    let _at_once = at_once();
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir);
    let secret = secret("s", "u1", "h1");
    // Dropped before a request to the runtime, and after it responded with a failure.
    drop(records.begin("a:1").await.unwrap());
    let mut pull = records.begin("a:1").await.unwrap();
    pull.asks(Some(&secret));
    pull.failed(Some(&secret));
    pull.asks(None);
    drop(pull);
    assert!(may_use(&records, "a:1", &[]).await);

    let mut pull = records.begin("a:1").await.unwrap();
    pull.asks(Some(&secret));
    drop(pull);
    assert!(!may_use(&records, "a:1", &[]).await);
    // The image stays restricted under other names,
    let by_digest = records.access("a@sha256:1", ID, vec!["docker.io/library/a:1".to_owned()]);
    assert!(matches!(by_digest.await, Access::MustPull));
    // after a later pull that fails,
    let mut pull = records.begin("a:1").await.unwrap();
    pull.asks(None);
    pull.failed(None);
    drop(pull);
    assert!(!may_use(&records, "a:1", &[]).await);
    // and after a pull of another image under its name.
    records.settle("a:1", ID).await;
    let mut pull = records.begin("a:1").await.unwrap();
    pull.asks(None);
    pull.done("sha256:2", None).await;
    assert!(!may_use(&records, "a:1", &[]).await);
    assert!(matches!(
        records.access("a:1", "sha256:2", Vec::new()).await,
        Access::Granted
    ));
    assert_eq!(files(&dir, "pulling").len(), 0);
}

#[tokio::test]
async fn pulls_of_a_kubelet_that_died_are_not_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let before = records(&dir);
    for image in ["a:1", "b:1"] {
        std::mem::forget(before.begin(image).await.unwrap());
    }
    let records = records(&dir);
    let image = Image {
        id: ID.to_owned(),
        repo_tags: vec!["docker.io/library/a:1".to_owned()],
        ..Image::default()
    };
    records.restore(records.begun().await, &[image]).await;
    assert_eq!(files(&dir, "pulled")[0]["imageRef"], ID);
    assert!(!may_use(&records, "a:1", &[]).await);
    // The runtime may still complete the pull of an image that is absent now.
    let pulling = files(&dir, "pulling");
    assert_eq!(pulling.len(), 1);
    assert_eq!(pulling[0]["image"], "b:1");
}

#[tokio::test]
async fn a_broken_record_grants_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir);
    let pull = records.begin("a:1").await.unwrap();
    pull.done(ID, None).await;
    let pulled = dir.path().join("image_manager/pulled");
    let file = std::fs::read_dir(pulled).unwrap().next().unwrap().unwrap();
    std::fs::write(file.path(), "{").unwrap();
    assert!(!may_use(&records, "a:1", &[]).await);
    // The next pull replaces the record.
    let pull = records.begin("a:1").await.unwrap();
    pull.done(ID, None).await;
    assert!(may_use(&records, "a:1", &[]).await);
}

/// The number of completed pulls, once none is open.
async fn completed_pulls(records: &PullRecords) -> u64 {
    loop {
        if let Some(pulls) = records.completed_pulls() {
            return pulls;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn the_record_of_a_removed_image_goes_unless_it_may_be_back() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir);
    let pull = async || {
        let pull = records.begin("a:1").await.unwrap();
        pull.done(ID, None).await;
        completed_pulls(&records).await
    };
    let absent_after = pull().await;
    // The record that is there is that of the second pull, too.
    let then_absent_after = pull().await;
    records.forget(ID, absent_after).await;
    assert_eq!(files(&dir, "pulled").len(), 1);
    let open = records.begin("a:1").await.unwrap();
    assert_eq!(records.completed_pulls(), None);
    records.forget(ID, then_absent_after).await;
    assert_eq!(files(&dir, "pulled").len(), 1);
    drop(open);
    let absent_after = completed_pulls(&records).await;
    records.forget(ID, absent_after).await;
    assert_eq!(files(&dir, "pulled").len(), 0);
}

#[tokio::test]
async fn the_records_of_images_that_others_removed_go() {
    let dir = tempfile::tempdir().unwrap();
    let records = records(&dir);
    for (image, id) in [("a:1", ID), ("b:1", "sha256:b")] {
        let pull = records.begin(image).await.unwrap();
        pull.done(id, None).await;
    }
    let pulls = completed_pulls(&records).await;
    let foreign = dir.path().join("image_manager/pulled/sha256-0");
    std::fs::write(&foreign, "{}").unwrap();
    records
        .forget_all_but([ID.to_owned()].into(), pulls - 1)
        .await;
    assert_eq!(files(&dir, "pulled").len(), 3);
    records.forget_all_but([ID.to_owned()].into(), pulls).await;
    assert_eq!(files(&dir, "pulled").len(), 2);
    assert!(records.store.record(ID).unwrap().is_some());
    assert!(foreign.exists());
}
