//! The node's pod CIDRs.

use std::net::IpAddr;

/// Parses ranges in Kubernetes' format: one range, or one per address family, comma-separated. An
/// empty text has none.
///
/// # Errors
/// A message with the allowed format.
pub fn parse(text: &str) -> Result<Vec<String>, String> {
    let parts = text
        .split(',')
        .map(str::trim)
        .filter(|part| !part.is_empty());
    let mut families = Vec::new();
    let mut ranges = Vec::new();
    for part in parts {
        let allowed = "allowed: <address>/<prefix length>, one of IPv4 and one of IPv6";
        let (family, range) = range(part).ok_or_else(|| format!("{part:?}; {allowed}"))?;
        if families.contains(&family) {
            return Err(format!("{text:?}; {allowed}"));
        }
        families.push(family);
        ranges.push(range);
    }
    Ok(ranges)
}

/// The number of address bits of a range, and the range with its host bits cleared.
fn range(text: &str) -> Option<(u32, String)> {
    let (address, length) = text.split_once('/')?;
    let length: u32 = length.parse().ok()?;
    let (bits, network) = match address.parse().ok()? {
        IpAddr::V4(address) => {
            let host = u32::MAX.checked_shr(length).unwrap_or_default();
            (32, IpAddr::from((address.to_bits() & !host).to_be_bytes()))
        }
        IpAddr::V6(address) => {
            let host = u128::MAX.checked_shr(length).unwrap_or_default();
            (128, IpAddr::from((address.to_bits() & !host).to_be_bytes()))
        }
    };
    (length <= bits).then(|| (bits, format!("{network}/{length}")))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_range_or_one_of_each_family() {
        let parsed = |text| parse(text).unwrap();
        assert_eq!(parsed(""), [""; 0]);
        assert_eq!(parsed("10.1.2.3/24"), ["10.1.2.0/24"]);
        assert_eq!(
            parsed("10.1.2.0/32, fd00::1/64"),
            ["10.1.2.0/32", "fd00::/64"]
        );
        assert_eq!(parsed("0.0.0.0/0"), ["0.0.0.0/0"]);
        for bad in [
            "10.1.2.0",
            "10.1.2.0/33",
            "fd00::/129",
            "a/8",
            "10.0.0.0/8,10.1.0.0/16",
        ] {
            assert!(parse(bad).unwrap_err().contains("allowed"), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_ranges_or_refused(text in ".{0,40}", length in any::<u32>()) {
            let _ = parse(&text);
            let _ = parse(&format!("10.0.0.0/{length}"));
            let _ = parse(&format!("fd00::/{length}"));
        }
    }
}
