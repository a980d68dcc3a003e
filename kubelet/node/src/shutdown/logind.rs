//! systemd-logind over D-Bus: inhibitor locks of mode `delay`, see
//! <https://systemd.io/INHIBITOR_LOCKS> and org.freedesktop.login1(5).

#[cfg(test)]
mod tests;

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use futures::StreamExt as _;
use kubelet_host::files;
use zbus::{Connection, OwnedFd, connection::Builder, proxy::OwnerChangedStream};

use super::login_manager::{LoginManager, LoginManagerError, Session};

/// Deadline of calls to logind and systemd.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// logind's drop-in configuration directory.
const CONFIG_DIR: &str = "/etc/systemd/logind.conf.d";
/// The drop-in file, with upstream's name.
const CONFIG_FILE: &str = "99-kubelet.conf";
/// Makes logind reload its configuration.
const SIGHUP: i32 = 1;

#[zbus::proxy(
    interface = "org.freedesktop.login1.Manager",
    default_service = "org.freedesktop.login1",
    default_path = "/org/freedesktop/login1"
)]
trait Manager {
    fn inhibit(&self, what: &str, who: &str, why: &str, mode: &str) -> zbus::Result<OwnedFd>;

    #[zbus(property(emits_changed_signal = "false"), name = "InhibitDelayMaxUSec")]
    fn inhibit_delay_max_usec(&self) -> zbus::Result<u64>;

    #[zbus(property(emits_changed_signal = "false"))]
    fn preparing_for_shutdown(&self) -> zbus::Result<bool>;

    #[zbus(signal)]
    fn prepare_for_shutdown(&self, start: bool) -> zbus::Result<()>;
}

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Systemd {
    fn kill_unit(&self, name: &str, whom: &str, signal: i32) -> zbus::Result<()>;
}

/// The way to logind.
#[derive(Clone, Debug)]
pub struct Logind {
    /// The bus address; the system bus when unset.
    address: Option<String>,
    config_dir: PathBuf,
}

impl Default for Logind {
    /// logind on the system bus (`DBUS_SYSTEM_BUS_ADDRESS`).
    fn default() -> Self {
        Self {
            address: None,
            config_dir: PathBuf::from(CONFIG_DIR),
        }
    }
}

/// A connection to logind.
pub struct LogindSession {
    connection: Connection,
    manager: ManagerProxy<'static>,
    shutdowns: PrepareForShutdownStream,
    owners: OwnerChangedStream<'static>,
    config_dir: PathBuf,
}

fn refused(action: &'static str) -> impl FnOnce(zbus::Error) -> LoginManagerError {
    move |source| LoginManagerError::Call { action, source }
}

impl LoginManager for Logind {
    type Session = LogindSession;

    async fn connect(&self) -> Result<LogindSession, LoginManagerError> {
        let builder = match &self.address {
            Some(address) => Builder::address(address.as_str()),
            None => Builder::system(),
        };
        let connecting = builder.method_timeout(CALL_TIMEOUT).build();
        let connection = tokio::time::timeout(CALL_TIMEOUT, connecting)
            .await
            .unwrap_or_else(|elapsed| Err(std::io::Error::from(elapsed).into()))
            .map_err(LoginManagerError::Bus)?;
        let follow = async {
            let manager = ManagerProxy::new(&connection).await?;
            let owners = manager.inner().receive_owner_changed().await?;
            let shutdowns = manager.receive_prepare_for_shutdown().await?;
            Ok((manager, owners, shutdowns))
        };
        let (manager, owners, shutdowns) = follow.await.map_err(refused("announce shutdowns"))?;
        Ok(LogindSession {
            connection,
            manager,
            shutdowns,
            owners,
            config_dir: self.config_dir.clone(),
        })
    }
}

impl Session for LogindSession {
    type Lock = OwnedFd;

    async fn is_shutting_down(&self) -> Result<bool, LoginManagerError> {
        let asking = self.manager.preparing_for_shutdown();
        asking
            .await
            .map_err(refused("report whether a shutdown is in progress"))
    }

    async fn delay(&self) -> Result<Duration, LoginManagerError> {
        let asking = self.manager.inhibit_delay_max_usec();
        let micros = asking.await.map_err(refused("report its shutdown delay"))?;
        Ok(Duration::from_micros(micros))
    }

    async fn set_delay(&self, delay: Duration) -> Result<(), LoginManagerError> {
        write_delay(&self.config_dir, delay).await?;
        let reload = async {
            let systemd = SystemdProxy::new(&self.connection).await?;
            systemd
                .kill_unit("systemd-logind.service", "all", SIGHUP)
                .await
        };
        reload.await.map_err(refused("reload its configuration"))
    }

    async fn inhibit(&self) -> Result<OwnedFd, LoginManagerError> {
        let why = "Kubelet needs time to handle node shutdown";
        let locking = self.manager.inhibit("shutdown", "kubelet", why, "delay");
        locking.await.map_err(refused("provide an inhibitor lock"))
    }

    async fn changed(&mut self) -> Result<bool, LoginManagerError> {
        tokio::select! {
            biased;
            signal = self.shutdowns.next() => {
                let signal = signal.ok_or(LoginManagerError::Gone)?;
                let start = signal.args().map(|args| args.start);
                start.map_err(refused("announce a shutdown"))
            }
            owner = self.owners.next() => Err(match owner {
                Some(_) => LoginManagerError::Restarted,
                None => LoginManagerError::Gone,
            }),
            () = self.connection.closed() => Err(LoginManagerError::Gone),
        }
    }
}

/// Writes the drop-in file with the maximum delay.
async fn write_delay(dir: &Path, delay: Duration) -> Result<(), LoginManagerError> {
    let path = dir.join(CONFIG_FILE);
    let seconds = delay.as_secs();
    let text = format!(
        "# Written by the kubelet: shutdowns wait for as long as its pods may take to end.\n\
         [Login]\nInhibitDelayMaxSec={seconds}\n"
    );
    files::replace(&path, text, 0o644)
        .await
        .map_err(|source| LoginManagerError::Configuration { path, source })
}
