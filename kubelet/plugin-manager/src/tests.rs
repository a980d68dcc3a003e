use std::{fs, path::Path, time::Duration};

use fake_csi::{FakeCsi, Serving};
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;

use super::*;

/// Notes what it is asked for; takes what is called `good`.
#[derive(Debug, Default)]
struct Notes(Mutex<Vec<String>>);

impl Notes {
    fn note(&self, what: &str, plugin: &Plugin) {
        let end = plugin.endpoint.file_name().unwrap().to_string_lossy();
        self.0.lock().push(format!("{what} {} {end}", plugin.name));
    }

    fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock())
    }
}

impl PluginHandler for Notes {
    fn validate(&self, plugin: &Plugin) -> Result<(), String> {
        if plugin.name == "good" {
            Ok(())
        } else {
            Err("it is not good".to_owned())
        }
    }

    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>> {
        self.note("register", plugin);
        Box::pin(std::future::ready(Ok(())))
    }

    fn deregister(&self, plugin: &Plugin) {
        self.note("deregister", plugin);
    }
}

struct Rig {
    dir: tempfile::TempDir,
    notes: Arc<Notes>,
    manager: Option<AbortOnDropHandle<()>>,
}

impl Rig {
    fn new() -> Self {
        Self {
            dir: tempfile::tempdir().unwrap(),
            notes: Arc::default(),
            manager: None,
        }
    }

    fn start(&mut self) {
        let handler = Arc::clone(&self.notes) as Arc<dyn PluginHandler>;
        let handlers = Handlers::from([("CSIPlugin".to_owned(), handler)]);
        let manager = PluginManager::new(self.dir.path().join("registry"), handlers);
        let run = async move { manager.run(CancellationToken::new()).await };
        self.manager = Some(AbortOnDropHandle::new(tokio::spawn(run)));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn serve(&self, driver: &FakeCsi, registration: &str) -> Serving {
        let endpoint = self.path("endpoint.sock");
        driver.serve(&self.path(registration), &endpoint).unwrap()
    }
}

/// Lets the manager do what it can; time that it waits for passes at once.
async fn settle() {
    tokio::time::sleep(Duration::from_secs(5)).await;
}

const SOCKET: &str = "registry/good.sock";

#[tokio::test(start_paused = true)]
async fn a_plugin_is_registered_while_its_socket_is_there() {
    let mut rig = Rig::new();
    let driver = FakeCsi::new("good");
    rig.start();
    settle().await;
    let serving = rig.serve(&driver, SOCKET);
    settle().await;
    assert_eq!(rig.notes.taken(), ["register good endpoint.sock"]);
    let told = driver.registrations();
    assert_eq!(told.len(), 1);
    assert!(told[0].plugin_registered && told[0].error.is_empty());

    // Replaced by another one between two scans.
    drop(serving);
    let serving = rig.serve(&driver, SOCKET);
    settle().await;
    assert_eq!(
        rig.notes.taken(),
        [
            "deregister good endpoint.sock",
            "register good endpoint.sock"
        ]
    );
    drop(serving);
    settle().await;
    assert_eq!(rig.notes.taken(), ["deregister good endpoint.sock"]);
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(rig.notes.taken().is_empty());
}

#[tokio::test(start_paused = true)]
async fn sockets_are_found_at_the_start_and_in_directories() {
    let mut rig = Rig::new();
    let driver = FakeCsi::new("good");
    let serving = rig.serve(&driver, "registry/a/b/good.sock");
    rig.start();
    settle().await;
    assert_eq!(rig.notes.taken(), ["register good endpoint.sock"]);
    drop(serving);
    fs::remove_dir_all(rig.path("registry/a")).unwrap();
    settle().await;
    assert_eq!(rig.notes.taken(), ["deregister good endpoint.sock"]);
    let _serving = rig.serve(&driver, "registry/c/good.sock");
    settle().await;
    assert_eq!(rig.notes.taken(), ["register good endpoint.sock"]);
    // Its directory is moved away.
    fs::rename(rig.path("registry/c"), rig.path("elsewhere")).unwrap();
    settle().await;
    assert_eq!(rig.notes.taken(), ["deregister good endpoint.sock"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_no_plugin_is_passed_over() {
    let mut rig = Rig::new();
    let driver = FakeCsi::new("good");
    let _serving = rig.serve(&driver, "registry/.hidden.sock");
    fs::write(rig.path("registry/file.sock"), "").unwrap();
    rig.start();
    settle().await;
    assert!(rig.notes.taken().is_empty());
    assert!(driver.registrations().is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_plugin_is_told_why_it_is_not_taken_and_may_mend() {
    let mut rig = Rig::new();
    let driver = FakeCsi::new("good");
    driver.set_info(|info| info.r#type = "OtherPlugin".to_owned());
    let _serving = rig.serve(&driver, SOCKET);
    rig.start();
    tokio::time::sleep(Duration::from_secs(3)).await;
    let told = driver.registrations();
    // After 0, 0.5 and 1.5 seconds.
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(!told[0].plugin_registered);
    assert!(
        told[0]
            .error
            .contains("no handler registered for plugin type: OtherPlugin"),
        "{}",
        told[0].error
    );
    driver.set_info(|info| {
        info.r#type = "CSIPlugin".to_owned();
        info.name = "bad".to_owned();
    });
    tokio::time::sleep(Duration::from_secs(5)).await;
    let told = driver.registrations().pop().unwrap();
    assert_eq!(
        told.error,
        "RegisterPlugin error -- plugin validation failed with err: it is not good"
    );
    driver.set_info(|info| info.name = "good".to_owned());
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(rig.notes.taken(), ["register good endpoint.sock"]);
    assert!(driver.registrations().pop().unwrap().plugin_registered);
}

#[tokio::test(start_paused = true)]
async fn a_socket_that_nobody_serves_is_tried_on() {
    let mut rig = Rig::new();
    let driver = FakeCsi::new("good");
    driver.fail("GetInfo", Status::unavailable("not yet"));
    let _serving = rig.serve(&driver, SOCKET);
    rig.start();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(rig.notes.taken().is_empty());
    driver.clear_faults();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(rig.notes.taken(), ["register good endpoint.sock"]);
}

#[tokio::test(start_paused = true)]
async fn a_registry_that_is_removed_is_made_again() {
    let mut rig = Rig::new();
    let driver = FakeCsi::new("good");
    rig.start();
    settle().await;
    fs::remove_dir_all(rig.path("registry")).unwrap();
    settle().await;
    assert!(Path::new(&rig.path("registry")).is_dir());
    let _serving = rig.serve(&driver, SOCKET);
    settle().await;
    assert_eq!(rig.notes.taken(), ["register good endpoint.sock"]);
}
