//! The tonic services: each rpc calls its verb; [`Error`](crate::Error) becomes a gRPC
//! status by the one mapping there.

pub mod deadline;
mod image;
mod node;
mod runtime;

use std::{pin::Pin, sync::Arc};

use futures::Stream;
use tonic::{Response, Status};

use crate::{Shim, Streaming};

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

/// What a part of a streamed list holds at most: some tens of KiB.
const PART: usize = 128;

/// A list as a stream of parts, each well below what a client takes as one message.
fn in_parts<T, R>(items: Vec<T>, part: fn(Vec<T>) -> R) -> Response<Parts<R>>
where
    T: Send + 'static,
    R: Send + 'static,
{
    let mut items = items.into_iter();
    let parts = std::iter::from_fn(move || {
        let next: Vec<T> = items.by_ref().take(PART).collect();
        (!next.is_empty()).then(|| Ok(part(next)))
    });
    Response::new(Box::pin(futures::stream::iter(parts)))
}

/// The answer for a verb that is not built.
fn unimplemented(verb: &str) -> Status {
    Status::unimplemented(format!(
        "{verb} is not implemented by this version of dockershim"
    ))
}
