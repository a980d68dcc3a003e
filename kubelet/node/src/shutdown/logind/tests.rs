//! Tests with a private bus and a fake logind.

use std::{
    io,
    os::fd,
    os::unix::net::UnixStream,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{
    net::unix::pipe,
    time::{sleep, timeout},
};
use zbus::{Connection, OwnedFd, connection::Builder, fdo, object_server::SignalEmitter};

use super::*;

const LIMIT: Duration = Duration::from_secs(20);

/// A D-Bus daemon, stopped on drop.
struct Bus {
    dir: tempfile::TempDir,
    daemon: Child,
}

impl Bus {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let daemon = Self::run(dir.path()).await;
        Self { dir, daemon }
    }

    async fn run(dir: &Path) -> Child {
        let (config, socket) = (dir.join("bus.conf"), dir.join("bus"));
        let text = format!(
            r#"<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig>
  <listen>unix:path={}</listen>
  <auth>EXTERNAL</auth>
  <policy context="default">
    <allow send_destination="*" eavesdrop="true"/>
    <allow eavesdrop="true"/>
    <allow own="*"/>
  </policy>
</busconfig>"#,
            socket.display()
        );
        std::fs::write(&config, text).unwrap();
        let _ = std::fs::remove_file(&socket);
        let daemon = Command::new("dbus-daemon")
            .arg(format!("--config-file={}", config.display()))
            .args(["--nofork", "--nopidfile", "--nosyslog"])
            .stdin(Stdio::null())
            .spawn()
            .expect("dbus-daemon (Debian package dbus-daemon) is needed");
        let listens = async {
            // The socket file exists a moment before the daemon listens.
            while UnixStream::connect(&socket).is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(LIMIT, listens).await.unwrap();
        daemon
    }

    fn stop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }

    async fn restart(&mut self) {
        self.stop();
        self.daemon = Self::run(self.dir.path()).await;
    }

    fn address(&self) -> String {
        format!("unix:path={}", self.dir.path().join("bus").display())
    }

    fn config_dir(&self) -> PathBuf {
        self.dir.path().join("logind.conf.d")
    }

    fn logind(&self) -> Logind {
        Logind {
            address: Some(self.address()),
            config_dir: self.config_dir(),
        }
    }
}

impl Drop for Bus {
    fn drop(&mut self) {
        self.stop();
    }
}

/// State of the fake logind.
#[derive(Default)]
struct State {
    delay: Duration,
    is_shutting_down: bool,
    /// Each lock's arguments, and the read end that sees it closed.
    locks: Vec<([String; 4], pipe::Receiver)>,
}

type Shared = Arc<Mutex<State>>;

struct FakeManager(Shared);

#[zbus::interface(name = "org.freedesktop.login1.Manager")]
impl FakeManager {
    fn inhibit(
        &self,
        what: String,
        who: String,
        why: String,
        mode: String,
    ) -> fdo::Result<OwnedFd> {
        let (held, seen) = pipe().unwrap();
        let mut state = self.0.lock();
        if state.is_shutting_down {
            return Err(fdo::Error::Failed("already running".to_owned()));
        }
        state.locks.push(([what, who, why, mode], seen));
        Ok(held.into())
    }

    #[zbus(property, name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> u64 {
        u64::try_from(self.0.lock().delay.as_micros()).unwrap()
    }

    #[zbus(property)]
    fn preparing_for_shutdown(&self) -> bool {
        self.0.lock().is_shutting_down
    }

    #[zbus(signal)]
    async fn prepare_for_shutdown(emitter: &SignalEmitter<'_>, start: bool) -> zbus::Result<()>;
}

fn pipe() -> io::Result<(fd::OwnedFd, pipe::Receiver)> {
    let (sender, receiver) = pipe::pipe()?;
    Ok((sender.into_blocking_fd()?, receiver))
}

/// systemd, which makes logind reload its configuration.
struct FakeSystemd {
    state: Shared,
    config: PathBuf,
}

#[zbus::interface(name = "org.freedesktop.systemd1.Manager")]
impl FakeSystemd {
    fn kill_unit(&self, name: String, whom: String, signal: i32) -> fdo::Result<()> {
        assert_eq!(
            (name.as_str(), whom.as_str(), signal),
            ("systemd-logind.service", "all", 1)
        );
        let text = std::fs::read_to_string(&self.config).unwrap();
        let mut lines = text.lines().skip_while(|line| *line != "[Login]");
        let seconds = lines.find_map(|line| line.strip_prefix("InhibitDelayMaxSec="));
        let seconds = seconds.unwrap().parse().unwrap();
        self.state.lock().delay = Duration::from_secs(seconds);
        Ok(())
    }
}

/// A fake logind on a bus.
struct Serving {
    connection: Connection,
    state: Shared,
}

impl Serving {
    async fn on(bus: &Bus) -> Self {
        let state = Shared::default();
        state.lock().delay = Duration::from_secs(5);
        let systemd = FakeSystemd {
            state: Arc::clone(&state),
            config: bus.config_dir().join("99-kubelet.conf"),
        };
        let connection = Builder::address(bus.address().as_str())
            .serve_at("/org/freedesktop/login1", FakeManager(Arc::clone(&state)))
            .serve_at("/org/freedesktop/systemd1", systemd)
            .name("org.freedesktop.systemd1")
            .name("org.freedesktop.login1")
            .build()
            .await
            .unwrap();
        Self { connection, state }
    }

    async fn shut_down(&self, start: bool) {
        self.state.lock().is_shutting_down = start;
        let server = self.connection.object_server();
        let manager = server
            .interface::<_, FakeManager>("/org/freedesktop/login1")
            .await
            .unwrap();
        FakeManager::prepare_for_shutdown(manager.signal_emitter(), start)
            .await
            .unwrap();
    }
}

async fn soon<T>(future: impl Future<Output = T>) -> T {
    timeout(LIMIT, future).await.unwrap()
}

#[tokio::test]
async fn a_lock_is_held_until_it_is_dropped() {
    let bus = Bus::start().await;
    let served = Serving::on(&bus).await;
    let session = bus.logind().connect().await.unwrap();
    let lock = session.inhibit().await.unwrap();
    // The lock outlives its session.
    drop(session);
    let (asked, seen) = served.state.lock().locks.remove(0);
    assert_eq!(
        asked,
        [
            "shutdown",
            "kubelet",
            "Kubelet needs time to handle node shutdown",
            "delay"
        ]
    );
    let mut byte = [0];
    sleep(Duration::from_millis(200)).await;
    let error = seen.try_read(&mut byte).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
    drop(lock);
    soon(seen.readable()).await.unwrap();
    assert_eq!(seen.try_read(&mut byte).unwrap(), 0);
}

#[tokio::test]
async fn shutdowns_are_told_as_they_begin_and_are_cancelled() {
    let bus = Bus::start().await;
    let served = Serving::on(&bus).await;
    let mut session = bus.logind().connect().await.unwrap();
    assert!(!session.is_shutting_down().await.unwrap());
    served.shut_down(true).await;
    assert!(soon(session.changed()).await.unwrap());
    assert!(session.is_shutting_down().await.unwrap());
    let error = session.inhibit().await.unwrap_err().to_string();
    assert!(error.contains("already running"), "{error}");
    served.shut_down(false).await;
    assert!(!soon(session.changed()).await.unwrap());
}

#[tokio::test]
async fn the_delay_is_set_by_a_file_beside_loginds_own() {
    let bus = Bus::start().await;
    let _served = Serving::on(&bus).await;
    let session = bus.logind().connect().await.unwrap();
    assert_eq!(session.delay().await.unwrap(), Duration::from_secs(5));
    session.set_delay(Duration::from_secs(90)).await.unwrap();
    assert_eq!(session.delay().await.unwrap(), Duration::from_secs(90));

    let file = bus.dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let logind = Logind {
        config_dir: file.join("logind.conf.d"),
        ..bus.logind()
    };
    let session = logind.connect().await.unwrap();
    let error = session.set_delay(Duration::from_secs(1)).await.unwrap_err();
    assert!(error.to_string().contains("logind.conf.d"), "{error}");
}

#[tokio::test]
async fn a_session_ends_with_its_logind_and_with_its_bus() {
    let mut bus = Bus::start().await;
    let served = Serving::on(&bus).await;
    let mut session = bus.logind().connect().await.unwrap();
    served.connection.close().await.unwrap();
    let error = soon(session.changed()).await.unwrap_err();
    assert!(matches!(error, LoginManagerError::Restarted), "{error}");
    drop(session);

    let served = Serving::on(&bus).await;
    let mut session = bus.logind().connect().await.unwrap();
    bus.stop();
    let error = soon(session.changed()).await.unwrap_err();
    assert!(matches!(error, LoginManagerError::Gone), "{error}");
    drop((session, served));
    let error = bus.logind().connect().await.err().unwrap();
    assert!(matches!(error, LoginManagerError::Bus(_)), "{error}");

    bus.restart().await;
    let _served = Serving::on(&bus).await;
    let session = bus.logind().connect().await.unwrap();
    session.inhibit().await.unwrap();
}
