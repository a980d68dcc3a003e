//! Validation of pod status updates.

use std::net::IpAddr;

use serde_json::{Value, json};

use crate::errors::Cause;

/// The errors in the new status of a pod.
pub(crate) fn update(old: &Value, new: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let class = &old["status"]["qosClass"];
    if class.is_string() && new["status"]["qosClass"] != *class {
        causes.push(Cause::invalid(
            "status.qosClass",
            &new["status"]["qosClass"],
            "field is immutable",
        ));
    }
    causes.extend(ips(&new["status"], "podIP", "podIPs"));
    causes.extend(ips(&new["status"], "hostIP", "hostIPs"));
    causes.extend(transitions(old, new, "containerStatuses", "containers"));
    causes.extend(transitions(
        old,
        new,
        "initContainerStatuses",
        "initContainers",
    ));
    causes
}

/// Checks that the addresses are valid, that there is at most one per IP family, and that the first
/// equals the single field.
fn ips(status: &Value, one: &str, list: &str) -> Vec<Cause> {
    let mut causes = Vec::new();
    let all = status[list].as_array().map_or(&[][..], Vec::as_slice);
    let mut families = Vec::new();
    for (index, entry) in all.iter().enumerate() {
        let text = entry["ip"].as_str().unwrap_or_default();
        match text.parse::<IpAddr>() {
            Ok(ip) => families.push(ip.is_ipv6()),
            Err(_) => causes.push(Cause::invalid(
                format!("status.{list}[{index}]"),
                &json!(text),
                "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
            )),
        }
    }
    if families.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        causes.push(Cause::invalid(
            format!("status.{list}"),
            &status[list],
            "may specify no more than one IP for each IP family",
        ));
    }
    if let Some(first) = all.first()
        && first["ip"] != status[one]
    {
        causes.push(Cause::invalid(
            format!("status.{list}[0].ip"),
            &first["ip"],
            &format!("must be equal to `{one}`"),
        ));
    }
    causes
}

/// Checks that containers that have ended for good do not run again.
fn transitions(old: &Value, new: &Value, statuses: &str, containers: &str) -> Vec<Cause> {
    let policy = old["spec"]["restartPolicy"].as_str().unwrap_or("Always");
    if policy == "Always" {
        return Vec::new();
    }
    let list = |pod: &Value| pod["status"][statuses].as_array().cloned();
    let (old_list, new_list) = (list(old).unwrap_or_default(), list(new).unwrap_or_default());
    let mut causes = Vec::new();
    for was in old_list {
        let Some(exit_code) = was["state"]["terminated"]["exitCode"].as_i64() else {
            continue;
        };
        let specs = old["spec"][containers].as_array().into_iter().flatten();
        let mut spec = specs.filter(|container| container["name"] == was["name"]);
        // A container with its own restart policy or rules may be restarted whatever the pod's
        // policy is.
        let has_own = spec.any(|container| container["restartPolicy"].is_string());
        if has_own || (policy == "OnFailure" && exit_code != 0) {
            continue;
        }
        let mut now = new_list.iter().enumerate();
        let now = now.find(|(_, status)| status["name"] == was["name"]);
        if let Some((index, now)) = now
            && !now["state"]["terminated"].is_object()
        {
            causes.push(Cause::forbidden(
                format!("status.{statuses}[{index}].state"),
                "may not be transitioned to non-terminated state",
            ));
        }
    }
    causes
}
