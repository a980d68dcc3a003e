//! Requests whose URI is longer than the HTTP library can take.
//!
//! It answers them by a status without a word, which is what `kubectl exec` with a very long
//! command then shows. So such a URI is cut off before the library sees it, and who handles
//! the request is told to refuse it.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// The longest URI of the library, in bytes.
pub(super) const LONGEST_URI: usize = u16::MAX as usize - 1;

/// Whether the URI of a connection's first request was cut off.
#[derive(Clone, Debug, Default)]
pub(super) struct IsCut(Arc<AtomicBool>);

impl IsCut {
    pub(super) fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// A connection of which the first request has no longer URI.
#[derive(Debug)]
pub(super) struct ShortUri<T> {
    stream: T,
    at: At,
    is_cut: IsCut,
}

/// Where in the first request the reader is.
#[derive(Clone, Copy, Debug)]
enum At {
    Method,
    /// Behind so many bytes of it.
    Uri(usize),
    Rest,
}

impl<T> ShortUri<T> {
    pub(super) fn new(stream: T) -> Self {
        Self {
            stream,
            at: At::Method,
            is_cut: IsCut::default(),
        }
    }

    pub(super) fn is_cut(&self) -> IsCut {
        self.is_cut.clone()
    }

    /// Leaves out of what was read what is too much; returns how long it is then.
    fn shorten(&mut self, read: &mut [u8]) -> usize {
        let mut kept = 0;
        for index in 0..read.len() {
            let byte = read[index];
            let mut keep = true;
            match self.at {
                At::Method if byte == b' ' => self.at = At::Uri(0),
                At::Uri(_) if matches!(byte, b' ' | b'\r' | b'\n') => self.at = At::Rest,
                At::Uri(LONGEST_URI) => {
                    self.is_cut.0.store(true, Ordering::Relaxed);
                    keep = false;
                }
                At::Uri(length) => self.at = At::Uri(length + 1),
                At::Method => {}
                At::Rest => {
                    read.copy_within(index.., kept);
                    return kept + read.len() - index;
                }
            }
            if keep {
                read[kept] = byte;
                kept += 1;
            }
        }
        kept
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for ShortUri<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        loop {
            ready!(Pin::new(&mut self.stream).poll_read(cx, buf))?;
            let read = &mut buf.filled_mut()[before..];
            if matches!(self.at, At::Rest) || read.is_empty() {
                return Poll::Ready(Ok(()));
            }
            let kept = self.shorten(read);
            buf.set_filled(before + kept);
            // Nothing would be taken for the end.
            if kept > 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for ShortUri<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    /// What is read of `sent` when it comes in pieces, and whether its URI was cut off.
    async fn read(sent: &str, piece: usize) -> (String, bool) {
        let (mut writer, reader) = tokio::io::duplex(piece);
        let mut reader = ShortUri::new(reader);
        let sending = async move { writer.write_all(sent.as_bytes()).await };
        let mut text = String::new();
        let (sent, read) = tokio::join!(sending, reader.read_to_string(&mut text));
        sent.and(read).unwrap();
        (text, reader.is_cut().get())
    }

    #[tokio::test]
    async fn what_is_too_long_of_a_uri_is_left_out() {
        let longest = "/".repeat(LONGEST_URI);
        let rest = "HTTP/1.1\r\nHost: x\r\n\r\na body with spaces";
        let request = format!("POST {longest} {rest}");
        for piece in [1, 1000, 1 << 20] {
            assert_eq!(read(&request, piece).await, (request.clone(), false));
            for more in ["a", &"b".repeat(100_000)] {
                let longer = format!("POST {longest}{more} {rest}");
                assert_eq!(read(&longer, piece).await, (request.clone(), true));
            }
        }
    }

    #[tokio::test]
    async fn what_has_no_uri_is_as_it_is() {
        let long = "x".repeat(2 * LONGEST_URI);
        for text in [
            String::new(),
            long.clone(),
            format!("GET /\r\n{long} {long}"),
        ] {
            assert_eq!(read(&text, 100).await, (text.clone(), false));
        }
    }
}
