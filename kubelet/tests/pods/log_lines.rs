//! The kubelet's own log.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use serde_json::json;

use crate::node::{Node, SECOND, pod, until};

/// What the kubelet has logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Log {
    fn line(&self, message: &str) -> Option<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let line = text.lines().find(|line| line.contains(message));
        line.map(str::to_owned)
    }
}

#[tokio::test(start_paused = true)]
async fn each_line_about_a_pod_names_it() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let _logging = tracing::subscriber::set_default(subscriber.finish());
    let node = Node::new();
    let kubelet = node.start();
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let spec = json!({"containers": [{"name": "c", "image": "busybox", "readinessProbe": probe}]});
    kubelet.add(pod("web", "u1", spec)).await;
    let absent = json!({"containers": [
        {"name": "c", "image": "absent:1", "imagePullPolicy": "Never"}
    ]});
    kubelet.add(pod("bad", "u2", absent)).await;
    for (message, name, uid) in [
        ("started sandbox", "web", "u1"),
        ("started container", "web", "u1"),
        ("probe result", "web", "u1"),
        ("cannot start container", "bad", "u2"),
    ] {
        let names_it = || {
            let line = log.line(message)?;
            (line.contains(name) && line.contains(uid)).then_some(line)
        };
        until(message, 60 * SECOND, || log.line(message).is_some()).await;
        assert!(names_it().is_some(), "{:?}", log.line(message));
    }
}
