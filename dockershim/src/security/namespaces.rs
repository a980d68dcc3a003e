//! The namespaces of sandboxes and containers: private or shared.

use bollard::models::HostConfig;
use cri_proto::runtime::v1::{NamespaceMode, NamespaceOption, UserNamespace};

use crate::Error;

const FIELD: &str = "linux.security_context.namespace_options";
const HOST: &str = "host";

/// Sets a sandbox's namespaces. Its containers can share its IPC namespace, and it has the host's
/// UTS namespace if it has the host's network.
///
/// # Errors
/// `InvalidArgument` or `Unsupported`, naming the option.
pub(super) fn of_sandbox(options: &NamespaceOption, host: &mut HostConfig) -> Result<(), Error> {
    check(options)?;
    if options.pid() == NamespaceMode::Target {
        return Err(Error::invalid(
            format!("{FIELD}.pid"),
            "TARGET is only for containers",
        ));
    }
    let is_host = |mode| mode == NamespaceMode::Node;
    if is_host(options.pid()) {
        host.pid_mode = Some(HOST.into());
    }
    let ipc = if is_host(options.ipc()) {
        HOST
    } else {
        "shareable"
    };
    host.ipc_mode = Some(ipc.into());
    if is_host(options.network()) {
        host.uts_mode = Some(HOST.into());
    }
    Ok(())
}

/// Sets a container's namespaces: its sandbox's network and IPC, and the requested PID namespace.
/// `target` is the full id of the container in `target_id`.
///
/// # Errors
/// `InvalidArgument` or `Unsupported`, naming the option.
pub(super) fn of_container(
    options: &NamespaceOption,
    sandbox: &str,
    target: Option<&str>,
    host: &mut HostConfig,
) -> Result<(), Error> {
    check(options)?;
    let shared = format!("container:{sandbox}");
    host.pid_mode = match options.pid() {
        NamespaceMode::Pod => Some(shared.clone()),
        NamespaceMode::Container => None,
        NamespaceMode::Node => Some(HOST.into()),
        NamespaceMode::Target => {
            let target = target.ok_or_else(|| {
                Error::invalid(format!("{FIELD}.target_id"), "TARGET requires a container")
            })?;
            Some(format!("container:{target}"))
        }
    };
    host.ipc_mode = Some(shared.clone());
    host.network_mode = Some(shared);
    if options.network() == NamespaceMode::Node {
        host.uts_mode = Some(HOST.into());
    }
    Ok(())
}

fn check(options: &NamespaceOption) -> Result<(), Error> {
    for (name, mode) in [("network", options.network()), ("ipc", options.ipc())] {
        if !matches!(mode, NamespaceMode::Pod | NamespaceMode::Node) {
            return Err(Error::invalid(
                format!("{FIELD}.{name}"),
                format!("{}; allowed: POD, NODE", mode.as_str_name()),
            ));
        }
    }
    match &options.userns_options {
        Some(user) if user.mode() != NamespaceMode::Node && *user != UserNamespace::default() => {
            Err(Error::unsupported(
                format!("{FIELD}.userns_options"),
                "the Docker engine does not support user namespaces per pod",
            ))
        }
        _ => Ok(()),
    }
}

/// The namespaces of an existing sandbox or container, from its engine configuration.
pub fn namespace_options(host: &HostConfig) -> NamespaceOption {
    let mode = |text: &Option<String>, own| match text.as_deref() {
        Some(HOST) => NamespaceMode::Node,
        _ => own,
    };
    NamespaceOption {
        network: mode(&host.network_mode, NamespaceMode::Pod).into(),
        pid: mode(&host.pid_mode, NamespaceMode::Container).into(),
        ipc: mode(&host.ipc_mode, NamespaceMode::Pod).into(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_shares_with_its_sandbox_what_it_asks() {
        let mut host = HostConfig::default();
        of_container(&NamespaceOption::default(), "s", None, &mut host).unwrap();
        for mode in [&host.pid_mode, &host.ipc_mode, &host.network_mode] {
            assert_eq!(mode.as_deref(), Some("container:s"));
        }
        let options = NamespaceOption {
            pid: NamespaceMode::Target.into(),
            ..Default::default()
        };
        of_container(&options, "s", Some("t"), &mut host).unwrap();
        assert_eq!(host.pid_mode.as_deref(), Some("container:t"));
        let options = NamespaceOption {
            pid: NamespaceMode::Container.into(),
            ..Default::default()
        };
        of_container(&options, "s", None, &mut host).unwrap();
        assert_eq!(host.pid_mode, None);
    }

    #[test]
    fn a_user_namespace_is_refused_by_name() {
        let options = NamespaceOption {
            userns_options: Some(UserNamespace {
                mode: NamespaceMode::Pod.into(),
                uids: vec![Default::default()],
                gids: vec![Default::default()],
            }),
            ..Default::default()
        };
        let error = of_sandbox(&options, &mut HostConfig::default()).unwrap_err();
        assert_eq!(error.code(), tonic::Code::Unimplemented);
        assert!(error.to_string().contains("userns_options"), "{error}");
    }
}
