//! Workers, each of which runs one pod after the other from creation to removal.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use cri_proto::runtime::v1::{self as cri, ContainerState};
use e2e::{
    cri::{Cri, container, sandbox},
    engine_proxy::EngineProxy,
};
use test_run::random::Random;
use tokio::time::{Instant, sleep};

use super::{
    STEP,
    tally::{Moment, Outcome, Tally},
};

/// The delay after a failed pod: killed processes are not back immediately.
const RETRY: Duration = Duration::from_millis(300);

/// Runs pods.
pub(crate) struct Worker {
    pub name: String,
    pub endpoint: String,
    /// The directory of the pods' logs.
    pub logs: PathBuf,
    pub tally: Arc<Tally>,
    pub proxy: Arc<EngineProxy>,
    pub random: Random,
    /// Set at the end of the test.
    pub done: Arc<AtomicBool>,
}

impl Worker {
    /// Runs pods until `done` is set.
    ///
    /// # Errors
    /// A pod does not have the expected outcome.
    pub(crate) async fn work(mut self) -> Result<()> {
        for round in 0.. {
            if self.done.load(Ordering::Relaxed) {
                break;
            }
            self.tally.all_up().await;
            self.round(round).await?;
        }
        Ok(())
    }

    fn moment(&self) -> Moment {
        self.tally.moment(&self.proxy)
    }

    /// Runs one pod. Its calls may fail because of kills. The outcome is checked, then the pod is
    /// removed as by a client that does not know its state.
    async fn round(&mut self, round: usize) -> Result<()> {
        let name = format!("{}-{round}", self.name);
        let mut config = sandbox(&name);
        config.log_directory = self.logs.join(&name).display().to_string();
        let log = Path::new(&config.log_directory).join("main/0.log");
        let lines = usize::try_from(self.random.between(200, 3200))?;
        let begun = self.moment();
        self.runtime_ready().await?;
        let lived = tokio::time::timeout(STEP, self.live(&config, lines)).await;
        let end = self.moment();
        let ended_well = matches!(lived, Ok(Ok(())));
        let outcome = self.tally.outcome(begun, end, ended_well);
        let judged = match outcome {
            Outcome::Whole => is_whole(&log, lines),
            Outcome::Disturbed => Ok(()),
            Outcome::Unexplained => Err(match lived {
                Ok(Err(error)) => error.context("nothing was killed or refused"),
                _ => anyhow::anyhow!("nothing was killed or refused, and it took {STEP:?}"),
            }),
        };
        judged.with_context(|| name.clone())?;
        self.tally.count(begun, end, outcome);
        if !ended_well {
            sleep(RETRY).await;
        }
        take_away(
            &self.endpoint,
            config.metadata.as_ref().map_or("", |m| &m.uid),
        )
        .await?;
        // A killed engine may have lost lines, but no line occurs twice, and the removal adds none.
        let found = numbers(&log)?;
        ensure!(
            found.windows(2).all(|pair| pair[0] < pair[1]),
            "{}: lines are doubled or out of order",
            log.display()
        );
        if outcome == Outcome::Whole {
            is_whole(&log, lines)?;
        }
        match fs::remove_dir_all(&config.log_directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    /// Waits until the runtime is ready: it takes a moment to reach an engine that has restarted or
    /// refused a request.
    async fn runtime_ready(&self) -> Result<()> {
        let deadline = Instant::now() + STEP;
        while !self.is_runtime_ready().await {
            ensure!(Instant::now() < deadline, "the runtime is not ready");
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    async fn is_runtime_ready(&self) -> bool {
        let Ok(mut cri) = Cri::at(&self.endpoint).await else {
            return false;
        };
        let request = cri::StatusRequest::default();
        cri.runtime.status(request).await.is_ok_and(|response| {
            let status = response.into_inner().status.unwrap_or_default();
            !status.conditions.is_empty() && status.conditions.iter().all(|c| c.status)
        })
    }

    /// Runs a pod whose container writes `lines` lines, until it ends.
    async fn live(&self, config: &cri::PodSandboxConfig, lines: usize) -> Result<()> {
        let mut cri = Cri::at(&self.endpoint).await?;
        let uid = config.metadata.as_ref().map_or("", |m| &m.uid);
        self.tally.ask(uid);
        let pod = cri.run(config).await?;
        self.tally.answered(uid);
        let script = format!(
            "i=0; while [ $i -lt {lines} ]; do i=$((i+1)); echo $i; \
             [ $((i % 100)) -eq 0 ] && usleep 20000; done; sleep 0.3"
        );
        let mut main = container("main", &["sh", "-c", &script]);
        main.log_path = "main/0.log".to_owned();
        let id = cri.create(&pod, main, config).await?;
        cri.start(&id).await?;
        // The container may have ended by now, or the shim been killed; neither is a failure.
        let _ = cri.exec(&id, &["true"], 10).await;
        let stats = cri::ListContainerStatsRequest::default();
        let _ = cri.runtime.list_container_stats(stats).await;
        loop {
            sleep(Duration::from_millis(100)).await;
            let Ok(mut cri) = Cri::at(&self.endpoint).await else {
                continue;
            };
            match cri.status(&id).await {
                Ok(status) if status.state() == ContainerState::ContainerExited => {
                    ensure!(status.exit_code == 0, "exit code {}", status.exit_code);
                    return Ok(());
                }
                Err(error) if error.code() == tonic::Code::NotFound => bail!(error),
                _ => {}
            }
        }
    }
}

/// Removes everything of a pod.
///
/// # Errors
/// The removal fails for the time of a step of a pod's life.
pub(crate) async fn take_away(endpoint: &str, uid: &str) -> Result<()> {
    let deadline = Instant::now() + STEP;
    loop {
        match try_take_away(endpoint, uid).await {
            Ok(()) => return Ok(()),
            Err(error) if Instant::now() > deadline => {
                return Err(error).context("a pod cannot be removed");
            }
            Err(_) => sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn try_take_away(endpoint: &str, uid: &str) -> Result<()> {
    let mut cri = Cri::at(endpoint).await?;
    let all = cri.pods(cri::PodSandboxFilter::default()).await?;
    let of_pod = |pod: &cri::PodSandbox| pod.metadata.as_ref().is_some_and(|m| m.uid == uid);
    for pod in all.into_iter().filter(of_pod) {
        let filter = cri::ContainerFilter {
            pod_sandbox_id: pod.id.clone(),
            ..Default::default()
        };
        for container in cri.containers(filter).await? {
            cri.stop(&container.id, 0).await?;
            cri.remove(&container.id).await?;
        }
        cri.stop_pod(&pod.id).await?;
        cri.remove_pod(&pod.id).await?;
    }
    Ok(())
}

fn is_whole(log: &Path, lines: usize) -> Result<()> {
    let found = numbers(log)?;
    ensure!(
        found.iter().copied().eq(1..=lines),
        "{}: {} of {lines} lines, the last {:?}",
        log.display(),
        found.len(),
        found.last()
    );
    Ok(())
}

/// The numbers in a log; none if it does not exist.
fn numbers(log: &Path) -> Result<Vec<usize>> {
    let text = fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .map(|line| {
            let content = line.splitn(4, ' ').nth(3);
            let number = content.context("no content")?.parse();
            number.with_context(|| format!("{}: {line:?}", log.display()))
        })
        .collect()
}
