//! The scarce resources of the node, and what was evicted for them.

use k8s_openapi::jiff::Timestamp;
use kubelet_server::reports::PressureReport;

use super::table::human;

/// The lines below the table of pods; none without pressure and evictions.
pub(super) fn lines(report: &PressureReport, namespace: Option<&str>, now: Timestamp) -> String {
    let mut text = String::new();
    if !report.conditions.is_empty() {
        text += &format!("\nThe node has {}.\n", report.conditions.join(" and "));
    }
    let evicted = report.evicted.iter();
    let shown = evicted.filter(|pod| namespace.is_none_or(|wanted| pod.namespace == wanted));
    for (index, pod) in shown.rev().enumerate() {
        if index == 0 {
            text += "\nEvicted, the last first:\n";
        }
        let ago = match pod.at.parse::<Timestamp>() {
            Ok(at) => human(now.as_second() - at.as_second()),
            Err(_) => "<unknown>".to_owned(),
        };
        let (namespace, name, why) = (&pod.namespace, &pod.name, pod.message.trim());
        text += &format!("  {namespace}/{name}, {ago} ago: {why}\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use kubelet_server::reports::EvictedPod;

    use super::*;

    #[test]
    fn conditions_and_evictions_are_told() {
        let pod = |namespace: &str, name: &str, at: &str| EvictedPod {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            at: at.to_owned(),
            message: "The node was low on resource: memory. ".to_owned(),
        };
        let report = PressureReport {
            conditions: vec!["MemoryPressure".to_owned(), "DiskPressure".to_owned()],
            evicted: vec![
                pod("a", "first", "2026-01-01T00:00:00Z"),
                pod("b", "last", "2026-01-01T00:01:00Z"),
            ],
        };
        let now = "2026-01-01T00:01:30Z".parse().unwrap();
        assert_eq!(
            lines(&report, None, now),
            "\nThe node has MemoryPressure and DiskPressure.\n\nEvicted, the last first:\n  \
             b/last, 30s ago: The node was low on resource: memory.\n  \
             a/first, 90s ago: The node was low on resource: memory.\n"
        );
        let only = lines(&report, Some("a"), now);
        assert!(
            only.contains("a/first") && !only.contains("b/last"),
            "{only}"
        );
        assert_eq!(lines(&PressureReport::default(), None, now), "");
    }
}
