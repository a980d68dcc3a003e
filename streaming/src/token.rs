//! Single-use tokens, by which clients get the streams prepared for them.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::bound::Bound;

/// The lifetime of a token.
const LIFETIME: Duration = Duration::from_secs(60);
/// The limit on unused tokens.
pub(crate) const MOST: usize = 1000;
/// Random bytes in a token; 8 characters in base64.
const RANDOM_BYTES: usize = 6;

/// The reason why no token was created.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The limit on unused tokens is reached. They expire after a minute.
    #[error("maximum number of in-flight requests exceeded")]
    TooMany,
    /// The system provides no random bytes.
    #[error("generate a token: {0}")]
    Random(getrandom::Error),
}

/// Requests by token. A token is valid once and for one minute.
#[derive(Debug)]
pub(crate) struct TokenCache<T> {
    entries: Mutex<Entries<T>>,
    bound: Arc<Bound>,
}

#[derive(Debug)]
struct Entries<T> {
    by_token: HashMap<String, (u64, T)>,
    /// Expiry times, in order.
    by_age: BTreeMap<u64, (Instant, String)>,
    next: u64,
}

impl<T> TokenCache<T> {
    pub(crate) fn new() -> Self {
        Self {
            entries: Mutex::new(Entries {
                by_token: HashMap::new(),
                by_age: BTreeMap::new(),
                next: 0,
            }),
            bound: Arc::new(Bound::new("streaming", "tokens", MOST)),
        }
    }

    /// The limit on unused tokens.
    pub(crate) fn bound(&self) -> Arc<Bound> {
        Arc::clone(&self.bound)
    }

    /// Stores `request` under a new token.
    pub(crate) fn insert(&self, request: T) -> Result<String, TokenError> {
        let mut entries = self.entries.lock();
        let now = Instant::now();
        entries.expire(now);
        if entries.by_token.len() >= MOST {
            self.bound.reach();
            return Err(TokenError::TooMany);
        }
        let token = loop {
            let mut random = [0; RANDOM_BYTES];
            getrandom::fill(&mut random).map_err(TokenError::Random)?;
            let token = URL_SAFE_NO_PAD.encode(random);
            if !entries.by_token.contains_key(&token) {
                break token;
            }
        };
        let number = entries.next;
        entries.next += 1;
        entries
            .by_age
            .insert(number, (now + LIFETIME, token.clone()));
        entries.by_token.insert(token.clone(), (number, request));
        Ok(token)
    }

    /// Removes and returns the request of `token`; `None` if the token was used, has expired or
    /// never existed.
    pub(crate) fn take(&self, token: &str) -> Option<T> {
        let mut entries = self.entries.lock();
        let now = Instant::now();
        entries.expire(now);
        let (number, request) = entries.by_token.remove(token)?;
        entries.by_age.remove(&number);
        Some(request)
    }
}

impl<T> Entries<T> {
    fn expire(&mut self, now: Instant) {
        while let Some(oldest) = self.by_age.first_entry() {
            if oldest.get().0 > now {
                return;
            }
            let (_, token) = oldest.remove();
            self.by_token.remove(&token);
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_token_works_once_and_for_a_minute() {
        let cache = TokenCache::new();
        let token = cache.insert("a").unwrap();
        assert_eq!(token.len(), 8);
        assert_eq!(cache.take("AAAAAAAA"), None);
        assert_eq!(cache.take(&token), Some("a"));
        assert_eq!(cache.take(&token), None);

        let late = cache.insert("b").unwrap();
        tokio::time::advance(LIFETIME - Duration::from_millis(1)).await;
        let in_time = cache.insert("c").unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(cache.take(&late), None);
        assert_eq!(cache.take(&in_time), Some("c"));
    }

    #[tokio::test(start_paused = true)]
    async fn unused_tokens_are_limited_and_used_ones_do_not_count() {
        let cache = TokenCache::new();
        for number in 0..3 * MOST {
            let token = cache.insert(number).unwrap();
            assert_eq!(cache.take(&token), Some(number));
        }
        assert!(cache.entries.lock().by_age.is_empty());
        for number in 0..MOST {
            cache.insert(number).unwrap();
        }
        assert_eq!(cache.bound().reached(), 0);
        assert!(matches!(cache.insert(0), Err(TokenError::TooMany)));
        assert_eq!(cache.bound().reached(), 1);
        tokio::time::advance(LIFETIME).await;
        cache.insert(0).unwrap();
    }
}
