//! The verbs about the runtime itself: `Version`, `Status`, `RuntimeConfig` and
//! `UpdateRuntimeConfig`.

use std::collections::BTreeMap;

use cri_proto::runtime::v1::{
    LinuxRuntimeConfiguration, RuntimeCondition, RuntimeConfigResponse, RuntimeFeatures,
    RuntimeHandler, RuntimeHandlerFeatures, RuntimeStatus, StatusResponse,
    UpdateRuntimeConfigRequest, UpdateRuntimeConfigResponse, VersionResponse,
};

use crate::{
    Error, Shim, container::can_be_recursively_read_only, engine::ConnectionState,
    network::cni::pod_cidr,
};

/// The kubelet API version in the response to `Version`.
const KUBELET_API: &str = "0.1.0";
const CRI_API: &str = "v1";
/// The reported runtime name is Docker's, not the shim's.
const RUNTIME_NAME: &str = "docker";
const NETWORK_READY: &str = "NetworkReady";
/// The version of an engine that was never reached. Clients require a valid version.
const UNKNOWN_VERSION: &str = "0.0.0";

/// `Version`. Never fails, because clients call it first to check whether the runtime answers, and
/// then `Status` to check its health.
pub(super) fn version(shim: &Shim) -> VersionResponse {
    let info = shim.engine.info();
    VersionResponse {
        version: KUBELET_API.into(),
        runtime_name: RUNTIME_NAME.into(),
        runtime_version: info.map_or(UNKNOWN_VERSION.into(), |info| info.version.clone()),
        runtime_api_version: CRI_API.into(),
    }
}

/// `Status`. Never fails, because problems are reported in the response.
pub(super) async fn status(shim: &Shim, verbose: bool) -> StatusResponse {
    let state = shim.engine.state();
    let (ready, reason, message) = match &*state {
        ConnectionState::Connected(_) if shim.model.in_step() => (true, "", String::new()),
        ConnectionState::Connected(_) => (
            false,
            "ContainersNotRead",
            "the engine's containers are being read".into(),
        ),
        ConnectionState::Disconnected(why) => (
            false,
            "EngineUnreachable",
            format!("{}: {why}", shim.engine.endpoint()),
        ),
    };
    let runtime_ready = condition("RuntimeReady", ready, reason, message);
    let cni_ready = match &shim.cni {
        Some(cni) => Some(cni.ready().await),
        None => None,
    };
    let network_ready = match cni_ready {
        // The engine's own bridge is ready whenever the engine is.
        None => RuntimeCondition {
            r#type: NETWORK_READY.into(),
            ..runtime_ready.clone()
        },
        Some(Ok(())) => condition(NETWORK_READY, true, "", String::new()),
        Some(Err(error)) => {
            let message = format!("{RUNTIME_NAME}: {error}");
            condition(NETWORK_READY, false, "NetworkPluginNotReady", message)
        }
    };
    let mut info = BTreeMap::new();
    let mut runtime_handlers = Vec::new();
    if let ConnectionState::Connected(engine) = &*state {
        let names = engine.info.runtimes.handlers();
        runtime_handlers.extend(names.map(|name| RuntimeHandler {
            name: name.into(),
            features: Some(RuntimeHandlerFeatures {
                recursive_read_only_mounts: can_be_recursively_read_only(engine, name),
                user_namespaces: false,
            }),
        }));
        if verbose {
            let (major, minor) = engine.api;
            let about = serde_json::json!({
                "endpoint": shim.engine.endpoint().to_string(),
                "engineVersion": engine.info.version,
                "apiVersion": format!("{major}.{minor}"),
                "rootDir": engine.info.root_dir,
                "securityOptions": engine.info.security,
                "liveRestore": engine.info.live_restore,
                "sandboxImage": shim.config.pod_infra_container_image,
                "networkPlugin": shim.config.network_plugin.to_string(),
            });
            info.insert("config".to_owned(), about.to_string());
        }
    }
    StatusResponse {
        status: Some(RuntimeStatus {
            conditions: vec![runtime_ready, network_ready],
        }),
        info,
        runtime_handlers,
        features: Some(RuntimeFeatures {
            supplemental_groups_policy: true,
            ..Default::default()
        }),
    }
}

fn condition(kind: &str, status: bool, reason: &str, message: String) -> RuntimeCondition {
    RuntimeCondition {
        r#type: kind.into(),
        status,
        reason: reason.into(),
        message,
    }
}

/// `UpdateRuntimeConfig`: sets the node's pod CIDRs. Has no effect on the engine's own bridge,
/// which has its own range.
///
/// # Errors
/// `InvalidArgument` naming the field.
pub(super) async fn update_runtime_config(
    shim: &Shim,
    request: UpdateRuntimeConfigRequest,
) -> Result<UpdateRuntimeConfigResponse, Error> {
    let network = request.runtime_config.unwrap_or_default().network_config;
    let text = network.unwrap_or_default().pod_cidr;
    let cidrs = pod_cidr::parse(&text)
        .map_err(|reason| Error::invalid("runtime_config.network_config.pod_cidr", reason))?;
    match &shim.cni {
        Some(cni) if !cidrs.is_empty() => cni.set_pod_cidrs(cidrs).await,
        _ => {}
    }
    Ok(UpdateRuntimeConfigResponse {})
}

/// `RuntimeConfig`.
///
/// # Errors
/// `Unavailable` until the engine has been reached once.
pub(super) fn runtime_config(shim: &Shim) -> Result<RuntimeConfigResponse, Error> {
    let driver = shim.engine.info()?.cgroup_driver;
    Ok(RuntimeConfigResponse {
        linux: Some(LinuxRuntimeConfiguration {
            cgroup_driver: driver.into(),
        }),
    })
}
