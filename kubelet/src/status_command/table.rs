//! The table of pods.

use k8s_openapi::{api::core::v1::Pod, jiff::Timestamp};
use kubelet_pod_spec::identity::{self, CONFIG_SEEN, CONFIG_SOURCE};

use super::pod_status::summary;

const COLUMNS: [&str; 7] = [
    "NAMESPACE",
    "NAME",
    "READY",
    "STATUS",
    "RESTARTS",
    "IP",
    "AGE",
];
const WIDE_COLUMNS: [&str; 3] = ["NODE", "SOURCE", "UID"];
/// Spaces between columns.
const GAP: usize = 3;

/// The pods as a table, sorted by namespace and name.
pub(super) fn table(pods: &mut [Pod], wide: bool, now: Timestamp) -> String {
    if pods.is_empty() {
        return "No pods found.\n".to_owned();
    }
    pods.sort_unstable_by(|a, b| key(a).cmp(&key(b)));
    let columns = COLUMNS
        .into_iter()
        .chain(WIDE_COLUMNS.into_iter().filter(|_| wide))
        .map(str::to_owned)
        .collect();
    let mut rows: Vec<Vec<String>> = vec![columns];
    rows.extend(pods.iter().map(|pod| row(pod, wide, now)));

    let widths: Vec<usize> = (0..rows[0].len())
        .map(|column| {
            rows.iter()
                .map(|row| row[column].chars().count())
                .max()
                .unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line += &format!("{cell:<width$}", width = width + GAP);
        }
        text += line.trim_end();
        text.push('\n');
    }
    text
}

fn key(pod: &Pod) -> (&str, &str) {
    (identity::namespace(pod), identity::name(pod))
}

fn row(pod: &Pod, wide: bool, now: Timestamp) -> Vec<String> {
    let summary = summary(pod);
    let ago = |since: Timestamp| human(now.as_second() - since.as_second());
    let or_none = |text: Option<&str>| {
        text.filter(|text| !text.is_empty())
            .unwrap_or("<none>")
            .to_owned()
    };
    let restarts = match summary.last_restart {
        Some(last) if summary.restarts > 0 => format!("{} ({} ago)", summary.restarts, ago(last)),
        _ => summary.restarts.to_string(),
    };
    let status = pod.status.as_ref();
    let mut row = vec![
        identity::namespace(pod).to_owned(),
        identity::name(pod).to_owned(),
        format!("{}/{}", summary.ready, summary.total),
        summary.status,
        restarts,
        or_none(status.and_then(|status| status.pod_ip.as_deref())),
        since(pod).map_or_else(|| "<unknown>".to_owned(), ago),
    ];
    if wide {
        let spec = pod.spec.as_ref();
        row.push(or_none(spec.and_then(|spec| spec.node_name.as_deref())));
        row.push(or_none(identity::annotation(pod, CONFIG_SOURCE)));
        row.push(or_none(pod.metadata.uid.as_deref()));
    }
    row
}

/// When the pod came into existence. Static pods have no creation time, but the kubelet knows when
/// it started them and when it first saw them.
fn since(pod: &Pod) -> Option<Timestamp> {
    let created = pod.metadata.creation_timestamp.as_ref();
    let started = pod
        .status
        .as_ref()
        .and_then(|status| status.start_time.as_ref());
    created
        .or(started)
        .map(|time| time.0)
        .or_else(|| identity::annotation(pod, CONFIG_SEEN)?.parse().ok())
}

/// A duration in seconds, in at most two units, as kubectl.
pub(super) fn human(seconds: i64) -> String {
    let two = |big: i64, big_unit: char, small: i64, small_unit: char| {
        if small == 0 {
            format!("{big}{big_unit}")
        } else {
            format!("{big}{big_unit}{small}{small_unit}")
        }
    };
    let (minutes, hours) = (seconds / 60, seconds / 3600);
    let (days, years) = (hours / 24, hours / 24 / 365);
    match seconds {
        ..=-2 => "<invalid>".to_owned(),
        -1 => "0s".to_owned(),
        0..120 => format!("{seconds}s"),
        _ if minutes < 10 => two(minutes, 'm', seconds % 60, 's'),
        _ if minutes < 180 => format!("{minutes}m"),
        _ if hours < 8 => two(hours, 'h', minutes % 60, 'm'),
        _ if hours < 48 => format!("{hours}h"),
        _ if days < 8 => two(days, 'd', hours % 24, 'h'),
        _ if years < 2 => format!("{days}d"),
        _ if years < 8 => two(years, 'y', days % 365, 'd'),
        _ => format!("{years}y"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn spans_as_kubectl_writes_them() {
        for (seconds, text) in [
            (-5, "<invalid>"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (150, "2m30s"),
            (700, "11m"),
            (3 * 3600, "3h"),
            (3 * 3600 + 300, "3h5m"),
            (20 * 3600, "20h"),
            (50 * 3600, "2d2h"),
            (100 * 86400, "100d"),
            (3 * 365 * 86400 + 86400, "3y1d"),
            (9 * 365 * 86400, "9y"),
        ] {
            assert_eq!(human(seconds), text, "{seconds}");
        }
    }

    #[test]
    fn a_line_for_each_pod_in_order() {
        let now: Timestamp = "2024-01-01T01:00:00Z".parse().unwrap();
        let mut pods: Vec<Pod> = serde_json::from_value(json!([
            {
                "metadata": {"name": "web-node", "namespace": "default", "annotations": {"kubernetes.io/config.seen": "2024-01-01T00:58:30Z"}},
                "spec": {"containers": [{"name": "web"}], "nodeName": "node"},
                "status": {"phase": "Running", "podIP": "10.0.0.7", "containerStatuses": [{
                    "name": "web", "image": "", "imageID": "", "ready": true, "restartCount": 2,
                    "state": {"running": {}},
                    "lastState": {"terminated": {"exitCode": 1, "finishedAt": "2024-01-01T00:55:00Z"}},
                }]},
            },
            {"metadata": {"name": "a", "namespace": "default"}, "status": {"phase": "Pending"}},
        ]))
        .unwrap();
        assert_eq!(
            table(&mut pods, false, now),
            "NAMESPACE   NAME       READY   STATUS    RESTARTS     IP         AGE\n\
             default     a          0/0     Pending   0            <none>     <unknown>\n\
             default     web-node   1/1     Running   2 (5m ago)   10.0.0.7   90s\n"
        );
        assert!(
            table(&mut pods, true, now)
                .lines()
                .next()
                .unwrap()
                .ends_with("NODE     SOURCE   UID")
        );
    }
}
