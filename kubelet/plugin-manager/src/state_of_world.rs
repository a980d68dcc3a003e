//! The desired sockets and the registered plugins.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    time::Duration,
};

use retry_delay::RetryDelay;
use tokio::time::Instant;

use super::{registration::Registered, watcher::Sockets};

/// The first and the longest delay after a failed registration, as upstream.
const RETRY_BASE: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(122);

/// A registration in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Operation {
    pub(super) socket: PathBuf,
    /// The generation of the socket at this path.
    generation: u64,
}

/// The desired and the actual state.
#[derive(Debug, Default)]
pub(super) struct StateOfWorld {
    sockets: Sockets,
    registered: BTreeMap<PathBuf, (u64, Registered)>,
    attempts: BTreeMap<PathBuf, RegistrationAttempts>,
}

#[derive(Debug)]
struct RegistrationAttempts {
    generation: u64,
    busy: bool,
    delay: RetryDelay,
    not_before: Option<Instant>,
}

impl StateOfWorld {
    /// Sets the desired sockets.
    pub(super) fn want(&mut self, sockets: Sockets) {
        self.attempts
            .retain(|path, attempts| attempts.busy || sockets.contains_key(path));
        self.sockets = sockets;
    }

    fn is_current(&self, socket: &Path, generation: u64) -> bool {
        self.sockets.get(socket) == Some(&generation)
    }

    /// Removes and returns the plugins whose socket is gone or was replaced.
    pub(super) fn take_gone(&mut self) -> Vec<Registered> {
        let mut gone = Vec::new();
        for (socket, (generation, plugin)) in std::mem::take(&mut self.registered) {
            if self.is_current(&socket, generation) {
                self.registered.insert(socket, (generation, plugin));
            } else {
                gone.push(plugin);
            }
        }
        gone
    }

    /// Marks and returns the registrations that are due, and when the next one is.
    pub(super) fn begin(&mut self, now: Instant) -> (Vec<Operation>, Option<Instant>) {
        let mut operations = Vec::new();
        let mut next: Option<Instant> = None;
        for (socket, generation) in &self.sockets {
            if self.registered.contains_key(socket) {
                continue;
            }
            let fresh = || RegistrationAttempts {
                generation: *generation,
                busy: false,
                delay: RetryDelay::new(RETRY_BASE, RETRY_MAX),
                not_before: None,
            };
            let attempts = self.attempts.entry(socket.clone()).or_insert_with(fresh);
            if attempts.busy {
                continue;
            }
            // A new socket at the same path starts without back-off.
            if attempts.generation != *generation {
                *attempts = fresh();
            }
            match attempts.not_before {
                Some(at) if at > now => next = Some(next.map_or(at, |next| next.min(at))),
                _ => {
                    attempts.busy = true;
                    operations.push(Operation {
                        socket: socket.clone(),
                        generation: *generation,
                    });
                }
            }
        }
        (operations, next)
    }

    /// Records the end of a registration.
    pub(super) fn end(&mut self, operation: &Operation, registered: Option<Registered>) {
        let socket = &operation.socket;
        match registered {
            Some(plugin) => {
                self.attempts.remove(socket);
                self.registered
                    .insert(socket.clone(), (operation.generation, plugin));
            }
            None if !self.sockets.contains_key(socket) => {
                self.attempts.remove(socket);
            }
            None => {
                if let Some(attempts) = self.attempts.get_mut(socket) {
                    attempts.busy = false;
                    attempts.not_before = Some(Instant::now() + attempts.delay.after_failure());
                }
            }
        }
    }
}
