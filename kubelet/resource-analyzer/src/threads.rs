//! The threads on which files are measured.

use std::sync::Arc;

use kubelet_host::{
    bounded_io::{IoPermit, MEASUREMENTS},
    repeatable,
};

use crate::error::MeasureError;

/// Waits for a thread for the files of a server.
pub(crate) async fn permit(server: &str) -> Arc<IoPermit> {
    Arc::new(MEASUREMENTS.acquire(server).await)
}

/// Runs blocking work. The thread counts as used until the work ends, even if the caller no longer
/// waits for it.
pub(crate) async fn blocking<T: Send + 'static>(
    permit: &Arc<IoPermit>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, MeasureError> {
    let permit = Arc::clone(permit);
    let work = repeatable::blocking(move || {
        let _permit = permit;
        work()
    });
    Ok(work.await?)
}
