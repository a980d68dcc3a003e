//! Any bytes through the frame decoder: no panic, and the same frames however the bytes
//! are split. What is understood is written again as what it was.
#![no_main]

use bytes::BytesMut;
use cri_streaming::spdy::{Decoder, Frame, FrameError};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (u8, &[u8])| {
    let (step, bytes) = input;
    let whole = decode(bytes.chunks(usize::MAX));
    let split = decode(bytes.chunks(usize::from(step) + 1));
    assert_eq!(whole, split);
    if let Ok(frames) = whole {
        let mut again = BytesMut::new();
        for frame in &frames {
            frame.encode_head(&mut again);
            if let Frame::Data { data, .. } = frame {
                again.extend_from_slice(data);
            }
        }
        assert_eq!(decode([&again[..]].into_iter()), Ok(frames));
    }
});

/// The frames, with pieces of data that follow each other on one stream put together.
fn decode<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = Decoder::default();
    let mut buffer = BytesMut::new();
    let mut frames: Vec<Frame> = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Some(frame) = decoder.decode(&mut buffer)? {
            match (frames.last_mut(), frame) {
                (
                    Some(Frame::Data { id, fin, data }),
                    Frame::Data {
                        id: next,
                        fin: end,
                        data: more,
                    },
                ) if *id == next && !*fin => {
                    *data = [&data[..], &more[..]].concat().into();
                    *fin = end;
                }
                (_, frame) => frames.push(frame),
            }
        }
    }
    Ok(frames)
}
