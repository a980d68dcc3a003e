//! The server's clock and names. It uses tokio's clock, so that tests can pause it, and identifiers
//! that are the same in each run.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use jiff::Timestamp;
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

/// Upstream's alphabet for generated names: no vowels, and no digits that look like one.
const NAME_ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";

/// The time since the server's start on tokio's clock, and counters for names and service
/// addresses.
#[derive(Debug)]
pub struct Clock {
    since_epoch: Duration,
    started: Instant,
    names: AtomicU64,
    services: AtomicU64,
}

impl Clock {
    /// A clock that starts this long after the epoch, or at the current time by default.
    pub fn new(since_epoch: Option<Duration>) -> Self {
        let now = || {
            SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default()
        };
        Self {
            since_epoch: since_epoch.unwrap_or_else(now),
            started: Instant::now(),
            names: AtomicU64::new(0),
            services: AtomicU64::new(1),
        }
    }

    /// The current time.
    pub(super) fn now(&self) -> Timestamp {
        let since_epoch = self.since_epoch + self.started.elapsed();
        let seconds = i64::try_from(since_epoch.as_secs()).unwrap_or(i64::MAX);
        Timestamp::from_second(seconds).unwrap_or(Timestamp::MAX)
    }

    /// The current time as objects store it: RFC 3339, in whole seconds.
    pub(super) fn text(&self) -> String {
        self.now().to_string()
    }

    /// The current time plus `seconds`, as objects store it.
    pub(super) fn text_after(&self, seconds: i64) -> String {
        after(self.now(), seconds)
    }

    fn digest(&self) -> [u8; 32] {
        let number = self.names.fetch_add(1, Ordering::Relaxed);
        Sha256::digest(number.to_be_bytes()).into()
    }

    /// A unique UID.
    pub(super) fn uid(&self) -> String {
        let hex: String = self.digest()[..16]
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        format!(
            "{}-{}-4{}-8{}-{}",
            &hex[..8],
            &hex[8..12],
            &hex[13..16],
            &hex[17..20],
            &hex[20..]
        )
    }

    /// A unique address of the service range (10.96.0.0/16).
    pub(super) fn service_address(&self) -> String {
        let number = self.services.fetch_add(1, Ordering::Relaxed);
        format!("10.96.{}.{}", number / 256 % 256, number % 256)
    }

    /// Five random characters for a generated name.
    pub(super) fn suffix(&self) -> String {
        self.digest()[..5]
            .iter()
            .map(|byte| char::from(NAME_ALPHABET[usize::from(*byte) % NAME_ALPHABET.len()]))
            .collect()
    }
}

/// `time` plus `seconds`, as objects store it.
pub(super) fn after(time: Timestamp, seconds: i64) -> String {
    let moved = time.as_second().saturating_add(seconds);
    Timestamp::from_second(moved)
        .unwrap_or(Timestamp::MAX)
        .to_string()
}
