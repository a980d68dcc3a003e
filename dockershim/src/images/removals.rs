//! The image removals in progress.

use std::{
    collections::HashMap,
    sync::{Arc, Weak},
};

use parking_lot::Mutex;

/// The removals in progress, by image; requests for the same image wait for each other.
#[derive(Debug, Default)]
pub struct Removals(Mutex<HashMap<String, Weak<tokio::sync::Mutex<()>>>>);

impl Removals {
    /// The lock of the removal of `image`.
    pub(crate) fn of(&self, image: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut removals = self.0.lock();
        removals.retain(|_, removal| removal.strong_count() > 0);
        if let Some(removal) = removals.get(image).and_then(Weak::upgrade) {
            return removal;
        }
        let removal = Arc::default();
        removals.insert(image.to_owned(), Arc::downgrade(&removal));
        removal
    }
}
