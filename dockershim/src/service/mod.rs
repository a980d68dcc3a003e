//! The tonic services: each RPC calls its verb, and [`Error`](crate::Error) is converted to a gRPC
//! status.

mod chunks;
mod deadline;
mod image;
mod metrics_layer;
mod node;
mod runtime;

use std::{pin::Pin, sync::Arc};

use futures::Stream;
use tonic::Status;

use crate::{Shim, Streaming};

pub use deadline::Deadline;
pub use metrics_layer::{MetricsLayer, MetricsService};

/// Implements both of CRI's services.
#[derive(Debug, Clone)]
pub struct Service {
    shim: Arc<Shim>,
    streaming: Arc<Streaming>,
}

/// The response of a streaming verb.
type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Service {
    /// Creates the services of `shim`; `streaming` prepares the streams.
    pub fn new(shim: Arc<Shim>, streaming: Arc<Streaming>) -> Self {
        Self { shim, streaming }
    }
}

/// The error of a verb that is not implemented.
fn unimplemented(verb: &str) -> Status {
    Status::unimplemented(format!(
        "{verb} is not implemented by this version of dockershim"
    ))
}
