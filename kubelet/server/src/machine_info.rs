//! `/spec/`: the machine's hardware, in the format of cAdvisor's `MachineInfo`.

use std::{fs, path::Path};

use axum::{Router, http::StatusCode, routing::get};
use kubelet_host::{clock, machine::Machine, repeatable::blocking};
use serde_json::{Value, json};

use super::response::{error, json as json_answer};

pub(super) fn routes() -> Router {
    let answer = get(async || match blocking(read).await {
        Ok(machine) => json_answer(machine.to_string()),
        Err(panicked) => error(StatusCode::INTERNAL_SERVER_ERROR, panicked),
    });
    Router::new()
        .route("/spec", answer.clone())
        .route("/spec/", answer)
}

/// Reads the machine's data. Blocks briefly.
fn read() -> Value {
    let machine = Machine::read();
    let line = |path: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        text.trim().to_owned()
    };
    let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let (cores, sockets) = physical(&cpuinfo);
    json!({
        "timestamp": clock::now().to_string(),
        "num_cores": machine.cpus,
        "num_physical_cores": cores,
        "num_sockets": sockets,
        "cpu_frequency_khz": frequency(&cpuinfo),
        "memory_capacity": machine.memory,
        "swap_capacity": machine.swap,
        "hugepages": machine.huge_page_sizes.iter().map(|size| huge_pages(*size)).collect::<Vec<_>>(),
        "machine_id": line("/etc/machine-id"),
        "system_uuid": line("/sys/class/dmi/id/product_uuid"),
        "boot_id": line("/proc/sys/kernel/random/boot_id"),
        "network_devices": network_devices(Path::new("/sys/class/net")),
    })
}

fn huge_pages(bytes: u64) -> Value {
    let kibibytes = bytes / 1024;
    let path = format!("/sys/kernel/mm/hugepages/hugepages-{kibibytes}kB/nr_hugepages");
    let pages = fs::read_to_string(path).unwrap_or_default();
    json!({"page_size": kibibytes, "num_pages": pages.trim().parse::<u64>().unwrap_or_default()})
}

/// Network devices except the loopback device, by name.
fn network_devices(dir: &Path) -> Vec<Value> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| name != "lo")
        .collect();
    names.sort_unstable();
    let device = |name: &String| {
        let read = |file: &str| {
            let text = fs::read_to_string(dir.join(name).join(file)).unwrap_or_default();
            text.trim().to_owned()
        };
        let number = |file: &str| read(file).parse::<i64>().unwrap_or_default();
        json!({"name": name, "mac_address": read("address"), "speed": number("speed"), "mtu": number("mtu")})
    };
    names.iter().map(device).collect()
}

/// The numbers of physical cores and sockets; 1 if unknown.
fn physical(cpuinfo: &str) -> (usize, usize) {
    let mut cores = std::collections::BTreeSet::new();
    let mut sockets = std::collections::BTreeSet::new();
    for cpu in cpuinfo.split("\n\n") {
        let socket = field(cpu, "physical id");
        if let Some(core) = field(cpu, "core id") {
            cores.insert((socket, core));
        }
        sockets.extend(socket);
    }
    (cores.len().max(1), sockets.len().max(1))
}

/// The CPU frequency in kHz; 0 if unknown.
fn frequency(cpuinfo: &str) -> u64 {
    let megahertz = field(cpuinfo, "cpu MHz").unwrap_or_default();
    let (whole, fraction) = megahertz.split_once('.').unwrap_or((megahertz, ""));
    let thousandths: String = fraction.chars().chain("000".chars()).take(3).collect();
    let whole: u64 = whole.parse().unwrap_or_default();
    whole * 1000 + thousandths.parse::<u64>().unwrap_or_default()
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processors_are_counted_by_core_and_socket() {
        let cpuinfo = "processor: 0\nphysical id\t: 0\ncore id\t\t: 0\ncpu MHz\t\t: 2199.998\n\n\
            processor: 1\nphysical id\t: 0\ncore id\t\t: 0\n\n\
            processor: 2\nphysical id\t: 0\ncore id\t\t: 1\n\n";
        assert_eq!(physical(cpuinfo), (2, 1));
        assert_eq!(frequency(cpuinfo), 2_199_998);
        assert_eq!(frequency(""), 0);
    }
}
