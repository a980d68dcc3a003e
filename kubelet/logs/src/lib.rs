//! Logs of containers: reading, following, rotating and linking them.
//!
//! A runtime writes the log of a container to one file in the CRI format; older engines write
//! json-file. Both formats are read. Rotated files are not, as upstream.

#![forbid(unsafe_code)]

mod decoder;
pub mod links;
mod log_path;
mod options;
mod reader;
mod record;
mod rotated;
mod rotation;
mod source;
mod tail;
mod watch;

pub use self::{
    decoder::{Decoder, OutputFull},
    log_path::open_log,
    options::{LogOptions, OptionsError},
    reader::{LogReader, ReadError},
    record::Stream,
    rotated::remove_logs,
    rotation::{LogRotation, RotationPolicy},
    source::{LogError, LogParts, container_id, open},
    tail::start_of_tail,
};
