//! The disk usage of all image layers, with shared layers counted once.
//!
//! If the engine's layer directories are accessible, the sizes are read from the engine's metadata.
//! Otherwise an engine with API 1.42 or newer counts them, which may take long, so it happens in
//! the background and only when the set of images has changed.

use std::{
    collections::hash_map::DefaultHasher,
    fs,
    hash::{Hash as _, Hasher as _},
    io,
    path::{Path, PathBuf},
    sync::{Arc, OnceLock},
    time::Duration,
};

use tokio::{
    sync::{Notify, watch},
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{ImageSnapshot, Images};
use crate::{
    bounded_file,
    engine::{Engine, EngineError},
};

/// The minimum pause between two counts ...
const REST: Duration = Duration::from_secs(60);
/// ... and the minimum as a multiple of the last count's duration.
const SHARE: u32 = 9;
/// The size limit of a layer's size file, in bytes; it holds a number.
const NUMBER: u64 = 32;

/// The size of all layers at the last count.
#[derive(Debug)]
pub struct LayersSize {
    counted: watch::Sender<Option<LayersCount>>,
    requested: Notify,
    first_requested: OnceLock<Instant>,
}

/// The result of one count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LayersCount {
    /// The [`identity`] of the counted images.
    images: u64,
    /// `None` if the layers cannot be counted.
    bytes: Option<u64>,
}

impl LayersSize {
    /// Starts the counting task, which runs until `stop`.
    pub fn start(engine: Arc<Engine>, images: Arc<Images>, stop: CancellationToken) -> Arc<Self> {
        let sizes = Arc::new(Self {
            counted: watch::Sender::default(),
            requested: Notify::new(),
            first_requested: OnceLock::new(),
        });
        let work = Arc::clone(&sizes).run(engine, images);
        tokio::spawn(stop.run_until_cancelled_owned(work));
        sizes
    }

    /// The bytes at the last count, which may be a minute old or older. Waits for the first count
    /// until `limit` after the first call; `None` if there is no result.
    pub async fn get(&self, limit: Duration) -> Option<u64> {
        self.requested.notify_one();
        let mut counted = self.counted.subscribe();
        let first = counted.wait_for(Option::is_some);
        let until = *self.first_requested.get_or_init(Instant::now) + limit;
        let first = tokio::time::timeout_at(until, first).await;
        (*first.ok()?.ok()?)?.bytes
    }

    async fn run(self: Arc<Self>, engine: Arc<Engine>, images: Arc<Images>) {
        loop {
            self.requested.notified().await;
            let now = identity(&images.snapshot());
            let last = *self.counted.borrow();
            if last.is_some_and(|last| last.images == now) {
                continue;
            }
            let began = Instant::now();
            match count(&engine).await {
                Ok(bytes) => {
                    if bytes.is_none() && last.is_none_or(|last| last.bytes.is_some()) {
                        tracing::info!(
                            "ImageFsInfo counts shared layers once for each image: the layers are \
                             not visible, and the engine's API is older than 1.42"
                        );
                    }
                    let images = now;
                    self.counted
                        .send_replace(Some(LayersCount { images, bytes }));
                }
                Err(error) => tracing::debug!(%error, "cannot get the size of the layers"),
            }
            tokio::time::sleep(REST.max(began.elapsed() * SHARE)).await;
        }
    }
}

/// A hash of all image ids.
fn identity(images: &ImageSnapshot) -> u64 {
    let mut hasher = DefaultHasher::new();
    for image in images.iter() {
        image.id.hash(&mut hasher);
    }
    hasher.finish()
}

async fn count(engine: &Engine) -> Result<Option<u64>, EngineError> {
    if engine.locality().is_local() {
        let info = engine.info()?;
        let layers = layers_of(&info.root_dir, &info.storage_driver);
        let counted = tokio::task::spawn_blocking(move || sum(&layers)).await;
        // containerd's image store has no such directory.
        if let Ok(Ok(bytes)) = counted {
            return Ok(Some(bytes));
        }
    }
    if !engine.connection()?.serves(1, 42) {
        return Ok(None);
    }
    engine.layers_size().await.map(Some)
}

/// The engine's directory with one subdirectory per image layer.
fn layers_of(root_dir: &str, storage_driver: &str) -> PathBuf {
    let images = Path::new(root_dir).join("image").join(storage_driver);
    images.join("layerdb/sha256")
}

fn sum(layers: &Path) -> io::Result<u64> {
    let mut bytes = 0_u64;
    for layer in fs::read_dir(layers)? {
        let number = match bounded_file::read(&layer?.path().join("size"), NUMBER) {
            Ok(number) => number,
            // Removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(error),
        };
        let number = str::from_utf8(&number).ok();
        let size: Option<u64> = number.and_then(|number| number.trim().parse().ok());
        let size = size.ok_or(io::ErrorKind::InvalidData)?;
        bytes = bytes.saturating_add(size);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_that_the_engine_noted_down_are_added_up() {
        let dir = tempfile::tempdir().unwrap();
        let layers = layers_of(dir.path().to_str().unwrap(), "overlay2");
        for (layer, size) in [("aa", "1000"), ("bb", "0"), ("cc", "24\n")] {
            fs::create_dir_all(layers.join(layer)).unwrap();
            fs::write(layers.join(layer).join("size"), size).unwrap();
        }
        // A layer that is being removed.
        fs::create_dir(layers.join("dd")).unwrap();
        assert_eq!(sum(&layers).unwrap(), 1024);
        fs::write(layers.join("dd/size"), "many").unwrap();
        assert!(sum(&layers).is_err());
        assert!(sum(&dir.path().join("other")).is_err());
    }
}
