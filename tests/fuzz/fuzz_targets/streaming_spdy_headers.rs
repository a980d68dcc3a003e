//! Any bytes as header blocks: no panic and no more memory than the limit. What is
//! understood comes back the same after compression.
#![no_main]

use cri_streaming::spdy::{Deflater, Headers, Inflater};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: (&[u8], &[u8])| {
    let (plain, compressed) = input;
    if let Ok(headers) = Headers::decode(plain) {
        let mut deflater = Deflater::default();
        let mut inflater = Inflater::default();
        for _ in 0..2 {
            let block = deflater.deflate(&headers);
            assert_eq!(inflater.inflate(&block).as_ref(), Ok(&headers));
        }
    }
    // The stream goes on from block to block; behind a good one the dictionary is there.
    for good_first in [false, true] {
        let mut inflater = Inflater::default();
        if good_first {
            let block = Deflater::default().deflate(&Headers::default().with("port", "80"));
            assert!(inflater.inflate(&block).is_ok());
        }
        for block in compressed.split(|byte| *byte == 0xff) {
            if inflater.inflate(block).is_err() {
                break;
            }
        }
    }
});
