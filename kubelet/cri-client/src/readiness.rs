//! What the container runtime says of its own state.

use std::time::Duration;

use cri_proto::runtime::v1::{RuntimeCondition, RuntimeFeatures, RuntimeHandler, StatusResponse};
use parking_lot::Mutex;
use tokio::time::{self, Instant, MissedTickBehavior};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

use crate::CriClient;

/// Between two questions, as upstream.
const PERIOD: Duration = Duration::from_secs(5);
/// Without an answer for so long the runtime is down, as upstream.
const DOWN_AFTER: Duration = Duration::from_secs(30);
/// How long an answer may take.
const DEADLINE: Duration = Duration::from_secs(10);

/// Whether pods can be run, as the runtime said last.
#[derive(Debug)]
pub struct RuntimeReadiness {
    cri: CriClient,
    reported: Mutex<RuntimeConditions>,
}

#[derive(Debug)]
struct RuntimeConditions {
    /// When it last said that it is ready.
    ready: Option<Instant>,
    runtime_problem: Option<String>,
    network_problem: Option<String>,
    handlers: Vec<RuntimeHandler>,
    features: Option<RuntimeFeatures>,
}

impl RuntimeReadiness {
    /// The readiness of a runtime that was not asked yet.
    pub const fn new(cri: CriClient) -> Self {
        Self {
            cri,
            reported: Mutex::new(RuntimeConditions {
                ready: None,
                runtime_problem: None,
                network_problem: None,
                handlers: Vec::new(),
                features: None,
            }),
        }
    }

    /// Asks the runtime every five seconds until cancelled, on every kind of node.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut period = time::interval(PERIOD);
        period.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut told = Vec::new();
        let ask = async {
            loop {
                period.tick().await;
                self.ask().await;
                let problems = self.problems();
                if problems != told {
                    if problems.is_empty() {
                        info!("the runtime is ready");
                    } else {
                        warn!(problems = problems.join("; "), "the runtime is not ready");
                    }
                    told = problems;
                }
            }
        };
        cancel.run_until_cancelled(ask).await;
    }

    /// Asks the runtime now. What it does not answer stays as it was.
    pub async fn ask(&self) {
        match time::timeout(DEADLINE, self.cri.status()).await {
            Ok(Ok(status)) => self.take(status),
            Ok(Err(error)) => debug!(%error, "cannot get the runtime status"),
            Err(_) => debug!("the runtime status request timed out"),
        }
    }

    /// Takes an answer in.
    pub fn take(&self, status: StatusResponse) {
        let conditions = status.status.map(|status| status.conditions);
        let conditions = conditions.unwrap_or_default();
        let problem = |kind: &str| {
            let condition = conditions.iter().find(|condition| condition.r#type == kind);
            match condition {
                Some(condition) if condition.status => None,
                Some(condition) => Some(described(condition)),
                None => Some("<nil>".to_owned()),
            }
        };
        let mut reported = self.reported.lock();
        reported.network_problem = problem("NetworkReady")
            .map(|problem| format!("container runtime network not ready: {problem}"));
        reported.runtime_problem = problem("RuntimeReady")
            .map(|problem| format!("container runtime not ready: {problem}"));
        if reported.runtime_problem.is_none() {
            reported.ready = Some(Instant::now());
            reported.handlers = status.runtime_handlers;
            reported.features = status.features;
        }
    }

    /// Why no pod can be run, in upstream's words; none when pods can.
    pub fn runtime_problems(&self) -> Vec<String> {
        let reported = self.reported.lock();
        let reachable = match reported.ready {
            None => Some("container runtime status check may not have completed yet"),
            Some(at) if at.elapsed() >= DOWN_AFTER => Some("container runtime is down"),
            Some(_) => None,
        };
        let reachable = reachable.map(str::to_owned);
        reachable
            .into_iter()
            .chain(reported.runtime_problem.clone())
            .collect()
    }

    /// Why no pod can be run that is not on the node's own network.
    pub fn network_problem(&self) -> Option<String> {
        self.reported.lock().network_problem.clone()
    }

    /// Every reason why pods cannot be run; none when they can.
    pub fn problems(&self) -> Vec<String> {
        let is_known = self.reported.lock().ready.is_some();
        let unknown = (!is_known).then(|| "network state unknown".to_owned());
        let network = self.network_problem().or(unknown);
        self.runtime_problems().into_iter().chain(network).collect()
    }

    /// Its handlers, in its own order.
    pub fn handlers(&self) -> Vec<RuntimeHandler> {
        self.reported.lock().handlers.clone()
    }

    /// What it can do whatever the handler; `None` when it does not say.
    pub fn features(&self) -> Option<RuntimeFeatures> {
        self.reported.lock().features
    }
}

fn described(condition: &RuntimeCondition) -> String {
    format!(
        "{}={} reason:{} message:{}",
        condition.r#type, condition.status, condition.reason, condition.message
    )
}
