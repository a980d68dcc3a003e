#![allow(clippy::unwrap_used, reason = "a test may panic")]

use proptest::prelude::*;

use super::*;

fn bytes() -> impl Strategy<Value = Bytes> {
    prop::collection::vec(any::<u8>(), 0..300).prop_map(Bytes::from)
}

fn frames() -> impl Strategy<Value = Frame> {
    let id = || 1..=MASK;
    prop_oneof![
        (
            id(),
            0..=MASK,
            0_u8..8,
            any::<bool>(),
            any::<bool>(),
            bytes()
        )
            .prop_map(|(id, associated, priority, fin, unidirectional, block)| {
                Frame::SynStream {
                    id,
                    associated,
                    priority,
                    fin,
                    unidirectional,
                    block,
                }
            }),
        (id(), any::<bool>(), bytes()).prop_map(|(id, fin, block)| Frame::SynReply {
            id,
            fin,
            block
        }),
        (id(), any::<bool>(), bytes()).prop_map(|(id, fin, block)| Frame::Headers {
            id,
            fin,
            block
        }),
        (id(), any::<u32>()).prop_map(|(id, status)| Frame::RstStream { id, status }),
        (0..=MASK, any::<u32>()).prop_map(|(last, status)| Frame::GoAway { last, status }),
        (0..=MASK, 0..=MASK).prop_map(|(id, delta)| Frame::WindowUpdate { id, delta }),
        prop::option::of(0..=MASK).prop_map(|initial_window| Frame::Settings { initial_window }),
        any::<u32>().prop_map(Frame::Ping),
        (id(), any::<bool>(), bytes()).prop_map(|(id, fin, data)| Frame::Data { id, fin, data }),
    ]
}

fn encode(frames: &[Frame]) -> Vec<u8> {
    let mut bytes = BytesMut::new();
    for frame in frames {
        frame.encode_head(&mut bytes);
        if let Frame::Data { data, .. } = frame {
            bytes.put_slice(data);
        }
    }
    bytes.to_vec()
}

/// Decodes pieces in order, and joins the parts of a data frame. A frame is complete when the
/// decoder has no partial frame.
fn decode(pieces: &[&[u8]]) -> Result<Vec<Frame>, FrameError> {
    let mut decoder = Decoder::default();
    let mut buffer = BytesMut::new();
    let mut frames: Vec<Frame> = Vec::new();
    let mut open = false;
    for piece in pieces {
        buffer.extend_from_slice(piece);
        while let Some(frame) = decoder.decode(&mut buffer)? {
            match (frames.last_mut(), frame) {
                (
                    Some(Frame::Data { fin, data, .. }),
                    Frame::Data {
                        fin: f, data: d, ..
                    },
                ) if open => {
                    *data = [&data[..], &d[..]].concat().into();
                    *fin = f;
                }
                (_, frame) => frames.push(frame),
            }
            open = decoder.partial.is_some();
        }
    }
    Ok(frames)
}

fn split<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut cuts: Vec<usize> = cuts.iter().map(|it| it.index(bytes.len() + 1)).collect();
    cuts.extend([0, bytes.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|it| &bytes[it[0]..it[1]]).collect()
}

proptest! {
    #[test]
    fn any_split_of_the_bytes_gives_the_same_frames(
        frames in prop::collection::vec(frames(), 0..8),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let bytes = encode(&frames);
        prop_assert_eq!(decode(&split(&bytes, &cuts)), Ok(frames));
    }

    #[test]
    fn any_split_of_any_bytes_gives_the_same(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        control in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..20),
    ) {
        let mut bytes = bytes;
        if control && bytes.len() > 8 {
            bytes[..2].copy_from_slice(&[0x80, 3]);
            bytes[2] = 0;
            bytes[3] %= 11;
            bytes[5] = 0;
            bytes[6] = 0;
        }
        prop_assert_eq!(decode(&split(&bytes, &cuts)), decode(&[&bytes]));
    }
}

#[test]
fn what_is_no_frame_is_refused() {
    let error = |bytes: &[u8]| decode(&[bytes]).unwrap_err();
    assert_eq!(error(&[0x80, 2, 0, 1, 0, 0, 0, 10]), FrameError::Version(2));
    assert_eq!(
        error(&[0x80, 3, 0, 3, 0, 0, 0, 9, 0, 0, 0, 1, 0, 0, 0, 1, 0]),
        FrameError::Length { kind: 3, length: 9 }
    );
    assert_eq!(
        error(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]),
        FrameError::Length {
            kind: 1,
            length: 0xff_ffff
        }
    );
    assert_eq!(
        error(&[0x80, 3, 0, 4, 0, 0, 0, 4, 0xff, 0xff, 0xff, 0xff]),
        FrameError::Length { kind: 4, length: 4 }
    );
    assert_eq!(error(&[0, 0, 0, 0, 0, 0, 0, 0]), FrameError::NoStream(0));
}

#[test]
fn unknown_frames_are_skipped_without_a_buffer() {
    let mut decoder = Decoder::default();
    let mut bytes = BytesMut::from(&[0x80, 3, 0, 77, 0, 0xff, 0xff, 0xff][..]);
    for _ in 0..0xff_ffff / 0x10_000 {
        bytes.put_bytes(0xaa, 0x10_000);
        assert_eq!(decoder.decode(&mut bytes), Ok(None));
        assert!(bytes.is_empty());
    }
    bytes.put_bytes(0xaa, 0xffff);
    Frame::Ping(7).encode_head(&mut bytes);
    assert_eq!(decoder.decode(&mut bytes), Ok(Some(Frame::Ping(7))));
}
