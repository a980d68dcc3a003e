//! Registration of node plugins. A plugin creates a socket in `plugins_registry` below the
//! kubelet's root directory and serves the registration service on it. The manager asks for its
//! type and name, and passes it to the handler of that type. The sockets are the desired state;
//! the manager reconciles the registered plugins with them, one operation per socket at a time,
//! with a back-off after failures. A kubelet that starts finds the sockets of an earlier one.

#![forbid(unsafe_code)]

pub mod message;
mod registration;
pub mod socket;
mod state_of_world;
pub mod status_code;
mod watcher;

use std::{collections::BTreeMap, fmt, path::PathBuf, sync::Arc};

use futures::future::BoxFuture;
use tokio::{
    task::JoinSet,
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use self::{
    registration::{Registered, RegistrationError},
    state_of_world::{Operation, StateOfWorld},
    watcher::Watcher,
};

/// Handles the plugins of one type.
pub trait PluginHandler: fmt::Debug + Send + Sync + 'static {
    /// Checks whether a plugin is acceptable.
    ///
    /// # Errors
    /// Why not, for the plugin's author.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    /// Registers a plugin after validation.
    ///
    /// # Errors
    /// Why registration failed, for the plugin's author.
    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>>;

    /// A registered plugin is gone.
    fn deregister(&self, plugin: &Plugin);
}

/// A plugin as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its name, unique within its type.
    pub name: String,
    /// Socket of its service.
    pub endpoint: PathBuf,
    /// Supported versions of its service.
    pub versions: Vec<String>,
}

/// Handlers by plugin type, such as `CSIPlugin`.
pub type Handlers = BTreeMap<String, Arc<dyn PluginHandler>>;

/// Manages the plugins of a node.
#[derive(Debug)]
pub struct PluginManager {
    dir: PathBuf,
    handlers: Arc<Handlers>,
}

impl PluginManager {
    /// A manager of the plugins below a directory, which is created if missing.
    pub fn new(dir: PathBuf, handlers: Handlers) -> Self {
        Self {
            dir,
            handlers: Arc::new(handlers),
        }
    }

    /// Runs until cancelled, and leaves plugins registered.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut watcher = Watcher::new(self.dir.clone());
        let mut state = StateOfWorld::default();
        let mut running = JoinSet::new();
        loop {
            let next = self.begin(&mut state, &mut running);
            tokio::select! {
                biased;
                () = cancel.cancelled() => return,
                Some(ended) = running.join_next() => match ended {
                    Ok((operation, outcome)) => ended_with(&mut state, &operation, outcome),
                    Err(error) => if let Ok(panic) = error.try_into_panic() {
                        std::panic::resume_unwind(panic)
                    },
                },
                sockets = watcher.changed() => state.want(sockets),
                () = until(next) => {}
            }
        }
    }

    /// Starts the operations that are due; returns when the next one is.
    fn begin(&self, state: &mut StateOfWorld, running: &mut JoinSet<Done>) -> Option<Instant> {
        for registered in state.take_gone() {
            info!(
                plugin = registered.plugin.name,
                socket = %registered.socket.display(),
                "deregistering plugin"
            );
            registered.handler.deregister(&registered.plugin);
        }
        let (operations, next) = state.begin(Instant::now());
        for operation in operations {
            let handlers = Arc::clone(&self.handlers);
            running.spawn(async move {
                let outcome = registration::register(&operation.socket, &handlers).await;
                (operation, outcome)
            });
        }
        next
    }
}

type Done = (Operation, Result<Registered, RegistrationError>);

fn ended_with(
    state: &mut StateOfWorld,
    operation: &Operation,
    outcome: Result<Registered, RegistrationError>,
) {
    match &outcome {
        Ok(registered) => info!(
            plugin = registered.plugin.name,
            endpoint = %registered.plugin.endpoint.display(),
            "registered plugin"
        ),
        Err(error) => warn!(
            socket = %operation.socket.display(), %error, "cannot register plugin"
        ),
    }
    state.end(operation, outcome.ok());
}

async fn until(next: Option<Instant>) {
    match next {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
