//! Plugins that come and go: whoever puts a socket below `plugins_registry` in the
//! kubelet's directory and serves the registration service there is asked what it is, and
//! handed to whoever knows its kind.
//!
//! The sockets that are there are what is desired; the manager brings what is registered
//! there, one operation on a socket at a time, with a back-off for those that fail. A
//! kubelet that starts finds the sockets that an earlier one knew.

#![forbid(unsafe_code)]

mod registration;
pub mod socket;
mod state;
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
    state::{Operation, State},
    watcher::Watcher,
};

/// What a kind of plugin does for the plugin manager.
pub trait PluginHandler: fmt::Debug + Send + Sync + 'static {
    /// Whether a plugin can be taken.
    ///
    /// # Errors
    /// For the plugin's authors: why not.
    fn validate(&self, plugin: &Plugin) -> Result<(), String>;

    /// Takes a plugin that was found valid.
    ///
    /// # Errors
    /// For the plugin's authors: why it cannot be had.
    fn register<'a>(&'a self, plugin: &'a Plugin) -> BoxFuture<'a, Result<(), String>>;

    /// A plugin that was taken is gone.
    fn deregister(&self, plugin: &Plugin);
}

/// A plugin as it says itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plugin {
    /// Its name, one of a kind.
    pub name: String,
    /// Socket of its own service.
    pub endpoint: PathBuf,
    /// Versions of its service.
    pub versions: Vec<String>,
}

/// Handlers by the type of plugin that they are for (`CSIPlugin`).
pub type Handlers = BTreeMap<String, Arc<dyn PluginHandler>>;

/// The plugins of a node.
#[derive(Debug)]
pub struct PluginManager {
    dir: PathBuf,
    handlers: Arc<Handlers>,
}

impl PluginManager {
    /// A manager of the plugins below a directory, which is made when it is missing.
    pub fn new(dir: PathBuf, handlers: Handlers) -> Self {
        Self {
            dir,
            handlers: Arc::new(handlers),
        }
    }

    /// Does the manager's work until cancelled, and leaves the plugins registered then.
    pub async fn run(&self, cancel: CancellationToken) {
        let mut watcher = Watcher::new(self.dir.clone());
        let mut state = State::default();
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

    /// Begins what can be done now; when something else can.
    fn begin(&self, state: &mut State, running: &mut JoinSet<Done>) -> Option<Instant> {
        for registered in state.take_gone() {
            info!(
                plugin = registered.plugin.name,
                socket = %registered.socket.display(),
                "plugin is gone"
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
    state: &mut State,
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
