//! Durations in Go's text format: `1m0s`, `20s`, `1.5h`, `300ms`.

#![forbid(unsafe_code)]

use std::{fmt, str::FromStr, time::Duration};

use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// A signed duration in Go's text format (`time.ParseDuration`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GoDuration {
    nanos: i64,
}

/// Why a text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a duration: write numbers with units (ns, us, ms, s, m, h), such as 20s, 1m30s or 1.5h"
)]
pub struct ParseDurationError {
    text: String,
}

impl GoDuration {
    /// A duration in whole seconds.
    pub const fn from_secs(seconds: i64) -> Self {
        Self {
            nanos: seconds.saturating_mul(1_000_000_000),
        }
    }

    /// A duration in whole milliseconds.
    pub const fn from_millis(millis: i64) -> Self {
        Self {
            nanos: millis.saturating_mul(1_000_000),
        }
    }

    /// A duration truncated to milliseconds.
    pub fn whole_millis(duration: Duration) -> Self {
        Self::from_millis(i64::try_from(duration.as_millis()).unwrap_or(i64::MAX))
    }

    /// A duration in nanoseconds.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self { nanos }
    }

    /// Whether the duration is zero, which most settings treat as unset.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }

    /// Whether the duration is negative.
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// The duration as a standard library type; `None` if it is negative.
    pub fn to_std(self) -> Option<Duration> {
        u64::try_from(self.nanos).ok().map(Duration::from_nanos)
    }
}

impl FromStr for GoDuration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        parse(text)
            .map(|nanos| Self { nanos })
            .ok_or_else(|| ParseDurationError {
                text: text.to_owned(),
            })
    }
}

/// Parses a Go duration into nanoseconds.
fn parse(text: &str) -> Option<i64> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    if rest.is_empty() {
        return None;
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let number_end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .filter(|end| *end > 0)?;
        let (number, tail) = rest.split_at(number_end);
        let unit_end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(unit_end);
        total = total.checked_add(scaled(number, unit_nanos(unit)?)?)?;
        rest = tail;
    }
    i64::try_from(if negative { -total } else { total }).ok()
}

fn unit_nanos(unit: &str) -> Option<i128> {
    Some(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS_PER_SECOND,
        "m" => 60 * NANOS_PER_SECOND,
        "h" => 3600 * NANOS_PER_SECOND,
        _ => return None,
    })
}

/// Computes a decimal number times a unit, truncated to whole nanoseconds.
fn scaled(number: &str, unit: i128) -> Option<i128> {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return None;
    }
    let whole: i128 = if whole.is_empty() {
        0
    } else {
        whole.parse().ok()?
    };
    // Further digits are less than a nanosecond even in hours.
    let fraction = &fraction[..fraction.len().min(18)];
    let fraction_value: i128 = if fraction.is_empty() {
        0
    } else {
        fraction.parse().ok()?
    };
    let fraction_scale = 10_i128.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    whole
        .checked_mul(unit)?
        .checked_add(fraction_value.checked_mul(unit)? / fraction_scale)
}

impl fmt::Display for GoDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.nanos == 0 {
            return f.write_str("0s");
        }
        if self.nanos < 0 {
            f.write_str("-")?;
        }
        let nanos = self.nanos.unsigned_abs();
        let (unit, name) = match nanos {
            0..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "µs"),
            1_000_000..1_000_000_000 => (1_000_000, "ms"),
            _ => {
                let (hours, minutes) = (nanos / 3_600_000_000_000, nanos / 60_000_000_000 % 60);
                if hours > 0 {
                    write!(f, "{hours}h")?;
                }
                if hours > 0 || minutes > 0 {
                    write!(f, "{minutes}m")?;
                }
                return write_decimal(f, nanos % 60_000_000_000, 1_000_000_000, "s");
            }
        };
        write_decimal(f, nanos, unit, name)
    }
}

fn write_decimal(f: &mut fmt::Formatter<'_>, nanos: u64, unit: u64, name: &str) -> fmt::Result {
    write!(f, "{}", nanos / unit)?;
    let digits = unit.ilog10() as usize;
    let fraction = format!("{:0digits$}", nanos % unit);
    let fraction = fraction.trim_end_matches('0');
    if digits > 0 && !fraction.is_empty() {
        write!(f, ".{fraction}")?;
    }
    f.write_str(name)
}

impl<'de> Deserialize<'de> for GoDuration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(DurationVisitor)
    }
}

struct DurationVisitor;

impl Visitor<'_> for DurationVisitor {
    type Value = GoDuration;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration like \"1m30s\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<GoDuration, E> {
        text.parse().map_err(E::custom)
    }
}

impl Serialize for GoDuration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_what_go_writes() {
        for (text, millis) in [
            ("0", 0),
            ("0s", 0),
            ("20s", 20_000),
            ("1m0s", 60_000),
            ("1.5h", 5_400_000),
            ("300ms", 300),
            ("2h45m", 9_900_000),
            (".5s", 500),
            ("-1s", -1_000),
            ("+1s", 1_000),
            ("1000000us", 1_000),
        ] {
            assert_eq!(text.parse(), Ok(GoDuration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn refuses_what_go_refuses() {
        for text in [
            "",
            "-",
            "20",
            "s",
            "1d",
            "1 s",
            ".s",
            "1..5s",
            "9999999999h",
        ] {
            assert!(text.parse::<GoDuration>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn writes_as_go() {
        for (millis, text) in [
            (60_000, "1m0s"),
            (3_600_000, "1h0m0s"),
            (1_500, "1.5s"),
            (100, "100ms"),
            (0, "0s"),
            (-2_000, "-2s"),
        ] {
            assert_eq!(GoDuration::from_millis(millis).to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn survives_a_round_trip(nanos in any::<i64>().prop_filter("has a positive twin", |n| *n != i64::MIN)) {
            let duration = GoDuration { nanos };
            prop_assert_eq!(duration.to_string().parse(), Ok(duration));
        }

        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = text.parse::<GoDuration>();
        }
    }
}
