//! How long the start of a new node takes, from the boot of its machine.

use jiff::Timestamp;
use kubelet_host::clock;
use kubelet_metrics::{Collector, Exposition};
use parking_lot::Mutex;

/// The moments of a node's start. As upstream, they are known only of a node whose object this
/// kubelet created.
#[derive(Debug)]
pub struct NodeStartup {
    /// When the machine was booted.
    booted: Timestamp,
    /// When this kubelet was started.
    begun: Timestamp,
    moments: Mutex<Moments>,
}

#[derive(Debug, Default)]
struct Moments {
    attempted: Option<Timestamp>,
    registered: Option<Timestamp>,
    ready: Option<Timestamp>,
}

impl NodeStartup {
    /// A start that begins now, on a machine that was booted some seconds ago.
    pub(super) fn new(uptime: i64) -> Self {
        let begun = clock::now();
        let booted = Timestamp::from_second(begun.as_second().saturating_sub(uptime));
        Self {
            booted: booted.unwrap_or(begun),
            begun,
            moments: Mutex::default(),
        }
    }

    /// The node is about to be registered.
    pub(super) fn attempts(&self) {
        self.moments.lock().attempted.get_or_insert(clock::now());
    }

    /// The node's object was created.
    pub(super) fn registered(&self) {
        let mut moments = self.moments.lock();
        if moments.attempted.is_some() {
            moments.registered.get_or_insert(clock::now());
        }
    }

    /// The API server has the node as ready.
    pub(super) fn ready(&self) {
        let mut moments = self.moments.lock();
        if moments.registered.is_some() {
            moments.ready.get_or_insert(clock::now());
        }
    }
}

impl Collector for NodeStartup {
    /// Writes zeros until the moments are known.
    fn collect(&self, page: &mut Exposition) {
        let moments = self.moments.lock();
        let (booted, begun) = (Some(self.booted), Some(self.begun));
        // Without the creation of the object, the rest does not count.
        let attempted = moments.registered.and(moments.attempted);
        let begun_if_new = moments.registered.and(begun);
        for (name, help, from, to) in [
            (
                "kubelet_node_startup_pre_kubelet_duration_seconds",
                "[ALPHA] Duration in seconds of node startup before kubelet starts.",
                booted,
                begun_if_new,
            ),
            (
                "kubelet_node_startup_pre_registration_duration_seconds",
                "[ALPHA] Duration in seconds of node startup before registration.",
                begun,
                attempted,
            ),
            (
                "kubelet_node_startup_registration_duration_seconds",
                "[ALPHA] Duration in seconds of node startup during registration.",
                attempted,
                moments.registered,
            ),
            (
                "kubelet_node_startup_post_registration_duration_seconds",
                "[ALPHA] Duration in seconds of node startup after registration.",
                moments.registered,
                moments.ready,
            ),
            (
                "kubelet_node_startup_duration_seconds",
                "[ALPHA] Duration in seconds of node startup in total.",
                booted,
                moments.ready,
            ),
        ] {
            let took = from.zip(to).map(|(from, to)| to.duration_since(from));
            page.gauge(name, help, took.unwrap_or_default().as_secs_f64());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use kubelet_host::repeatable::Repeatable;
    use tokio::time::advance;

    use super::*;

    fn values(startup: &NodeStartup) -> Vec<f64> {
        let mut page = Exposition::default();
        startup.collect(&mut page);
        let text = page.into_text();
        let samples = text.lines().filter(|line| !line.starts_with('#'));
        samples
            .map(|line| line.rsplit_once(' ').unwrap().1.parse().unwrap())
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_start_is_measured_from_the_boot_on() {
        let _simulated = Repeatable::on_this_thread(1, Timestamp::UNIX_EPOCH);
        let second = Duration::from_secs(1);
        let startup = NodeStartup::new(100);
        advance(2 * second).await;
        startup.ready();
        startup.attempts();
        advance(3 * second).await;
        startup.attempts();
        assert_eq!(values(&startup), [0.0; 5]);
        startup.registered();
        advance(4 * second).await;
        startup.registered();
        startup.ready();
        advance(second).await;
        startup.ready();
        assert_eq!(values(&startup), [100.0, 2.0, 3.0, 4.0, 109.0]);
    }
}
