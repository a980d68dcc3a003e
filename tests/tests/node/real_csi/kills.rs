//! Kills and restarts of the driver, its registrar and the kubelet.

use std::time::Duration;

use anyhow::Result;
use tokio::time::{Instant, sleep};

use super::site::Site;

/// How long to wait for a call of the driver; it may have happened already.
const CALL: Duration = Duration::from_secs(5);
/// The longest delay of a kill that waits for no call, in milliseconds.
const ANY_TIME: u64 = 1500;
/// The longest delay after the start of a call, in milliseconds.
const DURING_CALL: u64 = 20;
/// The longest downtime, in milliseconds.
const AWAY: u64 = 500;

/// The processes to kill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Killed {
    /// None.
    Nobody,
    /// The driver, and sometimes its registrar.
    Driver,
    /// The kubelet.
    Kubelet,
    /// The kubelet and the driver.
    Both,
}

/// The time of a kill.
#[derive(Debug)]
pub(crate) struct Moment {
    /// The call of the driver to wait for.
    call: Option<&'static str>,
    /// The size of the driver's log when the moment was drawn.
    log: u64,
    /// The delay after the call.
    after: Duration,
}

impl Site {
    /// Draws a moment during the next operation: a random time, or shortly after the start of one
    /// of these calls.
    pub(crate) fn draw(&mut self, calls: &[&'static str]) -> Moment {
        let pick = usize::try_from(self.random(calls.len() as u64 + 1)).unwrap_or_default();
        let call = calls.get(pick).copied();
        let range = if call.is_some() {
            DURING_CALL
        } else {
            ANY_TIME
        };
        Moment {
            call,
            log: self.driver.log_end(),
            after: Duration::from_millis(self.random(range)),
        }
    }

    /// Waits for the moment, then kills and restarts the processes.
    pub(crate) async fn disturb(&mut self, killed: Killed, moment: &Moment) -> Result<()> {
        if killed == Killed::Nobody {
            return Ok(());
        }
        self.come(moment).await?;
        let kills_driver = killed != Killed::Kubelet;
        let kills_kubelet = killed != Killed::Driver;
        let kills_registrar = kills_driver && self.random(2) == 0;
        if kills_kubelet {
            self.cluster.node.kill_kubelet()?;
        }
        if kills_driver {
            self.driver.kill_driver()?;
        }
        if kills_registrar {
            self.driver.kill_registrar()?;
        }
        let registrar = if kills_registrar {
            " with registrar"
        } else {
            ""
        };
        println!("    killed {killed:?}{registrar}: {moment:?}");
        sleep(Duration::from_millis(self.random(AWAY))).await;
        let kubelet_first = self.random(2) == 0;
        if kills_kubelet && kubelet_first {
            self.cluster.start_kubelet().await?;
            sleep(Duration::from_millis(self.random(AWAY))).await;
        }
        if kills_driver {
            self.driver.start_driver().await?;
        }
        if kills_registrar {
            sleep(Duration::from_millis(self.random(AWAY))).await;
            self.driver.start_registrar()?;
        }
        if kills_kubelet && !kubelet_first {
            self.cluster.start_kubelet().await?;
        }
        Ok(())
    }

    async fn come(&self, moment: &Moment) -> Result<()> {
        if let Some(call) = moment.call {
            let begins = format!("GRPC call: /csi.v1.Node/{call}\n");
            let deadline = Instant::now() + CALL;
            while Instant::now() < deadline && !self.driver.log_from(moment.log)?.contains(&begins)
            {
                // The volume may have to be attached first.
                self.attach_and_detach().await?;
                sleep(Duration::from_millis(1)).await;
            }
        }
        sleep(moment.after).await;
        Ok(())
    }
}
