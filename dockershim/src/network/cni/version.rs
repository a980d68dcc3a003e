//! Versions of the CNI specification.

use std::str::FromStr;

/// A version of the CNI specification, as in configurations and results.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u32, u32, u32);

impl Version {
    /// The version of a configuration that does not set one.
    pub const UNDECLARED: Self = Self(0, 1, 0);
    /// The first version with `CHECK`, and with `prevResult` for `DEL`.
    pub const CHECK: Self = Self(0, 4, 0);
    /// The first version with `STATUS` and `GC`.
    pub const STATUS: Self = Self(1, 1, 0);
    /// The newest version that this shim supports.
    pub const NEWEST: Self = Self(1, 1, 0);
}

impl FromStr for Version {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.is_empty() {
            return Ok(Self::UNDECLARED);
        }
        let bad = || format!("{text:?} is not a version like \"1.0.0\"");
        let mut parts = text.split('.');
        let mut next = |needed: bool| match parts.next() {
            Some(part) => part.parse::<u32>().map_err(|_| bad()),
            None if needed => Err(bad()),
            None => Ok(0),
        };
        let version = Self(next(true)?, next(true)?, next(false)?);
        match parts.next() {
            None => Ok(version),
            Some(_) => Err(bad()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_ordered_by_number() {
        let version = |text: &str| text.parse::<Version>().unwrap();
        assert!(version("0.4.0") >= Version::CHECK);
        assert!(version("0.3.1") < Version::CHECK);
        assert!(version("1.10.0") > version("1.9"));
        assert_eq!(version(""), Version::UNDECLARED);
        for bad in ["1", "1.x.0", "1.0.0.0", "-1.0", "v1.0.0"] {
            assert!(bad.parse::<Version>().is_err(), "{bad}");
        }
    }
}
