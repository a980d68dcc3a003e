//! Amounts of a resource that are absolute, or a share of its capacity: eviction thresholds.

use crate::quantity::{self, NANOS};

/// An amount of a resource.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AmountOrShare {
    /// An absolute amount, in billionths.
    Amount(i128),
    /// A share of the capacity; 1 is all of it. Single precision as upstream, so that amounts match
    /// to the byte.
    Share(f32),
}

impl Default for AmountOrShare {
    fn default() -> Self {
        Self::Amount(0)
    }
}

impl AmountOrShare {
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

    /// The amount if the capacity is `capacity`, both in billionths.
    pub fn of(self, capacity: i128) -> i128 {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_absolute_or_of_the_capacity() {
        let of = |text: &str| {
            AmountOrShare::parse(text)
                .unwrap()
                .of(1_000_000_000 * NANOS)
        };
        assert_eq!(of("2k"), 2000 * NANOS);
        // In single precision.
        assert_eq!(of("10%"), 100_000_001 * NANOS);
        for wrong in ["", "%", "-1", "-1%", "101%", "NaN%", "10 %", "ten"] {
            assert!(AmountOrShare::parse(wrong).is_err(), "{wrong:?}");
        }
    }
}
