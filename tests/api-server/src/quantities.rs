//! Resource quantities in upstream's canonical form: `1024Ki` becomes `1Mi`, and `0.1` becomes
//! `100m`.

use serde_json::Value;

/// Fields that map resource names to quantities.
const LISTS: [&str; 6] = [
    "requests",
    "limits",
    "capacity",
    "allocatable",
    "allocatedResources",
    "overhead",
];
/// Fields with a single quantity.
const SINGLE: [&str; 2] = ["sizeLimit", "divisor"];

/// The number of nano-units in a unit.
const NANOS: i128 = 1_000_000_000;
const DECIMAL: [(&str, i128); 10] = [
    ("E", 1_000_000_000_000_000_000 * NANOS),
    ("P", 1_000_000_000_000_000 * NANOS),
    ("T", 1_000_000_000_000 * NANOS),
    ("G", 1_000_000_000 * NANOS),
    ("M", 1_000_000 * NANOS),
    ("k", 1000 * NANOS),
    ("", NANOS),
    ("m", 1_000_000),
    ("u", 1000),
    ("n", 1),
];
const BINARY: [(&str, i128); 6] = [
    ("Ei", (1 << 60) * NANOS),
    ("Pi", (1 << 50) * NANOS),
    ("Ti", (1 << 40) * NANOS),
    ("Gi", (1 << 30) * NANOS),
    ("Mi", (1 << 20) * NANOS),
    ("Ki", (1 << 10) * NANOS),
];

/// Converts the quantities of pods, nodes and volumes to their canonical form.
pub(super) fn canonicalize(kind: &str, object: &mut Value) {
    let has_quantities = ["Pod", "Node", "PersistentVolume", "PersistentVolumeClaim"];
    if has_quantities.contains(&kind) {
        for part in ["spec", "status"] {
            canonicalize_in(&mut object[part]);
        }
    }
}

fn canonicalize_in(value: &mut Value) {
    match value {
        Value::Array(list) => list.iter_mut().for_each(canonicalize_in),
        Value::Object(fields) => {
            for (name, value) in fields {
                match value {
                    Value::Object(list) if LISTS.contains(&name.as_str()) => {
                        list.values_mut().for_each(rewrite);
                    }
                    single if SINGLE.contains(&name.as_str()) => rewrite(single),
                    other => canonicalize_in(other),
                }
            }
        }
        _ => {}
    }
}

fn rewrite(value: &mut Value) {
    let sent = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        _ => return,
    };
    // Validation handles text that is not a quantity.
    if let Some(canonical) = canonical(&sent) {
        *value = Value::from(canonical);
    }
}

fn canonical(text: &str) -> Option<String> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.');
    let (number, suffix) = text.split_at(end.unwrap_or(text.len()));
    let known = DECIMAL
        .iter()
        .chain(&BINARY)
        .find(|(one, _)| *one == suffix);
    // Quantities with an exponent stay as they are.
    let (_, scale) = known?;
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits: i128 = format!("{whole}{fraction}").parse().ok()?;
    let amount =
        digits.checked_mul(*scale)? / 10_i128.checked_pow(fraction.len().try_into().ok()?)?;
    let binary = suffix.ends_with('i') && amount >= 1024 * NANOS && amount % NANOS == 0;
    let scales = if binary {
        BINARY.iter().chain(&DECIMAL[6..7])
    } else {
        DECIMAL.iter().chain(&[])
    };
    let (suffix, scale) = scales.into_iter().find(|(_, scale)| amount % scale == 0)?;
    if amount == 0 {
        return Some("0".to_owned());
    }
    Some(format!("{}{suffix}", amount / scale))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn quantities_are_written_as_upstream_writes_them() {
        for (sent, stored) in [
            ("1024Ki", "1Mi"),
            ("4194304Ki", "4Gi"),
            ("1.5Gi", "1536Mi"),
            ("1025Ki", "1025Ki"),
            ("0.5Ki", "512"),
            ("0.1", "100m"),
            ("1000m", "1"),
            ("1500", "1500"),
            ("2000", "2k"),
            ("1024", "1024"),
            ("0", "0"),
            ("12e6", "12e6"),
            ("100M", "100M"),
        ] {
            let mut pod = json!({"spec": {"containers": [{"resources": {"limits": {"x": sent}}}]}});
            canonicalize("Pod", &mut pod);
            let limits = &pod["spec"]["containers"][0]["resources"]["limits"];
            assert_eq!(limits["x"], stored, "{sent}");
        }
    }
}
