//! Slices of systemd over D-Bus, see org.freedesktop.systemd1(5) and systemd.resource-control(5).

use std::time::Duration;

use futures::StreamExt as _;
use kubelet_pod_spec::cpu;
use tokio::time::timeout;
use zbus::{Connection, OwnedObjectPath, Variant, connection::Builder};

use super::{CgroupError, config::CgroupConfig, name::CgroupName};

/// Deadline of a call.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Deadline of a job, as runc.
const JOB_TIMEOUT: Duration = Duration::from_secs(30);
/// A new job replaces one that contradicts it.
const MODE: &str = "replace";
/// No limit.
const INFINITY: u64 = u64::MAX;
const UNIT_EXISTS: &str = "org.freedesktop.systemd1.UnitExists";
const NO_SUCH_UNIT: &str = "org.freedesktop.systemd1.NoSuchUnit";
/// systemd rounds CPU quotas to this many microseconds per second.
const QUOTA_STEP: u64 = 10_000;
const MICROS_PER_SECOND: u64 = 1_000_000;
/// What systemd measures in a slice, which has the files of the controllers.
const ACCOUNTING: [&str; 4] = [
    "MemoryAccounting",
    "CPUAccounting",
    "IOAccounting",
    "TasksAccounting",
];

type Properties<'a> = Vec<(&'a str, Variant<'a>)>;

#[zbus::proxy(
    interface = "org.freedesktop.systemd1.Manager",
    default_service = "org.freedesktop.systemd1",
    default_path = "/org/freedesktop/systemd1"
)]
trait Manager {
    fn start_transient_unit(
        &self,
        name: &str,
        mode: &str,
        properties: &[(&str, Variant<'_>)],
        aux: &[(&str, Vec<(&str, Variant<'_>)>)],
    ) -> zbus::Result<OwnedObjectPath>;

    fn set_unit_properties(
        &self,
        name: &str,
        runtime: bool,
        properties: &[(&str, Variant<'_>)],
    ) -> zbus::Result<()>;

    fn stop_unit(&self, name: &str, mode: &str) -> zbus::Result<OwnedObjectPath>;

    fn reset_failed_unit(&self, name: &str) -> zbus::Result<()>;

    fn subscribe(&self) -> zbus::Result<()>;

    #[zbus(signal)]
    fn job_removed(
        &self,
        id: u32,
        job: OwnedObjectPath,
        unit: String,
        result: String,
    ) -> zbus::Result<()>;
}

/// Creates a slice, unless it exists. systemd creates those above it.
///
/// # Errors
/// systemd cannot be reached, or refuses.
pub(super) async fn start(name: &CgroupName) -> Result<(), CgroupError> {
    let unit = name.slice()?;
    let Some(parent) = name.parent() else {
        return Ok(());
    };
    let parent = parent.slice()?;
    let action = "create";
    let failed = |source| systemd_error(action, &unit, source);
    let manager = connect().await?;
    let mut removed = manager.receive_job_removed().await.map_err(failed)?;
    let mut properties: Properties<'_> = vec![
        ("Description", format!("Kubernetes pods ({unit})").into()),
        ("Wants", vec![parent].into()),
        ("DefaultDependencies", false.into()),
    ];
    properties.extend(ACCOUNTING.map(|property| (property, true.into())));
    let starting = manager.start_transient_unit(&unit, MODE, &properties, &[]);
    let job = match starting.await {
        Err(error) if is(&error, UNIT_EXISTS) => return Ok(()),
        job => job.map_err(failed)?,
    };
    match finish(&mut removed, &job).await.as_deref() {
        Some("done") => Ok(()),
        result => {
            let result = result.unwrap_or("no answer in time").to_owned();
            let _ = manager.reset_failed_unit(&unit).await;
            Err(CgroupError::Job {
                action,
                unit,
                result,
            })
        }
    }
}

/// Sets the limits of a slice. systemd would restore its own ones when it reloads its
/// configuration.
///
/// # Errors
/// systemd cannot be reached, or refuses.
pub(super) async fn set(
    name: &CgroupName,
    config: &CgroupConfig,
    is_v2: bool,
) -> Result<(), CgroupError> {
    let properties = properties(config, is_v2);
    if properties.is_empty() || name.is_root() {
        return Ok(());
    }
    let unit = name.slice()?;
    let manager = connect().await?;
    let setting = manager.set_unit_properties(&unit, true, &properties);
    setting
        .await
        .map_err(|source| systemd_error("limit", &unit, source))
}

/// Ends a slice. Does nothing if there is none.
///
/// # Errors
/// systemd cannot be reached, or refuses.
pub(super) async fn stop(name: &CgroupName) -> Result<(), CgroupError> {
    let unit = name.slice()?;
    let failed = |source| systemd_error("stop", &unit, source);
    let manager = connect().await?;
    let mut removed = manager.receive_job_removed().await.map_err(failed)?;
    match manager.stop_unit(&unit, MODE).await {
        Err(error) if is(&error, NO_SUCH_UNIT) => return Ok(()),
        Err(error) => return Err(failed(error)),
        // What is left in the slice after the deadline is removed through its files.
        Ok(job) => finish(&mut removed, &job).await,
    };
    // Only a failed unit is still there.
    let _ = manager.reset_failed_unit(&unit).await;
    Ok(())
}

/// A connection for one operation: pods start seldom, and systemd may be restarted in between.
async fn connect() -> Result<ManagerProxy<'static>, CgroupError> {
    let connecting = async {
        let builder = Builder::system().method_timeout(CALL_TIMEOUT);
        let connection: Connection = builder.build().await?;
        let manager = ManagerProxy::new(&connection).await?;
        // Without subscribers, systemd does not announce the ends of jobs.
        manager.subscribe().await?;
        Ok(manager)
    };
    let connected = timeout(CALL_TIMEOUT, connecting)
        .await
        .unwrap_or_else(|elapsed| Err(std::io::Error::from(elapsed).into()));
    connected.map_err(|source| systemd_error("reach", "systemd", source))
}

/// The result of a job, once it ends; `None` if it does not in time.
async fn finish(removed: &mut JobRemovedStream, job: &OwnedObjectPath) -> Option<String> {
    let waiting = async {
        while let Some(signal) = removed.next().await {
            if let Ok(arguments) = signal.args()
                && arguments.job == *job
            {
                return Some(arguments.result.clone());
            }
        }
        None
    };
    timeout(JOB_TIMEOUT, waiting).await.ok().flatten()
}

fn systemd_error(action: &'static str, unit: &str, source: zbus::Error) -> CgroupError {
    CgroupError::Systemd {
        action,
        unit: unit.to_owned(),
        source: Box::new(source),
    }
}

fn is(error: &zbus::Error, name: &str) -> bool {
    matches!(error, zbus::Error::MethodError(found, _, _) if found.as_str() == name)
}

/// The properties for limits. systemd writes the files of those; the others have none.
fn properties(config: &CgroupConfig, is_v2: bool) -> Properties<'static> {
    let mut properties = Properties::new();
    if let Some(shares) = config.cpu_shares {
        let (property, value) = if is_v2 {
            ("CPUWeight", cpu::weight(shares))
        } else {
            ("CPUShares", shares)
        };
        properties.push((property, positive(value).into()));
    }
    if let Some(period) = config.cpu_period.map(positive).filter(|period| *period > 0) {
        properties.push(("CPUQuotaPeriodUSec", period.into()));
    }
    if let Some(quota) = config.cpu_quota {
        let period = config.cpu_period.map_or(100_000, positive).max(1);
        let per_second = match u64::try_from(quota) {
            Ok(quota) if quota > 0 => {
                let per_second = quota.saturating_mul(MICROS_PER_SECOND) / period;
                per_second.next_multiple_of(QUOTA_STEP)
            }
            _ => INFINITY,
        };
        properties.push(("CPUQuotaPerSecUSec", per_second.into()));
    }
    if let Some(memory) = config.memory.filter(|memory| *memory != 0) {
        let property = if is_v2 { "MemoryMax" } else { "MemoryLimit" };
        properties.push((property, limit(memory).into()));
    }
    if let Some(pids) = config.pids {
        // systemd has no limit of 0.
        properties.push(("TasksMax", limit(pids).max(1).into()));
    }
    for (file, value) in config.unified.iter().filter(|_| is_v2) {
        let property = match *file {
            "memory.min" => "MemoryMin",
            "memory.low" => "MemoryLow",
            "memory.high" => "MemoryHigh",
            _ => continue,
        };
        let value = if value == "max" {
            INFINITY
        } else {
            value.parse().unwrap_or_default()
        };
        properties.push((property, value.into()));
    }
    properties
}

fn positive(value: i64) -> u64 {
    u64::try_from(value).unwrap_or_default()
}

fn limit(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(INFINITY)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(config: &CgroupConfig, is_v2: bool) -> Vec<String> {
        properties(config, is_v2)
            .iter()
            .map(|(property, value)| match value {
                Variant::U64(value) if *value == INFINITY => format!("{property}=infinity"),
                Variant::U64(value) => format!("{property}={value}"),
                other => format!("{property}: {other:?}"),
            })
            .collect()
    }

    #[test]
    fn limits_are_properties() {
        let config = CgroupConfig {
            cpu_shares: Some(1024),
            cpu_quota: Some(12_345),
            cpu_period: Some(100_000),
            memory: Some(1 << 20),
            pids: Some(0),
            huge_pages: Some([(2 << 20, 0)].into()),
            unified: [
                ("memory.low", "7".to_owned()),
                ("memory.oom.group", "1".to_owned()),
            ]
            .into(),
        };
        assert_eq!(
            shown(&config, true),
            [
                "CPUWeight=39",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=130000",
                "MemoryMax=1048576",
                "TasksMax=1",
                "MemoryLow=7",
            ]
        );
        assert_eq!(
            shown(&config, false),
            [
                "CPUShares=1024",
                "CPUQuotaPeriodUSec=100000",
                "CPUQuotaPerSecUSec=130000",
                "MemoryLimit=1048576",
                "TasksMax=1",
            ]
        );
    }

    #[test]
    fn no_limit_is_infinity() {
        let config = CgroupConfig {
            cpu_quota: Some(-1),
            memory: Some(-1),
            pids: Some(-1),
            ..CgroupConfig::default()
        };
        assert_eq!(
            shown(&config, true),
            [
                "CPUQuotaPerSecUSec=infinity",
                "MemoryMax=infinity",
                "TasksMax=infinity"
            ]
        );
        assert!(properties(&CgroupConfig::default(), true).is_empty());
    }
}
