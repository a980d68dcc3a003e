//! The one way to the API server: every request is made through it, so that it is
//! known, and said once, when the server is away.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use kube::{Client, core::Status};
use parking_lot::Mutex;
use tokio::time::Instant;
use tracing::{debug, info, warn};

/// A request that was not answered by then is made again.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);

const GONE: u16 = 410;
const TOO_MANY_REQUESTS: u16 = 429;

/// Why the API server did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// It cannot be reached, or cannot answer now; to be asked again.
    #[error("the API server is away: {0}")]
    Away(#[source] kube::Error),
    /// It did not answer in time; to be asked again.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    Silent,
    /// It does not want to.
    #[error("the API server refused: {}", .0.message)]
    Refused(Box<Status>),
    /// The request cannot be sent, or the answer not be read.
    #[error(transparent)]
    Unusable(kube::Error),
}

impl ApiError {
    /// Whether the server may do it when it is asked again later.
    pub const fn is_away(&self) -> bool {
        matches!(self, Self::Away(_) | Self::Silent)
    }

    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_not_found())
    }

    /// Whether there is an object of that name already.
    pub fn is_already_exists(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_already_exists())
    }

    /// Whether the object is another one than the request was for.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Self::Refused(status) if status.is_conflict())
    }

    /// Whether the server no longer knows the changes since the version that it was
    /// asked for.
    pub fn is_expired(&self) -> bool {
        let Self::Refused(status) = self else {
            return false;
        };
        status.code == GONE || matches!(&*status.reason, "Expired" | "Gone")
    }
}

impl From<kube::Error> for ApiError {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if status.code < 500 && status.code != TOO_MANY_REQUESTS => {
                Self::Refused(status)
            }
            kube::Error::SerdeError(_)
            | kube::Error::FromUtf8(_)
            | kube::Error::HttpError(_)
            | kube::Error::BuildRequest(_) => Self::Unusable(error),
            _ => Self::Away(error),
        }
    }
}

/// The cluster that the node is part of. Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Cluster(Arc<Parts>);

struct Parts {
    client: Client,
    /// Since when the server is away.
    away: Mutex<Option<Instant>>,
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cluster").finish_non_exhaustive()
    }
}

impl Cluster {
    /// The cluster whose API server `client` speaks to.
    pub fn new(client: Client) -> Self {
        Self(Arc::new(Parts {
            client,
            away: Mutex::default(),
        }))
    }

    /// The client, for requests that are then given to [`Self::ask`].
    pub fn client(&self) -> Client {
        self.0.client.clone()
    }

    /// Makes a request, and notes whether the server answers.
    ///
    /// # Errors
    /// It did not, or not as it should.
    pub async fn ask<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, ApiError> {
        let answer = match tokio::time::timeout(REQUEST_TIMEOUT, request).await {
            Ok(answer) => answer.map_err(ApiError::from),
            Err(_) => Err(ApiError::Silent),
        };
        match &answer {
            Err(error) if error.is_away() => self.note_away(error),
            _ => self.note_answer(),
        }
        answer
    }

    /// The server does not answer; said once.
    fn note_away(&self, error: &ApiError) {
        let mut away = self.0.away.lock();
        if away.is_none() {
            *away = Some(Instant::now());
            warn!(%error, "the API server does not answer; pods go on, and it is tried again");
        } else {
            debug!(%error, "the API server still does not answer");
        }
    }

    /// The server answers; said once if it did not.
    fn note_answer(&self) {
        if let Some(since) = self.0.away.lock().take() {
            info!(away_for = ?since.elapsed(), "the API server answers again");
        }
    }
}
