//! What of the node pods do not get.

use std::collections::BTreeMap;

use kubelet_pod_spec::quantity::{self, NANOS};

/// What pods do not get.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reservation {
    /// Of each resource, in billionths, for the system and Kubernetes together.
    pub amounts: BTreeMap<String, i128>,
    /// Memory that is to stay available.
    pub memory: Threshold,
    /// Local storage that is to stay available.
    pub storage: Threshold,
}

/// Where eviction begins.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// Billionths.
    Amount(i128),
    /// Of the capacity, 1 for all of it. As upstream in single precision, so that the
    /// amounts are the same to the byte.
    Share(f32),
}

impl Default for Threshold {
    fn default() -> Self {
        Self::Amount(0)
    }
}

impl Threshold {
    /// Reads a quantity, or a share in percent.
    ///
    /// # Errors
    /// What it must be.
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

    /// Billionths of something with that capacity.
    fn of(self, capacity: i128) -> i128 {
        match self {
            Self::Amount(amount) => amount,
            Self::Share(share) => {
                let whole = (capacity / NANOS) as f64 * f64::from(share);
                whole as i128 * NANOS
            }
        }
    }
}

impl Reservation {
    /// How much pods do not get of a resource of which there is `capacity`, both in
    /// billionths.
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
