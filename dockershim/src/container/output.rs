//! A process's output from the engine. The engine may never close the stream: it keeps the
//! connection of a command open forever if the container exited while the command was being
//! started (20.10 does).

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures::{FutureExt as _, future::BoxFuture};
use tokio::{
    io::{AsyncBufRead, AsyncRead, ReadBuf},
    time::{Sleep, sleep},
};

/// How long output may pause after the container has exited; longer than a slow engine's pauses.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// A stream that also ends once the container has `ended` and no more output arrives.
pub(super) struct ProcessOutput<'a, R> {
    from: R,
    ended: Option<BoxFuture<'a, ()>>,
    /// Runs since the container has exited without new output.
    patience: Option<Pin<Box<Sleep>>>,
}

impl<'a, R: AsyncBufRead + Unpin> ProcessOutput<'a, R> {
    pub(super) fn new(from: R, ended: impl Future<Output = ()> + Send + 'a) -> Self {
        Self {
            from,
            ended: Some(ended.boxed()),
            patience: None,
        }
    }

    /// Ready when there is output, or with `true` at the end.
    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<bool>> {
        if let Poll::Ready(filled) = Pin::new(&mut self.from).poll_fill_buf(cx) {
            let end = filled?.is_empty();
            self.patience = None;
            return Poll::Ready(Ok(end));
        }
        if let Some(ended) = &mut self.ended {
            ready!(ended.poll_unpin(cx));
            self.ended = None;
        }
        let patience = &mut self.patience;
        let patience = patience.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        patience.poll_unpin(cx).map(|()| Ok(true))
    }
}

impl<R: AsyncBufRead + Unpin> AsyncBufRead for ProcessOutput<'_, R> {
    fn poll_fill_buf(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        let this = self.get_mut();
        if ready!(this.poll_ready(cx))? {
            return Poll::Ready(Ok(&[]));
        }
        Pin::new(&mut this.from).poll_fill_buf(cx)
    }

    fn consume(mut self: Pin<&mut Self>, amount: usize) {
        Pin::new(&mut self.from).consume(amount);
    }
}

impl<R: AsyncBufRead + Unpin> AsyncRead for ProcessOutput<'_, R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let bytes = ready!(self.as_mut().poll_fill_buf(cx))?;
        let length = bytes.len().min(buffer.remaining());
        buffer.put_slice(&bytes[..length]);
        self.consume(length);
        Poll::Ready(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader, duplex},
        sync::oneshot,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn output_ends_with_the_engines_connection_or_some_time_after_the_container() {
        let (mut engine, from) = duplex(64);
        let (container, ended) = oneshot::channel::<()>();
        let ended = async move { drop(ended.await) };
        let mut output = ProcessOutput::new(BufReader::new(from), ended);
        engine.write_all(b"one").await.unwrap();
        let mut three = [0; 3];
        output.read_exact(&mut three).await.unwrap();
        assert_eq!(&three, b"one");
        // While the container is running, a pause means nothing.
        let mut next = [0; 3];
        let silence = tokio::time::timeout(100 * PATIENCE, output.read(&mut next)).await;
        assert!(silence.is_err());

        // Late output is still delivered.
        container.send(()).unwrap();
        let late = tokio::time::timeout(PATIENCE / 2, output.read(&mut next)).await;
        assert!(late.is_err());
        engine.write_all(b"two").await.unwrap();
        output.read_exact(&mut three).await.unwrap();
        assert_eq!(&three, b"two");
        assert_eq!(output.read(&mut next).await.unwrap(), 0);
        drop(engine);
        assert_eq!(output.read(&mut next).await.unwrap(), 0);
    }
}
