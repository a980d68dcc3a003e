//! A CRI v1 runtime on top of a Docker engine.
//!
//! The shim keeps a live [`model`] of the engine's containers, fed by the engine's event stream. It
//! answers lists and statuses from the model; every verb that changes something updates the model
//! before it returns. Each CRI verb has its own file under [`sandbox`], [`container`] or [`image`].

#![forbid(unsafe_code)]

pub mod bounded_file;
pub mod cgroup_parent;
pub mod cgroup_settings;
pub mod checkpoint;
pub mod cli;
mod clock;
pub mod config;
pub mod container;
pub mod doctor;
pub mod engine;
pub mod error;
pub mod events;
pub mod health;
pub mod image;
pub mod images;
pub mod labels;
pub mod logs;
pub mod metrics;
pub mod model;
pub mod name_reservations;
pub mod naming;
pub mod network;
pub mod oom_kills;
pub mod open_files;
pub mod process;
pub mod resync;
pub mod sandbox;
pub mod security;
pub mod server;
pub mod service;
pub mod shim;
pub mod stats;
mod stop_signals;
pub mod streaming;
pub mod systemd;
pub mod unused_image_mounts;

pub use config::Config;
pub use error::{Error, LookupError};
pub use shim::Shim;
pub use streaming::Streaming;
