//! Quantities as Go represents them: the same amount has several representations, which depend on
//! how it was written and computed.

use std::cmp::Ordering;

use serde_json::{Value, json};

/// The digits up to which an amount is small.
const SMALL_DIGITS: usize = 18;
/// The decimal places to which lists of resources are rounded up: thousandths.
const MILLI: i32 = 3;
/// The decimal places to which large amounts are rounded up when they are read.
const NANO: i32 = 9;

/// A quantity.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct GoQuantity {
    amount: Amount,
    /// The text that it was read from, if that is its shortest form.
    text: String,
    format: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Amount {
    /// `value` times ten to the power of `exponent`.
    Small {
        value: i64,
        exponent: i32,
    },
    Large(Decimal),
}

/// `unscaled` divided by ten to the power of `places`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Decimal {
    unscaled: i128,
    places: i32,
}

/// The parts of a quantity's text.
struct Parts<'a> {
    negative: bool,
    /// The digits before the point without leading zeros; `0` if there are none.
    whole: &'a str,
    fraction: &'a str,
    /// The number with its sign.
    number: &'a str,
    suffix: &'a str,
}

#[derive(Clone, Copy)]
enum Unit {
    /// A power of ten.
    Ten(i32),
    /// A power of two.
    Two(u32),
}

impl GoQuantity {
    /// `None` if the text is not a quantity, or is larger than any resource.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let parts = Parts::of(text)?;
        let (unit, format) = unit(parts.suffix)?;
        if text == "0" {
            return Some(Self::small(0, 0, text, format));
        }
        Self::parse_small(text, &parts, unit, format).or_else(|| {
            let (amount, format) = parse_large(&parts, unit, format)?;
            Some(Self {
                amount: Amount::Large(amount),
                text: String::new(),
                format,
            })
        })
    }

    fn small(value: i64, exponent: i32, text: &str, format: &'static str) -> Self {
        Self {
            amount: Amount::Small { value, exponent },
            text: text.to_owned(),
            format,
        }
    }

    fn parse_small(
        text: &str,
        parts: &Parts<'_>,
        unit: Unit,
        format: &'static str,
    ) -> Option<Self> {
        let digits = format!("{}{}", parts.whole, parts.fraction);
        let (factor, exponent, most_digits) = match unit {
            Unit::Ten(exponent) => {
                let places = i32::try_from(parts.fraction.len()).ok()?;
                (1, exponent.checked_sub(places)?, SMALL_DIGITS)
            }
            Unit::Two(power) if parts.fraction.is_empty() => {
                let digits_of_factor = usize::try_from(power * 3 / 10).ok()?;
                (1_i64 << power, 0, 14_usize.checked_sub(digits_of_factor)?)
            }
            Unit::Two(_) => return None,
        };
        if digits.len() > most_digits || exponent < -NANO {
            return None;
        }
        let written: i64 = digits.parse().ok()?;
        let value = written.checked_mul(factor)?;
        let is_shortest = match unit {
            Unit::Ten(_) => {
                exponent % 3 == 0 && !digits.ends_with("000") && !digits.starts_with('0')
            }
            Unit::Two(_) => written % 8 != 0,
        };
        let value = if parts.negative { -value } else { value };
        let text = if is_shortest { text } else { "" };
        Some(Self::small(value, exponent, text, format))
    }

    /// The quantity rounded up to thousandths. `None` if it is larger than any resource.
    pub(super) fn rounded(mut self) -> Option<Self> {
        match self.amount {
            Amount::Small { exponent, .. } if exponent >= -MILLI => return Some(self),
            Amount::Small { value, exponent } => {
                let exact = Decimal {
                    unscaled: value.into(),
                    places: -exponent,
                };
                let rounded = exact.rounded(MILLI)?;
                self.amount = Amount::Small {
                    value: rounded.unscaled.try_into().ok()?,
                    exponent: -MILLI,
                };
            }
            Amount::Large(decimal) => self.amount = Amount::Large(decimal.rounded(MILLI)?),
        }
        self.text.clear();
        Some(self)
    }

    /// Adds another amount. `None` if the sum is too large.
    pub(super) fn plus(mut self, other: &Self) -> Option<Self> {
        self.text.clear();
        if self.is_zero() {
            self.format = other.format;
        }
        self.amount = match small_sum(self.amount, other.amount) {
            Some(sum) => sum,
            None => Amount::Large(self.amount.decimal().plus(other.amount.decimal())?),
        };
        Some(self)
    }

    /// The larger of both; `other` if they are equal.
    pub(super) fn max(mut self, other: Self) -> Self {
        let (one, two) = (self.amount.decimal(), other.amount.decimal());
        if one.compare(two) != Ordering::Greater {
            return other;
        }
        // Only two small amounts are compared as they are.
        if matches!(other.amount, Amount::Large(_)) {
            self.amount = Amount::Large(one);
        }
        self
    }

    fn is_zero(&self) -> bool {
        self.amount.decimal().unscaled == 0
    }

    /// The JSON object of its Go fields.
    pub(super) fn to_value(&self) -> Value {
        let mut value = json!({"s": self.text, "format": self.format});
        match self.amount {
            Amount::Small {
                value: units,
                exponent,
            } => {
                value["i"] = json!({"value": units, "scale": exponent});
            }
            Amount::Large(decimal) => value["d"] = json!({"dec": decimal.to_value()}),
        }
        value
    }
}

impl Amount {
    fn decimal(self) -> Decimal {
        match self {
            Self::Small { value, exponent } => Decimal {
                unscaled: value.into(),
                places: -exponent,
            },
            Self::Large(decimal) => decimal,
        }
    }
}

impl Decimal {
    /// Rounds away from zero. `None` if the result is too large.
    fn rounded(self, places: i32) -> Option<Self> {
        let more = places.checked_sub(self.places)?;
        let power = 10_i128.checked_pow(more.unsigned_abs());
        let unscaled = match power {
            _ if more == 0 => self.unscaled,
            Some(power) if more > 0 => self.unscaled.checked_mul(power)?,
            Some(power) if self.unscaled % power == 0 => self.unscaled / power,
            Some(power) => self.unscaled / power + self.unscaled.signum(),
            None if more < 0 || self.unscaled == 0 => self.unscaled.signum(),
            None => return None,
        };
        Some(Self { unscaled, places })
    }

    fn aligned(self, other: Self) -> Option<(Self, Self)> {
        let places = self.places.max(other.places);
        Some((self.rounded(places)?, other.rounded(places)?))
    }

    fn plus(self, other: Self) -> Option<Self> {
        let (one, two) = self.aligned(other)?;
        Some(Self {
            unscaled: one.unscaled.checked_add(two.unscaled)?,
            places: one.places,
        })
    }

    fn compare(self, other: Self) -> Ordering {
        match self.aligned(other) {
            Some((one, two)) => one.unscaled.cmp(&two.unscaled),
            // One of them is too large for the places of the other.
            None => other.places.cmp(&self.places),
        }
    }

    fn to_value(self) -> Value {
        let mut words = Vec::new();
        let mut rest = self.unscaled.unsigned_abs();
        while rest > 0 {
            words.push(rest & u128::from(u64::MAX));
            rest >>= u64::BITS;
        }
        let words: Vec<u64> = words
            .into_iter()
            .filter_map(|it| it.try_into().ok())
            .collect();
        let mut unscaled = json!({"neg": self.unscaled < 0});
        if !words.is_empty() {
            unscaled["abs"] = words.into();
        }
        json!({"unscaled": unscaled, "scale": self.places})
    }
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let negative = text.starts_with('-');
        let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
        let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
        let (whole, rest) = unsigned.split_at(digits(unsigned));
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => rest.split_at(digits(rest)),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return None;
        }
        let significant = whole.trim_start_matches('0');
        let nothing_else = significant.is_empty() && rest.is_empty();
        Some(Self {
            negative,
            whole: if significant.is_empty() {
                "0"
            } else {
                significant
            },
            fraction,
            number: if nothing_else {
                "0"
            } else {
                &text[..text.len() - suffix.len()]
            },
            suffix,
        })
    }
}

fn unit(suffix: &str) -> Option<(Unit, &'static str)> {
    let decimal = |exponent| Some((Unit::Ten(exponent), "DecimalSI"));
    let binary = |power| Some((Unit::Two(power), "BinarySI"));
    match suffix {
        "n" => decimal(-9),
        "u" => decimal(-6),
        "m" => decimal(-3),
        "" => decimal(0),
        "k" => decimal(3),
        "M" => decimal(6),
        "G" => decimal(9),
        "T" => decimal(12),
        "P" => decimal(15),
        "E" => decimal(18),
        "Ki" => binary(10),
        "Mi" => binary(20),
        "Gi" => binary(30),
        "Ti" => binary(40),
        "Pi" => binary(50),
        "Ei" => binary(60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E'])?;
            Some((Unit::Ten(digits.parse().ok()?), "DecimalExponent"))
        }
    }
}

/// Reads an amount that is not small, rounded up to billionths.
fn parse_large(
    parts: &Parts<'_>,
    unit: Unit,
    format: &'static str,
) -> Option<(Decimal, &'static str)> {
    let digits: String = parts.number.chars().filter(char::is_ascii_digit).collect();
    let mut amount = Decimal {
        unscaled: digits.parse().ok()?,
        places: parts.fraction.len().try_into().ok()?,
    };
    match unit {
        Unit::Ten(exponent) => amount.places = amount.places.checked_sub(exponent)?,
        Unit::Two(power) => amount.unscaled = amount.unscaled.checked_mul(1 << power)?,
    }
    if amount.unscaled != 0 {
        amount = amount.rounded(NANO)?;
    }
    let mut format = format;
    if matches!(unit, Unit::Two(_)) {
        let largest = Decimal {
            unscaled: i64::MAX.into(),
            places: 0,
        };
        let one = Decimal {
            unscaled: 1,
            places: 0,
        };
        if amount.compare(largest) == Ordering::Greater {
            amount = largest;
        }
        if amount.unscaled != 0 && amount.compare(one) == Ordering::Less {
            format = "DecimalSI";
        }
    }
    if parts.negative {
        amount.unscaled = -amount.unscaled;
    }
    Some((amount, format))
}

/// The sum of two small amounts as a small one, if possible.
fn small_sum(one: Amount, two: Amount) -> Option<Amount> {
    let (
        Amount::Small {
            value: one,
            exponent: of_one,
        },
        Amount::Small {
            value: two,
            exponent: of_two,
        },
    ) = (one, two)
    else {
        return None;
    };
    if two == 0 {
        return Some(Amount::Small {
            value: one,
            exponent: of_one,
        });
    }
    if one == 0 {
        return Some(Amount::Small {
            value: two,
            exponent: of_two,
        });
    }
    let exponent = of_one.min(of_two);
    let scaled = |value: i64, of_value: i32| {
        let power = 10_i64.checked_pow(of_value.abs_diff(exponent))?;
        value.checked_mul(power)
    };
    let value = scaled(one, of_one)?.checked_add(scaled(two, of_two)?)?;
    Some(Amount::Small { value, exponent })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn never_panics(
            one in "\\PC*|[-+]?[0-9.]{0,60}[eEinumkKMGTP]{0,2}[-+0-9]{0,12}",
            two in "[-+]?[0-9]{1,30}(\\.[0-9]{0,12})?(|m|k|Gi|Ei|e-?[0-9]{1,3})",
        ) {
            let of = |text: &str| GoQuantity::parse(text).unwrap_or_else(|| GoQuantity::parse("1").unwrap());
            let (one, two) = (of(&one), of(&two));
            let _ = one.clone().plus(&two).map(|sum| sum.to_value());
            let _ = one.clone().max(two).rounded().map(|largest| largest.to_value());
            let _ = one.rounded();
        }
    }
}
