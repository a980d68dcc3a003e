//! Ends of containers that are on their way.

use std::{collections::BTreeMap, future::Future, time::Duration};

use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tokio_util::task::AbortOnDropHandle;

/// For how long an end that nobody waits for any more is remembered beyond its time.
const MEMORY: Duration = Duration::from_secs(600);

/// How each container that was told to end does so, by id. Whoever told it may be gone: a
/// sync is given up when its pod is to end, and an end when it is to take less time. What
/// was begun holds nonetheless: a hook runs once, the grace period counts from the first
/// time, and runtimes (containerd) send no second signal.
#[derive(Debug, Default)]
pub(super) struct Endings(Mutex<BTreeMap<String, Ending>>);

/// The end of one container.
#[derive(Debug)]
struct Ending {
    /// When its time is over.
    deadline: Instant,
    hook: Option<Hook>,
}

/// A `preStop` hook that was begun.
#[derive(Debug)]
struct Hook {
    /// Closed when it has ended.
    ended: watch::Receiver<()>,
    _task: AbortOnDropHandle<()>,
}

impl Endings {
    /// A container is to end within `grace`, or in what is left of the time that it was
    /// given before, if that is less.
    pub(super) fn begin(&self, id: &str, grace: Duration) {
        let now = Instant::now();
        let deadline = now + grace;
        let mut endings = self.0.lock();
        endings.retain(|_, ending| ending.deadline + MEMORY > now);
        let ending = endings.entry(id.to_owned()).or_insert(Ending {
            deadline,
            hook: None,
        });
        ending.deadline = ending.deadline.min(deadline);
    }

    /// The container's remaining time, rounded up to whole seconds as upstream.
    pub(super) fn left(&self, id: &str) -> Duration {
        let endings = self.0.lock();
        let ending = endings.get(id);
        let left = ending.map_or(Duration::ZERO, |ending| {
            ending.deadline.saturating_duration_since(Instant::now())
        });
        let begun = u64::from(left.subsec_nanos() > 0);
        Duration::from_secs(left.as_secs().saturating_add(begun))
    }

    /// Runs the hook of a container that is to end, unless it was begun before, and waits
    /// for its end, as long as the container has time. The hook of a container whose time
    /// is over runs on until the container has ended.
    pub(super) async fn hook(
        &self,
        id: &str,
        hook: impl Future<Output = ()> + Send + 'static,
    ) -> Waited {
        let mut ended = {
            let mut endings = self.0.lock();
            let Some(ending) = endings.get_mut(id) else {
                return Waited::UntilItsEnd;
            };
            let hook = ending.hook.get_or_insert_with(|| {
                let (running, ended) = watch::channel(());
                let task = tokio::spawn(async move {
                    hook.await;
                    drop(running);
                });
                Hook {
                    ended,
                    _task: AbortOnDropHandle::new(task),
                }
            });
            hook.ended.clone()
        };
        // Nothing is ever sent: a change is the end.
        match tokio::time::timeout(self.left(id), ended.changed()).await {
            Ok(_) => Waited::UntilItsEnd,
            Err(_) => Waited::InVain,
        }
    }

    /// The container has ended: so does its hook.
    pub(super) fn finish(&self, id: &str) {
        self.0.lock().remove(id);
    }
}

/// How a wait for a hook ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Waited {
    UntilItsEnd,
    /// Time ran out.
    InVain,
}
