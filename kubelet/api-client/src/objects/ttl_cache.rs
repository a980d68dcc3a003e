//! Objects of one kind that are read on each call, or again once the cached copy is too old.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use k8s_openapi::api::core::v1::Node;
use kube::Client;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};
use tracing::debug;

use super::{ObjectError, named::Named};
use crate::request::ask;

/// Default maximum age of a cached object, as upstream.
const DEFAULT_AGE: Duration = Duration::from_secs(60);
/// Maximum age in seconds. The controller manager sets it depending on the cluster's size.
const AGE_ANNOTATION: &str = "node.alpha.kubernetes.io/ttl";

/// The maximum age of a cached object.
#[derive(Clone, Debug)]
pub(super) enum MaxAge {
    /// Objects are read on each call and not cached.
    Zero,
    /// The annotation of this node.
    OfNode(watch::Receiver<Option<Arc<Node>>>),
}

/// Objects that are read on demand.
pub(super) struct TtlCache<K> {
    client: Client,
    max_age: MaxAge,
    /// How long an unused object stays in the cache.
    idle: Duration,
    /// By namespace and name.
    entries: Mutex<BTreeMap<(String, String), CacheEntry<K>>>,
}

struct CacheEntry<K> {
    /// Time of the last call.
    used: Instant,
    /// Copies from before this time are too old.
    not_before: Instant,
    cached: Arc<SharedCopy<K>>,
}

type SharedCopy<K> = tokio::sync::Mutex<Option<CachedObject<K>>>;

struct CachedObject<K> {
    object: Arc<K>,
    /// Time of the request.
    read: Instant,
}

impl<K> fmt::Debug for TtlCache<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TtlCache")
            .field("max_age", &self.max_age)
            .finish_non_exhaustive()
    }
}

impl<K: Named> TtlCache<K> {
    /// Creates a cache that drops objects unused for `idle`.
    pub(super) fn new(client: Client, max_age: MaxAge, idle: Duration) -> Self {
        Self {
            client,
            max_age,
            idle,
            entries: Mutex::default(),
        }
    }

    /// Returns the object, at most as old as allowed. If reading it fails, an older copy is
    /// returned, unless the object no longer exists.
    pub(super) async fn get(&self, namespace: &str, name: &str) -> Result<Arc<K>, ObjectError> {
        if !K::can_be_named(namespace, name) {
            return Err(ObjectError::not_found(K::RESOURCE, name));
        }
        let Some(max_age) = self.max_age() else {
            return self.read(namespace, name).await;
        };
        let (entry, not_before) = self.entry(namespace, name);
        // Concurrent calls share one request.
        let mut cached = entry.lock().await;
        if let Some(cached) = &*cached
            && cached.read.elapsed() < max_age
            && cached.read >= not_before
        {
            return Ok(Arc::clone(&cached.object));
        }
        let read = Instant::now();
        match self.read(namespace, name).await {
            Ok(object) => {
                *cached = Some(CachedObject {
                    object: Arc::clone(&object),
                    read,
                });
                Ok(object)
            }
            Err(error) if error.is_not_found() => {
                *cached = None;
                Err(error)
            }
            Err(error) => match &*cached {
                Some(cached) => {
                    debug!(%error, "cannot refresh an object; using the cached one");
                    Ok(Arc::clone(&cached.object))
                }
                None => Err(error),
            },
        }
    }

    /// Takes no copy from before this call.
    pub(super) fn renew(&self, key: &(String, String)) {
        if let Some(entry) = self.entries.lock().get_mut(key) {
            entry.not_before = Instant::now();
        }
    }

    async fn read(&self, namespace: &str, name: &str) -> Result<Arc<K>, ObjectError> {
        let api = K::api(self.client.clone(), namespace);
        let mut object = ask(api.get(name))
            .await
            .map_err(|error| ObjectError::of(K::RESOURCE, name, &error))?;
        object.meta_mut().managed_fields = None;
        Ok(Arc::new(object))
    }

    /// `None` if nothing is cached.
    fn max_age(&self) -> Option<Duration> {
        let MaxAge::OfNode(node) = &self.max_age else {
            return None;
        };
        let node = node.borrow();
        let annotations = node.as_ref().and_then(|n| n.metadata.annotations.as_ref());
        let seconds = annotations.and_then(|a| a.get(AGE_ANNOTATION)?.parse().ok());
        Some(seconds.map_or(DEFAULT_AGE, Duration::from_secs))
    }

    /// The copy of an object, and how old it may be.
    fn entry(&self, namespace: &str, name: &str) -> (Arc<SharedCopy<K>>, Instant) {
        let now = Instant::now();
        let mut entries = self.entries.lock();
        entries.retain(|_, entry| now - entry.used < self.idle);
        let key = (namespace.to_owned(), name.to_owned());
        let entry = entries.entry(key).or_insert_with(|| CacheEntry {
            used: now,
            not_before: now,
            cached: Arc::default(),
        });
        entry.used = now;
        (Arc::clone(&entry.cached), entry.not_before)
    }
}
