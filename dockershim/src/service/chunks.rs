//! Splits long lists into streams of short ones.

use tonic::Status;

use super::ResponseStream;

/// The number of items per message, small enough for every client's message size limit.
const ITEMS: usize = 50;

/// A stream of `items`, in messages of up to 50; an empty list yields no message.
pub(super) fn in_chunks<T, M>(items: Vec<T>, message: fn(Vec<T>) -> M) -> ResponseStream<M>
where
    T: Send + 'static,
    M: Send + 'static,
{
    let mut items = items.into_iter();
    Box::pin(futures::stream::iter(std::iter::from_fn(move || {
        let chunk: Vec<T> = items.by_ref().take(ITEMS).collect();
        (!chunk.is_empty()).then(|| Ok::<_, Status>(message(chunk)))
    })))
}

#[cfg(test)]
mod tests {
    use futures::TryStreamExt as _;

    use super::*;

    #[tokio::test]
    async fn nothing_is_lost_and_nothing_comes_twice() {
        for count in [0, 1, ITEMS, ITEMS + 1, 3 * ITEMS] {
            let items: Vec<usize> = (0..count).collect();
            let chunks: Vec<Vec<usize>> = in_chunks(items.clone(), |chunk| chunk)
                .try_collect()
                .await
                .unwrap();
            assert_eq!(chunks.len(), count.div_ceil(ITEMS));
            assert_eq!(chunks.concat(), items);
        }
    }
}
