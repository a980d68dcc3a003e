//! Logs of containers: reading them, following them, rotating them, and the
//! links to them.
//!
//! A runtime writes a container's log to one file, in the CRI format; engines of
//! old write json-file. Both are read; what is rotated away is not, as upstream.

#![forbid(unsafe_code)]

mod decoder;
pub mod links;
mod options;
mod place;
mod reader;
mod record;
mod rotated;
mod rotation;
mod source;
mod tail;
mod watch;

pub use self::{
    decoder::{Decoder, Full},
    options::{LogOptions, OptionsError},
    place::open_log,
    reader::{LogReader, ReadError},
    record::Stream,
    rotated::remove_logs,
    rotation::{LogRotation, RotationPolicy},
    source::{LogError, LogParts, container_id, open},
    tail::start_of_tail,
};
