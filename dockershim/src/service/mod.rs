//! The tonic services: each rpc calls its verb; [`Error`](crate::Error) becomes a gRPC
//! status by the one mapping there.

mod deadline;
mod image;
mod measure;
mod node;
mod parts;
mod runtime;

use std::{pin::Pin, sync::Arc};

use futures::Stream;
use tonic::Status;

use crate::{Shim, Streaming};

pub use deadline::Deadline;
pub use measure::{Measure, Measured};

/// What a CRI client talks to; implements both of CRI's services.
#[derive(Debug, Clone)]
pub struct Service {
    shim: Arc<Shim>,
    streaming: Arc<Streaming>,
}

/// The answer of a verb that streams.
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// The services of `shim`, which prepare streams with `streaming`.
    pub fn new(shim: Arc<Shim>, streaming: Arc<Streaming>) -> Self {
        Self { shim, streaming }
    }
}

/// The answer for a verb that is not built.
fn unimplemented(verb: &str) -> Status {
    Status::unimplemented(format!(
        "{verb} is not implemented by this version of dockershim"
    ))
}
