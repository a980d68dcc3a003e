//! The kubelet's own log.

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
};

use serde_json::json;
use tracing::subscriber::NoSubscriber;

use crate::node::{IMAGE, Node, SECOND, pod, until};

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
    /// The lines with this message.
    fn lines(&self, message: &str) -> Vec<String> {
        let text = String::from_utf8(self.0.lock().unwrap().clone()).unwrap();
        let lines = text.lines().filter(|line| line.contains(message));
        lines.map(str::to_owned).collect()
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
    // While there is a single subscriber, tracing asks the thread that first reaches a line whether
    // to log it, and applies its answer to all threads: that of another test, which logs nothing.
    let _second = tracing::Dispatch::new(NoSubscriber::default());
    let node = Node::new();
    let kubelet = node.start();
    let probe = json!({"exec": {"command": ["true"]}, "periodSeconds": 1});
    let spec = json!({"containers": [{"name": "c", "image": IMAGE, "readinessProbe": probe}]});
    kubelet.add(pod("web", "u1", spec)).await;
    let absent = json!({"containers": [
        {"name": "c", "image": "absent:1", "imagePullPolicy": "Never"}
    ]});
    kubelet.add(pod("bad", "u2", absent)).await;
    let web = "pod{pod=\"web_default\" pod_uid=u1}";
    let bad = "pod{pod=\"bad_default\" pod_uid=u2}";
    for (message, span) in [
        ("started sandbox", web),
        ("started container", web),
        ("probe result", web),
        ("started sandbox", bad),
        ("cannot start container", bad),
    ] {
        let is_told = || log.lines(message).iter().any(|line| line.contains(span));
        until(message, 60 * SECOND, is_told).await;
        for line in log.lines(message) {
            assert!(line.contains(web) || line.contains(bad), "{line}");
        }
    }
}
