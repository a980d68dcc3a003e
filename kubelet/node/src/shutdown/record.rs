//! Start and end time of the last graceful shutdown, stored for the metrics after the reboot.

use std::{
    fmt::Display,
    io,
    path::{Path, PathBuf},
};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kubelet_host::{clock, files};
use kubelet_metrics::Exposition;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tracing::warn;

/// The file name below the root directory, as upstream.
const FILE: &str = "graceful_node_shutdown_state";

/// The last graceful shutdown, in memory and on disk.
#[derive(Debug)]
pub struct ShutdownRecord {
    path: PathBuf,
    times: Mutex<Times>,
}

/// Its times, in upstream's format.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
struct Times {
    #[serde(skip_serializing_if = "Option::is_none")]
    start_time: Option<Time>,
    /// Unset while pods are terminating.
    #[serde(skip_serializing_if = "Option::is_none")]
    end_time: Option<Time>,
}

impl ShutdownRecord {
    /// A record that is not loaded yet.
    pub(super) fn new(root_dir: &Path) -> Self {
        Self {
            path: root_dir.join(FILE),
            times: Mutex::default(),
        }
    }

    /// Loads the file, if it exists.
    pub async fn load(&self) {
        let text = match files::read_to_string(&self.path).await {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => return self.complain("read", error),
        };
        match serde_json::from_str(&text) {
            Ok(times) => *self.times.lock() = times,
            Err(error) => self.complain("read", error),
        }
    }

    /// Records that the termination of pods begins.
    pub async fn begin(&self) {
        *self.times.lock() = Times {
            start_time: Some(clock::now_time()),
            end_time: None,
        };
        self.store().await;
    }

    /// Records that pods have terminated.
    pub async fn end(&self) {
        self.times.lock().end_time = Some(clock::now_time());
        self.store().await;
    }

    async fn store(&self) {
        let times = self.times.lock().clone();
        let written = match serde_json::to_vec(&times) {
            Ok(json) => files::replace(&self.path, json, 0o644).await,
            Err(error) => Err(io::Error::from(error)),
        };
        if let Err(error) = written {
            self.complain("write", error);
        }
    }

    fn complain(&self, verb: &str, error: impl Display) {
        let path = self.path.display();
        warn!(%path, %error, "cannot {verb} the node shutdown times");
    }

    /// Writes the metrics; zero means never.
    pub fn collect(&self, page: &mut Exposition) {
        let times = self.times.lock();
        let seconds = |time: &Option<Time>| {
            // Upstream writes Go's zero time, which is before the epoch, when there is none.
            time.as_ref().map_or(0, |time| time.0.as_second().max(0))
        };
        page.gauge(
            "kubelet_graceful_shutdown_start_time_seconds",
            "[ALPHA] Last graceful shutdown start time since unix epoch in seconds",
            seconds(&times.start_time),
        );
        page.gauge(
            "kubelet_graceful_shutdown_end_time_seconds",
            "[ALPHA] Last graceful shutdown end time since unix epoch in seconds",
            seconds(&times.end_time),
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// The values of both metrics.
    fn metrics(record: &ShutdownRecord) -> Vec<i64> {
        let mut page = Exposition::default();
        record.collect(&mut page);
        let text = page.into_text();
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        let values = lines.filter_map(|line| line.rsplit(' ').next()?.parse().ok());
        values.collect()
    }

    #[tokio::test(start_paused = true)]
    async fn the_times_outlive_the_shutdown() {
        let dir = tempfile::tempdir().unwrap();
        let record = ShutdownRecord::new(dir.path());
        record.load().await;
        assert_eq!(metrics(&record), [0, 0]);
        let before = clock::now().as_second();
        record.begin().await;
        let begun = metrics(&record)[0];
        assert!((before..before + 10).contains(&begun));
        assert_eq!(metrics(&record)[1], 0);
        tokio::time::sleep(Duration::from_secs(30)).await;
        record.end().await;
        assert_eq!(metrics(&record), [begun, metrics(&record)[1]]);
        assert!(metrics(&record)[1] >= begun + 29);

        let next = ShutdownRecord::new(dir.path());
        next.load().await;
        assert_eq!(metrics(&next), metrics(&record));
    }

    #[tokio::test]
    async fn what_upstream_wrote_is_read() {
        let dir = tempfile::tempdir().unwrap();
        let text =
            r#"{"startTime":"2026-01-02T03:04:05.678+01:00","endTime":"0001-01-01T00:00:00Z"}"#;
        std::fs::write(dir.path().join(FILE), text).unwrap();
        let record = ShutdownRecord::new(dir.path());
        record.load().await;
        assert_eq!(metrics(&record), [1_767_319_445, 0]);
    }
}
