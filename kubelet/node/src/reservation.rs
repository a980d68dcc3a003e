//! Resources that are reserved from pods.

use std::collections::BTreeMap;

use kubelet_pod_spec::quantity::{self, NANOS};

/// Resources that are reserved from pods.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reservation {
    /// By resource, in billionths: the system's and Kubernetes' reservations added up.
    pub amounts: BTreeMap<String, i128>,
    /// Hard eviction threshold of memory.
    pub memory: Threshold,
    /// Hard eviction threshold of local storage.
    pub storage: Threshold,
}

/// An eviction threshold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// An absolute amount, in billionths.
    Amount(i128),
    /// A share of the capacity; 1 is all of it. Single precision as upstream, so that amounts match
    /// to the byte.
    Share(f32),
}

impl Default for Threshold {
    fn default() -> Self {
        Self::Amount(0)
    }
}

impl Threshold {
    /// Parses a quantity, or a percentage.
    ///
    /// # Errors
    /// What the value must be.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        const RULE: &str = "must be a quantity such as 100Mi, or a share such as 10%";
        if let Some(number) = text.strip_suffix('%') {
            let percent: f32 = number.parse().map_err(|_| RULE)?;
            return match percent {
                0.0..=100.0 => Ok(Self::Share(percent / 100.0)),
                _ => Err("must be between 0% and 100%"),
            };
        }
        match quantity::parse(text) {
            Ok(amount) if amount >= 0 => Ok(Self::Amount(amount)),
            _ => Err(RULE),
        }
    }

    /// The threshold for a capacity, both in billionths.
    fn of(self, capacity: i128) -> i128 {
        match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => {
                let whole = (capacity / NANOS) as f64 * f64::from(share);
                #[expect(clippy::cast_possible_truncation, reason = "a share of an i128")]
                let whole = whole as i128;
                whole * NANOS
            }
        }
    }
}

impl Reservation {
    /// The reserved amount of a resource with `capacity`, both in billionths.
    pub fn amount(&self, resource: &str, capacity: i128) -> i128 {
        let reserved = self.amounts.get(resource).copied().unwrap_or_default();
        reserved
            + match resource {
                "memory" => self.memory.of(capacity),
                "ephemeral-storage" => self.storage.of(capacity),
                _ => 0,
            }
    }
}
