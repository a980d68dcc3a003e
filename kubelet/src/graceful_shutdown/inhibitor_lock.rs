//! Holds an inhibitor lock that delays shutdowns of the node, and ends its pods during one.

use std::{convert::Infallible, future::Future, time::Duration};

use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_node::shutdown::{
    NodeShutdown,
    login_manager::{LoginManager, LoginManagerError, Session},
    order::{ShutdownGracePeriod, total},
};
use kubelet_pacing::backoff::jittered;
use retry_delay::RetryDelay;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::pod_killer::PodKiller;

/// Delay before the second attempt to get a lock; doubled for each further one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// How often the login manager's delay is read after setting it, until it has the requested value,
/// as upstream.
const DELAY_READS: u32 = 5;
/// After the first reading; doubled after each further one.
const FIRST_READ: Duration = Duration::from_millis(100);

/// Holds the lock.
pub(crate) struct InhibitorLockHolder<'a, L> {
    pub(crate) login_manager: &'a L,
    /// Sorted by priority.
    pub(crate) periods: &'a [ShutdownGracePeriod],
    pub(crate) shutdown: &'a NodeShutdown,
    pub(crate) pod_killer: PodKiller<'a>,
    pub(crate) events: &'a EventRecorder,
}

/// Failures of the login manager, to log them once.
struct LoginManagerFailures {
    /// Until the next attempt.
    retry: RetryDelay,
    is_failing: bool,
    /// Why shutdowns are not delayed for long enough.
    shortfall: Option<String>,
}

impl<L: LoginManager> InhibitorLockHolder<'_, L> {
    /// Holds a lock until cancelled, and reconnects after failures. Does nothing if no grace period
    /// is configured.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        if !self.periods.is_empty() {
            // Boxed: most nodes do not need the space.
            cancel.run_until_cancelled(Box::pin(self.keep())).await;
        }
    }

    async fn keep(&self) {
        self.shutdown.record().load().await;
        let mut failures = LoginManagerFailures {
            retry: RetryDelay::new(FIRST_RETRY, MAX_RETRY),
            is_failing: false,
            shortfall: None,
        };
        loop {
            let Err(error) = self.hold(&mut failures).await;
            // logind stops as well when the node goes down.
            if !failures.is_failing && !self.shutdown.is_under_way() {
                failures.is_failing = true;
                warn!(
                    %error,
                    "cannot delay node shutdowns, so pods get no time to terminate; retrying"
                );
            }
            sleep(jittered(failures.retry.after_failure())).await;
        }
    }

    /// Delays shutdowns during one session.
    async fn hold(
        &self,
        failures: &mut LoginManagerFailures,
    ) -> Result<Infallible, LoginManagerError> {
        let mut session = self.login_manager.connect().await?;
        let mut is_shutting_down = session.is_shutting_down().await?;
        self.lengthen_delay(&session, failures).await;
        let mut lock = None;
        loop {
            self.tell(is_shutting_down);
            if is_shutting_down {
                // A shutdown that began before the session has no lock: pods get the time that is
                // left.
                let ending = async {
                    let record = self.shutdown.record();
                    tokio::join!(record.begin(), self.pod_killer.end(self.periods));
                };
                let cancelled = until_cancelled(&mut session, ending).await?;
                self.shutdown.record().end().await;
                if lock.take().is_some() {
                    info!("released the shutdown inhibitor lock");
                }
                if cancelled {
                    is_shutting_down = false;
                    continue;
                }
            } else {
                lock = Some(session.inhibit().await?);
                failures.retry.reset();
                failures.is_failing = false;
                info!(
                    at_most = ?total(self.periods),
                    "acquired the shutdown inhibitor lock; node shutdowns wait for pods to \
                     terminate"
                );
            }
            is_shutting_down = session.changed().await?;
        }
    }

    fn tell(&self, is_shutting_down: bool) {
        if !self.shutdown.set(is_shutting_down) {
            return;
        }
        let message = if is_shutting_down {
            info!("the node is shutting down");
            "Shutdown manager detected shutdown event"
        } else {
            info!("the node shutdown was cancelled");
            "Shutdown manager detected shutdown cancellation"
        };
        self.events
            .normal(Subject::Node, reason::NODE_SHUTDOWN, message);
    }

    /// Extends the login manager's delay to the total of the grace periods. If that fails, some
    /// time is better than none.
    async fn lengthen_delay(&self, session: &L::Session, failures: &mut LoginManagerFailures) {
        let shortfall = match set_delay(session, total(self.periods)).await {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = shortfall
            .as_ref()
            .filter(|_| shortfall != failures.shortfall)
        {
            error!(
                error,
                "node shutdowns do not wait as long as pods may take to terminate"
            );
        }
        failures.shortfall = shortfall;
    }
}

/// Waits for `ending`. Returns whether the shutdown was cancelled before. The lock outlives the
/// session: if the session ends, the remaining time is still used.
async fn until_cancelled<S: Session>(
    session: &mut S,
    ending: impl Future<Output = ()>,
) -> Result<bool, LoginManagerError> {
    tokio::pin!(ending);
    loop {
        tokio::select! {
            biased;
            changed = session.changed() => match changed {
                Ok(true) => {}
                Ok(false) => return Ok(true),
                Err(error) => {
                    ending.await;
                    return Err(error);
                }
            },
            () = &mut ending => return Ok(false),
        }
    }
}

/// Makes the login manager's delay at least `wanted`.
async fn set_delay<S: Session>(session: &S, wanted: Duration) -> Result<(), LoginManagerError> {
    if session.delay().await? >= wanted {
        return Ok(());
    }
    session.set_delay(wanted).await?;
    let mut wait = FIRST_READ;
    let mut found = session.delay().await?;
    for _ in 1..DELAY_READS {
        if found >= wanted {
            break;
        }
        sleep(wait).await;
        wait *= 2;
        found = session.delay().await?;
    }
    if found < wanted {
        return Err(LoginManagerError::Delay { found, wanted });
    }
    info!(delay = ?found, "extended the shutdown delay of logind");
    Ok(())
}
