//! Which thresholds are met, since when, and the node's conditions that follow.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use jiff::Timestamp;
use tokio::time::Instant;

use crate::{
    observation::Observation,
    signal::{Condition, Signal},
    threshold::Threshold,
};

/// The state that the observations of a node lead to. Thresholds are named by their index.
#[derive(Debug, Default)]
pub(crate) struct Tracker {
    /// The thresholds that are met, or not resolved yet, and since when.
    first_observed: BTreeMap<usize, Instant>,
    /// Those whose grace period has passed.
    due: BTreeSet<usize>,
    /// When each condition was observed last.
    conditions: BTreeMap<Condition, Instant>,
    /// When each signal was measured last.
    measured: BTreeMap<Signal, Timestamp>,
}

impl Tracker {
    /// Takes the observations of one moment. Returns the thresholds to act on, the most urgent
    /// first: their grace periods have passed, and their signals were measured since the last call.
    pub(crate) fn observe(
        &mut self,
        thresholds: &[Threshold],
        signals: &BTreeMap<Signal, Observation>,
        transition_period: Duration,
    ) -> Vec<usize> {
        let now = Instant::now();
        let of = |threshold: &Threshold| signals.get(&threshold.signal);
        let mut first_observed = BTreeMap::new();
        for (index, threshold) in thresholds.iter().enumerate() {
            let Some(observation) = of(threshold) else {
                continue;
            };
            let is_unresolved = self.due.contains(&index) && threshold.is_unresolved(observation);
            if threshold.is_met(observation) || is_unresolved {
                let since = self.first_observed.get(&index).copied();
                first_observed.insert(index, since.unwrap_or(now));
                self.conditions.insert(threshold.signal.condition(), now);
            }
        }
        self.conditions
            .retain(|_, last| *last == now || now.duration_since(*last) < transition_period);
        let due = first_observed.iter().filter(|(index, since)| {
            now.duration_since(**since) >= thresholds[**index].grace_period
        });
        self.due = due.map(|(index, _)| *index).collect();
        self.first_observed = first_observed;
        let is_new = |index: &usize| {
            let signal = thresholds[*index].signal;
            let at = signals.get(&signal).map(|observation| observation.at);
            // The wall clock may have been set back since.
            at != self.measured.get(&signal).copied()
        };
        let act_on = self.due.iter().copied().filter(is_new).collect();
        self.measured = signals
            .iter()
            .map(|(signal, it)| (*signal, it.at))
            .collect();
        act_on
    }

    /// The conditions of the node. One that is no longer observed stays for the transition period.
    pub(crate) fn conditions(&self) -> BTreeSet<Condition> {
        self.conditions.keys().copied().collect()
    }

    /// The thresholds that are met or not resolved yet, and for how long.
    pub(crate) fn met(&self) -> impl Iterator<Item = (usize, Duration)> {
        let met = self.first_observed.iter();
        met.map(|(index, since)| (*index, since.elapsed()))
    }
}

#[cfg(test)]
mod tests {
    use kubelet_pod_spec::{amount_or_share::AmountOrShare, quantity::NANOS};

    use super::*;

    const NONE: [usize; 0] = [];
    const PERIOD: Duration = Duration::from_secs(300);

    fn amount(units: i128) -> AmountOrShare {
        AmountOrShare::Amount(units * NANOS)
    }

    /// A hard and a soft threshold of memory, and one of the disk.
    fn thresholds() -> [Threshold; 3] {
        let mut soft = Threshold::hard(Signal::MemoryAvailable, amount(200));
        soft.grace_period = Duration::from_secs(30);
        let mut hard = Threshold::hard(Signal::MemoryAvailable, amount(100));
        hard.min_reclaim = amount(50);
        let disk = AmountOrShare::Share(0.1);
        [hard, soft, Threshold::hard(Signal::NodeFsAvailable, disk)]
    }

    #[derive(Default)]
    struct Node {
        tracker: Tracker,
        at: i64,
    }

    impl Node {
        async fn after(&mut self, seconds: u64, memory: u64, disk: u64) -> (Vec<usize>, String) {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            self.at += 1;
            let at = Timestamp::from_second(self.at).unwrap();
            self.measured_at(at, memory, disk)
        }

        fn measured_at(&mut self, at: Timestamp, memory: u64, disk: u64) -> (Vec<usize>, String) {
            let observation = |available| Observation {
                available,
                capacity: 1000,
                at,
            };
            let signals = [
                (Signal::MemoryAvailable, observation(memory)),
                (Signal::NodeFsAvailable, observation(disk)),
            ];
            let act_on = self.tracker.observe(&thresholds(), &signals.into(), PERIOD);
            let conditions = self.tracker.conditions();
            let names: Vec<&str> = conditions.iter().map(|it| it.as_str()).collect();
            (act_on, names.join(" "))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn hard_thresholds_act_at_once_and_soft_ones_after_their_grace_period() {
        let mut node = Node::default();
        assert_eq!(node.after(0, 200, 100).await, (vec![], String::new()));
        assert_eq!(
            node.after(10, 199, 100).await,
            (vec![], "MemoryPressure".to_owned())
        );
        assert_eq!(node.after(29, 199, 100).await.0, NONE);
        assert_eq!(node.after(1, 199, 100).await.0, [1]);
        assert_eq!(node.after(10, 99, 100).await.0, [0, 1]);
        // A moment without pressure starts the grace period again.
        assert_eq!(node.after(10, 300, 100).await.0, NONE);
        assert_eq!(node.after(10, 150, 100).await.0, NONE);
        assert_eq!(node.after(30, 150, 100).await.0, [1]);
        let both = (vec![2], "MemoryPressure DiskPressure".to_owned());
        assert_eq!(node.after(10, 300, 99).await, both);
    }

    #[tokio::test(start_paused = true)]
    async fn a_threshold_is_met_until_the_minimum_is_reclaimed() {
        let mut node = Node::default();
        let mut disk_is_fine = async |memory| node.after(1, memory, 500).await.0;
        // Not met yet, the minimum does not matter.
        assert_eq!(disk_is_fine(120).await, NONE);
        assert_eq!(disk_is_fine(99).await, [0]);
        assert_eq!(disk_is_fine(120).await, [0]);
        assert_eq!(disk_is_fine(149).await, [0]);
        assert_eq!(disk_is_fine(150).await, NONE);
        assert_eq!(disk_is_fine(120).await, NONE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_condition_stays_for_the_transition_period() {
        let mut node = Node::default();
        node.after(0, 99, 500).await;
        assert_eq!(node.after(299, 999, 500).await.1, "MemoryPressure");
        assert_eq!(node.after(1, 999, 500).await.1, "");
        node.after(1, 99, 500).await;
        node.after(200, 99, 500).await;
        assert_eq!(node.after(299, 999, 500).await.1, "MemoryPressure");
    }

    #[tokio::test(start_paused = true)]
    async fn the_same_measurement_evicts_once() {
        let mut node = Node::default();
        let at = Timestamp::from_second(5).unwrap();
        assert_eq!(node.measured_at(at, 99, 500).0, [0]);
        assert_eq!(node.measured_at(at, 99, 500).0, NONE);
        let at = Timestamp::from_second(6).unwrap();
        assert_eq!(node.measured_at(at, 99, 500).0, [0]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_not_observed_is_not_met() {
        let mut tracker = Tracker::default();
        let none = BTreeMap::new();
        assert_eq!(tracker.observe(&thresholds(), &none, PERIOD), NONE);
        assert!(tracker.conditions().is_empty());
    }
}
