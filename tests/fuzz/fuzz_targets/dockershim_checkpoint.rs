//! Any state with the right checksum, and any bytes, as a checkpoint: it is used or refused, and
//! the container's log goes on either way.
#![no_main]

use std::{cell::RefCell, fmt::Debug, fs};

use dockershim::{
    checkpoint::Checkpoints,
    images::Accounts,
    logs::{DrainProgress, Paths, Position, Tail},
};
use libfuzzer_sys::fuzz_target;
use sha2::{Digest as _, Sha256};

thread_local! {
    static DIRECTORY: RefCell<tempfile::TempDir> = RefCell::new(directory());
}

/// In memory: each input is a handful of files.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fuzz_target!(|input: (&str, &[u8], &[u8])| {
    let (state, bytes, log) = input;
    DIRECTORY.with_borrow(|directory| {
        let directory = directory.path();
        let write = |id: &str, bytes: &[u8]| {
            fs::write(directory.join(format!("{id}.json")), bytes).unwrap();
        };
        write("raw", bytes);
        let sum = format!("{:x}", Sha256::digest(state.trim_end()));
        write("whole", format!("{sum}\n{state}").as_bytes());
        let accounts = Checkpoints::<Accounts>::new(directory.to_owned());
        accounts.load("raw");
        accounts.load("whole");

        write("whole", format!("{sum}\n{state}").as_bytes());
        let positions = Checkpoints::<Position>::new(directory.to_owned());
        let position = positions.load("whole");
        let engine_log = directory.join("c-json.log");
        fs::write(&engine_log, log).unwrap();
        let log = directory.join("pod/0.log");
        let _ = fs::remove_file(&log);
        let paths = Paths { engine_log, log };
        follow(&paths, position.as_ref());
        // Nothing is left to take at the position where a whole read ended.
        let mut tail = Tail::open(&paths, None).unwrap();
        while tail.drain().unwrap() == DrainProgress::Piece {}
        let position = tail.position(false).unwrap();
        same(&positions, &position);
        let mut again = Tail::open(&paths, Some(&position)).unwrap();
        assert_eq!(again.drain().unwrap(), DrainProgress::Nothing);
    });
});

fn follow(paths: &Paths, position: Option<&Position>) {
    let mut tail = Tail::open(paths, position).unwrap();
    while tail.drain().unwrap() == DrainProgress::Piece {}
}

fn same<T>(checkpoints: &Checkpoints<T>, state: &T)
where
    T: Debug + PartialEq + serde::Serialize + serde::de::DeserializeOwned,
{
    checkpoints.note("same", state).unwrap();
    assert_eq!(checkpoints.load("same").as_ref(), Some(state));
}
