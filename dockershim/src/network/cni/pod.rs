//! The sandbox data that is passed to plugins.

use std::{
    fs, io,
    os::{
        fd::{AsRawFd as _, OwnedFd},
        unix::fs::MetadataExt as _,
    },
    sync::Arc,
};

use cri_proto::runtime::v1::PodSandboxState;
use serde_json::{Map, Value};

use super::{chain::Attachment, error::CniError};
use crate::{
    model::Sandbox,
    process::{ProcessError, Processes},
};

/// The key in `CNI_ARGS` that identifies the sandbox.
pub(super) const SANDBOX_ARG: &str = "K8S_POD_INFRA_CONTAINER_ID";
/// The prefix of this shim's namespace paths; other runtimes use different ones.
pub(super) const PROCESSES: &str = "/proc/";
const OWN: &str = "/proc/self/ns/net";

/// The sandbox data that is passed to plugins.
#[derive(Debug, Clone)]
pub struct Pod<'a> {
    pub(super) id: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) uid: &'a str,
}

/// An open network namespace of a sandbox. It exists as long as it is held, even if the sandbox
/// exits and its pid is reused.
#[derive(Debug, Clone)]
pub struct NetNs(Arc<OwnedFd>);

impl<'a> Pod<'a> {
    /// The data of a sandbox.
    pub fn of(sandbox: &'a Sandbox) -> Self {
        Self {
            id: sandbox.id(),
            namespace: sandbox.namespace(),
            name: sandbox.pod(),
            uid: sandbox.uid(),
        }
    }

    /// The attachment of the interface `ifname`.
    pub(super) fn attachment(
        &self,
        netns: &NetNs,
        ifname: &str,
        capability_args: Map<String, Value>,
    ) -> Attachment {
        let args = [
            ("IgnoreUnknown", "1"),
            ("K8S_POD_NAMESPACE", self.namespace),
            ("K8S_POD_NAME", self.name),
            (SANDBOX_ARG, self.id),
            ("K8S_POD_UID", self.uid),
        ];
        Attachment {
            container_id: self.id.to_owned(),
            netns: netns.path(),
            ifname: ifname.to_owned(),
            args: args.map(|(key, value)| (key.into(), value.into())).into(),
            capability_args,
        }
    }
}

impl NetNs {
    /// Opens the network namespace of a ready sandbox.
    ///
    /// # Errors
    /// [`CniError::Process`] if the sandbox is not ready or its namespace cannot be opened.
    pub async fn of(processes: &Arc<Processes>, sandbox: &Sandbox) -> Result<Self, CniError> {
        let (id, pid) = (sandbox.id().to_owned(), sandbox.pid);
        if sandbox.status.state() != PodSandboxState::SandboxReady {
            return Err(ProcessError::Ended(id).into());
        }
        let processes = Arc::clone(processes);
        let task = tokio::task::spawn_blocking(move || {
            let process = processes.open(&id, pid)?;
            let failed = |source| ProcessError::File { pid, source };
            let netns = process.network_namespace().map_err(failed)?;
            if is_own(&netns).map_err(failed)? {
                // Plugins would reconfigure the node's network instead of the sandbox's.
                return Err(ProcessError::Foreign { pid, container: id });
            }
            Ok(Self(Arc::new(netns)))
        });
        let failed = |error| ProcessError::File {
            pid,
            source: io::Error::other(error),
        };
        Ok(task.await.map_err(failed)??)
    }

    /// A namespace that no plugin enters, for tests.
    #[cfg(test)]
    pub(super) fn own() -> Self {
        Self(Arc::new(fs::File::open(OWN).unwrap().into()))
    }

    /// The namespace's path, valid for every process while it is held.
    pub(super) fn path(&self) -> String {
        let (shim, number) = (std::process::id(), self.0.as_raw_fd());
        format!("{PROCESSES}{shim}/fd/{number}")
    }
}

/// Whether a network namespace is the shim's own.
fn is_own(netns: &OwnedFd) -> io::Result<bool> {
    let theirs = rustix::fs::fstat(netns)?;
    let own = fs::metadata(OWN)?;
    Ok((theirs.st_dev, theirs.st_ino) == (own.dev(), own.ino()))
}
