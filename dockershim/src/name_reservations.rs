//! The names of Docker containers that are being created.

use std::collections::HashSet;

use parking_lot::Mutex;

use crate::Error;

/// The names of Docker containers that are being created.
#[derive(Debug, Default)]
pub struct NameReservations {
    taken: Mutex<HashSet<String>>,
    /// Ids of containers whose creation failed and that could not be removed.
    failed: Mutex<HashSet<String>>,
}

impl NameReservations {
    /// Reserves a Docker name while a container is created with it. Without the reservation, a
    /// client's retry would treat the first request's container as a leftover.
    ///
    /// # Errors
    /// [`Error::Busy`] while another request holds the name.
    pub fn reserve(&self, name: &str) -> Result<Reservation<'_>, Error> {
        if !self.taken.lock().insert(name.to_owned()) {
            return Err(Error::Busy(format!(
                "another request is creating {name:?}; try again later"
            )));
        }
        Ok(Reservation {
            names: self,
            name: name.to_owned(),
        })
    }

    /// Checks whether a container with this name is being created.
    pub fn contains(&self, name: &str) -> bool {
        self.taken.lock().contains(name)
    }

    /// Records the id of a container to remove when the engine is available again.
    pub fn mark_failed(&self, id: &str) {
        self.failed.lock().insert(id.to_owned());
    }

    /// Takes the ids of containers to remove. The caller must put back those that it cannot remove.
    pub fn take_failed(&self) -> HashSet<String> {
        std::mem::take(&mut *self.failed.lock())
    }
}

/// Reserves the name of a Docker container that is being created; dropping it frees the name.
#[derive(Debug)]
pub struct Reservation<'a> {
    names: &'a NameReservations,
    name: String,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.names.taken.lock().remove(&self.name);
    }
}
