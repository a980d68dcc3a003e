//! Any bytes as a container's log: how they are cut does not matter, no more is shown than
//! was asked for, and the last lines begin where a line does.
#![no_main]

use std::{cell::RefCell, fs::File, io::Write as _, os::unix::fs::FileExt as _};

use kubelet_logs::{Decoder, LogOptions, Stream, start_of_tail};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    step: u8,
    timestamps: bool,
    limit: Option<u16>,
    stdout: Option<bool>,
    lines: u8,
    log: &'a [u8],
}

thread_local! {
    static FILE: RefCell<File> = RefCell::new(tempfile::tempfile_in("/dev/shm").unwrap());
}

fuzz_target!(|input: Input<'_>| {
    let options = LogOptions {
        timestamps: input.timestamps,
        limit_bytes: input.limit.map(u64::from),
        stream: input.stdout.map(|stdout| match stdout {
            true => Stream::Stdout,
            false => Stream::Stderr,
        }),
        ..LogOptions::default()
    };
    let whole = shown(input.log.chunks(usize::MAX), &options);
    let cut = shown(input.log.chunks(usize::from(input.step) + 1), &options);
    assert_eq!(whole, cut);
    if let Some(limit) = input.limit {
        assert!(whole.len() <= usize::from(limit).max(1));
    }

    FILE.with_borrow_mut(|file| {
        let size = input.log.len() as u64;
        file.set_len(0).unwrap();
        file.write_all_at(input.log, 0).unwrap();
        file.flush().unwrap();
        let start = start_of_tail(file, size, input.lines.into()).unwrap();
        assert!(start <= size);
        let before = usize::try_from(start).unwrap();
        assert!(before == 0 || start == size || input.log[before - 1] == b'\n');
    });
});

fn shown<'a>(pieces: impl Iterator<Item = &'a [u8]>, options: &LogOptions) -> Vec<u8> {
    let mut decoder = Decoder::new(options);
    let mut shown = Vec::new();
    for piece in pieces {
        let full = decoder.push(piece).is_err();
        shown.extend_from_slice(&decoder.take());
        if full {
            return shown;
        }
    }
    let _ = decoder.end();
    shown.extend_from_slice(&decoder.take());
    shown
}
