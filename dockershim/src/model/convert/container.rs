//! Conversion of the engine's containers to CRI's types.

use bollard::models::{
    ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum, HostConfig, MountPoint,
};
use cri_proto::runtime::v1::{
    self as cri, ContainerMetadata, ContainerResources, ContainerState, ContainerStatus, ImageSpec,
    LinuxContainerResources, Mount, MountPropagation,
};

use super::stop_signal;
use crate::{
    labels::{
        self, Author, Labels,
        image_mounts::{self, ImageMountsByPath},
        user::Identity,
    },
    model::{CANNOT_RUN, Container, OOM_KILLED},
    naming,
};

/// The overlay2 driver's key for a container's writable layer.
const UPPER_DIR: &str = "UpperDir";

/// Converts an inspect of a container that `author` created; `None` if its name is not a
/// container's. A `known` container keeps its metadata even if a user renames it.
pub fn from_inspect(
    inspect: ContainerInspectResponse,
    author: Author<'_>,
    known: Option<ContainerMetadata>,
) -> Option<Container> {
    let config = inspect.config?;
    let docker_labels = config.labels?;
    let read = Labels::new(&docker_labels, author);
    let metadata = match (read.name(), known) {
        (Some(name), _) => naming::parse_container_name(name)?,
        (None, Some(known)) => known,
        (None, None) => naming::parse_container_name(inspect.name.as_deref()?)?,
    };
    let (labels, annotations) = read.of_pod();
    let state = inspect.state.unwrap_or_default();
    let created_at = nanoseconds(inspect.created.as_deref()).unwrap_or_default();
    let exit_code = state.exit_code.unwrap_or_default();
    let lifecycle = Lifecycle::of(&state, created_at);
    let image_mounts = image_mounts::from_label(read.own(labels::IMAGE_MOUNTS));
    let recursive = recursively_read_only(inspect.host_config.as_ref());
    let cri_log = read.own(labels::LOG_FORMAT) == labels::LOG_FORMAT_CRI;
    // Compressed log files can be read only through the engine's API.
    let reads_api = cri_log && compresses_its_log(inspect.host_config.as_ref());
    Some(Container {
        status: ContainerStatus {
            id: inspect.id?,
            metadata: Some(metadata),
            state: lifecycle.state.into(),
            created_at,
            started_at: lifecycle.started_at,
            finished_at: lifecycle.finished_at,
            exit_code: i32::try_from(exit_code).unwrap_or(i32::MAX),
            image: Some(ImageSpec {
                image: config.image.unwrap_or_default(),
                user_specified_image: read.own(labels::USER_SPECIFIED_IMAGE).into(),
                ..Default::default()
            }),
            reason: lifecycle.reason.into(),
            message: lifecycle.message,
            labels,
            annotations,
            mounts: inspect
                .mounts
                .unwrap_or_default()
                .into_iter()
                .map(|point| mount(point, &image_mounts, &recursive))
                .collect(),
            log_path: read.own(labels::LOG_PATH).into(),
            resources: inspect.host_config.as_ref().map(resources),
            image_id: inspect.image.unwrap_or_default(),
            stop_signal: stop_signal::from_docker(config.stop_signal.as_deref()).into(),
            user: serde_json::from_str::<Identity>(read.own(labels::USER))
                .ok()
                .map(Identity::status),
            ..Default::default()
        },
        sandbox_id: read.own(labels::SANDBOX_ID).into(),
        docker_name: inspect.name.unwrap_or_default(),
        pid: state.pid.unwrap_or_default(),
        engine_log: inspect.log_path.filter(|_| !reads_api).unwrap_or_default(),
        cri_log,
        unified: labels::unified(read.own(labels::UNIFIED)),
        image_mounts,
        upper_dir: inspect
            .graph_driver
            .and_then(|mut driver| driver.data.remove(UPPER_DIR))
            .unwrap_or_default(),
        provisional: false,
    })
}

fn compresses_its_log(host: Option<&HostConfig>) -> bool {
    let log = host.and_then(|host| host.log_config.as_ref());
    let options = log.and_then(|log| log.config.as_ref());
    options.is_some_and(|options| options.get("compress").is_some_and(|value| value == "true"))
}

/// A container's state, and the details of its exit.
struct Lifecycle {
    state: ContainerState,
    started_at: i64,
    finished_at: i64,
    reason: &'static str,
    message: String,
}

impl Lifecycle {
    fn of(state: &bollard::models::ContainerState, created_at: i64) -> Self {
        let finished_at = nanoseconds(state.finished_at.as_deref());
        let exit_code = state.exit_code.unwrap_or_default();
        let mut lifecycle = Self {
            state: ContainerState::ContainerRunning,
            started_at: nanoseconds(state.started_at.as_deref()).unwrap_or_default(),
            finished_at: 0,
            reason: "",
            message: String::new(),
        };
        // A paused or restarting container counts as running, as with the engine.
        if state.running.unwrap_or_default() {
            return lifecycle;
        }
        lifecycle.message = state.error.clone().unwrap_or_default();
        lifecycle.state = ContainerState::ContainerExited;
        match finished_at {
            Some(finished_at) => {
                lifecycle.finished_at = finished_at;
                lifecycle.reason = match exit_code {
                    // A program that survives the OOM kill of a child process may still exit with
                    // 0.
                    _ if state.oom_killed.unwrap_or_default() => OOM_KILLED,
                    0 => "Completed",
                    _ => "Error",
                };
            }
            // The engine failed to start it.
            None if exit_code != 0 => {
                (lifecycle.started_at, lifecycle.finished_at) = (created_at, created_at);
                lifecycle.reason = CANNOT_RUN;
            }
            None => lifecycle.state = ContainerState::ContainerCreated,
        }
        lifecycle
    }
}

/// Converts an entry of the engine's list; `None` if its name is not a container's.
pub fn from_summary(summary: ContainerSummary) -> Option<Container> {
    let docker_name = summary.names?.into_iter().next()?;
    let metadata = naming::parse_container_name(&docker_name)?;
    let docker_labels = summary.labels?;
    let read = Labels::new(&docker_labels, Author::Other(None));
    let (labels, annotations) = read.of_pod();
    use ContainerSummaryStateEnum as Listed;
    let state = match summary.state {
        Some(Listed::CREATED) => ContainerState::ContainerCreated,
        Some(Listed::RUNNING | Listed::PAUSED | Listed::RESTARTING) => {
            ContainerState::ContainerRunning
        }
        Some(Listed::EXITED | Listed::DEAD | Listed::REMOVING) => ContainerState::ContainerExited,
        _ => ContainerState::ContainerUnknown,
    };
    Some(Container {
        status: ContainerStatus {
            id: summary.id?,
            metadata: Some(metadata),
            state: state.into(),
            created_at: summary.created.unwrap_or_default() * 1_000_000_000,
            image: Some(ImageSpec {
                image: summary.image.unwrap_or_default(),
                ..Default::default()
            }),
            image_id: summary.image_id.unwrap_or_default(),
            log_path: read.own(labels::LOG_PATH).into(),
            labels,
            annotations,
            ..Default::default()
        },
        sandbox_id: read.own(labels::SANDBOX_ID).into(),
        docker_name,
        pid: 0,
        engine_log: String::new(),
        cri_log: false,
        unified: Default::default(),
        // Untrusted, but a forged label can only keep images from being removed.
        image_mounts: docker_labels
            .get(labels::IMAGE_MOUNTS)
            .map(|json| image_mounts::from_label(json))
            .unwrap_or_default(),
        upper_dir: String::new(),
        provisional: true,
    })
}

/// A container's entry in `ListContainers`.
pub fn list_item(container: &Container) -> cri::Container {
    let status = &container.status;
    cri::Container {
        id: status.id.clone(),
        pod_sandbox_id: container.sandbox_id.clone(),
        metadata: status.metadata.clone(),
        image: status.image.clone(),
        image_ref: status.image_id.clone(),
        state: status.state,
        created_at: status.created_at,
        labels: status.labels.clone(),
        annotations: status.annotations.clone(),
        image_id: status.image_id.clone(),
    }
}

/// The container paths of mounts that are recursively read-only.
fn recursively_read_only(host: Option<&HostConfig>) -> Vec<String> {
    let mounts = host.and_then(|host| host.mounts.as_deref());
    mounts
        .unwrap_or_default()
        .iter()
        .filter(|mount| {
            let options = mount.bind_options.as_ref();
            options.and_then(|o| o.read_only_force_recursive) == Some(true)
        })
        .filter_map(|mount| mount.target.clone())
        .collect()
}

fn mount(point: MountPoint, images: &ImageMountsByPath, recursive: &[String]) -> Mount {
    let container_path = point.destination.unwrap_or_default();
    if let Some(image) = images.get(&container_path) {
        return image.status(container_path);
    }
    let propagation = match point.propagation.as_deref() {
        Some("rshared" | "shared") => MountPropagation::PropagationBidirectional,
        Some("rslave" | "slave") => MountPropagation::PropagationHostToContainer,
        _ => MountPropagation::PropagationPrivate,
    };
    Mount {
        recursive_read_only: recursive.contains(&container_path),
        container_path,
        host_path: point.source.unwrap_or_default(),
        readonly: !point.rw.unwrap_or(true),
        propagation: propagation.into(),
        ..Default::default()
    }
}

fn resources(host: &HostConfig) -> ContainerResources {
    ContainerResources {
        linux: Some(LinuxContainerResources {
            cpu_period: host.cpu_period.unwrap_or_default(),
            cpu_quota: host.cpu_quota.unwrap_or_default(),
            cpu_shares: host.cpu_shares.unwrap_or_default(),
            memory_limit_in_bytes: host.memory.unwrap_or_default(),
            oom_score_adj: host.oom_score_adj.unwrap_or_default(),
            cpuset_cpus: host.cpuset_cpus.clone().unwrap_or_default(),
            cpuset_mems: host.cpuset_mems.clone().unwrap_or_default(),
            memory_swap_limit_in_bytes: host.memory_swap.unwrap_or_default(),
            ..Default::default()
        }),
        windows: None,
    }
}

/// Parses the engine's RFC 3339 time to Unix time in nanoseconds; `None` for an unset time, which
/// the engine writes as the year 1.
pub fn nanoseconds(time: Option<&str>) -> Option<i64> {
    let time: jiff::Timestamp = time?.parse().ok()?;
    i64::try_from(time.as_nanosecond())
        .ok()
        .filter(|nanos| *nanos > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: &str = "0001-01-01T00:00:00Z";
    const START: &str = "2026-01-01T00:00:01.000000001Z";
    const END: &str = "2026-01-01T00:00:02Z";
    const CREATED: i64 = 7;

    fn lifecycle(running: bool, code: i64, started: &str, finished: &str, oom: bool) -> Lifecycle {
        let state = bollard::models::ContainerState {
            running: Some(running),
            exit_code: Some(code),
            started_at: Some(started.into()),
            finished_at: Some(finished.into()),
            oom_killed: Some(oom),
            error: Some("why".into()),
            ..Default::default()
        };
        Lifecycle::of(&state, CREATED)
    }

    #[test]
    fn a_containers_life() {
        use ContainerState::*;
        let cases = [
            (lifecycle(false, 0, ZERO, ZERO, false), ContainerCreated, ""),
            (lifecycle(true, 0, START, ZERO, false), ContainerRunning, ""),
            (
                lifecycle(false, 0, START, END, false),
                ContainerExited,
                "Completed",
            ),
            (
                lifecycle(false, 3, START, END, false),
                ContainerExited,
                "Error",
            ),
            (
                lifecycle(false, 137, START, END, true),
                ContainerExited,
                "OOMKilled",
            ),
            (
                lifecycle(false, 127, ZERO, ZERO, false),
                ContainerExited,
                "ContainerCannotRun",
            ),
        ];
        for (lifecycle, state, reason) in cases {
            assert_eq!((lifecycle.state, lifecycle.reason), (state, reason));
        }
        let failed = lifecycle(false, 127, ZERO, ZERO, false);
        assert_eq!((failed.started_at, failed.finished_at), (CREATED, CREATED));
        assert_eq!(failed.message, "why");
    }

    #[test]
    fn times() {
        assert_eq!(nanoseconds(Some(START)), Some(1_767_225_601_000_000_001));
        assert_eq!(
            nanoseconds(Some("2026-01-01T01:00:02+01:00")),
            Some(1_767_225_602_000_000_000)
        );
        for none in [Some(ZERO), Some("soon"), None] {
            assert_eq!(nanoseconds(none), None);
        }
    }
}
