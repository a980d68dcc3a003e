//! Engines with another log driver than json-file, which the shim does not change.

use std::{
    fs,
    os::unix::net::UnixDatagram,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bollard::{models::HostConfigLogConfig, query_parameters::InspectContainerOptions};
use e2e::{cri::Cri, node::Node};

use super::{END, Logging, numbers};

/// A node whose engine has its own log driver, which the shim does not change.
async fn logging_by(driver: &str, options: &[&str]) -> Node {
    let mut node = Node::with_shim().await.unwrap();
    node.kill_shim().unwrap();
    node.engine_mut().stop().unwrap();
    let mut flags = vec!["--log-driver", driver];
    for option in options {
        flags.extend(["--log-opt", option]);
    }
    node.engine_mut().start_again_with(&flags).await.unwrap();
    node.start_shim_with(&["--log-driver", "engine"])
        .await
        .unwrap();
    node
}

/// The log driver of a container according to the engine.
async fn log_driver(node: &Node, id: &str) -> HostConfigLogConfig {
    let docker = node.docker().unwrap();
    let options = None::<InspectContainerOptions>;
    let found = docker.inspect_container(id, options).await.unwrap();
    found.host_config.unwrap().log_config.unwrap()
}

#[tokio::test]
async fn an_engines_own_log_driver_is_left_alone_and_read_through_its_api() {
    let collected = tempfile::tempdir().unwrap();
    let socket = collected.path().join("syslog.sock");
    let collector = UnixDatagram::bind(&socket).unwrap();
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&seen);
    std::thread::spawn(move || {
        let mut message = [0; 4096];
        while let Ok(length) = collector.recv(&mut message) {
            if message[..length].ends_with(b" 3000") || message[..length].ends_with(b" 3000\n") {
                counted.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let address = format!("syslog-address=unixgram://{}", socket.display());
    let away = Duration::from_secs(4);
    for (driver, options, absence) in [
        ("local", &[] as &[&str], Duration::ZERO),
        // Rotated files are compressed, so they cannot be read directly.
        (
            "json-file",
            &["max-size=50k", "max-file=10", "compress=true"],
            away,
        ),
        // The driver cannot be read, except through the engine's local cache.
        ("syslog", &[&address], Duration::ZERO),
    ] {
        let mut node = logging_by(driver, options).await;
        let mut cri = Cri::of(&node).await.unwrap();
        let script = "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); echo $i; \
                      [ $((i % 100)) -eq 0 ] && usleep 50000; done; true";
        let logging = Logging::start(&node, &mut cri, driver, script).await;
        let has = log_driver(&node, &logging.id).await;
        assert_eq!(has.typ.as_deref(), Some(driver));
        assert_eq!(has.config.unwrap_or_default().len(), options.len());
        if absence.is_zero() {
            tokio::time::sleep(Duration::from_millis(500)).await;
        }
        node.kill_shim().unwrap();
        tokio::time::sleep(absence).await;
        node.start_shim_with(&["--log-driver", "engine"])
            .await
            .unwrap();
        logging.ended(&node).await;
        assert_eq!(
            logging.lines(),
            numbers(3000),
            "{driver}: {}",
            node.shim_log()
        );
    }
    assert_eq!(seen.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_log_driver_that_cannot_be_read_is_named_in_the_log() {
    let mut node = logging_by("none", &[]).await;
    let mut cri = Cri::of(&node).await.unwrap();
    let script = "echo unseen; while [ ! -e /tmp/end ]; do usleep 100000; done";
    let logging = Logging::start(&node, &mut cri, "unread", script).await;
    let message = "the engine's log driver \"none\" does not support reading";
    let is_there = async |_: &Node| Ok(fs::read_to_string(&logging.log)?.contains(message));
    node.await_until("it says so", END, is_there).await.unwrap();
    // The message appears once even if either side restarts, or if the crash came before the shim
    // recorded the message.
    node.kill_shim().unwrap();
    let noted = node.path(&format!("shim/logs/{}.json", logging.id));
    let _ = fs::remove_file(noted);
    node.start_shim_with(&["--log-driver", "engine"])
        .await
        .unwrap();
    let mut cri = Cri::of(&node).await.unwrap();
    // Delayed, because the container could end before the exec call returns.
    let end = ["sh", "-c", "(sleep 1; touch /tmp/end) >/dev/null 2>&1 &"];
    cri.exec(&logging.id, &end, 60).await.unwrap();
    logging.ended(&node).await;
    let log = node.shim_log();
    assert!(!log.contains("before its log is complete"), "{log}");
    let log = fs::read_to_string(&logging.log).unwrap();
    assert_eq!(log.lines().count(), 1, "{log}");
    assert!(log.contains(" stderr F dockershim: "), "{log}");
}
