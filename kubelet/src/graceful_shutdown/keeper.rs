//! Keeps a lock that holds up shutdowns of the node, and has its pods end during one.

use std::{convert::Infallible, future::Future, time::Duration};

use kubelet_api_client::events::{EventRecorder, Subject, reason};
use kubelet_pacing::backoff::jittered;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use super::ender::PodEnder;
use crate::node::shutdown::{
    NodeShutdown,
    login_manager::{LoginManager, LoginManagerError, Session},
    order::{ShutdownGracePeriod, total},
};

/// Before the second attempt to get a lock; doubled for each further one.
const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);
/// How often the delay is read until it is what was asked for, as upstream.
const DELAY_READS: u32 = 5;
/// After the first reading; doubled after each further one.
const FIRST_READ: Duration = Duration::from_millis(100);

/// Keeps the lock.
pub(crate) struct InhibitorKeeper<'a, L> {
    pub(crate) login_manager: &'a L,
    /// Sorted by priority.
    pub(crate) periods: &'a [ShutdownGracePeriod],
    pub(crate) shutdown: &'a NodeShutdown,
    pub(crate) ender: PodEnder<'a>,
    pub(crate) events: &'a EventRecorder,
}

/// What the log has of trouble with the login manager.
struct Trouble {
    /// Until the next attempt.
    retry: Duration,
    is_failing: bool,
    /// Why shutdowns are not held up for long enough.
    shortfall: Option<String>,
}

impl<L: LoginManager> InhibitorKeeper<'_, L> {
    /// Keeps a lock until cancelled, whatever becomes of the login manager. Does nothing
    /// where pods get no time to end.
    pub(crate) async fn run(self, cancel: CancellationToken) {
        if !self.periods.is_empty() {
            // Most nodes need no room for it.
            cancel.run_until_cancelled(Box::pin(self.keep())).await;
        }
    }

    async fn keep(&self) {
        self.shutdown.record().load().await;
        let mut trouble = Trouble {
            retry: FIRST_RETRY,
            is_failing: false,
            shortfall: None,
        };
        loop {
            let Err(error) = self.hold(&mut trouble).await;
            // Once the node goes down, so does logind.
            if !trouble.is_failing && !self.shutdown.is_under_way() {
                trouble.is_failing = true;
                warn!(
                    %error,
                    "A shutdown of this node does not wait for its pods, which get no time to \
                     end; trying on"
                );
            }
            sleep(jittered(trouble.retry)).await;
            trouble.retry = (trouble.retry * 2).min(MAX_RETRY);
        }
    }

    /// Holds up shutdowns for as long as one session lasts.
    async fn hold(&self, trouble: &mut Trouble) -> Result<Infallible, LoginManagerError> {
        let mut session = self.login_manager.connect().await?;
        let mut is_shutting_down = session.is_shutting_down().await?;
        self.lengthen_delay(&session, trouble).await;
        let mut lock = None;
        loop {
            self.tell(is_shutting_down);
            if is_shutting_down {
                // Whoever was there before the session has no lock, and what time is left.
                let ending = async {
                    let record = self.shutdown.record();
                    tokio::join!(record.begin(), self.ender.end(self.periods));
                };
                let cancelled = until_cancelled(&mut session, ending).await?;
                self.shutdown.record().end().await;
                if lock.take().is_some() {
                    info!("The node shuts down now");
                }
                if cancelled {
                    is_shutting_down = false;
                    continue;
                }
            } else {
                lock = Some(session.inhibit().await?);
                trouble.retry = FIRST_RETRY;
                trouble.is_failing = false;
                info!(at_most = ?total(self.periods), "Shutdowns of this node wait for its pods");
            }
            is_shutting_down = session.changed().await?;
        }
    }

    fn tell(&self, is_shutting_down: bool) {
        if !self.shutdown.set(is_shutting_down) {
            return;
        }
        let message = if is_shutting_down {
            info!("The node is being shut down");
            "Shutdown manager detected shutdown event"
        } else {
            info!("The node is not shut down any more");
            "Shutdown manager detected shutdown cancellation"
        };
        self.events
            .normal(Subject::Node, reason::NODE_SHUTDOWN, message);
    }

    /// Has the login manager wait for as long as pods may take. Where it does not, some
    /// time is better than none.
    async fn lengthen_delay(&self, session: &L::Session, trouble: &mut Trouble) {
        let shortfall = match set_delay(session, total(self.periods)).await {
            Ok(()) => None,
            Err(error) => Some(error.to_string()),
        };
        if let Some(error) = shortfall
            .as_ref()
            .filter(|_| shortfall != trouble.shortfall)
        {
            error!(
                error,
                "A shutdown of this node does not wait for as long as its pods may take to end"
            );
        }
        trouble.shortfall = shortfall;
    }
}

/// Waits for `ending`; whether the shutdown was cancelled before. A session that ends does
/// not end the lock: all the time that there is, is used.
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

/// Has the login manager wait for no less than `wanted`.
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
    info!(delay = ?found, "logind waits longer for those who hold up a shutdown");
    Ok(())
}
