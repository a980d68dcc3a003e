//! What the files of a directory take: a walk in slices, so that a large directory costs the node
//! only a share of its time.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kubelet_host::{bounded_io::IoPermit, repeatable};
use tokio::time::Instant;
use tracing::debug;
use tree_walk::DiskWalk;

use crate::{error::MeasureError, usage::FileUsage, walks::Walk};

/// How long a walk runs without a pause ...
const SLICE: Duration = Duration::from_millis(20);
/// ... and the pause, as a multiple of that time.
const REST: u32 = 4;

/// Measures a directory and everything below it on its mount, itself included. Links are not
/// followed. The permit is held until the walk has ended.
///
/// # Errors
/// The directory cannot be opened. What cannot be read below it is left out.
pub(crate) async fn measure(
    dir: PathBuf,
    permit: &Arc<IoPermit>,
    progress: &Walk,
) -> Result<FileUsage, MeasureError> {
    let mut walk = None;
    loop {
        let (path, permit) = (dir.clone(), Arc::clone(permit));
        let slice = repeatable::blocking(move || {
            let _permit = permit;
            slice(walk, &path)
        });
        let slice = slice.await?;
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
        progress.rest(took * REST).await;
        walk = Some(advanced);
    }
}

/// Continues a walk or starts it. Blocks.
fn slice(walk: Option<DiskWalk>, dir: &Path) -> io::Result<(DiskWalk, bool, Duration)> {
    let begun = Instant::now();
    let mut walk = match walk {
        Some(walk) => walk,
        None => DiskWalk::start(dir)?,
    };
    let is_done = !walk.go_on(|| begun.elapsed() < SLICE);
    Ok((walk, is_done, begun.elapsed()))
}
