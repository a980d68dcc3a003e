//! Groups pods for shutdown by priority, with a grace period for each group.

use std::{sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Pod;

/// The grace period of a priority range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShutdownGracePeriod {
    /// The lowest priority of the range, which ends below the next entry's priority.
    pub priority: i32,
    /// The grace period, in whole seconds.
    pub period: Duration,
}

/// Pods that are terminated together.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The group's range and grace period.
    pub grace: ShutdownGracePeriod,
    /// The pods.
    pub pods: Vec<Arc<Pod>>,
}

/// The longest duration of a shutdown.
pub fn total(periods: &[ShutdownGracePeriod]) -> Duration {
    periods.iter().map(|grace| grace.period).sum()
}

/// Groups pods by `periods`, which are sorted by priority. Pods below the lowest priority are in
/// the first group; empty groups are left out.
pub fn grouped(periods: &[ShutdownGracePeriod], pods: Vec<Arc<Pod>>) -> Vec<Group> {
    let groups = periods.iter().map(|grace| Group {
        grace: *grace,
        pods: Vec::new(),
    });
    let mut groups: Vec<Group> = groups.collect();
    for pod in pods {
        let priority = pod.spec.as_ref().and_then(|spec| spec.priority);
        let priority = priority.unwrap_or_default();
        let above = groups.partition_point(|group| group.grace.priority <= priority);
        if let Some(group) = groups.get_mut(above.saturating_sub(1)) {
            group.pods.push(pod);
        }
    }
    groups.retain(|group| !group.pods.is_empty());
    groups
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(priority: Option<i32>) -> Arc<Pod> {
        let pod = json!({"spec": {"containers": [], "priority": priority}});
        Arc::new(serde_json::from_value(pod).unwrap())
    }

    fn periods(list: &[(i32, u64)]) -> Vec<ShutdownGracePeriod> {
        let period = |&(priority, seconds)| ShutdownGracePeriod {
            priority,
            period: Duration::from_secs(seconds),
        };
        list.iter().map(period).collect()
    }

    /// The pods' priorities, per group.
    fn groups(list: &[(i32, u64)], pods: &[Option<i32>]) -> Vec<(i32, Vec<Option<i32>>)> {
        let pods = pods.iter().copied().map(pod).collect();
        let groups = grouped(&periods(list), pods).into_iter();
        let of_pods = |group: &Group| {
            let pods = group.pods.iter();
            pods.map(|pod| pod.spec.as_ref().unwrap().priority)
                .collect()
        };
        groups
            .map(|group| (group.grace.priority, of_pods(&group)))
            .collect()
    }

    #[test]
    fn pods_end_with_the_next_lower_priority_and_nobody_waits_for_an_empty_group() {
        let list = [(-5, 1), (0, 2), (1000, 3), (2_000_000_000, 4)];
        let pods = [
            Some(-10),
            Some(-1),
            None,
            Some(999),
            Some(2_000_001_000),
            Some(2_000_000_000),
        ];
        assert_eq!(
            groups(&list, &pods),
            [
                (-5, vec![Some(-10), Some(-1)]),
                (0, vec![None, Some(999)]),
                (
                    2_000_000_000,
                    vec![Some(2_000_001_000), Some(2_000_000_000)]
                ),
            ]
        );
        assert_eq!(groups(&[], &pods), []);
        assert_eq!(total(&periods(&list)), Duration::from_secs(10));
    }
}
