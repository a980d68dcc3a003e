#![allow(
    clippy::cast_possible_truncation,
    reason = "lengths of a test are short"
)]

use proptest::{collection::vec, prelude::*, sample::Index};
use tonic::codegen::http::uri;

use super::*;

/// The characters with the shortest codes, by length and in the order of the codes.
const SHORT: [(usize, &str); 4] = [
    (5, "012aceiost"),
    (6, " %-./3456789=A_bdfghlmnpru"),
    (7, ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz"),
    (8, "&*,;XZ"),
];
/// Authorities of these characters that clients may send.
const PATH: &str = "[a-zA-Z0-9 %./:=_&*,;-]{1,80}";

/// The codes of [`SHORT`], as binary digits.
fn codes() -> impl Iterator<Item = (char, std::string::String)> {
    let mut next = 0;
    SHORT.iter().flat_map(move |(length, characters)| {
        let first = next;
        next = (first + characters.len()) << 1;
        let code = move |at| format!("{:0length$b}", first + at);
        characters
            .chars()
            .enumerate()
            .map(move |(at, c)| (c, code(at)))
    })
}

fn huffman(text: &str) -> Vec<u8> {
    let code = |c| codes().find(|(has, _)| *has == c).unwrap().1;
    let mut bits: std::string::String = text.chars().map(code).collect();
    bits.extend(std::iter::repeat_n(
        '1',
        bits.len().next_multiple_of(8) - bits.len(),
    ));
    let byte = |bits: &[u8]| u8::from_str_radix(str::from_utf8(bits).unwrap(), 2).unwrap();
    bits.as_bytes().chunks(8).map(byte).collect()
}

fn from_huffman(bytes: &[u8]) -> std::string::String {
    let bits: std::string::String = bytes.iter().map(|byte| format!("{byte:08b}")).collect();
    let mut text = std::string::String::new();
    let mut rest = bits.as_str();
    while let Some((c, code)) = codes().find(|(_, code)| rest.starts_with(code)) {
        text.push(c);
        rest = &rest[code.len()..];
    }
    assert!(rest.len() < 8 && !rest.contains('0'), "{rest}");
    text
}

fn number(first: u8, bits: u32, value: usize) -> Vec<u8> {
    let most = (1 << bits) - 1;
    if value < most {
        return vec![first | value as u8];
    }
    let mut bytes = vec![first | most as u8];
    let mut rest = value - most;
    while rest > 127 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

fn string(text: &str, coded: bool) -> Vec<u8> {
    let (flag, text) = if coded {
        (0x80, huffman(text))
    } else {
        (0, text.as_bytes().to_vec())
    };
    [number(flag, 7, text.len()), text].concat()
}

/// The encoding of a field, as chosen by a client.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// 0x40: added to the dynamic table; 0x10 and 0: not added.
    kind: u8,
    /// The static index of the name; `None` for a literal name.
    index: Option<usize>,
    coded: bool,
}

fn field(name: &str, value: &str, form: Form) -> Vec<u8> {
    let bits = if form.kind == 0x40 { 6 } else { 4 };
    let mut bytes = number(form.kind, bits, form.index.unwrap_or(0));
    if form.index.is_none() {
        bytes.extend(string(name, form.coded));
    }
    bytes.extend(string(value, form.coded));
    bytes
}

fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let [_, a, b, c] = (payload.len() as u32).to_be_bytes();
    [&[a, b, c, kind, flags, 0, 0, 0, 1], payload].concat()
}

/// A connection with one request of these fields, split into two frames; the first has `prefix` and
/// `padding`.
fn connection(block: &[u8], flags: u8, prefix: &[u8], padding: usize, cut: usize) -> Vec<u8> {
    let (first, rest) = block.split_at(cut);
    let padding = vec![0; padding];
    [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(4, 0, &[0, 3, 0, 0, 0, 100]),
        frame(HEADERS, flags, &[prefix, first, &padding].concat()),
        frame(CONTINUATION, 4, rest),
        frame(0, 1, b"\x41\x03%2F"),
    ]
    .concat()
}

fn passed(bytes: &[u8], cuts: &[usize]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let mut authorities = Authorities::default();
    let mut rest = bytes.as_mut_slice();
    let mut at = 0;
    for cut in cuts {
        let (piece, after) = std::mem::take(&mut rest).split_at_mut(cut - at);
        authorities.pass(piece);
        (rest, at) = (after, *cut);
    }
    authorities.pass(rest);
    bytes
}

/// The authority that h2 receives.
fn seen(authority: &str, form: Form) -> std::string::String {
    let bytes = field(":authority", authority, form);
    let before = connection(&bytes, 0, &[], 0, 0);
    let after = passed(&before, &[]);
    assert_eq!(after.len(), before.len());
    let end = after.len() - frame(0, 1, b"\x41\x03%2F").len();
    let length = string(authority, form.coded).len();
    let value = &after[end - length..end];
    let text = if form.coded {
        let skip = number(0, 7, huffman(authority).len()).len();
        from_huffman(&value[skip..])
    } else {
        let skip = number(0, 7, authority.len()).len();
        std::string::String::from_utf8(value[skip..].to_vec()).unwrap()
    };
    assert_eq!(text.len(), authority.len());
    // Everything except the authority's value is unchanged.
    assert_eq!(after[..end - length], before[..end - length]);
    assert_eq!(after[end..], before[end..]);
    text
}

#[test]
fn a_path_in_the_place_of_an_authority_becomes_a_name() {
    let plain = Form {
        kind: 0x40,
        index: None,
        coded: false,
    };
    let coded = Form {
        index: Some(1),
        coded: true,
        ..plain
    };
    for (sent, as_plain, as_coded) in [
        ("run%2Fcri.sock", "run-2Fcri.sock", "run.2Fcri.sock"),
        ("/run/cri.sock", "-run-cri.sock", "3run3cri.sock"),
        ("unix:///run/a:b", "unix:---run-a-b", "unix:333run3aBb"),
        ("a%20b c", "a-20b-c", "a.20b-c"),
        // A valid authority is unchanged.
        ("localhost", "localhost", "localhost"),
        (
            "runtime.local:1234",
            "runtime.local:1234",
            "runtime.local:1234",
        ),
    ] {
        assert_eq!(seen(sent, plain), as_plain);
        assert_eq!(seen(sent, coded), as_coded);
    }
    for (sent, expected) in [
        ("[::1]:50051", "[::1]:50051"),
        ("[fe80::1%25eth0]:80", "[fe80::1-25eth0]-80"),
        ("%2Fa@b:c[d]", "-2Fa-b-c[d]"),
        ("user@host", "user@host"),
        ("@/abstract", "@-abstract"),
        ("/run/\"ü?#", "-run------"),
    ] {
        assert_eq!(seen(sent, plain), expected);
    }
}

#[test]
fn an_empty_authority_becomes_an_empty_header() {
    let before = connection(&[0x83, 0x86, 0x81], 0, &[], 0, 0);
    let after = passed(&before, &[]);
    let changed: Vec<_> = (0..before.len())
        .filter(|at| before[*at] != after[*at])
        .collect();
    assert_eq!(changed.len(), 1);
    assert_eq!((before[changed[0]], after[changed[0]]), (0x81, 0x8f));
}

#[test]
fn the_connection_behind_a_malformed_frame_is_left_alone() {
    let path = field(
        ":authority",
        "%2F",
        Form {
            kind: 0x40,
            index: None,
            coded: false,
        },
    );
    // Headers that are too short for their padding length, padding and priority.
    for (flags, payload) in [
        (PADDED, &[][..]),
        (PADDED, &[5, 0, 0]),
        (PRIORITY, &[0; 4]),
        (PADDED | PRIORITY, &[1, 0, 0, 0, 0, 0]),
    ] {
        let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        bytes.extend(frame(HEADERS, flags, payload));
        bytes.extend(frame(HEADERS, 4, &path));
        assert_eq!(passed(&bytes, &[]), bytes, "{flags} {payload:?}");
    }
    // Numbers that are too long, and an empty name.
    for block in [
        &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00][..],
        &[0x7f, 0xff, 0xff, 0xff, 0xff, 0x7f],
        &[0x40, 0x00, 0x01, b'a'],
    ] {
        let bytes = connection(&[block, &path].concat(), 0, &[], 0, 0);
        assert_eq!(passed(&bytes, &[]), bytes, "{block:?}");
    }
}

fn form() -> impl Strategy<Value = Form> {
    let kind = prop_oneof![Just(0x40), Just(0x10), Just(0)];
    (kind, any::<bool>()).prop_map(|(kind, coded)| Form {
        kind,
        index: None,
        coded,
    })
}

fn cut(cuts: &[Index], length: usize) -> Vec<usize> {
    let mut cuts: Vec<_> = cuts.iter().map(|cut| cut.index(length + 1)).collect();
    cuts.sort_unstable();
    cuts
}

proptest! {
    #[test]
    fn whatever_a_client_sends_passes_with_its_length_and_however_it_is_cut(
        bytes in vec(any::<u8>(), 0..300),
        frames in vec((0u8..11, any::<u8>(), vec(any::<u8>(), 0..60)), 0..6),
        cuts in vec(any::<Index>(), 0..40),
    ) {
        let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for (kind, flags, payload) in frames {
            sent.extend(frame(kind, flags, &payload));
        }
        sent.extend(bytes);
        let whole = passed(&sent, &[]);
        prop_assert_eq!(whole.len(), sent.len());
        prop_assert_eq!(passed(&sent, &cut(&cuts, sent.len())), whole);
    }

    #[test]
    fn every_path_becomes_an_authority_and_nothing_else_changes(
        path in PATH,
        others in vec(("[a-z-]{1,20}", PATH, form()), 0..6),
        position in any::<Index>(),
        form in form(),
        by_index in any::<bool>(),
        priority in any::<bool>(),
        padding in prop::option::of(0usize..20),
        split in any::<Index>(),
        cuts in vec(any::<Index>(), 0..40),
    ) {
        let form = Form { index: by_index.then_some(1), ..form };
        let mut fields: Vec<_> = others
            .iter()
            .map(|(name, value, form)| field(name, value, *form))
            .collect();
        let position = position.index(fields.len() + 1);
        fields.insert(position, field(":authority", &path, form));
        let before: usize = fields[..position].iter().map(Vec::len).sum();
        let own = fields[position].len();
        let block = fields.concat();
        let mut prefix = Vec::new();
        prefix.extend(padding.map(|padding| padding as u8));
        if priority {
            prefix.extend([0; PRIORITY_LENGTH]);
        }
        let flags = if priority { PRIORITY } else { 0 } | padding.map_or(0, |_| PADDED);
        let padding = padding.unwrap_or(0);
        let split = split.index(block.len() + 1);
        let sent = connection(&block, flags, &prefix, padding, split);
        let got = passed(&sent, &cut(&cuts, sent.len()));

        // Extract the headers from their frames.
        let start = PREFACE + 15 + HEAD + prefix.len();
        let headers = |bytes: &[u8]| {
            let second = start + split + padding + HEAD;
            [&bytes[start..start + split], &bytes[second..second + block.len() - split]].concat()
        };
        let (sent_block, got_block) = (headers(&sent), headers(&got));
        prop_assert_eq!(&sent_block, &block);
        prop_assert_eq!(&got_block[..before], &block[..before]);
        prop_assert_eq!(&got_block[before + own..], &block[before + own..]);
        let text = string(&path, form.coded);
        let skip = number(0, 7, if form.coded { huffman(&path).len() } else { path.len() }).len();
        let value = &got_block[before + own - text.len() + skip..before + own];
        let value = if form.coded {
            from_huffman(value)
        } else {
            std::string::String::from_utf8(value.to_vec()).unwrap()
        };
        prop_assert_eq!(value.len(), path.len());
        // h2 still refuses several colons in a part that is valid in a host name.
        let host = path.split(['/', '%', ' ']).next().unwrap_or_default();
        if host.matches(':').count() < 2 {
            prop_assert!(value.parse::<uri::Authority>().is_ok(), "{}", value);
        }
    }
}
