//! The task that converts one container's log from the engine's API, used if the engine's files are
//! not accessible or it uses another log driver. Some log drivers cannot be read back; the log then
//! has a message that says so.
//!
//! After an interruption, the API repeats entries that [`StreamPosition`] recognises. Entries that
//! were written but whose position was not saved before a crash are converted again, and [`Sink`]
//! skips them.

use std::{path::PathBuf, sync::Arc};

use retry_delay::RetryDelay;
use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};

use super::{
    Shared, cri,
    file_follower::{FIRST_RETRY, FollowerCommand, LAST_RETRY, at},
    loss::Loss,
    position::{EnginePosition, Position},
    save::Saver,
    sink::{LogError, Sink},
    stream_position::{Replay, ReplayMatch, StreamPosition},
};
use crate::engine::{Engine, EngineError, LogPiece, LogPieces};

/// The follower of one container's log.
pub(super) struct ApiFollower {
    id: String,
    log: PathBuf,
    engine: Arc<Engine>,
    shared: Arc<Shared>,
    sink: Option<Sink>,
    position: Option<Position>,
    /// The time of the log's first entry. If the engine has removed it before it was written, the
    /// beginning of the log is no position.
    first: Option<jiff::Timestamp>,
    saver: Saver,
    /// Whether the log has caught up with the engine once, so that the stream can be followed.
    caught_up: bool,
    /// Whether the engine's log driver cannot be read.
    unreadable: bool,
    /// The container has exited; the senders of those who wait for the complete log.
    finishing: Vec<oneshot::Sender<()>>,
    retry: RetryDelay,
}

/// The stream of entries.
enum EntryStream {
    /// Opened at this time.
    Closed(Instant),
    Open(Box<OpenStream>),
}

struct OpenStream {
    pieces: LogPieces,
    replay: Replay,
    /// Whether the stream continues after the existing entries.
    follow: bool,
}

/// Why a log is behind.
#[derive(Debug, thiserror::Error)]
enum FollowError {
    #[error(transparent)]
    Engine(#[from] EngineError),
    #[error(transparent)]
    Log(#[from] LogError),
}

impl ApiFollower {
    pub(super) fn new(id: String, log: PathBuf, engine: Arc<Engine>, shared: Arc<Shared>) -> Self {
        Self {
            saver: Saver::new(id.clone(), None, Arc::clone(&shared)),
            id,
            log,
            engine,
            shared,
            sink: None,
            position: None,
            first: None,
            caught_up: false,
            unreadable: false,
            finishing: Vec::new(),
            retry: RetryDelay::new(FIRST_RETRY, LAST_RETRY),
        }
    }

    pub(super) async fn run(mut self, mut commands: mpsc::UnboundedReceiver<FollowerCommand>) {
        self.position = self.shared.load(&self.id).await;
        let mut entries = EntryStream::Closed(Instant::now());
        loop {
            let save_at = self.saver.due();
            let came = tokio::select! {
                command = commands.recv() => match command {
                    Some(FollowerCommand::Reopen(done)) => {
                        let _ = done.send(self.reopen().await);
                        continue;
                    }
                    Some(FollowerCommand::Finish(done)) => {
                        self.finishing.push(done);
                        // A followed stream may end because the engine stops; a new request without
                        // `follow` ends only when the log is complete.
                        entries = EntryStream::Closed(Instant::now());
                        continue;
                    }
                    Some(FollowerCommand::Remove) => {
                        if !self.finishing.is_empty() {
                            self.shared.lose(Loss::Removed, &self.log);
                        }
                        self.saver.wait().await;
                        return;
                    }
                    Some(FollowerCommand::Stop) | None => {
                        self.save_now(false).await;
                        return;
                    }
                },
                () = at(save_at) => {
                    self.save();
                    continue;
                }
                came = self.next(&mut entries) => came,
            };
            match self.handle(came, &mut entries).await {
                Ok(true) => {
                    self.save_now(true).await;
                    for done in self.finishing {
                        let _ = done.send(());
                    }
                    return;
                }
                Ok(false) => {}
                Err(FollowError::Engine(error)) if error.is_not_implemented() => {
                    match self.explain().await {
                        Ok(()) => self.unreadable = true,
                        Err(error) => {
                            tracing::warn!(
                                container_id = self.id,
                                %error,
                                "the container has no log, and the reason cannot be written to it"
                            );
                            self.pause(&mut entries);
                        }
                    }
                }
                Err(error) => {
                    let gone = matches!(&error, FollowError::Engine(error) if error.is_not_found());
                    if gone && !self.finishing.is_empty() {
                        // What is missing is lost.
                        self.shared.lose(Loss::Removed, &self.log);
                        return;
                    }
                    tracing::warn!(
                        container_id = self.id,
                        %error,
                        retry = ?self.retry.current(),
                        "cannot update the log; retrying"
                    );
                    self.caught_up = false;
                    self.pause(&mut entries);
                }
            }
        }
    }

    /// The next entries; opens the stream when it is due. Empty at the end.
    async fn next(&self, entries: &mut EntryStream) -> Result<Vec<LogPiece>, EngineError> {
        if self.unreadable {
            if self.finishing.is_empty() {
                return std::future::pending().await;
            }
            // The log is as complete as it can be.
            return Ok(Vec::new());
        }
        if let EntryStream::Closed(until) = entries {
            sleep_until(*until).await;
            let since = self.since();
            let follow = self.caught_up && self.finishing.is_empty();
            let logs = self.engine.container_logs(&self.id, since.second(), follow);
            *entries = EntryStream::Open(Box::new(OpenStream {
                pieces: logs.await?,
                replay: since.replay(),
                follow,
            }));
        }
        match entries {
            EntryStream::Open(open) => open.pieces.next().await,
            EntryStream::Closed(_) => Ok(Vec::new()),
        }
    }

    /// Handles new entries. Returns whether the log is complete.
    async fn handle(
        &mut self,
        came: Result<Vec<LogPiece>, EngineError>,
        entries: &mut EntryStream,
    ) -> Result<bool, FollowError> {
        let pieces = came?;
        if self.unreadable {
            return Ok(!self.finishing.is_empty());
        }
        let EntryStream::Open(open) = entries else {
            return Ok(false);
        };
        if !pieces.is_empty() {
            self.take(pieces, &mut open.replay).await?;
            self.retry.reset();
            return Ok(false);
        }
        if open.follow {
            // Either the container has exited, which will be reported, or the engine has stopped.
            self.pause(entries);
            return Ok(false);
        }
        self.settle(&mut open.replay).await?;
        self.caught_up = true;
        *entries = EntryStream::Closed(Instant::now());
        Ok(!self.finishing.is_empty())
    }

    /// Writes a message to the log that says where the container's output is, unless it has one.
    async fn explain(&mut self) -> Result<(), FollowError> {
        let written = |position: &Position| !position.log.is_empty();
        if self.position.as_ref().is_some_and(written) {
            return Ok(());
        }
        let container = self.engine.inspect_container(&self.id).await?;
        // The line has the container's creation time, so that after a crash before the position is
        // saved, the log shows whether it already has the line.
        let created = container.created.and_then(|time| time.parse().ok());
        let created: jiff::Timestamp = created.unwrap_or_else(jiff::Timestamp::now);
        let created = format!("{created:.9}");
        let driver = container.host_config.and_then(|host| host.log_config?.typ);
        let driver = driver.unwrap_or_default();
        tracing::warn!(
            container_id = self.id,
            driver,
            "the container has no log: the engine's log driver does not support reading"
        );
        let message = format!(
            "dockershim: the engine's log driver {driver:?} does not support reading; this \
             container's output is where that driver sends it\n"
        );
        let said = self.write(StreamPosition::default(), move |sink| {
            if !sink.wants(&created) {
                return Ok(());
            }
            let mut line = Vec::new();
            cri::append(&mut line, &created, "stderr", message.as_bytes());
            sink.append(&line)
        });
        said.await?;
        self.save();
        Ok(())
    }

    fn pause(&mut self, entries: &mut EntryStream) {
        *entries = EntryStream::Closed(Instant::now() + self.retry.after_failure());
    }

    fn since(&self) -> StreamPosition {
        match self.position.as_ref().map(|position| &position.source) {
            Some(EnginePosition::Stream(since)) => since.clone(),
            _ => StreamPosition::default(),
        }
    }

    async fn take(&mut self, pieces: Vec<LogPiece>, replay: &mut Replay) -> Result<(), LogError> {
        let mut since = self.since();
        let mut new = Vec::with_capacity(pieces.len());
        let mut lost = false;
        if since == StreamPosition::default()
            && let Some(piece) = pieces.first()
            && *self.first.get_or_insert(piece.time) < piece.time
        {
            self.shared.lose(Loss::Rotated, &self.log);
            lost = true;
            self.first = Some(piece.time);
            self.position = None;
        }
        for piece in pieces {
            match replay.classify(piece.time) {
                ReplayMatch::Taken => continue,
                ReplayMatch::New => {}
                ReplayMatch::Lost => {
                    self.shared.lose(Loss::Rotated, &self.log);
                    lost = true;
                    since = replay.give_up().unwrap_or_default();
                }
            }
            since.take(piece.time);
            new.push(piece);
        }
        let shared = Arc::clone(&self.shared);
        self.write(since, move |sink| {
            if lost {
                sink.begin_anew()?;
            }
            let mut lines = Vec::new();
            for piece in new.iter().filter(|piece| sink.wants(&piece.stamp)) {
                cri::append(&mut lines, &piece.stamp, piece.stream, &piece.output);
            }
            let before = sink.written;
            let appended = sink.append(&lines);
            let last = new.last().map(|piece| piece.time);
            shared.count(sink.written - before, last);
            appended
        })
        .await
        .map(drop)
    }

    async fn settle(&mut self, replay: &mut Replay) -> Result<(), LogError> {
        let mut since = self.since();
        if let Some(given) = replay.give_up() {
            self.shared.lose(Loss::Truncated, &self.log);
            since = given;
        }
        let write = self.write(since, |sink| {
            sink.settle();
            Ok(())
        });
        write.await.map(drop)
    }

    /// Runs `work` on the log and advances the position to `since`. Opens the log if it is not
    /// open; after a failure, it is opened again from the last position.
    async fn write<T: Send + 'static>(
        &mut self,
        since: StreamPosition,
        work: impl FnOnce(&mut Sink) -> Result<T, LogError> + Send + 'static,
    ) -> Result<Option<T>, LogError> {
        let log = self.log.clone();
        let known = self.position.as_ref();
        let known = known.filter(|known| matches!(known.source, EnginePosition::Stream(_)));
        let known = known.map(|known| known.log);
        let written = self.shared.blocking(&mut self.sink, move |open| {
            let mut begun = None;
            let mut sink = match open.take() {
                Some(sink) => sink,
                None => {
                    let sink = Sink::open(&log, known)?;
                    if known.is_none() && sink.is_exact() {
                        let start = StreamPosition::default();
                        begun = Some(Position::of_stream(start, sink.position()));
                    }
                    sink
                }
            };
            let done = work(&mut sink).map(|done| (done, sink.position()));
            if done.is_ok() {
                *open = Some(sink);
            }
            Ok((begun, done))
        });
        let Some((begun, done)) = written.await.transpose()? else {
            return Ok(None);
        };
        if begun.is_some() {
            self.position = begun;
        }
        let (done, log) = done?;
        let position = Position::of_stream(since, log);
        if self.position.as_ref() != Some(&position) {
            self.saver.advanced();
        }
        self.position = Some(position);
        Ok(Some(done))
    }

    async fn reopen(&mut self) -> Result<(), LogError> {
        if let Some(old) = self.write(self.since(), Sink::reopen).await? {
            self.saver.renamed(old);
            self.save();
        }
        Ok(())
    }

    /// Starts saving the position.
    fn save(&mut self) {
        let log = self.sink.as_ref().map(Sink::file);
        self.saver.save(self.position.as_ref(), log);
    }

    /// Saves the position and waits. With `complete`, nothing more follows.
    async fn save_now(&mut self, complete: bool) {
        let log = self.sink.as_ref().map(Sink::file);
        let position = self.position.as_ref();
        self.saver.save_now(position, log, complete).await;
    }
}
