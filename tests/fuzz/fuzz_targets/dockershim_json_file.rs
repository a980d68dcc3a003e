//! Any bytes as the engine's log of a container: the result has CRI's format, a log cut between
//! two lines gives the same result, and the fast reader of lines agrees with the JSON parser.
#![no_main]

use dockershim::logs::to_cri;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|log: &[u8]| {
    let converted = to_cri(log);
    for line in converted.split_inclusive(|byte| *byte == b'\n') {
        assert!(line.ends_with(b"\n"));
        let mut parts = line.splitn(4, |byte| *byte == b' ');
        let (time, stream) = (parts.next().unwrap(), parts.next().unwrap());
        assert!(time.len() >= "2026-01-01T00:00:00Z".len());
        assert!([&b"stdout"[..], b"stderr"].contains(&stream));
        assert!([&b"F"[..], b"P"].contains(&parts.next().unwrap()));
        assert!(parts.next().is_some());
    }

    let mut pieces = Vec::new();
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let alone = to_cri(line);
        // White space in front of it is nothing to JSON, and too much for the fast reader.
        let by_json = to_cri(&[b" ", line].concat());
        assert!(by_json.is_empty() || by_json == alone);
        pieces.extend(alone);
    }
    assert_eq!(pieces, converted);
});
