//! Claims are changed by one task at a time.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Weak},
};

use parking_lot::Mutex;
use tokio::sync::OwnedMutexGuard;

use crate::claims::ClaimKey;

/// Turns at claims: one pod at a time prepares or releases a claim.
#[derive(Debug, Default)]
pub(super) struct Turns(Mutex<BTreeMap<ClaimKey, Weak<tokio::sync::Mutex<()>>>>);

impl Turns {
    /// Waits for the turns at these claims, in one order for all callers.
    pub(super) async fn take(
        &self,
        keys: impl Iterator<Item = &ClaimKey>,
    ) -> Vec<OwnedMutexGuard<()>> {
        let keys: BTreeSet<&ClaimKey> = keys.collect();
        let mut taken = Vec::with_capacity(keys.len());
        for key in keys {
            let turn = {
                let mut turns = self.0.lock();
                turns.retain(|_, turn| turn.strong_count() > 0);
                let known = turns.get(key).and_then(Weak::upgrade);
                known.unwrap_or_else(|| {
                    let turn = Arc::default();
                    turns.insert(key.clone(), Arc::downgrade(&turn));
                    turn
                })
            };
            taken.push(turn.lock_owned().await);
        }
        taken
    }
}
