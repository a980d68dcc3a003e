//! The flags that say how many dead containers are kept.

use clap::ArgMatches;
use go_duration::GoDuration;
use kubelet_garbage_collector::ContainerGcOptions;
use serde_json::Value;

pub(super) fn options(matches: &ArgMatches) -> Result<ContainerGcOptions, String> {
    let number = |name: &str, default: i32| {
        let Some(number) = matches.get_one::<Value>(name).and_then(Value::as_i64) else {
            return Ok(default);
        };
        i32::try_from(number).map_err(|_| format!("--{name}: {number} is too large"))
    };
    let default = ContainerGcOptions::default();
    let name = "minimum-container-ttl-duration";
    let age = matches.get_one::<Value>(name).and_then(Value::as_str);
    let age = age.and_then(|text| text.parse::<GoDuration>().ok());
    Ok(ContainerGcOptions {
        min_age: match age.map(GoDuration::to_std) {
            None => default.min_age,
            Some(Some(age)) => age,
            Some(None) => return Err(format!("--{name}: must not be negative")),
        },
        max_per_pod_container: number(
            "maximum-dead-containers-per-container",
            default.max_per_pod_container,
        )?,
        max_containers: number("maximum-dead-containers", default.max_containers)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Command, parse};

    fn error(flag: &str) -> String {
        parse(["kubelet", flag]).unwrap_err().to_string()
    }

    #[test]
    fn dead_containers() {
        let Ok(Command::Run(flags)) = parse([
            "kubelet",
            "--minimum-container-ttl-duration=1m",
            "--maximum-dead-containers-per-container=3",
            "--maximum-dead-containers=-1",
        ]) else {
            panic!("not a run");
        };
        assert_eq!(
            flags.container_gc,
            ContainerGcOptions {
                min_age: std::time::Duration::from_secs(60),
                max_per_pod_container: 3,
                max_containers: -1,
            }
        );
        assert_eq!(flags.without_effect, [""; 0]);
        let text = error("--minimum-container-ttl-duration=-1m");
        assert!(text.contains("must not be negative"), "{text}");
        let text = error("--maximum-dead-containers=3000000000");
        assert!(text.contains("too large"), "{text}");
    }
}
