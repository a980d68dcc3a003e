//! The value of `--node-ip`.

use std::net::IpAddr;

/// Parses one address, or one of each IP family.
///
/// # Errors
/// What is allowed.
pub(super) fn node_ips(text: &str) -> Result<Vec<IpAddr>, String> {
    let fault = |rule: &str| format!("--node-ip: invalid value {text:?}: {rule}");
    let ips: Vec<IpAddr> = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().map_err(|_| fault("must be IP addresses")))
        .collect::<Result<_, _>>()?;
    match ips.as_slice() {
        [] | [_] => Ok(ips),
        [first, second] if first.is_ipv4() != second.is_ipv4() => Ok(ips),
        _ => Err(fault(
            "must be one address, or one IPv4 and one IPv6 address",
        )),
    }
}
