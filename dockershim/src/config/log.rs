//! The destination and format of container logs.

use std::ops::RangeInclusive;

/// Bounds on the size of an engine log file, in bytes.
const SMALLEST_FILE: u64 = 1_000_000;
const LARGEST_FILE: u64 = 1_000_000_000_000;
/// Bounds on the number of engine log files.
const FILES: RangeInclusive<u32> = 2..=1000;

/// The format of a container log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// CRI's format, written by the shim.
    Cri,
    /// The engine's own format; the log path is a symlink to the engine's file.
    JsonFile,
}

/// The engine's log destination for a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogDriver {
    /// Files that the shim reads.
    JsonFile,
    /// The engine's own default.
    Engine,
}

/// The engine's json-file log of a container, which the shim converts to CRI's format.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EngineLog {
    /// The size at which the engine rotates the file, in the engine's notation.
    pub max_size: String,
    /// The number of files, including the current one.
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

/// Validates a size that the engine also parses. The lower bound exceeds any line of the engine's
/// log.
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
    // With a single file, the engine truncates it on rotation.
    if FILES.contains(&count) {
        return Ok(count);
    }
    Err(format!(
        "{count}; allowed: {} to {}",
        FILES.start(),
        FILES.end()
    ))
}
