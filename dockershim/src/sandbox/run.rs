//! `RunPodSandbox`.

use std::{path::Path, sync::Arc};

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, RestartPolicy, RestartPolicyNameEnum,
};
use cri_proto::runtime::v1::{
    NamespaceMode, PodSandboxConfig, RunPodSandboxRequest, RunPodSandboxResponse,
};

use crate::{
    Error, Shim,
    cgroup_parent::cgroup_parent,
    container::create::create_named,
    engine::{Connection, NewContainer, is_default_handler},
    image::pause,
    labels, naming,
    network::{
        bandwidth::Limits,
        cni::{self, Cni, NetNs, Pod, capabilities},
        docker,
    },
    security::{self, annotations},
};

/// Arguments for the CNI plugins, by capability.
type Arguments = serde_json::Map<String, serde_json::Value>;

/// The sandbox's `oom_score_adj`, so that it is the last process of its pod to be OOM-killed.
const OOM_SCORE_ADJ: i64 = -998;
/// The sandbox's CPU shares, the minimum.
const CPU_SHARES: i64 = 2;
/// The maximum length of a Linux hostname.
const MAX_HOSTNAME: usize = 64;

/// Creates and starts a sandbox; removes it again on failure.
///
/// # Errors
/// `InvalidArgument` or `Unsupported` naming the field, `AlreadyExists` if a sandbox with this name
/// is running, `FailedPrecondition` while there is no pod network, or the error of the engine or a
/// CNI plugin.
pub async fn run(
    shim: &Arc<Shim>,
    request: RunPodSandboxRequest,
) -> Result<RunPodSandboxResponse, Error> {
    let config = request
        .config
        .ok_or_else(|| Error::invalid("config", "must be set"))?;
    let metadata = config.metadata.clone().unwrap_or_default();
    let name = naming::sandbox_name(&metadata)?;
    let _reserved = shim.names.reserve(&name)?;
    let mut engine = shim.engine.connection()?;
    if !engine.info.runtimes.has(&request.runtime_handler) {
        // It may have been added since.
        engine = shim.engine.refresh_info().await?;
    }
    let cni = plan_network(shim, &config).await?;
    let on_bridge = shim.cni.is_none() && network_mode(&config) == NamespaceMode::Pod;
    if on_bridge {
        // A wrong one is refused before anything is created.
        Limits::of(&config.annotations)?;
    }
    let log_directory = config.log_directory.clone();
    let mut new = NewContainer {
        name,
        body: create_body(config, &request.runtime_handler, &engine, cni.is_some())?,
    };
    make_log_directory(&log_directory).await?;
    take_image(shim, &mut new).await?;

    fit_oom_score(shim, &mut new, &engine);
    let mut started = create_and_start(shim, new.clone()).await;
    if let Err(Error::Engine(error)) = &started
        && error.is_not_found()
    {
        // The image was pruned, and the image list does not reflect that yet.
        shim.images.refresh(&shim.engine).await?;
        take_image(shim, &mut new).await?;
        started = create_and_start(shim, new.clone()).await;
    }
    if let Err(Error::Engine(error)) = &started
        && shim.oom_score.learn(error)
    {
        fit_oom_score(shim, &mut new, &engine);
        started = create_and_start(shim, new).await;
    }
    let pod_sandbox_id = started?;
    if let Some((cni, arguments)) = cni
        && let Err(error) = attach(shim, cni, &pod_sandbox_id, arguments).await
    {
        undo(shim, &pod_sandbox_id).await;
        return Err(error);
    }
    if on_bridge && let Ok(sandbox) = shim.model.snapshot().sandbox(&pod_sandbox_id) {
        shim.hairpin.set(&pod_sandbox_id, sandbox.pid).await;
        if let Err(error) = shim.shaping.set(&sandbox).await {
            undo(shim, &pod_sandbox_id).await;
            return Err(error);
        }
    }
    Ok(RunPodSandboxResponse { pod_sandbox_id })
}

/// Sets the pause image, which is loaded or pulled if it is missing.
async fn take_image(shim: &Arc<Shim>, new: &mut NewContainer) -> Result<(), Error> {
    new.body.image = Some(pause::ensure(shim).await?);
    Ok(())
}

/// The CNI plugins and their arguments by capability for a sandbox with this configuration; `None`
/// if the engine provides the network, or the pod uses the host network.
async fn plan_network<'a>(
    shim: &'a Shim,
    config: &PodSandboxConfig,
) -> Result<Option<(&'a Cni, Arguments)>, Error> {
    let Some(cni) = &shim.cni else {
        return Ok(None);
    };
    if network_mode(config) == NamespaceMode::Node {
        return Ok(None);
    }
    cni.network().await?;
    let arguments = capabilities::of(config, &cni.pod_cidrs())?;
    Ok(Some((cni, arguments)))
}

async fn attach(shim: &Shim, cni: &Cni, id: &str, arguments: Arguments) -> Result<(), Error> {
    let sandbox = shim.find_sandbox(id).await?;
    let netns = NetNs::of(&shim.processes, &sandbox).await?;
    Ok(cni.attach(&Pod::of(&sandbox), &netns, arguments).await?)
}

fn network_mode(config: &PodSandboxConfig) -> NamespaceMode {
    let context = config
        .linux
        .as_ref()
        .and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    options.map_or(NamespaceMode::Pod, |options| options.network())
}

async fn create_and_start(shim: &Shim, new: NewContainer) -> Result<String, Error> {
    let id = create_named(shim, new).await?;
    let started = async {
        shim.engine.start_container(&id).await?;
        shim.inspector.refresh(&id).await
    };
    if let Err(error) = started.await {
        undo(shim, &id).await;
        return Err(error.into());
    }
    Ok(id)
}

async fn undo(shim: &Shim, id: &str) {
    match shim.engine.remove_container(id, true).await {
        Err(error) if !error.is_not_found() => {
            tracing::warn!(sandbox_id = id, %error, "cannot remove a sandbox that failed to start");
            shim.names.mark_failed(id);
            shim.refresher.enqueue(id.into());
        }
        _ => shim.inspector.removed(id),
    }
}

fn fit_oom_score(shim: &Shim, new: &mut NewContainer, engine: &Connection) {
    if let Some(host) = &mut new.body.host_config {
        host.oom_score_adj = Some(shim.oom_score.fit(OOM_SCORE_ADJ, engine));
    }
}

fn create_body(
    config: PodSandboxConfig,
    runtime_handler: &str,
    engine: &Connection,
    cni: bool,
) -> Result<ContainerCreateBody, Error> {
    if config.windows.is_some() {
        return Err(Error::unsupported(
            "config.windows",
            "this is a Linux runtime",
        ));
    }
    if config.hostname.len() > MAX_HOSTNAME {
        let reason = format!("{:?} is longer than {MAX_HOSTNAME} bytes", config.hostname);
        return Err(Error::invalid("config.hostname", reason));
    }
    let mut docker_labels =
        labels::to_docker(labels::TYPE_SANDBOX, &config.labels, &config.annotations);
    docker_labels.insert(labels::RUNTIME_HANDLER.into(), runtime_handler.into());
    let network = network_mode(&config);
    // `linux.overhead` and `linux.resources` size the virtual machine of VM-based runtimes; they
    // are not limits.
    let linux = config.linux.unwrap_or_default();
    let context = linux.security_context.unwrap_or_default();
    let mut body = ContainerCreateBody {
        labels: Some(docker_labels),
        ..Default::default()
    };
    let mut host = HostConfig {
        cgroup_parent: cgroup_parent(engine.info.cgroup_driver, &linux.cgroup_parent)?,
        cpu_shares: Some(CPU_SHARES),
        sysctls: Some(linux.sysctls.into_iter().collect()),
        runtime: runtime(runtime_handler, engine)?,
        annotations: annotations(engine, runtime_handler, &config.annotations),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        // The pause program writes no output.
        log_config: Some(HostConfigLogConfig {
            typ: Some("none".into()),
            config: None,
        }),
        ..Default::default()
    };
    security::apply_to_sandbox(context, &mut body, &mut host)?;
    if cni {
        cni::apply(config.hostname, config.dns_config, &mut body, &mut host);
    } else {
        docker::apply(
            network,
            config.hostname,
            &config.port_mappings,
            config.dns_config,
            &mut body,
            &mut host,
        )?;
    }
    body.host_config = Some(host);
    Ok(body)
}

fn runtime(handler: &str, engine: &Connection) -> Result<Option<String>, Error> {
    if is_default_handler(handler) {
        return Ok(None);
    }
    if engine.info.runtimes.has(handler) {
        return Ok(Some(handler.to_owned()));
    }
    Err(Error::invalid(
        "runtime_handler",
        format!(
            "{handler:?}; available in the engine: {}",
            engine.info.runtimes.names().collect::<Vec<_>>().join(", ")
        ),
    ))
}

async fn make_log_directory(directory: &str) -> Result<(), Error> {
    if directory.is_empty() {
        return Ok(());
    }
    if !Path::new(directory).is_absolute() {
        let reason = format!("{directory:?} is not an absolute path");
        return Err(Error::invalid("config.log_directory", reason));
    }
    tokio::fs::create_dir_all(directory)
        .await
        .map_err(|source| Error::File {
            action: "create the log directory",
            path: directory.into(),
            source,
        })
}
