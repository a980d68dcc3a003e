//! Eviction thresholds.

use std::time::Duration;

use kubelet_pod_spec::{amount_or_share::AmountOrShare, quantity::NANOS};

use crate::{observation::Observation, signal::Signal};

/// The node acts when less than this is available.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Threshold {
    /// What is observed.
    pub signal: Signal,
    /// The least that must be available.
    pub value: AmountOrShare,
    /// How long the threshold must be met before a pod is evicted; zero for a hard threshold.
    pub grace_period: Duration,
    /// How much more than the threshold is reclaimed.
    pub min_reclaim: AmountOrShare,
}

impl Threshold {
    /// A hard threshold without a minimum to reclaim.
    pub fn hard(signal: Signal, value: AmountOrShare) -> Self {
        Self {
            signal,
            value,
            grace_period: Duration::ZERO,
            min_reclaim: AmountOrShare::default(),
        }
    }

    /// Whether pods are evicted at once, without regard to their grace periods.
    pub(crate) const fn is_hard(&self) -> bool {
        self.grace_period.is_zero()
    }

    /// The least that must be available, in billionths.
    pub(crate) fn quantity(&self, observation: &Observation) -> i128 {
        self.value.of(observation.capacity_in_billionths())
    }

    /// Whether too little is available.
    pub(crate) fn is_met(&self, observation: &Observation) -> bool {
        self.quantity(observation) > i128::from(observation.available) * NANOS
    }

    /// Whether too little is available, or less than the minimum was reclaimed.
    pub(crate) fn is_unresolved(&self, observation: &Observation) -> bool {
        let reclaim = self.min_reclaim.of(observation.capacity_in_billionths());
        let wanted = self.quantity(observation).saturating_add(reclaim);
        wanted > i128::from(observation.available) * NANOS
    }
}

/// The thresholds of a node with the file systems of `layout`: those of `containerfs` are always
/// those of the file system that has the writable layers, as upstream.
pub(crate) fn for_layout(
    configured: &[Threshold],
    layout: crate::observation::Layout,
) -> Vec<Threshold> {
    use crate::observation::Layout;
    let (bytes, inodes) = match layout {
        Layout::ImagesApart => (Signal::ImageFsAvailable, Signal::ImageFsInodesFree),
        Layout::Single | Layout::OnlyImagesApart => {
            (Signal::NodeFsAvailable, Signal::NodeFsInodesFree)
        }
    };
    let own = configured.iter().filter(|it| !is_of_container_fs(it));
    let copies = configured.iter().filter_map(|it| {
        let signal = match it.signal {
            signal if signal == bytes => Signal::ContainerFsAvailable,
            signal if signal == inodes => Signal::ContainerFsInodesFree,
            _ => return None,
        };
        Some(Threshold { signal, ..*it })
    });
    let mut thresholds: Vec<Threshold> = own.copied().chain(copies).collect();
    thresholds.sort_by_key(|threshold| (threshold.signal, threshold.grace_period));
    thresholds
}

/// Whether the threshold is ignored, because it follows from others.
pub(crate) const fn is_of_container_fs(threshold: &Threshold) -> bool {
    matches!(
        threshold.signal,
        Signal::ContainerFsAvailable | Signal::ContainerFsInodesFree
    )
}
