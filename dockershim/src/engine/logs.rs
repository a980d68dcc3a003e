//! Container output from the engine's log API. It bypasses bollard, whose reader cannot separate
//! the lines of terminal output over TCP.

use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use futures::StreamExt as _;
use http_body_util::{BodyDataStream, BodyExt as _, Full};
use hyper::{Request, body::Incoming};
use jiff::Timestamp;
use tokio::time::{Instant, timeout_at};

use super::{Cause, Engine, EngineError, READ, hijack::refusal};

const ACTION: &str = "read the log of container";
/// The length of a frame's header, absent with a terminal: the stream, three zeros, the length.
const HEADER: usize = 8;
const STDERR: u8 = 2;
/// The length of the pieces into which the engine splits longer lines.
const LONGEST_PIECE: usize = 16 * 1024;
/// The length of a timestamp with nine fractional digits.
const TIME: usize = "2006-01-02T15:04:05.000000000Z".len();
/// How long to wait for more output after the first piece, to return it together.
const GATHER: Duration = Duration::from_millis(10);
/// The amount of output at which the wait ends early.
const ENOUGH: usize = 256 * 1024;

/// A line of a container's output, or a piece of a long one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogPiece {
    /// When the engine read it.
    pub time: Timestamp,
    /// The timestamp as the engine wrote it: RFC 3339.
    pub stamp: String,
    /// `stdout` or `stderr`.
    pub stream: &'static str,
    /// The output. A line feed at the end completes a line.
    pub output: Bytes,
}

/// A stream of a container's output.
#[derive(Debug)]
pub struct LogPieces {
    body: BodyDataStream<Incoming>,
    container: String,
    tty: bool,
    buffer: BytesMut,
    /// The deadline for gathering more output.
    gathering: Option<Instant>,
    ended: bool,
}

impl Engine {
    /// The container's output from `since`, in whole seconds since 1970, or from the beginning if
    /// 0; with `follow`, future output too.
    ///
    /// # Errors
    /// Any [`Cause`]; `NotFound` if there is no such container.
    pub async fn container_logs(
        &self,
        id: &str,
        since: i64,
        follow: bool,
    ) -> Result<LogPieces, EngineError> {
        let config = self.inspect_container(id).await?.config;
        let tty = config.and_then(|config| config.tty).unwrap_or_default();
        let follow = u8::from(follow);
        let path = format!(
            "/containers/{id}/logs?stdout=1&stderr=1&timestamps=1&follow={follow}&since={since}"
        );
        let call = self.call(ACTION, id, READ);
        let started = call.limited(async {
            let connection = call.connection(self).map_err(|error| error.cause)?;
            let request = Request::get(connection.versioned(&path))
                .body(Full::<Bytes>::default())
                .map_err(|error| Cause::Protocol(error.to_string()))?;
            let answer = connection.dialer.send(request).await?;
            if !answer.status().is_success() {
                return Err(refusal(answer).await);
            }
            Ok(answer)
        });
        Ok(LogPieces {
            body: started.await?.into_body().into_data_stream(),
            container: id.to_owned(),
            tty,
            buffer: BytesMut::new(),
            gathering: None,
            ended: false,
        })
    }
}

impl LogPieces {
    /// The next pieces; empty at the end. Cancel-safe.
    ///
    /// # Errors
    /// `Unreachable` if the connection broke, `Protocol` for invalid data.
    pub async fn next(&mut self) -> Result<Vec<LogPiece>, EngineError> {
        loop {
            self.gather().await?;
            let mut pieces = Vec::new();
            while let Some(piece) = self.next_piece()? {
                pieces.push(piece);
            }
            if self.ended && !self.buffer.is_empty() {
                return Err(self.broken("it ends inside a frame".to_owned()));
            }
            if self.ended || !pieces.is_empty() {
                return Ok(pieces);
            }
        }
    }

    async fn gather(&mut self) -> Result<(), EngineError> {
        let mut gathered = 0;
        while !self.ended && gathered < ENOUGH {
            let next = match self.gathering {
                None => self.body.next().await,
                Some(until) => match timeout_at(until, self.body.next()).await {
                    Ok(next) => next,
                    Err(_) => break,
                },
            };
            match next {
                Some(Ok(bytes)) => {
                    gathered += bytes.len();
                    self.buffer.extend_from_slice(&bytes);
                    self.gathering
                        .get_or_insert_with(|| Instant::now() + GATHER);
                }
                Some(Err(error)) => {
                    return Err(self.failed(Cause::Unreachable(error.to_string())));
                }
                None => self.ended = true,
            }
        }
        self.gathering = None;
        Ok(())
    }

    /// Takes the first piece from the buffer, if it is complete.
    fn next_piece(&mut self) -> Result<Option<LogPiece>, EngineError> {
        let (stream, length) = if self.tty {
            match raw_length(&self.buffer, self.ended) {
                Some(length) => ("stdout", length),
                None => return Ok(None),
            }
        } else {
            let Some(([stream, _, _, _, a, b, c, d], rest)) =
                self.buffer.split_first_chunk::<HEADER>()
            else {
                return Ok(None);
            };
            let length = u32::from_be_bytes([*a, *b, *c, *d]) as usize;
            let stream = match *stream {
                STDERR => "stderr",
                0..STDERR => "stdout",
                // The engine's error message if it cannot continue.
                _ => {
                    let words = String::from_utf8_lossy(&rest[..length.min(rest.len())]);
                    let words = words.into_owned();
                    return Err(self.broken(words));
                }
            };
            if rest.len() < length {
                return Ok(None);
            }
            self.buffer.advance(HEADER);
            (stream, length)
        };
        let mut output = self.buffer.split_to(length).freeze();
        let text = output.split(|byte| *byte == b' ').next();
        let stamp = String::from_utf8_lossy(text.unwrap_or_default()).into_owned();
        let Ok(time) = stamp.parse() else {
            // The engine writes read errors into the output.
            return Err(self.broken(String::from_utf8_lossy(&output).into_owned()));
        };
        output.advance(output.len().min(stamp.len() + 1));
        Ok(Some(LogPiece {
            time,
            stamp,
            stream,
            output,
        }))
    }

    fn broken(&self, what: String) -> EngineError {
        self.failed(Cause::Protocol(what))
    }

    fn failed(&self, cause: Cause) -> EngineError {
        EngineError {
            action: ACTION,
            object: self.container.clone(),
            cause,
        }
    }
}

/// The length of the first piece of terminal output. It ends with a line feed or, if the line is
/// longer than a piece, where the next piece's timestamp begins.
fn raw_length(bytes: &[u8], ended: bool) -> Option<usize> {
    let longest = TIME + 1 + LONGEST_PIECE;
    for (at, byte) in bytes.iter().enumerate() {
        if *byte == b'\n' {
            return Some(at + 1);
        }
        if at >= longest && is_time(&bytes[at..]) {
            return Some(at);
        }
    }
    (ended && !bytes.is_empty()).then_some(bytes.len())
}

fn is_time(bytes: &[u8]) -> bool {
    let text = bytes.get(..TIME).and_then(|text| str::from_utf8(text).ok());
    bytes.get(TIME) == Some(&b' ') && text.is_some_and(|text| text.parse::<Timestamp>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_a_terminals_output_end_where_the_next_begins() {
        let stamp = "2026-01-02T03:04:05.000000006Z ";
        let line = format!("{stamp}$ ls\r\n");
        assert_eq!(raw_length(line.as_bytes(), false), Some(line.len()));
        let piece = format!("{stamp}{}", "x".repeat(LONGEST_PIECE));
        let both = format!("{piece}{stamp}rest");
        assert_eq!(raw_length(both.as_bytes(), false), Some(piece.len()));
        let rest = &both.as_bytes()[piece.len()..];
        assert_eq!(raw_length(rest, false), None);
        assert_eq!(raw_length(rest, true), Some(rest.len()));
        assert_eq!(raw_length(b"", true), None);
        // A timestamp inside a line is output.
        let inside = format!("{stamp}at {stamp}\n");
        assert_eq!(raw_length(inside.as_bytes(), false), Some(inside.len()));
    }
}
