//! The task that converts one container's log from the engine's files.

use std::{sync::Arc, time::Duration};

use retry_delay::RetryDelay;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep, sleep_until},
};

use super::{
    Shared,
    log_file::Paths,
    loss::Loss,
    position::Position,
    save::Saver,
    sink::LogError,
    tail::{DrainProgress, Tail},
    watch::Watch,
};

/// The pause after a read that found new entries, so that a busy container's log is read in large
/// pieces.
const REST: Duration = Duration::from_millis(10);
pub(super) const FIRST_RETRY: Duration = Duration::from_millis(500);
pub(super) const LAST_RETRY: Duration = Duration::from_secs(30);
/// The polling interval for a log that cannot be watched.
const POLL: Duration = Duration::from_millis(500);

/// Requests to a follower.
#[derive(Debug)]
pub(super) enum FollowerCommand {
    /// Continue in a new file at the log's path.
    Reopen(oneshot::Sender<Result<(), LogError>>),
    /// The container has exited: convert the rest, reply, and end.
    Finish(oneshot::Sender<()>),
    /// The shim is stopping: save the position and end.
    Stop,
    /// The container was removed: convert the rest and end.
    Remove,
}

/// The follower of one container's log.
pub(super) struct FileFollower {
    id: String,
    paths: Paths,
    shared: Arc<Shared>,
    tail: Option<Tail>,
    position: Option<Position>,
    saver: Saver,
}

impl FileFollower {
    pub(super) fn new(id: String, paths: Paths, shared: Arc<Shared>) -> Self {
        Self {
            saver: Saver::new(
                id.clone(),
                shared.trims.then(|| paths.engine_log.clone()),
                Arc::clone(&shared),
            ),
            id,
            paths,
            shared,
            tail: None,
            position: None,
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<FollowerCommand>) {
        self.position = self.shared.load(&self.id).await;
        let mut watch = self.watch();
        let mut retry = RetryDelay::new(FIRST_RETRY, LAST_RETRY);
        let mut finishing: Vec<oneshot::Sender<()>> = Vec::new();
        loop {
            if let Some(Err(error)) = watch.as_mut().map(Watch::arm) {
                tracing::debug!(container_id = self.id, %error, "cannot watch the engine's log");
                watch = None;
            }
            let converted = self.convert_new().await;
            match &converted {
                Ok(DrainProgress::Piece) => retry.reset(),
                Ok(_) if !finishing.is_empty() => {
                    self.save_now(true).await;
                    for done in finishing {
                        let _ = done.send(());
                    }
                    return;
                }
                Ok(_) => retry.reset(),
                Err(error) => {
                    tracing::warn!(
                        container_id = self.id,
                        %error,
                        retry = ?retry.current(),
                        "cannot update the log; retrying"
                    );
                    watch = None;
                }
            }
            if self.saver.due().is_some_and(|due| due <= Instant::now()) {
                self.save();
            }
            let pause = async {
                match &converted {
                    Err(_) => sleep(retry.current()).await,
                    Ok(DrainProgress::Piece) => {}
                    Ok(found) => {
                        if *found == DrainProgress::All {
                            sleep(REST).await;
                        }
                        match &watch {
                            Some(watch) => watch.changed().await,
                            None => sleep(POLL).await,
                        }
                    }
                }
            };
            let save_at = self.saver.due();
            tokio::select! {
                command = commands.recv() => match command {
                    Some(FollowerCommand::Reopen(done)) => {
                        let _ = done.send(self.reopen().await);
                    }
                    Some(FollowerCommand::Finish(done)) => finishing.push(done),
                    Some(FollowerCommand::Remove) => {
                        self.convert_rest().await;
                        self.saver.wait().await;
                        return;
                    }
                    Some(FollowerCommand::Stop) | None => {
                        self.save_now(false).await;
                        return;
                    }
                },
                () = pause => if converted.is_err() {
                    retry.after_failure();
                },
                () = at(save_at) => self.save(),
            }
            if watch.is_none() {
                watch = self.watch();
            }
        }
    }

    fn watch(&self) -> Option<Watch> {
        let directory = self.paths.engine_log.parent()?;
        Some(self.shared.watcher.as_ref()?.of(directory.to_owned()))
    }

    /// Converts the rest of a removed container's log: the engine's file is still readable while it
    /// is open.
    async fn convert_rest(&mut self) {
        while self.tail.is_some() && matches!(self.convert_new().await, Ok(DrainProgress::Piece)) {}
        if self.tail.is_none() {
            self.shared.lose(Loss::Removed, &self.paths.log);
        }
    }

    /// Converts new entries, up to a limit.
    async fn convert_new(&mut self) -> Result<DrainProgress, LogError> {
        let (id, paths, position) = (self.id.clone(), self.paths.clone(), self.position.clone());
        let shared = Arc::clone(&self.shared);
        let converted = self.shared.blocking(&mut self.tail, move |tail| {
            let mut begun = None;
            let mut open = match tail.take() {
                Some(open) => open,
                None => {
                    let open = Tail::open(&paths, position.as_ref())?;
                    if position.is_none() {
                        begun = open.beginning()?;
                    }
                    open
                }
            };
            if let Some(beginning) = &begun {
                shared.note_beginning(&id, beginning);
            }
            let position_lost = std::mem::take(&mut open.position_lost);
            let before = open.written();
            let drained = open.drain();
            shared.count(open.written() - before, open.last);
            open.hand_on_losses(&shared.losses);
            let drained = drained.and_then(|drained| Ok((drained, open.position(false)?)));
            if drained.is_ok() {
                *tail = Some(open);
            }
            Ok((begun, position_lost, drained))
        });
        let (begun, position_lost, converted) = match converted.await {
            Some(result) => result?,
            None => return Ok(DrainProgress::Nothing),
        };
        if begun.is_some() || position_lost {
            // A loss must not be reported again.
            self.position = begun;
        }
        let (drained, position) = converted?;
        if self.position.as_ref() != Some(&position) {
            self.saver.advanced();
        }
        self.position = Some(position);
        Ok(drained)
    }

    async fn reopen(&mut self) -> Result<(), LogError> {
        self.convert_new().await?;
        let reopened = self.shared.blocking(&mut self.tail, |tail| match tail {
            Some(tail) => {
                let old = tail.reopen()?;
                Ok(Some((old, tail.position(false)?)))
            }
            None => Ok(None),
        });
        if let Some(Some((old, position))) = reopened.await.transpose()? {
            self.position = Some(position);
            self.saver.renamed(old);
            self.save();
        }
        Ok(())
    }

    /// Starts saving the position.
    fn save(&mut self) {
        let log = self.tail.as_ref().map(Tail::file);
        self.saver.save(self.position.as_ref(), log);
    }

    /// Saves the position and waits. With `complete`, nothing more follows.
    async fn save_now(&mut self, complete: bool) {
        let log = self.tail.as_ref().map(Tail::file);
        let position = self.position.as_ref();
        self.saver.save_now(position, log, complete).await;
    }
}

pub(super) async fn at(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
