//! The result of `ADD`, in all versions that plugins may return.

use std::net::IpAddr;

use cri_proto::runtime::v1::{PodIp, PodSandboxNetworkStatus};
use serde::Deserialize;
use serde_json::Value;

/// The result in versions 0.3.0 to 1.1.0, plus the two fields of 0.1.0 and 0.2.0.
#[derive(Deserialize)]
struct AddResult {
    interfaces: Option<Vec<Interface>>,
    ips: Option<Vec<Ip>>,
    ip4: Option<OldIp>,
    ip6: Option<OldIp>,
}

#[derive(Deserialize)]
struct Interface {
    #[serde(default)]
    name: String,
    #[serde(default)]
    sandbox: String,
}

#[derive(Deserialize)]
struct Ip {
    address: String,
    interface: Option<usize>,
}

#[derive(Deserialize)]
struct OldIp {
    ip: String,
}

/// The addresses of the sandbox's interface `ifname`, IPv4 first.
///
/// # Errors
/// What is wrong with the result.
pub fn addresses(result: &Value, ifname: &str) -> Result<Vec<IpAddr>, String> {
    let result = AddResult::deserialize(result).map_err(|error| error.to_string())?;
    let interfaces = result.interfaces.unwrap_or_default();
    let mut found = Vec::new();
    for (index, ip) in result.ips.unwrap_or_default().into_iter().enumerate() {
        let ours = match ip.interface {
            None => true,
            Some(at) => {
                let interface = interfaces.get(at).ok_or_else(|| {
                    format!(
                        "ips[{index}].interface: {at}; the result has {} interfaces",
                        interfaces.len()
                    )
                })?;
                interface.name == ifname && !interface.sandbox.is_empty()
            }
        };
        if ours {
            found.push(address(&format!("ips[{index}].address"), &ip.address)?);
        }
    }
    for (field, old) in [("ip4.ip", result.ip4), ("ip6.ip", result.ip6)] {
        if let Some(old) = old {
            found.push(address(field, &old.ip)?);
        }
    }
    found.sort_by_key(IpAddr::is_ipv6);
    Ok(found)
}

/// Parses an address; its prefix length is ignored.
fn address(field: &str, text: &str) -> Result<IpAddr, String> {
    let (address, _) = text.split_once('/').unwrap_or((text, ""));
    address
        .parse()
        .map_err(|_| format!("{field}: {text:?} is not an address"))
}

/// The addresses in CRI's format.
pub fn to_status(addresses: &[IpAddr]) -> PodSandboxNetworkStatus {
    let mut ips = addresses.iter().map(ToString::to_string);
    PodSandboxNetworkStatus {
        ip: ips.next().unwrap_or_default(),
        additional_ips: ips.map(|ip| PodIp { ip }).collect(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn of(result: Value) -> Vec<String> {
        let found = addresses(&result, "eth0").unwrap();
        found.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn every_version_of_a_result_is_read() {
        let interfaces = json!([
            {"name": "cni0"},
            {"name": "veth1"},
            {"name": "eth0", "sandbox": "/proc/1/ns/net"},
            {"name": "net1", "sandbox": "/proc/1/ns/net"},
        ]);
        let newest = json!({
            "cniVersion": "1.1.0", "interfaces": interfaces, "dns": {},
            "ips": [
                {"address": "fd00::2/64", "interface": 2},
                {"address": "10.1.0.2/24", "interface": 2, "gateway": "10.1.0.1"},
                {"address": "10.1.0.1/24", "interface": 0},
                {"address": "10.9.0.2/24", "interface": 3},
            ],
        });
        assert_eq!(of(newest), ["10.1.0.2", "fd00::2"]);
        let ips = json!([{"version": "4", "address": "10.1.0.2/24"}]);
        assert_eq!(of(json!({"cniVersion": "0.3.1", "ips": ips})), ["10.1.0.2"]);
        let oldest = json!({"ip4": {"ip": "10.1.0.2/24"}, "ip6": {"ip": "fd00::2/64"}});
        assert_eq!(of(oldest), ["10.1.0.2", "fd00::2"]);
        assert_eq!(of(json!({"cniVersion": "1.0.0"})), [""; 0]);
    }

    #[test]
    fn an_interface_of_the_host_is_not_the_sandboxs_whatever_its_name() {
        let interfaces = json!([
            {"name": "eth0"},
            {"name": "eth0", "sandbox": ""},
            {"name": "eth0", "sandbox": "/proc/1/ns/net"},
        ]);
        let result = json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": [
            {"address": "192.0.2.1/24", "interface": 0},
            {"address": "192.0.2.2/24", "interface": 1},
            {"address": "10.1.0.2/24", "interface": 2},
        ]});
        assert_eq!(of(result), ["10.1.0.2"]);
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        let error = addresses(&json!({"ips": [{"address": "ten"}]}), "eth0").unwrap_err();
        assert!(error.contains("ips[0].address"), "{error}");
        let out_of_range = json!({"ips": [{"address": "10.0.0.1/8", "interface": 7}]});
        let error = addresses(&out_of_range, "eth0").unwrap_err();
        assert!(error.contains("ips[0].interface"), "{error}");
    }

    proptest! {
        #[test]
        fn any_address_is_read_or_refused(text in ".{0,24}", at in any::<u8>()) {
            let result = json!({
                "ips": [{"address": text, "interface": at}],
                "interfaces": [{"name": "eth0", "sandbox": "x"}],
            });
            let _ = addresses(&result, "eth0");
        }
    }
}
