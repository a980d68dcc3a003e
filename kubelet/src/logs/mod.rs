//! Logs of containers: reading them, following them, rotating them, and the
//! links to them.
//!
//! A runtime writes a container's log to one file, in the CRI format; engines of
//! old write json-file. Both are read; what is rotated away is not, as upstream.

mod decoder;
mod options;
mod reader;
mod record;
mod source;
mod tail;
mod watch;

pub use self::{
    options::{LogOptions, OptionsError},
    reader::{LogReader, ReadError},
    record::Stream,
    source::{LogError, LogParts, container_id},
};
