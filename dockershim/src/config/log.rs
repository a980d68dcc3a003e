//! Where and in which format containers' output is logged.

use std::ops::RangeInclusive;

/// Bounds of the size of a file of the engine's log, in bytes.
const SMALLEST_FILE: u64 = 1_000_000;
const LARGEST_FILE: u64 = 1_000_000_000_000;
/// Files of the engine's log.
const FILES: RangeInclusive<u32> = 2..=1000;

/// The format of a container's log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// CRI's, written by the shim.
    Cri,
    /// The engine's own, to which the log's path is a link.
    JsonFile,
}

/// Where the engine logs a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogDriver {
    /// To files that the shim reads.
    JsonFile,
    /// Wherever its own settings say.
    Engine,
}

/// The engine's json-file log of a container; the shim converts it to CRI's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineLog {
    /// The engine begins another file at this size; in the engine's notation.
    pub max_size: String,
    /// Files, with the one that is written to.
    pub max_file: u32,
}

pub(super) fn parse_format(format: &str) -> Result<LogFormat, String> {
    match format {
        "cri" => Ok(LogFormat::Cri),
        "json-file" => Ok(LogFormat::JsonFile),
        other => Err(format!("{other:?}; allowed: cri, json-file")),
    }
}

pub(crate) fn parse_driver(driver: &str) -> Result<LogDriver, String> {
    match driver {
        "json-file" => Ok(LogDriver::JsonFile),
        "engine" => Ok(LogDriver::Engine),
        other => Err(format!("{other:?}; allowed: engine, json-file")),
    }
}

/// A size that the engine reads too; larger than any line of its log.
pub(super) fn parse_size(text: &str) -> Result<String, String> {
    let end = text.find(|c: char| !c.is_ascii_digit());
    let (number, unit) = text.split_at(end.unwrap_or(text.len()));
    let factor = match unit {
        "" => Some(1),
        "k" => Some(1000),
        "m" => Some(1_000_000),
        "g" => Some(1_000_000_000),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    let bytes = number
        .zip(factor)
        .and_then(|(n, factor)| n.checked_mul(factor));
    match bytes {
        Some(bytes) if (SMALLEST_FILE..=LARGEST_FILE).contains(&bytes) => Ok(text.to_owned()),
        _ => Err(format!(
            "{text:?}; allowed: 1m to 1000g, in bytes, k, m or g (powers of 1000)"
        )),
    }
}

pub(super) fn parse_max_file(count: u32) -> Result<u32, String> {
    // With one, the engine cuts it where it begins the next.
    if FILES.contains(&count) {
        return Ok(count);
    }
    Err(format!(
        "{count}; allowed: {} to {}",
        FILES.start(),
        FILES.end()
    ))
}
