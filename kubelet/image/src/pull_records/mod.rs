//! Records of image pulls and the credentials used. A pod may use an image that is already on the
//! node only if it could have pulled the image itself. The records have the upstream kubelet's
//! format and location (`<root-dir>/image_manager`), so that each kubelet can read the other's.

pub mod policy;
mod record;
mod store;

use std::{collections::BTreeSet, io, path::Path, sync::Arc};

use cri_proto::runtime::v1::Image;
use image_reference::ImageReference;
use kubelet_host::repeatable;
use tracing::warn;

use self::{
    policy::VerificationPolicy,
    record::{ImagePullCredentials, ImagePullSecret},
    store::{Ending, Store},
};
use super::credentials::{CredentialSource, TrackedCredential};

/// A record with this many secrets gets no more of them when pods are verified, so that short-lived
/// namespaces do not make it grow without bound.
const MOST_SECRETS: usize = 100;

/// The pull records of a node.
#[derive(Debug)]
pub(super) struct PullRecords {
    store: Arc<Store>,
    policy: VerificationPolicy,
}

/// Whether a pod may use an image that is on the node.
#[derive(Debug)]
pub(super) enum Access {
    /// The pod may use the image: the policy asks for no credentials.
    Unverified,
    /// The pod may use the image: it was pulled with credentials of the node, or without any.
    Granted,
    /// The pod may use the image only if it can pull it (again).
    MustPull,
    /// The records cannot be read. The pod may use the image only if it can pull it.
    Unreadable,
    /// The pod may use the image if it has one of the credentials that the image was pulled with;
    /// see [`PullRecords::is_held`].
    Holders(ImagePullCredentials),
}

impl PullRecords {
    pub(super) fn new(root_dir: &Path, policy: VerificationPolicy) -> Self {
        Self {
            store: Arc::new(Store::new(root_dir)),
            policy,
        }
    }

    /// Runs `work` on the files on a blocking thread.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let store = Arc::clone(&self.store);
        repeatable::blocking(move || work(&store))
            .await
            .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
    }

    /// Images whose pulls were started and not finished, by any kubelet.
    pub(super) async fn begun(&self) -> Vec<String> {
        let begun = self.blocking(|store| Ok(store.intents())).await;
        begun.unwrap_or_else(|error| {
            warn!(%error, "cannot read the records of unfinished pulls");
            Vec::new()
        })
    }

    /// Converts the intents of pulls that the previous kubelet left unfinished (`begun`) to records
    /// if the runtime has the image now. The credentials of these pulls are unknown, so the next
    /// pod must present its own.
    pub(super) async fn restore(&self, begun: Vec<String>, images: &[Image]) {
        for intent in begun {
            let Ok(begun) = ImageReference::parse(&intent) else {
                continue;
            };
            let pulled = images.iter().find(|image| {
                let mut names = image.repo_tags.iter().chain(&image.repo_digests);
                names.any(|name| names_same(&begun, name))
            });
            let Some(id) = pulled.map(|image| image.id.clone()) else {
                continue;
            };
            let image = intent.clone();
            let restored = self.blocking(move |store| {
                store.add_credentials(&id, written_repository(&image), None)?;
                store.remove_intent(&image)
            });
            if let Err(error) = restored.await {
                warn!(image = intent, %error, "cannot record that an image was pulled");
            }
        }
    }

    /// If an earlier pull of `image` ended in doubt, records that `id` is its result. Must precede
    /// the next pull, which may bring another image under this name.
    pub(super) async fn settle(&self, image: &str, id: &str) {
        let (of, image) = (id.to_owned(), image.to_owned());
        let settled = self.blocking(move |store| {
            if store.is_in_doubt(&image) {
                store.add_credentials(&of, written_repository(&image), None)?;
            }
            Ok(())
        });
        if let Err(error) = settled.await {
            warn!(image_id = id, %error, "cannot record that an image was pulled");
        }
    }

    /// Whether a pull of `image` ended with an unknown result.
    pub(super) async fn is_in_doubt(&self, image: &str) -> bool {
        let image = image.to_owned();
        let is_in_doubt = self.blocking(move |store| Ok(store.is_in_doubt(&image)));
        is_in_doubt.await.unwrap_or(true)
    }

    /// Checks whether a pod may use the image `id`, which the pod calls `image`. `names` are all
    /// names of the image in the runtime.
    pub(super) async fn access(&self, image: &str, id: &str, names: Vec<String>) -> Access {
        let (of, intent) = (id.to_owned(), image.to_owned());
        let records = self.blocking(move |store| {
            let record = store.record(&of)?;
            let is_ours =
                record.is_some() || store.is_begun(&intent) || is_begun_as_any(store, &names);
            Ok((record, is_ours))
        });
        let (record, is_ours) = match records.await {
            Ok(found) => found,
            Err(error) => {
                warn!(image, %error, "cannot read the pull record of an image; pulling it again");
                return Access::Unreadable;
            }
        };
        let repository = written_repository(image);
        if !self.policy.is_verified(repository, is_ours) {
            return Access::Unverified;
        }
        match record.and_then(|mut record| record.credential_mapping.remove(repository)) {
            Some(credentials) if credentials.node_pods_accessible => Access::Granted,
            Some(credentials) if !credentials.is_empty() => Access::Holders(credentials),
            _ => Access::MustPull,
        }
    }

    /// Whether one of the pod's credentials is among those that the image `id` was pulled with.
    /// Records a credential that was renewed or is now in another secret.
    pub(super) async fn is_held(
        &self,
        image: &str,
        id: &str,
        holders: &ImagePullCredentials,
        held: &[TrackedCredential],
    ) -> bool {
        for tracked in held {
            let CredentialSource::Secret(coordinates) = &tracked.source else {
                continue;
            };
            let mut known = holders.kubernetes_secrets.iter();
            let Some(known) = known.find(|secret| {
                secret.credential_hash == tracked.hash || secret.coordinates == *coordinates
            }) else {
                continue;
            };
            let secret = ImagePullSecret::of(coordinates, tracked);
            if *known != secret && holders.kubernetes_secrets.len() < MOST_SECRETS {
                let credentials = ImagePullCredentials {
                    kubernetes_secrets: vec![secret],
                    ..ImagePullCredentials::default()
                };
                self.add(image, id, credentials).await;
            }
            return true;
        }
        // As upstream: the credential of a service account may differ each time, so the account
        // itself is compared, and only for the pod's first such credential.
        held.iter()
            .find_map(|tracked| match &tracked.source {
                CredentialSource::ServiceAccount(account) => Some(account),
                _ => None,
            })
            .is_some_and(|account| holders.kubernetes_service_accounts.contains(account))
    }

    async fn add(&self, image: &str, id: &str, credentials: ImagePullCredentials) -> bool {
        let repository = written_repository(image).to_owned();
        let of = id.to_owned();
        let added =
            self.blocking(move |store| store.add_credentials(&of, &repository, Some(credentials)));
        match added.await {
            Ok(()) => true,
            Err(error) => {
                warn!(image, image_id = id, %error, "cannot record that an image was pulled");
                false
            }
        }
    }

    /// The number of pulls so far; `None` while there is one.
    pub(super) fn completed_pulls(&self) -> Option<u64> {
        self.store.completed_pulls()
    }

    /// Removes the record of an image that was absent after this number of pulls.
    pub(super) async fn forget(&self, id: &str, pulls: u64) {
        let absent = id.to_owned();
        let forgotten = self
            .blocking(move |store| store.forget(&absent, pulls))
            .await;
        if let Err(error) = forgotten {
            warn!(image_id = id, %error, "cannot remove the pull record of a removed image");
        }
    }

    /// Removes the records of images that were not `present` after this number of pulls.
    pub(super) async fn forget_all_but(&self, present: BTreeSet<String>, pulls: u64) {
        let forgotten = self.blocking(move |store| store.forget_all_but(&present, pulls));
        if let Err(error) = forgotten.await {
            warn!(%error, "cannot remove the pull records of removed images");
        }
    }

    /// Records the intent to pull.
    ///
    /// # Errors
    /// The intent cannot be recorded; the pull must not start.
    pub(super) async fn begin(&self, image: &str) -> io::Result<Pull<'_>> {
        let begun = image.to_owned();
        self.blocking(move |store| store.begin(&begun)).await?;
        Ok(Pull {
            records: self,
            image: image.to_owned(),
            in_doubt: 0,
            is_recorded: false,
        })
    }
}

/// A pull in progress. It may be dropped at any time. If a request with pod-specific credentials
/// has no response by then, the runtime may have pulled the image nevertheless.
#[derive(Debug)]
pub(super) struct Pull<'a> {
    records: &'a PullRecords,
    image: String,
    /// Number of requests with pod-specific credentials and no response.
    in_doubt: usize,
    is_recorded: bool,
}

impl Pull<'_> {
    /// A request with this credential, or with none, is sent to the runtime.
    pub(super) fn asks(&mut self, credential: Option<&TrackedCredential>) {
        self.in_doubt += usize::from(is_somebodys(credential));
    }

    /// The runtime responded that the pull with this credential failed.
    pub(super) fn failed(&mut self, credential: Option<&TrackedCredential>) {
        let answered = usize::from(is_somebodys(credential));
        self.in_doubt = self.in_doubt.saturating_sub(answered);
    }

    /// The image was pulled as `id` with this credential, or with none.
    pub(super) async fn done(mut self, id: &str, credential: Option<&TrackedCredential>) {
        let credentials = ImagePullCredentials::of(credential);
        if self.records.add(&self.image, id, credentials).await {
            self.failed(credential);
            self.is_recorded = true;
        } else {
            // Keeps the intent, so that the image is not open to all pods.
            self.in_doubt += 1;
        }
    }
}

impl Drop for Pull<'_> {
    fn drop(&mut self) {
        let ending = match (self.in_doubt, self.is_recorded) {
            (0, true) => Ending::Recorded,
            (0, false) => Ending::Failed,
            _ => Ending::InDoubt,
        };
        let store = Arc::clone(&self.records.store);
        let image = std::mem::take(&mut self.image);
        // The pod's task may be cancelled at any time, and `drop` cannot wait.
        repeatable::blocking_detached(move || {
            if let Err(error) = store.end(&image, ending) {
                warn!(image, %error, "cannot remove the pull intent of an image");
            }
        });
    }
}

/// Whether an image pulled with this credential is restricted to some of the node's pods.
fn is_somebodys(credential: Option<&TrackedCredential>) -> bool {
    credential.is_some_and(|tracked| tracked.source != CredentialSource::Node)
}

/// Whether there is a pull intent for one of these names, in short or full form.
fn is_begun_as_any(store: &Store, names: &[String]) -> bool {
    let intents = store.intents();
    let mut begun = intents
        .iter()
        .filter_map(|name| ImageReference::parse(name).ok());
    begun.any(|begun| names.iter().any(|name| names_same(&begun, name)))
}

fn names_same(reference: &ImageReference<'_>, name: &str) -> bool {
    ImageReference::parse(name).is_ok_and(|named| named.is_same(reference))
}

/// The image's repository as written. An invalid name is returned unchanged; no record contains it.
fn written_repository(image: &str) -> &str {
    ImageReference::parse(image).map_or(image, |reference| reference.written_repository())
}

#[cfg(test)]
mod tests;
