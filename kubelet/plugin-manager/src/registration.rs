//! Registration of one plugin.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri_proto::pluginregistration::{
    InfoRequest, RegistrationStatus, registration_client::RegistrationClient,
};
use tokio::time::timeout;
use tonic::{
    Status,
    transport::{Channel, Error},
};

use super::{Handlers, Plugin, PluginHandler, message::shortened, socket};

/// The deadline of each step, as upstream.
const DIAL_LIMIT: Duration = Duration::from_secs(10);
const INFO_LIMIT: Duration = Duration::from_secs(1);
const NOTIFY_LIMIT: Duration = Duration::from_secs(5);

/// A registered plugin.
#[derive(Clone, Debug)]
pub(super) struct Registered {
    pub(super) socket: PathBuf,
    pub(super) plugin: Plugin,
    pub(super) handler: Arc<dyn PluginHandler>,
}

/// Why a registration failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum RegistrationError {
    /// No server listens on the socket.
    #[error("cannot connect: {0}")]
    Dial(#[source] Error),
    /// The plugin did not describe itself.
    #[error("GetInfo: {}", shortened(.0.message().to_owned()))]
    Info(Box<Status>),
    /// The plugin was rejected, and told so.
    #[error("{0}")]
    Refused(String),
    /// The plugin did not accept the notification of the result.
    #[error("NotifyRegistrationStatus: {}", shortened(.0.message().to_owned()))]
    Notify(Box<Status>),
    /// The plugin did not answer in time.
    #[error("{step}: no answer within {limit:?}")]
    Deadline {
        /// The step.
        step: &'static str,
        /// The deadline.
        limit: Duration,
    },
}

/// Asks the plugin at a socket for its description, passes it to the handler of its type, and
/// notifies it of the result.
pub(super) async fn register(
    socket: &Path,
    handlers: &Handlers,
) -> Result<Registered, RegistrationError> {
    let channel = within("connect", DIAL_LIMIT, socket::connect(socket))
        .await?
        .map_err(RegistrationError::Dial)?;
    let mut client = RegistrationClient::new(channel);
    let info = within("GetInfo", INFO_LIMIT, client.get_info(InfoRequest {}))
        .await?
        .map_err(|status| RegistrationError::Info(Box::new(status)))?
        .into_inner();
    let Some(handler) = handlers.get(&info.r#type) else {
        let why = format!(
            "no handler registered for plugin type: {} at socket {}",
            info.r#type,
            socket.display()
        );
        return refuse(&mut client, why).await;
    };
    let endpoint = if info.endpoint.is_empty() {
        socket.to_owned()
    } else {
        PathBuf::from(info.endpoint)
    };
    let plugin = Plugin {
        name: info.name,
        endpoint,
        versions: info.supported_versions,
    };
    if let Err(why) = handler.validate(&plugin) {
        let why = format!("plugin validation failed with err: {why}");
        return refuse(&mut client, why).await;
    }
    if let Err(why) = handler.register(&plugin).await {
        let why = format!("plugin registration failed with err: {why}");
        return refuse(&mut client, why).await;
    }
    if let Err(error) = notify(&mut client, None).await {
        handler.deregister(&plugin);
        return Err(error);
    }
    Ok(Registered {
        socket: socket.to_owned(),
        plugin,
        handler: Arc::clone(handler),
    })
}

async fn refuse<T>(
    client: &mut RegistrationClient<Channel>,
    why: String,
) -> Result<T, RegistrationError> {
    let why = shortened(format!("RegisterPlugin error -- {why}"));
    notify(client, Some(&why)).await?;
    Err(RegistrationError::Refused(why))
}

async fn notify(
    client: &mut RegistrationClient<Channel>,
    error: Option<&str>,
) -> Result<(), RegistrationError> {
    let status = RegistrationStatus {
        plugin_registered: error.is_none(),
        error: error.unwrap_or_default().to_owned(),
    };
    let notified = client.notify_registration_status(status);
    within("NotifyRegistrationStatus", NOTIFY_LIMIT, notified)
        .await?
        .map_err(|status| RegistrationError::Notify(Box::new(status)))?;
    Ok(())
}

async fn within<T>(
    step: &'static str,
    limit: Duration,
    work: impl Future<Output = T>,
) -> Result<T, RegistrationError> {
    timeout(limit, work)
        .await
        .map_err(|_| RegistrationError::Deadline { step, limit })
}
