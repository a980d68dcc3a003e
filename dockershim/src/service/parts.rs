//! Splits long lists into streams of short ones.

use tonic::Status;

use super::Parts;

/// The number of items per message, small enough for every client's message size limit.
const ITEMS: usize = 50;

/// A stream of `items`, in messages of up to 50; an empty list yields no message.
pub fn in_parts<T, M>(items: Vec<T>, message: fn(Vec<T>) -> M) -> Parts<M>
where
    T: Send + 'static,
    M: Send + 'static,
{
    let mut items = items.into_iter();
    Box::pin(futures::stream::iter(std::iter::from_fn(move || {
        let part: Vec<T> = items.by_ref().take(ITEMS).collect();
        (!part.is_empty()).then(|| Ok::<_, Status>(message(part)))
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
            let parts: Vec<Vec<usize>> = in_parts(items.clone(), |part| part)
                .try_collect()
                .await
                .unwrap();
            assert_eq!(parts.len(), count.div_ceil(ITEMS));
            assert_eq!(parts.concat(), items);
        }
    }
}
