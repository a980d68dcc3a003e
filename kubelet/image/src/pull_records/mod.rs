//! What the kubelet pulled, and with whose credentials: a pod gets an image that is
//! on the node already only if it could have pulled it itself. The records are the
//! upstream kubelet's (`<root-dir>/image_manager`), so that either finds the other's.

pub mod policy;
mod record;
mod store;

use std::{io, path::Path, sync::Arc};

use cri_proto::runtime::v1::Image;
use kubelet_host::repeatable;
use tracing::warn;

use self::{
    policy::VerificationPolicy,
    record::{ImagePullCredentials, ImagePullSecret},
    store::{Ending, Store},
};
use super::{
    credentials::{CredentialSource, TrackedCredential},
    reference::Reference,
};

/// A record that many secrets are in takes no further ones by being looked at, so
/// that namespaces that come and go do not grow it without end.
const MOST_SECRETS: usize = 100;

/// The records of a node.
#[derive(Debug)]
pub(super) struct PullRecords {
    store: Arc<Store>,
    policy: VerificationPolicy,
}

/// Whether a pod may use an image that is on the node.
#[derive(Debug)]
pub(super) enum Access {
    /// It may.
    Granted,
    /// Only if it can pull the image (again).
    MustPull,
    /// If it has one of the credentials that the image was pulled with; see
    /// [`PullRecords::is_held`].
    Holders(ImagePullCredentials),
}

impl PullRecords {
    pub(super) fn new(root_dir: &Path, policy: VerificationPolicy) -> Self {
        Self {
            store: Arc::new(Store::new(root_dir)),
            policy,
        }
    }

    /// Does `work` on the files where it may block.
    async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Store) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let store = Arc::clone(&self.store);
        repeatable::blocking(move || work(&store))
            .await
            .unwrap_or_else(|panicked| Err(io::Error::other(panicked)))
    }

    /// The images whose pulls were begun and not ended, by whichever kubelet.
    pub(super) async fn begun(&self) -> Vec<String> {
        let begun = self.blocking(|store| Ok(store.intents())).await;
        begun.unwrap_or_else(|error| {
            warn!(%error, "cannot read the records of pulls that were begun");
            Vec::new()
        })
    }

    /// Makes records of the pulls that were `begun` when the last kubelet ended, where
    /// the runtime has the image now. With whose credentials they were made is not
    /// known, so that the next pod must show its own.
    pub(super) async fn restore(&self, begun: Vec<String>, images: &[Image]) {
        for intent in begun {
            let Ok(begun) = Reference::parse(&intent) else {
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

    /// Records that `id` is what a pull of `image` brought that ended in doubt, if one did:
    /// the next pull may bring another one under this name.
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

    /// Whether a pull of `image` ended in doubt of what it brought.
    pub(super) async fn is_in_doubt(&self, image: &str) -> bool {
        let image = image.to_owned();
        let is_in_doubt = self.blocking(move |store| Ok(store.is_in_doubt(&image)));
        is_in_doubt.await.unwrap_or(true)
    }

    /// Whether a pod may use the image `id`, which it names `image` and the runtime by all
    /// of `names`.
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
                warn!(image, %error, "cannot read the record of an image; it is pulled again");
                return Access::MustPull;
            }
        };
        let repository = written_repository(image);
        if !self.policy.is_verified(repository, is_ours) {
            return Access::Granted;
        }
        match record.and_then(|mut record| record.credential_mapping.remove(repository)) {
            Some(credentials) if credentials.node_pods_accessible => Access::Granted,
            Some(credentials) if !credentials.is_empty() => Access::Holders(credentials),
            _ => Access::MustPull,
        }
    }

    /// Whether one of the pod's credentials is among those that the image `id` was
    /// pulled with. One that was renewed, or is now in another secret, is recorded.
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
        // As upstream: an account's secret may differ each time, so that the account
        // itself is what counts, and only the first one of the pod's.
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

    /// Records that a pull begins.
    ///
    /// # Errors
    /// It cannot be recorded, and must not begin.
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

/// A pull on its way. It may be dropped at any moment: what the runtime was asked with
/// somebody's credentials and did not answer, it may have done nevertheless.
#[derive(Debug)]
pub(super) struct Pull<'a> {
    records: &'a PullRecords,
    image: String,
    /// How many requests with somebody's credentials have no answer.
    in_doubt: usize,
    is_recorded: bool,
}

impl Pull<'_> {
    /// The runtime is asked with a credential, or with none.
    pub(super) fn asks(&mut self, credential: Option<&TrackedCredential>) {
        self.in_doubt += usize::from(is_somebodys(credential));
    }

    /// The runtime answered that it cannot pull with this credential.
    pub(super) fn failed(&mut self, credential: Option<&TrackedCredential>) {
        let answered = usize::from(is_somebodys(credential));
        self.in_doubt = self.in_doubt.saturating_sub(answered);
    }

    /// The image was pulled as `id` with a credential, or with none.
    pub(super) async fn done(mut self, id: &str, credential: Option<&TrackedCredential>) {
        let credentials = ImagePullCredentials::of(credential);
        if self.records.add(&self.image, id, credentials).await {
            self.failed(credential);
            self.is_recorded = true;
        } else {
            // So it is known that the image is not for everybody.
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
        // The pod's task may be ended at any moment, and cannot wait here.
        repeatable::blocking_detached(move || {
            if let Err(error) = store.end(&image, ending) {
                warn!(image, %error, "cannot remove the record of a pull that was begun");
            }
        });
    }
}

/// Whether what is pulled with a credential is not for every pod of the node.
fn is_somebodys(credential: Option<&TrackedCredential>) -> bool {
    credential.is_some_and(|tracked| tracked.source != CredentialSource::Node)
}

/// Whether a pull of one of these names was begun, however it was written.
fn is_begun_as_any(store: &Store, names: &[String]) -> bool {
    let intents = store.intents();
    let mut begun = intents
        .iter()
        .filter_map(|name| Reference::parse(name).ok());
    begun.any(|begun| names.iter().any(|name| names_same(&begun, name)))
}

fn names_same(reference: &Reference<'_>, name: &str) -> bool {
    Reference::parse(name).is_ok_and(|named| named.is_same(reference))
}

/// The image's name as it was written, without tag and digest; all of it where it is
/// none, which then is in no record.
fn written_repository(image: &str) -> &str {
    Reference::parse(image).map_or(image, |reference| reference.written_repository())
}

#[cfg(test)]
mod tests;
