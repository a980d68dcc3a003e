//! The tonic services: each rpc calls its verb; [`Error`](crate::Error) becomes a gRPC
//! status by the one mapping there.

mod image;
mod node;
mod runtime;

use std::{pin::Pin, sync::Arc};

use futures::Stream;
use tonic::Status;

use crate::Shim;

/// What a CRI client talks to; implements both of CRI's services.
#[derive(Debug, Clone)]
pub struct Service {
    shim: Arc<Shim>,
}

/// The answer of a verb that streams.
type Parts<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// The services of `shim`.
    pub fn new(shim: Arc<Shim>) -> Self {
        Self { shim }
    }
}

/// The answer for a verb that is not built.
fn unimplemented(verb: &str) -> Status {
    Status::unimplemented(format!(
        "{verb} is not implemented by this version of dockershim"
    ))
}
