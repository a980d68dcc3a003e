//! Flag values: converts command-line text to the value that a `KubeletConfiguration` file would
//! have.

use std::net::IpAddr;

use go_duration::GoDuration;
use kubelet_host::go_bool;
use serde_json::{Map, Value, json};

/// The syntax of a flag's value, as upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Any text.
    Text,
    /// `true` or `false`; the flag alone means `true`.
    Bool,
    /// An integer.
    Int,
    /// A Go duration.
    Duration,
    /// An IP address.
    Ip,
    /// Texts, separated by commas.
    List,
    /// `key=value` pairs, separated by commas.
    Map,
    /// `key=true|false` pairs, separated by commas.
    BoolMap,
    /// `key<value` pairs, separated by commas.
    Thresholds,
    /// `name:value` pairs, separated by commas; a name may be repeated.
    Headers,
    /// `key=value:effect` taints, separated by commas.
    Taints,
    /// `pattern=verbosity` pairs, separated by commas, in order.
    Modules,
    /// `NODE:type=amount,...` reservations of NUMA nodes, separated by semicolons.
    ReservedMemory,
}

impl Kind {
    /// The placeholder of the value in `--help`.
    pub(super) fn placeholder(self) -> &'static str {
        match self {
            Self::Text => "TEXT",
            Self::Bool => "true|false",
            Self::Int => "NUMBER",
            Self::Duration => "DURATION",
            Self::Ip => "IP",
            Self::List => "A,B,...",
            Self::Map => "KEY=VALUE,...",
            Self::BoolMap => "KEY=true|false,...",
            Self::Thresholds => "SIGNAL<VALUE,...",
            Self::Headers => "NAME:VALUE,...",
            Self::Taints => "KEY=VALUE:EFFECT,...",
            Self::Modules => "PATTERN=NUMBER,...",
            Self::ReservedMemory => "NODE:TYPE=AMOUNT,...",
        }
    }

    /// Whether the flag may be repeated, each time adding to the value.
    pub(super) fn accumulates(self) -> bool {
        !matches!(
            self,
            Self::Text | Self::Bool | Self::Int | Self::Duration | Self::Ip
        )
    }

    /// Parses a value.
    ///
    /// # Errors
    /// The expected syntax.
    pub(super) fn parse(self, text: &str) -> Result<Value, String> {
        match self {
            Self::Text => Ok(json!(text)),
            Self::Bool => parse_bool(text).map(Value::Bool),
            Self::Int => text
                .parse::<i64>()
                .map(|number| json!(number))
                .map_err(|_| "must be a whole number".to_owned()),
            Self::Duration => text
                .parse::<GoDuration>()
                .map(|_| json!(text))
                .map_err(|error| error.to_string()),
            Self::Ip => text
                .trim()
                .parse::<IpAddr>()
                .map(|ip| json!(ip.to_string()))
                .map_err(|_| "must be an IP address, such as 192.0.2.1 or 2001:db8::1".to_owned()),
            Self::List => Ok(parts(text, ',').map(|part| json!(part)).collect()),
            Self::Map => pairs(text, '=', |value| Ok(json!(value))),
            Self::BoolMap => pairs(text, '=', |value| parse_bool(value).map(Value::Bool)),
            Self::Thresholds => pairs(text, '<', |value| Ok(json!(value))),
            Self::Headers => headers(text),
            Self::Taints => parts(text, ',').map(taint).collect(),
            Self::Modules => parts(text, ',').map(module).collect(),
            Self::ReservedMemory => parts(text, ';').map(reservation).collect(),
        }
    }
}

fn module(text: &str) -> Result<Value, String> {
    let pair = text.split_once('=');
    let parsed =
        pair.and_then(|(pattern, verbosity)| Some((pattern, verbosity.parse::<u32>().ok()?)));
    match parsed {
        Some((pattern, verbosity)) => Ok(json!({"filePattern": pattern, "verbosity": verbosity})),
        None => Err("must be pattern=verbosity, such as csi_*=5".to_owned()),
    }
}

fn parse_bool(text: &str) -> Result<bool, String> {
    go_bool::parse(text).ok_or_else(|| "must be true or false".to_owned())
}

fn parts(text: &str, separator: char) -> impl Iterator<Item = &str> {
    text.split(separator)
        .map(str::trim)
        .filter(|part| !part.is_empty())
}

fn pairs(
    text: &str,
    separator: char,
    value_of: impl Fn(&str) -> Result<Value, String>,
) -> Result<Value, String> {
    let mut map = Map::new();
    for part in parts(text, ',') {
        let (key, value) = part
            .split_once(separator)
            .ok_or_else(|| format!("{part:?} must have the form KEY{separator}VALUE"))?;
        let value = value_of(value.trim()).map_err(|rule| format!("{key} {rule}"))?;
        map.insert(key.trim().to_owned(), value);
    }
    Ok(Value::Object(map))
}

fn headers(text: &str) -> Result<Value, String> {
    let mut map = Map::new();
    for part in parts(text, ',') {
        let (name, value) = part
            .split_once(':')
            .ok_or_else(|| format!("{part:?} must have the form NAME:VALUE"))?;
        if let Value::Array(values) = map.entry(name.trim()).or_insert_with(|| json!([])) {
            values.push(json!(value.trim()));
        }
    }
    Ok(Value::Object(map))
}

fn taint(text: &str) -> Result<Value, String> {
    const EFFECTS: [&str; 3] = ["NoSchedule", "PreferNoSchedule", "NoExecute"];
    let (key_value, effect) = text
        .rsplit_once(':')
        .filter(|(_, effect)| EFFECTS.contains(effect))
        .ok_or_else(|| {
            format!(
                "{text:?} must have the form KEY=VALUE:EFFECT, where EFFECT is one of {EFFECTS:?}"
            )
        })?;
    let (key, value) = key_value.split_once('=').unwrap_or((key_value, ""));
    Ok(json!({"key": key, "value": value, "effect": effect}))
}

fn reservation(text: &str) -> Result<Value, String> {
    let form = || format!("{text:?} must have the form NODE:TYPE=AMOUNT,...");
    let (node, limits) = text.split_once(':').ok_or_else(form)?;
    let node: i32 = node.trim().parse().map_err(|_| form())?;
    let limits = pairs(limits, '=', |amount| Ok(json!(amount)))?;
    Ok(json!({"numaNode": node, "limits": limits}))
}

/// Adds the value of a repeated flag.
pub(super) fn accumulate(total: &mut Value, more: Value) {
    match (total, more) {
        (Value::Array(total), Value::Array(more)) => total.extend(more),
        (Value::Object(total), Value::Object(more)) => {
            for (key, value) in more {
                match total.get_mut(&key) {
                    Some(Value::Array(_)) if value.is_array() => {
                        if let Some(present) = total.get_mut(&key) {
                            accumulate(present, value);
                        }
                    }
                    _ => {
                        total.insert(key, value);
                    }
                }
            }
        }
        (total, more) => *total = more,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_shape_of_the_file() {
        for (kind, text, value) in [
            (Kind::Bool, "f", json!(false)),
            (Kind::Duration, "1m", json!("1m")),
            (Kind::Ip, "::1", json!("::1")),
            (
                Kind::List,
                "10.0.0.10,fd00::a",
                json!(["10.0.0.10", "fd00::a"]),
            ),
            (
                Kind::Map,
                "cpu=200m,memory=1Gi",
                json!({"cpu": "200m", "memory": "1Gi"}),
            ),
            (
                Kind::BoolMap,
                "A=true,B=false",
                json!({"A": true, "B": false}),
            ),
            (
                Kind::Thresholds,
                "memory.available<5%",
                json!({"memory.available": "5%"}),
            ),
            (Kind::Headers, "a:1,a:2", json!({"a": ["1", "2"]})),
            (
                Kind::Taints,
                "k=v:NoSchedule",
                json!([{"key": "k", "value": "v", "effect": "NoSchedule"}]),
            ),
            (
                Kind::ReservedMemory,
                "0:memory=1Gi",
                json!([{"numaNode": 0, "limits": {"memory": "1Gi"}}]),
            ),
        ] {
            assert_eq!(kind.parse(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn faults_say_which_form_is_right() {
        for (kind, text, part) in [
            (Kind::Bool, "yes", "true or false"),
            (Kind::Int, "1.5", "whole number"),
            (Kind::Ip, "localhost", "IP address"),
            (Kind::BoolMap, "A=maybe", "A must be true or false"),
            (Kind::Taints, "k=v:Never", "NoExecute"),
        ] {
            let error = kind.parse(text).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }
}
