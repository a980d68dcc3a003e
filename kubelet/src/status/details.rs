//! A container status apart from the state: resources, user and volume mounts.

use k8s_openapi::{
    api::core::v1::{
        Container, ContainerStatus, ContainerUser, LinuxContainerUser, ResourceRequirements,
        VolumeMountStatus,
    },
    apimachinery::pkg::api::resource::Quantity,
};
use kubelet_cri_client::pod_status::{self, ContainerState};
use kubelet_pod_spec::quantity::{self, NANOS};
use kubelet_runtime::resize::ResizeReport;

use super::{
    container_state::is_running,
    quantities::{self, ResourceList},
};

/// CPU limits up to this many millicores are equal to the kernel.
const MIN_CPU_LIMIT: i64 = 10;
/// CPU requests up to this many millicores are equal to the kernel.
const MIN_CPU_REQUEST: i64 = 2;

/// The container's allocated requests.
pub(super) fn allocated(container: &Container) -> Option<ResourceList> {
    let resources = quantities::canonical(container.resources.as_ref()?);
    resources.requests.filter(|list| !list.is_empty())
}

/// The container's actual resources: while it runs, as the runtime reports them; else the allocated
/// ones.
pub(super) fn resources(
    container: &Container,
    run: &pod_status::ContainerStatus,
    status: &ContainerStatus,
    old: Option<&ContainerStatus>,
    resize: Option<&ResizeReport>,
) -> ResourceRequirements {
    let granted = container.resources.as_ref();
    let mut resources = granted.map(quantities::canonical).unwrap_or_default();
    if run.state != ContainerState::Running {
        return resources;
    }
    let before = old
        .filter(|old| is_running(old) && old.container_id == status.container_id)
        .and_then(|old| old.resources.as_ref());
    let actuated = resize
        .and_then(|resize| resize.actuated.get(&run.id))
        .or(run.reported.made_for.as_ref());
    let now = Now::of(run, actuated);
    if let Some(limits) = &mut resources.limits {
        let before = before.and_then(|before| before.limits.as_ref());
        replace_cpu(limits, now.cpu_limit, MIN_CPU_LIMIT, before);
        replace(
            limits,
            "memory",
            now.memory_limit.map(quantities::bytes),
            before,
        );
    }
    if let Some(requests) = &mut resources.requests {
        let before = before.and_then(|before| before.requests.as_ref());
        replace_cpu(requests, now.cpu_request, MIN_CPU_REQUEST, before);
        replace(
            requests,
            "memory",
            now.memory_request.map(quantities::bytes),
            before,
        );
    }
    resources
}

/// The actual resources of a running container, where known: CPU in millicores, memory in bytes.
#[derive(Default)]
struct Now {
    cpu_request: Option<i64>,
    cpu_limit: Option<i64>,
    memory_request: Option<i64>,
    memory_limit: Option<i64>,
}

impl Now {
    /// From the runtime's report. If it reports none, the actuated resources are used; no runtime
    /// reports memory requests.
    fn of(run: &pod_status::ContainerStatus, actuated: Option<&ResourceRequirements>) -> Self {
        let amount = |list: fn(&ResourceRequirements) -> Option<&ResourceList>, name, by| {
            amount(actuated.and_then(list), name, by)
        };
        let memory_request = amount(|r| r.requests.as_ref(), "memory", NANOS);
        match run.reported.resources {
            Some(reported) => Self {
                cpu_request: reported.cpu_request,
                cpu_limit: reported.cpu_limit,
                memory_limit: reported.memory_limit,
                memory_request,
            },
            None => Self {
                cpu_request: amount(|r| r.requests.as_ref(), "cpu", NANOS / 1000),
                cpu_limit: amount(|r| r.limits.as_ref(), "cpu", NANOS / 1000),
                memory_limit: amount(|r| r.limits.as_ref(), "memory", NANOS),
                memory_request,
            },
        }
    }
}

fn amount(list: Option<&ResourceList>, name: &str, by: i128) -> Option<i64> {
    let nanos = quantity::parse(&list?.get(name)?.0).ok()?;
    i64::try_from(nanos / by).ok().filter(|amount| *amount > 0)
}

fn replace_cpu(
    list: &mut ResourceList,
    now: Option<i64>,
    least: i64,
    before: Option<&ResourceList>,
) {
    let Some(now) = now else {
        return replace(list, "cpu", None, before);
    };
    let granted = amount(Some(list), "cpu", NANOS / 1000).unwrap_or_default();
    if now > least || granted > least {
        list.insert("cpu".to_owned(), quantities::millis(now));
    }
}

/// An amount that is unknown now keeps its last reported value.
fn replace(
    list: &mut ResourceList,
    name: &str,
    now: Option<Quantity>,
    before: Option<&ResourceList>,
) {
    let now = now.or_else(|| before?.get(name).cloned());
    if let Some(now) = now {
        list.insert(name.to_owned(), now);
    }
}

/// The user of the container's first process.
pub(super) fn user(run: &pod_status::ContainerStatus) -> Option<ContainerUser> {
    let user = run.reported.user.as_ref()?;
    Some(ContainerUser {
        linux: user.linux.as_ref().map(|linux| LinuxContainerUser {
            uid: linux.uid,
            gid: linux.gid,
            supplemental_groups: (!linux.supplemental_groups.is_empty())
                .then(|| linux.supplemental_groups.clone()),
        }),
    })
}

/// The statuses of the volume mounts. Only the runtime knows whether a mount is recursively
/// read-only.
pub(super) fn volume_mounts(
    container: &Container,
    run: Option<&pod_status::ContainerStatus>,
) -> Option<Vec<VolumeMountStatus>> {
    let mounts = container.volume_mounts.as_ref().filter(|m| !m.is_empty())?;
    let in_depth =
        |path: &String| run.is_some_and(|r| r.reported.recursive_read_only.contains(path));
    let statuses = mounts.iter().map(|mount| {
        let read_only = mount.read_only == Some(true);
        let mode = if in_depth(&mount.mount_path) {
            "Enabled"
        } else {
            "Disabled"
        };
        VolumeMountStatus {
            name: mount.name.clone(),
            mount_path: mount.mount_path.clone(),
            read_only: read_only.then_some(true),
            recursive_read_only: read_only.then(|| mode.to_owned()),
            ..VolumeMountStatus::default()
        }
    });
    Some(statuses.collect())
}
