//! `CreateContainer`.

use std::{collections::HashMap, path::Path, sync::Arc};

use bollard::models::{
    ContainerCreateBody, HealthConfig, HostConfig, HostConfigLogConfig, RestartPolicy,
    RestartPolicyNameEnum,
};
use cri_proto::runtime::v1::{
    ContainerConfig, CreateContainerRequest, CreateContainerResponse, KeyValue,
    LinuxContainerSecurityContext, LinuxPodSandboxConfig, NamespaceMode, PodSandboxConfig,
    PodSandboxState,
};

use super::{devices, image_mounts, mounts, resources};
use crate::{
    Config, Error, LookupError, Shim,
    cgroup_parent::cgroup_parent,
    cgroup_settings::unified,
    config::{EngineLog, LogDriver, LogFormat},
    engine::{Connection, NewContainer},
    images::{Accounts, CachedImage},
    labels::{self, user::Identity},
    model::{Sandbox, convert::stop_signal},
    naming,
    security::{self, SecurityInputs, annotations},
    unused_image_mounts::unmount_unused,
};

/// Creates a container in a ready sandbox.
///
/// # Errors
/// `InvalidArgument` or `Unsupported` naming the field, `NotFound` for the sandbox or the image,
/// `AlreadyExists` if a container with this name is running, or the engine's error.
pub async fn create(
    shim: &Arc<Shim>,
    request: CreateContainerRequest,
) -> Result<CreateContainerResponse, Error> {
    let config = request
        .config
        .ok_or_else(|| Error::invalid("config", "must be set"))?;
    let sandbox = shim.find_sandbox(&request.pod_sandbox_id).await?;
    if sandbox.status.state() != PodSandboxState::SandboxReady {
        return Err(Error::FailedPrecondition(format!(
            "sandbox {} is not ready",
            sandbox.id()
        )));
    }
    let metadata = config.metadata.clone().unwrap_or_default();
    let pod = sandbox.status.metadata.clone().unwrap_or_default();
    let name = naming::container_name(&pod, &metadata)?;
    let _reserved = shim.names.reserve(&name)?;
    let engine = shim.engine.connection()?;
    let pod_config = request.sandbox_config.unwrap_or_default();
    let mounts_images = config.mounts.iter().any(image_mounts::is_image_mount);
    let created = async {
        // A creation that hangs blocks only others that also mount images.
        let _mounted = if mounts_images {
            Some(shim.image_mounts.hold().await)
        } else {
            None
        };
        let sub_paths = image_mounts::engine_sub_paths(&engine, &config.mounts);
        let body = create_body(shim, &engine, &sandbox, config, pod_config).await?;
        create_known(shim, NewContainer { name, body }, &sub_paths).await
    }
    .await;
    if created.is_err() && mounts_images {
        // No container removal will unmount the images, so do it here.
        let shim = Arc::clone(shim);
        tokio::spawn(async move { unmount_unused(&shim.image_mounts, &shim.model).await });
    }
    let container_id = created?;
    Ok(CreateContainerResponse { container_id })
}

/// Creates a container with these image parts mounted, and adds it to the model.
async fn create_known(
    shim: &Shim,
    new: NewContainer,
    sub_paths: &[image_mounts::SubPathMount],
) -> Result<String, Error> {
    let container_id = create_named(shim, new).await?;
    let checked = match image_mounts::check_sub_paths(shim, &container_id, sub_paths).await {
        Ok(()) => shim
            .inspector
            .refresh(&container_id)
            .await
            .map_err(Error::from),
        Err(error) => Err(error.of_image_mount()),
    };
    if let Err(error) = checked {
        // The container is unusable or unknown, and must not keep its name.
        match shim.engine.remove_container(&container_id, true).await {
            Err(error) if !error.is_not_found() => {
                tracing::warn!(container_id, %error, "cannot remove a partially created container");
                shim.names.mark_failed(&container_id);
            }
            _ => shim.inspector.removed(&container_id),
        }
        return Err(error);
    }
    Ok(container_id)
}

/// Creates a container under its Docker name. If a stopped container from an earlier attempt has
/// the name, it is removed first.
///
/// # Errors
/// `AlreadyExists` if a running container has the name, or the engine's error.
pub(crate) async fn create_named(shim: &Shim, mut new: NewContainer) -> Result<String, Error> {
    let conflict = match shim.engine.create_container(new.clone()).await {
        Err(error) if error.is_conflict() => error,
        other => return Ok(other?),
    };
    match shim.engine.inspect_container(&new.name).await {
        Ok(found) => {
            let id = found.id.unwrap_or_default();
            let running = found
                .state
                .and_then(|state| state.running)
                .unwrap_or_default();
            if running {
                return Err(Error::AlreadyExists(format!(
                    "{:?} already exists and is running as {id}",
                    new.name
                )));
            }
            tracing::info!(
                name = new.name,
                container_id = id,
                "removing a leftover container with this name"
            );
            match shim.engine.remove_container(&id, false).await {
                Err(error) if !error.is_not_found() => return Err(error.into()),
                _ => shim.inspector.removed(&id),
            }
        }
        // After a crash, the engine may reserve the name of a container that no longer exists. Only
        // another name helps, so add a random suffix.
        Err(error) if error.is_not_found() => {
            tracing::warn!(
                name = new.name,
                %conflict,
                "the engine reserves the name of a container that no longer exists; using another \
                 name"
            );
            let nanos = jiff::Timestamp::now().subsec_nanosecond().unsigned_abs();
            new.name = format!("{}_{nanos:08x}", new.name);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(shim.engine.create_container(new).await?)
}

async fn create_body(
    shim: &Shim,
    engine: &Connection,
    sandbox: &Sandbox,
    config: ContainerConfig,
    pod: PodSandboxConfig,
) -> Result<ContainerCreateBody, Error> {
    refuse_unsupported(&config)?;
    let stop_signal = stop_signal::to_docker(config.stop_signal());
    let (known, user_specified_image) = find_image(shim, &config).await?;
    let image = known.image.id.clone();
    let mut docker_labels = docker_labels(
        shim,
        sandbox,
        &config,
        user_specified_image,
        &pod.log_directory,
    )?;
    let linux = config.linux.unwrap_or_default();
    let context = linux.security_context;
    let identity = identity(shim, context.as_ref(), &known).await?;
    docker_labels.insert(labels::USER.into(), serde_json::json!(identity).to_string());
    let mut host = HostConfig {
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        log_config: log_config(&shim.config),
        runtime: Some(sandbox.runtime.clone()).filter(|runtime| !runtime.is_empty()),
        devices: Some(devices::of_node(config.devices)?),
        device_requests: Some(devices::cdi(
            config.cdi_devices,
            &config.annotations,
            engine,
        )?),
        group_add: Some(identity.groups()),
        cgroup_parent: pod_cgroup(engine, sandbox, pod.linux)?,
        annotations: annotations(
            engine,
            &sandbox.status.runtime_handler,
            &sandbox.status.annotations,
        ),
        ..Default::default()
    };
    if let Some(limits) = linux.resources {
        host.oom_score_adj = Some(shim.oom_score.fit(limits.oom_score_adj, engine));
        docker_labels.extend(unified::label(&resources::apply(limits, &mut host))?);
    }
    let mut body = ContainerCreateBody {
        image: Some(image),
        user: Some(identity.user()),
        entrypoint: given(config.command),
        cmd: given(config.args),
        env: Some(environment(config.envs)),
        working_dir: Some(config.working_dir).filter(|directory| !directory.is_empty()),
        labels: Some(docker_labels),
        open_stdin: Some(config.stdin),
        stdin_once: Some(config.stdin_once),
        tty: Some(config.tty),
        stop_signal,
        // The kubelet runs the probes.
        healthcheck: Some(HealthConfig {
            test: Some(vec!["NONE".into()]),
            ..Default::default()
        }),
        ..Default::default()
    };
    let target = find_target(shim, sandbox, context.as_ref())?;
    let relabel = context
        .as_ref()
        .is_some_and(|c| c.selinux_options.is_some());
    let handler = &sandbox.status.runtime_handler;
    let images =
        mounts::apply_mounts(shim, config.mounts, relabel, engine, handler, &mut host).await?;
    if let Some(labels) = &mut body.labels {
        labels.extend(labels::image_mounts::label(&images));
    }
    let inputs = SecurityInputs {
        sandbox: sandbox.id(),
        target: target.as_deref(),
        capabilities: security::available_capabilities(engine),
    };
    security::apply_to_container(context, inputs, &mut host).await?;
    body.host_config = Some(host);
    Ok(body)
}

fn refuse_unsupported(config: &ContainerConfig) -> Result<(), Error> {
    if config.windows.is_some() {
        return Err(Error::unsupported(
            "config.windows",
            "this is a Linux runtime",
        ));
    }
    Ok(())
}

/// The image, and its name as written in the pod spec. The engine gets the image's id, because a
/// name could meanwhile refer to another image.
async fn find_image(
    shim: &Shim,
    config: &ContainerConfig,
) -> Result<(Arc<CachedImage>, String), Error> {
    let spec = config.image.clone().unwrap_or_default();
    if spec.image.is_empty() {
        return Err(Error::invalid("config.image.image", "must not be empty"));
    }
    let known = shim
        .images
        .get_or_inspect(&shim.engine, &spec.image)
        .await?;
    let written = match spec.user_specified_image {
        none if none.is_empty() => spec.image,
        some => some,
    };
    Ok((known, written))
}

/// The labels that follow from the request alone.
fn docker_labels(
    shim: &Shim,
    sandbox: &Sandbox,
    config: &ContainerConfig,
    user_specified_image: String,
    log_directory: &str,
) -> Result<HashMap<String, String>, Error> {
    let mut docker_labels =
        labels::to_docker(labels::TYPE_CONTAINER, &config.labels, &config.annotations);
    docker_labels.insert(labels::SANDBOX_ID.into(), sandbox.id().into());
    docker_labels.insert(labels::USER_SPECIFIED_IMAGE.into(), user_specified_image);
    docker_labels.insert(
        labels::LOG_PATH.into(),
        log_path(log_directory, &config.log_path)?,
    );
    if shim.config.log_format == LogFormat::Cri {
        docker_labels.insert(labels::LOG_FORMAT.into(), labels::LOG_FORMAT_CRI.into());
    }
    Ok(docker_labels)
}

/// The user and groups of the container's processes.
async fn identity(
    shim: &Shim,
    context: Option<&LinuxContainerSecurityContext>,
    known: &CachedImage,
) -> Result<Identity, Error> {
    // `Images::get_or_inspect` always sets the user.
    let image_user = known.user.as_deref().unwrap_or_default();
    let context = context.cloned().unwrap_or_default();
    let accounts = if Identity::needs_accounts(&context, image_user) {
        let accounts = shim
            .accounts
            .of(&shim.engine, &shim.images, &known.image.id);
        accounts.await?
    } else {
        Accounts::default()
    };
    Identity::resolve(&context, image_user, &accounts)
}

/// The pod's cgroup in the engine's notation: the one in the request, else the sandbox's.
fn pod_cgroup(
    engine: &Connection,
    sandbox: &Sandbox,
    pod: Option<LinuxPodSandboxConfig>,
) -> Result<Option<String>, Error> {
    match pod {
        Some(pod) if !pod.cgroup_parent.is_empty() => {
            cgroup_parent(engine.info.cgroup_driver, &pod.cgroup_parent)
        }
        _ => Ok(Some(sandbox.cgroup_parent.clone()).filter(|parent| !parent.is_empty())),
    }
}

/// The full id of the container whose PID namespace is joined, if any.
fn find_target(
    shim: &Shim,
    sandbox: &Sandbox,
    context: Option<&LinuxContainerSecurityContext>,
) -> Result<Option<String>, Error> {
    const FIELD: &str = "config.linux.security_context.namespace_options.target_id";
    let options = context.and_then(|context| context.namespace_options.as_ref());
    let Some(options) = options.filter(|options| options.pid() == NamespaceMode::Target) else {
        return Ok(None);
    };
    let id = options.target_id.as_str();
    let target = shim.model.snapshot().container(id);
    let target = target.map_err(|error| match error {
        LookupError::Missing => Error::invalid(FIELD, format!("no such container: {id:?}")),
        LookupError::Ambiguous => error.of("container", id),
    })?;
    if target.sandbox_id != sandbox.id() {
        return Err(Error::invalid(FIELD, format!("{id:?} is in another pod")));
    }
    Ok(Some(target.id().to_owned()))
}

/// The log driver's configuration: json-file regardless of the engine's default, because the shim
/// converts its files; `None` leaves the choice to the engine. Files that the shim converts to
/// CRI's format are bounded; a file that is the log itself has the bounds of the engine's own
/// options.
fn log_config(config: &Config) -> Option<HostConfigLogConfig> {
    let EngineLog { max_size, max_file } = &config.engine_log;
    let bounds = || {
        [
            ("max-size", max_size.clone()),
            ("max-file", max_file.to_string()),
            ("compress", "false".to_owned()),
        ]
    };
    let options = match (config.log_driver, config.log_format) {
        (LogDriver::Engine, _) => return None,
        (LogDriver::JsonFile, LogFormat::Cri) => Some(bounds().map(|(k, v)| (k.into(), v)).into()),
        (LogDriver::JsonFile, LogFormat::JsonFile) => None,
    };
    Some(HostConfigLogConfig {
        typ: Some("json-file".into()),
        config: options,
    })
}

fn log_path(directory: &str, path: &str) -> Result<String, Error> {
    if directory.is_empty() || path.is_empty() {
        return Ok(String::new());
    }
    let inside = Path::new(path)
        .components()
        .all(|component| matches!(component, std::path::Component::Normal(_)));
    if !inside {
        return Err(Error::invalid(
            "config.log_path",
            format!("{path:?} is outside the pod's log directory"),
        ));
    }
    Ok(Path::new(directory)
        .join(path)
        .to_string_lossy()
        .into_owned())
}

/// Bytes that are not UTF-8 are replaced, because the engine's API is JSON; as with cri-dockerd.
fn environment(envs: Vec<KeyValue>) -> Vec<String> {
    let envs = envs.into_iter();
    envs.map(|env| format!("{}={}", env.key, String::from_utf8_lossy(&env.value)))
        .collect()
}

/// The image's default if nothing is given.
fn given(words: Vec<String>) -> Option<Vec<String>> {
    (!words.is_empty()).then_some(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_stays_in_its_directory() {
        assert_eq!(
            log_path("/var/log/pods/p", "app/0.log").unwrap(),
            "/var/log/pods/p/app/0.log"
        );
        assert_eq!(log_path("", "app/0.log").unwrap(), "");
        for bad in ["../x", "/etc/passwd", "a/../../x"] {
            assert!(log_path("/var/log/pods/p", bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_variable_that_is_no_text_becomes_one() {
        let env = |value: &[u8]| KeyValue {
            key: "K".into(),
            value: value.to_vec(),
        };
        let texts = environment(vec![env(b"a=b"), env(b"\xffb")]);
        assert_eq!(texts, ["K=a=b", "K=\u{FFFD}b"]);
    }
}
