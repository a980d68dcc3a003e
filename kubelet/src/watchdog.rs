//! The service manager's watchdog (`WatchdogSec=`). The kubelet notifies it only while `/healthz`
//! succeeds; the service manager restarts a kubelet that does not notify in time.

use std::time::Duration;

use sd_notify::NotifyState;
use tokio::time::{self, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

/// The timeout must be longer, as upstream: a busy kubelet cannot determine its health more often.
const SHORTEST: Duration = Duration::from_secs(1);

/// The watchdog's timeout is too short.
#[derive(Debug, thiserror::Error)]
#[error(
    "the service manager's watchdog timeout (WatchdogSec=) of {0:?} is too short; it must be more \
     than {SHORTEST:?}"
)]
pub struct WatchdogError(Duration);

/// The watchdog of the service manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// The period of notifications: half the timeout, as `sd_watchdog_enabled(3)` recommends.
    interval: Duration,
}

impl Watchdog {
    /// The watchdog of this process, if the service manager set one.
    ///
    /// # Errors
    /// Its timeout is too short.
    pub fn of_this_process() -> Result<Option<Self>, WatchdogError> {
        sd_notify::watchdog_enabled().map(Self::new).transpose()
    }

    fn new(limit: Duration) -> Result<Self, WatchdogError> {
        match limit > SHORTEST {
            true => Ok(Self {
                interval: limit / 2,
            }),
            false => Err(WatchdogError(limit)),
        }
    }

    /// Notifies the watchdog until cancelled, as long as `health` succeeds.
    pub async fn serve(self, health: impl Fn() -> Result<(), String>, cancel: CancellationToken) {
        info!(interval = ?self.interval, "notifying the service manager's watchdog");
        let tell = || sd_notify::notify(&[NotifyState::Watchdog]);
        let serving = self.serve_by(health, tell);
        cancel.run_until_cancelled(serving).await;
    }

    async fn serve_by(
        self,
        health: impl Fn() -> Result<(), String>,
        tell: impl Fn() -> std::io::Result<()>,
    ) {
        let mut ticks = time::interval(self.interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if let Err(error) = health() {
                warn!(%error, "the kubelet is unhealthy; not notifying the watchdog");
            } else if let Err(error) = tell() {
                warn!(%error, "cannot notify the watchdog");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn it_hears_at_half_its_time_and_only_of_health() {
        let watchdog = Watchdog::new(Duration::from_secs(10)).unwrap();
        let begun = Instant::now();
        let is_healthy = Cell::new(true);
        let told = RefCell::new(Vec::new());
        let health = || match is_healthy.get() {
            true => Ok(()),
            false => Err("the sync loop hangs".to_owned()),
        };
        let tell = || {
            told.borrow_mut().push(begun.elapsed().as_secs());
            Ok(())
        };
        let falls_ill = async {
            time::sleep(Duration::from_secs(12)).await;
            is_healthy.set(false);
            time::sleep(Duration::from_secs(10)).await;
            is_healthy.set(true);
            time::sleep(Duration::from_secs(5)).await;
        };
        tokio::select! {
            () = watchdog.serve_by(health, tell) => {}
            () = falls_ill => {}
        }
        assert_eq!(*told.borrow(), [0, 5, 10, 25]);
    }

    #[test]
    fn one_that_is_too_impatient_is_refused() {
        let error = Watchdog::new(Duration::from_millis(900)).unwrap_err();
        assert!(error.to_string().contains("WatchdogSec="), "{error}");
    }
}
