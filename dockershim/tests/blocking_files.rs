//! Files that block: only the operation that reads them waits, and not for long.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::{
    fs::{self, File},
    path::Path,
    sync::{
        Arc,
        mpsc::{self, RecvTimeoutError},
    },
    time::Duration,
};

use cri_proto::runtime::v1::{
    ContainerConfig, ContainerMetadata, ContainerStatus, CreateContainerRequest, ImageSpec,
    LinuxContainerConfig, LinuxContainerSecurityContext, SecurityProfile,
    runtime_service_server::RuntimeService as _, security_profile::ProfileType,
};
use dockershim::{config::LogDriver, engine::Engine, logs::Logs, model::Container};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat, open};
use support::{FakeEngine, node::Node};
use tokio::time::timeout;
use tonic::Request;

const SOON: Duration = Duration::from_secs(60);
/// The interval at which blocked readers are released.
const AGAIN: Duration = Duration::from_millis(10);

/// A FIFO that has a writer until the returned file is dropped; reads block until then.
fn fifo(path: &Path) -> File {
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    open(path, flags, Mode::empty()).unwrap().into()
}

#[tokio::test]
async fn a_seccomp_profile_is_a_file_of_bounded_size_or_refused_by_name() {
    let engine = FakeEngine::start();
    let node = Node::synced(&engine).await;
    let sandbox = node.run("web").await.unwrap();
    let dir = tempfile::tempdir().unwrap();
    let pipe = dir.path().join("pipe.json");
    let held = fifo(&pipe);
    let large = dir.path().join("large.json");
    let padding = " ".repeat(1 << 20);
    fs::write(&large, format!("{{{padding}}}")).unwrap();
    for (path, reason) in [
        (&*pipe, "not a regular file"),
        (&*large, "1048576 bytes"),
        (Path::new("/dev/zero"), "not a regular file"),
        (dir.path(), "not a regular file"),
    ] {
        let profile = SecurityProfile {
            profile_type: ProfileType::Localhost.into(),
            localhost_ref: format!("localhost/{}", path.display()),
        };
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: "app".into(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: "dockershim.local/pause:1".into(),
                ..Default::default()
            }),
            linux: Some(LinuxContainerConfig {
                security_context: Some(LinuxContainerSecurityContext {
                    seccomp: Some(profile),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = Request::new(CreateContainerRequest {
            pod_sandbox_id: sandbox.clone(),
            config: Some(config),
            sandbox_config: None,
        });
        let answered = timeout(SOON, node.service.create_container(request)).await;
        let refused = answered.unwrap().unwrap_err().to_string();
        assert!(refused.contains(path.to_str().unwrap()), "{refused}");
        assert!(refused.contains(reason), "{refused}");
    }
    drop(held);
}

/// Single-threaded, so a blocking call would stop all other tasks.
#[tokio::test]
async fn who_finishes_a_log_holds_up_nobody_else() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::new("unix:///nonexistent/docker.sock".parse().unwrap());
    let logs = Logs::new(dir.path(), Arc::new(engine), LogDriver::JsonFile);
    fs::create_dir(dir.path().join("logs")).unwrap();
    let disk = fifo(&dir.path().join("logs/abc.json"));
    let container = Container {
        status: ContainerStatus {
            id: "abc".into(),
            log_path: dir.path().join("0.log").display().to_string(),
            ..Default::default()
        },
        sandbox_id: "s".into(),
        docker_name: String::new(),
        pid: 0,
        engine_log: dir.path().join("abc-json.log").display().to_string(),
        cri_log: true,
        unified: Default::default(),
        image_mounts: Default::default(),
        upper_dir: String::new(),
        provisional: false,
    };
    let (others, told) = mpsc::channel();
    let (done, finished) = mpsc::channel::<()>();
    let checkpoint = dir.path().join("logs/abc.json");
    // Releases the reader once the other tasks have run, or after a timeout.
    let answering = std::thread::spawn(move || {
        let went_on = told.recv_timeout(SOON).is_ok();
        drop(disk);
        // Also releases readers that open the file only now.
        while finished.recv_timeout(AGAIN) == Err(RecvTimeoutError::Timeout) {
            let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            drop(open(&checkpoint, flags, Mode::empty()));
        }
        went_on
    });
    tokio::join!(logs.finish(&container), async {
        // The receiver may have timed out.
        let _ = others.send(());
    });
    drop(done);
    assert!(answering.join().unwrap(), "the other requests were blocked");
}
