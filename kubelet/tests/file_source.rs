//! Updates from the file source when manifests are added, changed and removed.

#![allow(
    clippy::expect_used,
    clippy::unwrap_used,
    reason = "a test fails by a panic"
)]

use std::{fs, path::Path, time::Duration};

use kubelet::sources::{
    file::FileSource,
    pod_config::PodConfig,
    update::{PodOperation, PodUpdate, Source},
};
use kubelet_pod_spec::identity;
use tokio::{sync::mpsc, time};
use tokio_util::sync::{CancellationToken, DropGuard};

/// A running file source and its updates.
struct Running {
    config: PodConfig,
    updates: mpsc::Receiver<PodUpdate>,
    _cancel: DropGuard,
}

impl Running {
    /// The source reads again on file system notifications and every `check_frequency`.
    fn start_with(path: &Path, check_frequency: Duration) -> Self {
        let (config, updates) = PodConfig::new();
        let cancel = CancellationToken::new();
        let source = FileSource {
            path: path.to_owned(),
            node_name: "node".to_owned(),
            check_frequency,
        };
        tokio::spawn(source.run(config.source(Source::File), cancel.clone()));
        Self {
            config,
            updates,
            _cancel: cancel.drop_guard(),
        }
    }

    fn start(path: &Path) -> Self {
        Self::start_with(path, Duration::from_secs(3600))
    }

    /// The next update: its operation and the names of its pods.
    async fn next(&mut self) -> (PodOperation, Vec<String>) {
        let update = time::timeout(Duration::from_secs(60), self.updates.recv())
            .await
            .expect("an update in time")
            .expect("a source that runs");
        let mut names: Vec<String> = update
            .pods
            .iter()
            .map(|pod| identity::name(pod).to_owned())
            .collect();
        names.sort();
        (update.operation, names)
    }

    async fn silent(&mut self) {
        let update = time::timeout(Duration::from_millis(400), self.updates.recv()).await;
        assert!(update.is_err(), "{update:?}");
    }
}

fn manifest(name: &str, image: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}}}\nspec: {{containers: [{{name: c, image: \"{image}\"}}]}}\n"
    )
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[tokio::test]
async fn manifests_come_change_and_go() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("web.yaml");
    fs::write(&file, manifest("web", "web:1")).unwrap();
    fs::write(dir.path().join(".hidden.yaml"), manifest("hidden", "x:1")).unwrap();
    let mut running = Running::start(dir.path());
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["web-node"]))
    );
    assert!(running.config.seen_all_sources());

    fs::write(
        dir.path().join("db.json"),
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": "db"},
            "spec": {"containers": [{"name": "c", "image": "db:1"}]},
        })
        .to_string(),
    )
    .unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["db-node"]))
    );

    // Changed content means another UID, so it is another pod.
    fs::write(&file, manifest("web", "web:2")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Remove, names(&["web-node"]))
    );
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["web-node"]))
    );

    // Editors save this way: they rename a new file over the old one.
    let new = dir.path().join(".web.yaml.swp");
    fs::write(&new, manifest("web", "web:3")).unwrap();
    fs::rename(&new, &file).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Remove, names(&["web-node"]))
    );
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["web-node"]))
    );

    fs::remove_file(&file).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Remove, names(&["web-node"]))
    );
    running.silent().await;
}

#[tokio::test]
async fn a_file_that_is_removed_and_made_again_at_once_ends_and_starts_its_pod() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("web.yaml");
    fs::write(&file, manifest("web", "web:1")).unwrap();
    fs::write(dir.path().join("other.yaml"), manifest("other", "web:1")).unwrap();
    for path in [dir.path(), &file] {
        let mut running = Running::start(path);
        running.next().await;
        fs::remove_file(&file).unwrap();
        fs::write(&file, manifest("web", "web:1")).unwrap();
        for expected in [PodOperation::Remove, PodOperation::Add] {
            assert_eq!(running.next().await, (expected, names(&["web-node"])));
        }
        running.silent().await;
    }

    // An invalid file, written the same way by an editor, ends no pod.
    let mut running = Running::start(dir.path());
    running.next().await;
    fs::remove_file(&file).unwrap();
    fs::write(&file, "{").unwrap();
    running.silent().await;
}

#[tokio::test]
async fn a_file_that_goes_bad_keeps_its_pods() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("web.yaml");
    fs::write(&file, manifest("web", "web:1")).unwrap();
    let mut running = Running::start(dir.path());
    running.next().await;

    for bad in ["", "{", "apiVersion: v1\nkind: Pod\n", &manifest("web", "")] {
        fs::write(&file, bad).unwrap();
        running.silent().await;
    }
    // Other files are still read.
    fs::write(dir.path().join("db.yaml"), manifest("db", "db:1")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["db-node"]))
    );
    // Restoring the original content is no change.
    fs::write(&file, manifest("web", "web:1")).unwrap();
    running.silent().await;
}

#[tokio::test]
async fn a_file_that_never_was_good_holds_readiness_back() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), manifest("a", "a:1")).unwrap();
    fs::write(dir.path().join("b.yaml"), "kind: [").unwrap();
    let mut running = Running::start(dir.path());
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["a-node"]))
    );
    assert!(!running.config.seen_all_sources());

    fs::write(dir.path().join("b.yaml"), manifest("b", "b:1")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["b-node"]))
    );
    time::timeout(Duration::from_secs(60), async {
        while !running.config.seen_all_sources() {
            time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("ready once all files are good");
}

#[tokio::test]
async fn files_that_are_no_manifests_hold_nothing_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name| dir.path().join(name);
    fs::write(path("README"), "Each kind of manifest: one file.\n").unwrap();
    fs::write(path("empty.yaml"), "").unwrap();
    std::os::unix::fs::symlink(path("nowhere"), path("link.yaml")).unwrap();
    fs::write(path("web.yaml"), manifest("web", "a:1")).unwrap();
    let mut running = Running::start(dir.path());
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["web-node"]))
    );
    assert!(running.config.seen_all_sources());
    fs::write(path("empty.yaml"), manifest("late", "a:1")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["late-node"]))
    );
}

#[tokio::test]
async fn the_first_file_has_a_name_that_two_want() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("1.yaml"), manifest("web", "web:1")).unwrap();
    fs::write(dir.path().join("2.yaml"), manifest("web", "web:2")).unwrap();
    let mut running = Running::start(dir.path());
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["web-node"]))
    );

    // The second file now gets the name.
    fs::remove_file(dir.path().join("1.yaml")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Remove, names(&["web-node"]))
    );
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["web-node"]))
    );
}

#[tokio::test]
async fn a_directory_may_come_later_and_be_replaced() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("manifests");
    let mut running = Running::start_with(&dir, Duration::from_millis(100));
    assert_eq!(running.next().await, (PodOperation::Add, names(&[])));
    assert!(running.config.seen_all_sources(), "no directory, no pods");

    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("a.yaml"), manifest("a", "a:1")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["a-node"]))
    );

    let other = parent.path().join("other");
    fs::create_dir(&other).unwrap();
    fs::write(other.join("b.yaml"), manifest("b", "b:1")).unwrap();
    fs::rename(&dir, parent.path().join("old")).unwrap();
    fs::rename(&other, &dir).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Remove, names(&["a-node"]))
    );
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["b-node"]))
    );
    // The new directory is watched too.
    fs::write(dir.join("c.yaml"), manifest("c", "c:1")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["c-node"]))
    );
}

#[tokio::test]
async fn one_file_can_be_the_whole_source() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("pods.yaml");
    fs::write(
        &file,
        format!("{}---\n{}", manifest("a", "a:1"), manifest("b", "b:1")),
    )
    .unwrap();
    fs::write(dir.path().join("other.yaml"), manifest("other", "o:1")).unwrap();
    let mut running = Running::start(&file);
    assert_eq!(
        running.next().await,
        (PodOperation::Add, names(&["a-node", "b-node"]))
    );

    fs::write(&file, manifest("a", "a:1")).unwrap();
    assert_eq!(
        running.next().await,
        (PodOperation::Remove, names(&["b-node"]))
    );
}

#[tokio::test]
async fn a_burst_is_taken_together() {
    let dir = tempfile::tempdir().unwrap();
    let mut running = Running::start(dir.path());
    assert_eq!(running.next().await, (PodOperation::Add, names(&[])));
    time::sleep(Duration::from_millis(100)).await;
    for index in 0..20 {
        fs::write(
            dir.path().join(format!("{index}.yaml")),
            manifest(&format!("p{index}"), "p:1"),
        )
        .unwrap();
    }
    let (mut pods, mut updates) = (0, 0);
    while pods < 20 {
        let (operation, added) = running.next().await;
        assert_eq!(operation, PodOperation::Add);
        pods += added.len();
        updates += 1;
    }
    // One update, unless the machine stalls between two writes.
    assert!(updates <= 5, "{updates} updates");
}
