//! Exact resource quantities: `500m`, `1.5Gi`, `12e6`.
//!
//! Amounts are integers in billionths, not floats, because comparisons of requests with limits need
//! every digit.

/// Billionths in one unit.
pub const NANOS: i128 = 1_000_000_000;

/// Why a text is not a quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "quantities must be a number with an optional suffix (n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei, or an exponent), such as 500m, 2 or 1.5Gi"
)]
pub struct QuantityError;

/// Parses an amount in billionths. As upstream, finer amounts are rounded up and amounts out of
/// range saturate.
///
/// # Errors
/// The text is not a quantity.
pub fn parse(text: &str) -> Result<i128, QuantityError> {
    let (negative, unsigned) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        Some(_) => (false, text),
        None => return Err(QuantityError),
    };
    let number_end = unsigned
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(unsigned.len());
    let (number, suffix) = unsigned.split_at(number_end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
        return Err(QuantityError);
    }
    let amount = amount(whole, fraction, scale(suffix)?);
    Ok(if negative { -amount } else { amount })
}

/// Formats billionths of the resource `name`. CPU and fractional amounts get the suffix `m`, `u` or
/// `n` if needed; other amounts get the largest binary suffix that is exact.
pub fn format(name: &str, billionths: i128) -> String {
    if name == "cpu" || billionths % NANOS != 0 {
        return match billionths {
            whole if whole % NANOS == 0 => (whole / NANOS).to_string(),
            milli if milli % (NANOS / 1000) == 0 => format!("{}m", milli / (NANOS / 1000)),
            micro if micro % 1000 == 0 => format!("{}u", micro / 1000),
            nano => format!("{nano}n"),
        };
    }
    let mut amount = billionths / NANOS;
    let mut suffix = "";
    for larger in ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"] {
        if amount == 0 || amount % 1024 != 0 {
            break;
        }
        amount /= 1024;
        suffix = larger;
    }
    format!("{amount}{suffix}")
}

/// Formats billionths of something that is counted, with the largest decimal suffix that is exact.
pub fn format_count(billionths: i128) -> String {
    let mut count = billionths / NANOS;
    let mut suffix = "";
    for larger in ["k", "M", "G", "T", "P", "E"] {
        if count == 0 || count % 1000 != 0 {
            break;
        }
        count /= 1000;
        suffix = larger;
    }
    format!("{count}{suffix}")
}

/// The multiplier of a suffix: a power of ten or of two.
#[derive(Clone, Copy)]
enum Scale {
    Ten(i32),
    Two(u32),
}

fn scale(suffix: &str) -> Result<Scale, QuantityError> {
    Ok(match suffix {
        "n" => Scale::Ten(-9),
        "u" => Scale::Ten(-6),
        "m" => Scale::Ten(-3),
        "" => Scale::Ten(0),
        "k" => Scale::Ten(3),
        "M" => Scale::Ten(6),
        "G" => Scale::Ten(9),
        "T" => Scale::Ten(12),
        "P" => Scale::Ten(15),
        "E" => Scale::Ten(18),
        "Ki" => Scale::Two(10),
        "Mi" => Scale::Two(20),
        "Gi" => Scale::Two(30),
        "Ti" => Scale::Two(40),
        "Pi" => Scale::Two(50),
        "Ei" => Scale::Two(60),
        exponent => {
            let digits = exponent.strip_prefix(['e', 'E']).ok_or(QuantityError)?;
            Scale::Ten(digits.parse().map_err(|_| QuantityError)?)
        }
    })
}

/// Computes `whole.fraction` times `scale` in billionths, rounded up and saturated.
fn amount(whole: &str, fraction: &str, scale: Scale) -> i128 {
    // The digits form one integer; the scale shifts the decimal point.
    let digits = format!("{whole}{fraction}");
    let digits = digits.trim_start_matches('0');
    if digits.is_empty() {
        return 0;
    }
    let point = i32::try_from(fraction.len()).unwrap_or(i32::MAX);
    let (ten, two) = match scale {
        Scale::Ten(ten) => (ten, 0),
        Scale::Two(two) => (0, two),
    };
    let ten = ten.saturating_sub(point).saturating_add(9);
    let Ok(value) = digits.parse::<i128>() else {
        return i128::MAX;
    };
    let Some(value) = value.checked_mul(1_i128 << two) else {
        return i128::MAX;
    };
    let Some(power) = 10_i128.checked_pow(ten.unsigned_abs()) else {
        return if ten > 0 { i128::MAX } else { 1 };
    };
    if ten >= 0 {
        value.checked_mul(power).unwrap_or(i128::MAX)
    } else {
        value / power + i128::from(value % power != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_every_suffix() {
        for (text, nanos) in [
            ("0", 0),
            ("1", NANOS),
            ("500m", NANOS / 2),
            ("0.1", NANOS / 10),
            ("100m", NANOS / 10),
            ("1.5Gi", 1_610_612_736 * NANOS),
            ("12e6", 12_000_000 * NANOS),
            ("12E6", 12_000_000 * NANOS),
            ("2E", 2_000_000_000_000_000_000 * NANOS),
            ("1Ki", 1024 * NANOS),
            ("-5k", -5000 * NANOS),
            (".5", NANOS / 2),
            ("1.", NANOS),
            ("0.1n", 1),
            ("+7", 7 * NANOS),
            ("3e-2", 3 * NANOS / 100),
            ("3E+2", 300 * NANOS),
        ] {
            assert_eq!(parse(text), Ok(nanos), "{text}");
        }
        for (suffix, one) in [
            ("n", 1),
            ("u", 1000),
            ("m", 1_000_000),
            ("", NANOS),
            ("k", 1_000 * NANOS),
            ("M", 1_000_000 * NANOS),
            ("G", 1_000_000_000 * NANOS),
            ("T", 1_000_000_000_000 * NANOS),
            ("P", 1_000_000_000_000_000 * NANOS),
            ("E", 1_000_000_000_000_000_000 * NANOS),
            ("Ki", 1024 * NANOS),
            ("Mi", 1_048_576 * NANOS),
            ("Gi", 1_073_741_824 * NANOS),
            ("Ti", 1_099_511_627_776 * NANOS),
            ("Pi", 1_125_899_906_842_624 * NANOS),
            ("Ei", 1_152_921_504_606_846_976 * NANOS),
        ] {
            assert_eq!(parse(&format!("3{suffix}")), Ok(3 * one), "{suffix}");
        }
    }

    #[test]
    fn refuses_what_is_no_quantity() {
        for text in [
            "", "Mi", "1.2.3", "1 Gi", "1gi", "e3", "1e", "ten", "-", "1KiB",
        ] {
            assert_eq!(parse(text), Err(QuantityError), "{text:?}");
        }
    }

    #[test]
    fn saturates_instead_of_wrapping() {
        assert_eq!(parse("9e999"), Ok(i128::MAX));
        assert_eq!(parse("99999999999999999999999999999999Ei"), Ok(i128::MAX));
    }

    #[test]
    fn writes_what_it_reads() {
        for (name, text) in [
            ("cpu", "1500m"),
            ("cpu", "2"),
            ("cpu", "1u"),
            ("cpu", "1n"),
            ("memory", "64Mi"),
            ("memory", "1536Mi"),
            ("memory", "1000"),
            ("memory", "0"),
            ("memory", "3Ki"),
            ("memory", "3Gi"),
            ("memory", "3Ti"),
            ("memory", "3Pi"),
            ("memory", "3Ei"),
            // CPU and fractions of a byte have no binary suffix.
            ("cpu", "2048"),
            ("memory", "1500m"),
        ] {
            assert_eq!(format(name, parse(text).unwrap()), text);
        }
    }

    #[test]
    fn counts_have_decimal_suffixes() {
        for text in ["0", "999", "1001", "5k", "32k", "7M", "1024"] {
            assert_eq!(format_count(parse(text).unwrap()), text);
        }
    }

    #[test]
    fn less_than_a_billionth_is_rounded_up() {
        for (text, nanos) in [("0.0000000010", 1), ("0.0000000011", 2)] {
            assert_eq!(parse(text).unwrap(), nanos, "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*|[-+]?[0-9.]{0,60}[eEinumkKMGTP]{0,2}[-+0-9]{0,12}") {
            let _ = parse(&text);
        }
    }
}
