//! Bandwidth limits from a pod's annotations.

use std::collections::BTreeMap;

use crate::Error;

/// The allowed rates, in bits per second.
const RATES: std::ops::RangeInclusive<u64> = 1_000..=1_000_000_000_000_000;
/// The maximum number of digits in a quantity.
const MAX_DIGITS: usize = 24;

const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
const EGRESS: &str = "kubernetes.io/egress-bandwidth";

/// Limits in bits per second; unlimited if unset.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Limits {
    /// The limit of what the pod receives.
    pub ingress: Option<u64>,
    /// The limit of what the pod sends.
    pub egress: Option<u64>,
}

impl Limits {
    /// The limits in a pod's annotations.
    ///
    /// # Errors
    /// `InvalidArgument` naming the annotation.
    pub fn of<'a>(
        annotations: impl IntoIterator<Item = (&'a String, &'a String)>,
    ) -> Result<Self, Error> {
        let annotations: BTreeMap<_, _> = annotations.into_iter().collect();
        let limit = |annotation: &str| {
            let text = annotations.get(&annotation.to_owned());
            let bits = text.map(|text| bits(text)).transpose();
            bits.map_err(|reason| {
                Error::invalid(format!("config.annotations[{annotation}]"), reason)
            })
        };
        Ok(Self {
            ingress: limit(INGRESS)?,
            egress: limit(EGRESS)?,
        })
    }
}

/// Parses a Kubernetes resource quantity, such as `10M` or `1.5Gi`, rounding up.
fn bits(text: &str) -> Result<u64, String> {
    let bad = || format!("{text:?} is not a quantity like 10M");
    let end = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if whole.len() + fraction.len() > MAX_DIGITS {
        return Err(bad());
    }
    let mantissa: u128 = format!("{whole}{fraction}").parse().map_err(|_| bad())?;
    let (factor, exponent) = scale(suffix).ok_or_else(bad)?;
    let mantissa = mantissa.checked_mul(factor).ok_or_else(bad)?;
    let exponent = exponent - i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let power = 10_u128.checked_pow(exponent.unsigned_abs());
    let value = match power {
        Some(power) if exponent >= 0 => mantissa.checked_mul(power),
        Some(power) => Some(mantissa.div_ceil(power)),
        None => None,
    };
    let value = value.and_then(|value| u64::try_from(value).ok());
    value
        .filter(|value| RATES.contains(value))
        .ok_or_else(|| format!("{text:?} is out of range; allowed: 1k to 1P bits per second"))
}

/// The suffix as a factor and a power of ten.
fn scale(suffix: &str) -> Option<(u128, i32)> {
    let binary = |power: u32| Some((1_u128 << (10 * power), 0));
    match suffix {
        "n" => Some((1, -9)),
        "u" => Some((1, -6)),
        "m" => Some((1, -3)),
        "" => Some((1, 0)),
        "k" => Some((1, 3)),
        "M" => Some((1, 6)),
        "G" => Some((1, 9)),
        "T" => Some((1, 12)),
        "P" => Some((1, 15)),
        "E" => Some((1, 18)),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => {
            let exponent = suffix.strip_prefix(['e', 'E'])?;
            exponent
                .parse()
                .ok()
                .filter(|e: &i32| e.abs() < 30)
                .map(|e| (1, e))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn quantities_are_bits() {
        for (text, expected) in [
            ("10M", 10_000_000),
            ("1.5Gi", 1_610_612_736),
            ("1000", 1000),
            ("1e6", 1_000_000),
            ("1234567m", 1235),
            (".5M", 500_000),
        ] {
            assert_eq!(bits(text), Ok(expected), "{text}");
        }
        for bad in [
            "", "M", "fast", "-1M", "1.2.3M", "10 M", "999", "2P", "1e99", "10Mb",
        ] {
            assert!(bits(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_bad_annotation_is_named() {
        let key = "kubernetes.io/egress-bandwidth";
        let mut annotations = BTreeMap::from([(key.to_owned(), "1M".to_owned())]);
        let limits = Limits {
            ingress: None,
            egress: Some(1_000_000),
        };
        assert_eq!(Limits::of(&annotations).unwrap(), limits);
        annotations.insert(key.to_owned(), "much".to_owned());
        let error = Limits::of(&annotations).unwrap_err().to_string();
        assert!(error.contains(key), "{error}");
        assert_eq!(Limits::of(&BTreeMap::new()).unwrap(), Limits::default());
    }

    proptest! {
        #[test]
        fn any_text_is_a_rate_or_refused(text in ".{0,30}", number in "[0-9.]{0,30}[a-zA-Z0-9]{0,4}") {
            let _ = bits(&text);
            let _ = bits(&number);
        }
    }
}
