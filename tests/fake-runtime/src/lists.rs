//! The responses of list verbs as a stream.

use std::pin::Pin;

use futures::{Stream, stream};
use tonic::Status;

/// The number of items in a message of a list stream. It is small, so that tests get several
/// messages.
const CHUNK: usize = 8;

pub(super) type ResponseStream<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

pub(super) fn chunks<T: Clone, R: Send + 'static>(
    items: &[T],
    part: impl Fn(Vec<T>) -> R,
) -> ResponseStream<R> {
    let messages: Vec<_> = items.chunks(CHUNK).map(|c| Ok(part(c.to_vec()))).collect();
    Box::pin(stream::iter(messages))
}
