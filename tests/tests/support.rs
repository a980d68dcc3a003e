//! The test support: engines and registries of a test start, and no trace of them is left, however
//! the test ends.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::{fs, panic::AssertUnwindSafe, path::Path};

use bollard::query_parameters::CreateImageOptionsBuilder;
use e2e::{
    engine::Engine,
    images::{self, BUSYBOX},
    registry::Registry,
};
use futures::{FutureExt as _, TryStreamExt as _};

/// Processes whose command line contains `dir`.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.display().to_string();
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        // A process may end between the listing and the reading.
        let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).replace('\0', " ");
        if command.contains(&dir) {
            found.push(command);
        }
    }
    found
}

#[tokio::test]
async fn an_engine_pulls_from_the_registry_what_was_pushed() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::start(&dir.path().join("engine")).await.unwrap();
    let docker = engine.client().unwrap();
    images::load_busybox(&docker).await.unwrap();
    let registry = Registry::start(engine.namespace(), &dir.path().join("registry"), 5000, true)
        .await
        .unwrap();
    let image = registry.image("busybox:1");
    let credentials = registry.credentials();
    let anonymous = images::push(&docker, BUSYBOX, &image, None).await;
    assert!(anonymous.is_err(), "the anonymous push succeeded");
    images::push(&docker, BUSYBOX, &image, Some(credentials.clone()))
        .await
        .unwrap();
    let options = CreateImageOptionsBuilder::new().from_image(&image).build();
    docker
        .create_image(Some(options), None, Some(credentials))
        .try_for_each(|_| async { Ok(()) })
        .await
        .unwrap();
}

#[tokio::test]
async fn a_test_that_panics_leaves_nothing_behind() {
    leaves_nothing_behind(EngineAtEnd::Runs).await;
}

#[tokio::test]
async fn an_engine_that_was_killed_leaves_nothing_behind() {
    leaves_nothing_behind(EngineAtEnd::WasKilled).await;
}

#[derive(Clone, Copy, PartialEq)]
enum EngineAtEnd {
    Runs,
    WasKilled,
}

/// A test with a container that panics.
async fn leaves_nothing_behind(at_end: EngineAtEnd) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().to_owned();
    let test = async {
        let mut engine = Engine::start(&path.join("engine")).await.unwrap();
        let docker = engine.client().unwrap();
        images::load_busybox(&docker).await.unwrap();
        let body = bollard::models::ContainerCreateBody {
            image: Some(BUSYBOX.to_owned()),
            cmd: Some(vec!["sleep".to_owned(), "1000".to_owned()]),
            ..Default::default()
        };
        let options = None::<bollard::query_parameters::CreateContainerOptions>;
        let id = docker.create_container(options, body).await.unwrap().id;
        let options = None::<bollard::query_parameters::StartContainerOptions>;
        docker.start_container(&id, options).await.unwrap();
        if at_end == EngineAtEnd::WasKilled {
            engine.kill().unwrap();
        }
        assert!(!processes_of(&path).is_empty());
        panic!("as a failing test does");
    };
    let panicked = AssertUnwindSafe(test).catch_unwind().await;
    assert!(panicked.is_err());
    assert_eq!(processes_of(&path), Vec::<String>::new());
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let path = path.display().to_string();
    assert!(!mounts.contains(&path), "a mount is left below {path}");
    dir.close().unwrap();
}
