//! The engine's format of process output: raw bytes from a terminal, otherwise frames, each with a
//! header of stream and length.

use std::io;

use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _,
};

/// The length of a frame's header: the stream, three zeros, the length.
const HEADER: usize = 8;
const STDIN: u8 = 0;
const STDERR: u8 = 2;

/// Why the output could not be copied to its end.
#[derive(Debug, thiserror::Error)]
pub enum OutputError {
    /// The engine's connection broke or sent invalid data.
    #[error("the Docker engine dropped the connection: {0}")]
    Engine(io::Error),
    /// The receiver failed.
    #[error("cannot deliver the output: {0}")]
    Taker(io::Error),
}

/// Copies all output to its streams.
///
/// # Errors
/// [`OutputError`].
pub async fn carry(
    mut from: impl AsyncBufRead + Unpin,
    tty: bool,
    stdout: &mut (impl AsyncWrite + Unpin),
    stderr: &mut (impl AsyncWrite + Unpin),
) -> Result<(), OutputError> {
    if tty {
        return copy(&mut from, stdout, None).await;
    }
    loop {
        if from
            .fill_buf()
            .await
            .map_err(OutputError::Engine)?
            .is_empty()
        {
            return Ok(());
        }
        let mut header = [0; HEADER];
        let read = from.read_exact(&mut header).await;
        read.map_err(OutputError::Engine)?;
        let [stream, _, _, _, length @ ..] = header;
        let length = Some(u32::from_be_bytes(length) as usize);
        match stream {
            STDIN..STDERR => copy(&mut from, stdout, length).await?,
            STDERR => copy(&mut from, stderr, length).await?,
            other => {
                let text = format!("output for unknown stream {other}");
                let error = io::Error::new(io::ErrorKind::InvalidData, text);
                return Err(OutputError::Engine(error));
            }
        }
    }
}

/// Copies `length` bytes, or everything if `None`.
async fn copy(
    from: &mut (impl AsyncBufRead + Unpin),
    to: &mut (impl AsyncWrite + Unpin),
    mut length: Option<usize>,
) -> Result<(), OutputError> {
    while length != Some(0) {
        let bytes = from.fill_buf().await.map_err(OutputError::Engine)?;
        let size = bytes.len().min(length.unwrap_or(usize::MAX));
        if size == 0 && length.is_none() {
            return Ok(());
        }
        if size == 0 {
            return Err(OutputError::Engine(io::ErrorKind::UnexpectedEof.into()));
        }
        let taken = to.write_all(&bytes[..size]).await;
        taken.map_err(OutputError::Taker)?;
        from.consume(size);
        length = length.map(|length| length - size);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio_util::io::StreamReader;

    use super::*;

    fn piece(stream: u8, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![stream, 0, 0, 0];
        bytes.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
        bytes.extend(data);
        bytes
    }

    fn run(tty: bool, bytes: &[u8], step: usize) -> (Result<(), OutputError>, Vec<u8>, Vec<u8>) {
        let pieces = bytes.chunks(step).map(io::Result::Ok);
        let from = StreamReader::new(futures::stream::iter(pieces));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .unwrap();
        let done = runtime.block_on(carry(from, tty, &mut out, &mut err));
        (done, out, err)
    }

    proptest! {
        #[test]
        fn pieces_reach_their_streams_however_they_come(
            pieces in prop::collection::vec((any::<bool>(), prop::collection::vec(any::<u8>(), 0..50)), 0..20),
            step in 1_usize..100,
        ) {
            let (mut wire, mut out, mut err) = (Vec::new(), Vec::new(), Vec::new());
            for (is_err, data) in &pieces {
                wire.extend(piece(if *is_err { 2 } else { 1 }, data));
                if *is_err { err.extend(data) } else { out.extend(data) }
            }
            let (done, has_out, has_err) = run(false, &wire, step);
            prop_assert!(done.is_ok());
            prop_assert_eq!((has_out, has_err), (out, err));
            // From a terminal, the same bytes are raw output.
            let (done, has_out, _) = run(true, &wire, step);
            prop_assert!(done.is_ok());
            prop_assert_eq!(has_out, wire);
        }
    }

    #[test]
    fn a_broken_connection_is_told() {
        let mut wire = piece(1, b"abcdef");
        wire.truncate(10);
        let (done, out, _) = run(false, &wire, 3);
        assert!(matches!(done, Err(OutputError::Engine(_))));
        assert_eq!(out, b"ab");
        let (done, ..) = run(false, &[9, 0, 0, 0, 0, 0, 0, 0], 8);
        assert!(matches!(done, Err(OutputError::Engine(_))));
    }
}
