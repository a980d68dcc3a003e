//! Saves the position of a log in the background, because a disk may be slow.

use std::{error::Error, fs::File, path::PathBuf, sync::Arc, time::Duration};

use tokio::{task::JoinHandle, time::Instant};

use super::{
    Shared, engine_file,
    position::{EnginePosition, Position},
};

/// The save interval, which bounds how much is converted again after a crash.
const PERIOD: Duration = Duration::from_secs(5);

/// Saves the position of one log.
pub(super) struct Saver {
    id: String,
    /// The engine's log; its converted files that are on disk may be removed.
    engine_log: Option<PathBuf>,
    shared: Arc<Shared>,
    /// Since when the saved position is outdated.
    old_since: Option<Instant>,
    /// Renamed files that must be synced before the log itself.
    before: Vec<Arc<File>>,
    under_way: Option<JoinHandle<()>>,
    /// Whether the disk is too slow, which has been logged.
    late: bool,
}

impl Saver {
    pub(super) fn new(id: String, engine_log: Option<PathBuf>, shared: Arc<Shared>) -> Self {
        Self {
            id,
            engine_log,
            shared,
            old_since: None,
            before: Vec::new(),
            under_way: None,
            late: false,
        }
    }

    /// Records that the log has advanced.
    pub(super) fn advanced(&mut self) {
        self.old_since.get_or_insert_with(Instant::now);
    }

    /// Records that the log continues in another file than this one.
    pub(super) fn renamed(&mut self, file: Arc<File>) {
        self.before.push(file);
    }

    /// When the next [`Saver::save`] is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.old_since.map(|since| since + PERIOD)
    }

    /// Starts syncing the log to disk and then saving the position. If the previous save is still
    /// in progress, the save becomes due again later.
    pub(super) fn save(&mut self, position: Option<&Position>, log: Option<Arc<File>>) {
        let Some(position) = position else {
            return;
        };
        if self.is_busy() {
            self.old_since = Some(Instant::now());
            self.shared.count_late();
            if !std::mem::replace(&mut self.late, true) {
                tracing::warn!(
                    container_id = self.id,
                    "the disk of the log is too slow; after a crash, more of the log is read again"
                );
            }
            return;
        }
        self.late = false;
        self.begin(position.clone(), log);
    }

    /// Returns when the position is on disk and no save is in progress. With `complete`, nothing
    /// more follows.
    pub(super) async fn save_now(
        &mut self,
        position: Option<&Position>,
        log: Option<Arc<File>>,
        complete: bool,
    ) {
        self.wait().await;
        if let Some(position) = position {
            let position = Position {
                complete,
                ..position.clone()
            };
            self.begin(position, log);
            self.wait().await;
        }
    }

    /// Waits for the save in progress.
    pub(super) async fn wait(&mut self) {
        if let Some(under_way) = &mut self.under_way {
            // A panic is a bug and has been logged.
            let _ = under_way.await;
            self.under_way = None;
        }
    }

    fn is_busy(&self) -> bool {
        let under_way = self.under_way.as_ref();
        under_way.is_some_and(|task| !task.is_finished())
    }

    fn begin(&mut self, position: Position, log: Option<Arc<File>>) {
        self.old_since = None;
        let mut files = std::mem::take(&mut self.before);
        files.extend(log);
        let save = Save {
            id: self.id.clone(),
            engine_log: self.engine_log.clone(),
            position,
            files,
        };
        self.under_way = Some(tokio::spawn(save.run(Arc::clone(&self.shared))));
    }
}

/// A save in progress.
struct Save {
    id: String,
    engine_log: Option<PathBuf>,
    position: Position,
    /// The files to sync first.
    files: Vec<Arc<File>>,
}

impl Save {
    /// Runs with its own permits, so that waiting for a disk does not block reads and writes.
    async fn run(self, shared: Arc<Shared>) {
        let Ok(_permit) = shared.syncs.acquire().await else {
            return;
        };
        let noting = Arc::clone(&shared);
        // A panic is a bug and has been logged.
        let _ = tokio::task::spawn_blocking(move || self.run_blocking(&noting)).await;
    }

    fn run_blocking(&self, shared: &Shared) {
        let id = &self.id;
        let sync = || -> Result<(), Box<dyn Error>> {
            for file in &self.files {
                file.sync_data()?;
            }
            Ok(shared.checkpoints.save(id, &self.position)?)
        };
        if let Err(error) = sync() {
            tracing::warn!(
                container_id = id,
                %error,
                "cannot save the log position; after a crash, more of the log is read again"
            );
            return;
        }
        if let (Some(engine_log), EnginePosition::File(taken)) =
            (&self.engine_log, &self.position.source)
            && let Err(error) = engine_file::trim(engine_log, taken)
        {
            tracing::debug!(container_id = id, %error, "cannot trim the engine's log");
        }
    }
}
