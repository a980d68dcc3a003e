//! What the files of a directory take: a walk in slices, so that a large directory costs the node
//! only a share of its time.

use std::{
    io,
    path::{Path, PathBuf},
    time::Duration,
};

use tokio::time::Instant;
use tracing::debug;
use tree_walk::DiskWalk;

use crate::{error::MeasureError, threads, usage::FileUsage, walks::Walk};

/// How fast a walk is.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// How long it runs without a pause ...
    slice: Duration,
    /// ... and the pause, as a multiple of that time. Walks that run at once rest longer.
    rest: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            slice: Duration::from_millis(20),
            rest: 4,
        }
    }
}

/// Measures a directory and everything below it on its mount, itself included. Links are not
/// followed. While the walk rests, other work on the `server` goes on.
///
/// # Errors
/// The directory cannot be opened. What cannot be read below it is left out.
pub(crate) async fn measure(
    dir: PathBuf,
    server: &str,
    progress: &Walk,
    pace: &Pace,
) -> Result<FileUsage, MeasureError> {
    let mut walk = None;
    loop {
        let permit = threads::permit(server).await;
        let (path, length) = (dir.clone(), pace.slice);
        let slice = threads::blocking(&permit, move || slice(walk, &path, length)).await?;
        drop(permit);
        let (advanced, is_done, took) =
            slice.map_err(|error| MeasureError::io("read", &dir, error))?;
        let found = FileUsage {
            bytes: advanced.bytes(),
            inodes: advanced.inodes(),
        };
        progress.has_found(found);
        if is_done {
            if advanced.is_partial() {
                let path = dir.display();
                debug!(%path, "the directory is too large to be counted in full");
            }
            return Ok(found);
        }
        progress.rest(took * pace.rest * progress.crowd()).await;
        walk = Some(advanced);
    }
}

/// Continues a walk or starts it. Blocks.
fn slice(
    walk: Option<DiskWalk>,
    dir: &Path,
    length: Duration,
) -> io::Result<(DiskWalk, bool, Duration)> {
    let begun = Instant::now();
    let mut walk = match walk {
        Some(walk) => walk,
        None => DiskWalk::start(dir)?,
    };
    let is_done = !walk.go_on(|| begun.elapsed() < length);
    Ok((walk, is_done, begun.elapsed()))
}

#[cfg(test)]
mod tests {
    use std::{fs, sync::Arc};

    use tokio::time::{sleep, timeout};

    use super::*;
    use crate::walks::Walks;

    #[tokio::test]
    async fn walks_that_rest_keep_no_thread_from_others() {
        let dir = tempfile::tempdir().unwrap();
        for name in 0..100 {
            fs::create_dir(dir.path().join(name.to_string())).unwrap();
        }
        let walks = Arc::<Walks>::default();
        let measure = |name: &str, pace: Pace| {
            let (dir, walk) = (dir.path().to_owned(), walks.begin(&Arc::default(), name));
            tokio::spawn(async move { measure(dir, "resting", &walk, &pace).await })
        };
        let endless = Pace {
            slice: Duration::ZERO,
            rest: u32::MAX,
        };
        // As many as there are threads for a file system.
        let resting = ["a", "b"].map(|name| measure(name, endless));
        let begun = || {
            walks
                .found()
                .iter()
                .all(|(_, found)| found.usage().inodes > 0)
        };
        let limit = Duration::from_secs(60);
        let all_rest = async {
            while !begun() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        timeout(limit, all_rest).await.unwrap();
        let other = timeout(limit, measure("c", Pace::default())).await;
        assert_eq!(other.unwrap().unwrap().unwrap().inodes, 101);
        for walk in resting {
            assert!(!walk.is_finished());
            walk.abort();
        }
    }
}
