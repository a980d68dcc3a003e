//! Any file in the directory of the checkpoint: what is no whole file of the entry is
//! refused, and what is one is read as it was written.
#![no_main]

use std::{cell::RefCell, fs};

use k8s_openapi::api::core::v1::{Node, Pod, Secret};
use kubelet_checkpoint::{
    entry::{Entry, EntryKind},
    store::Store,
};
use libfuzzer_sys::{
    arbitrary::{self, Arbitrary},
    fuzz_target,
};

#[derive(Debug, Arbitrary)]
struct Input<'a> {
    kind: u8,
    file: &'a [u8],
    text: &'a [u8],
    at: u16,
    flipped: u8,
}

thread_local! {
    static STORE: RefCell<(tempfile::TempDir, Store)> = RefCell::new({
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = Store::open(&dir.path().join("store"), None).unwrap();
        (dir, store)
    });
}

fuzz_target!(|input: Input<'_>| {
    STORE.with_borrow(|(_, store)| {
        let kind = EntryKind::ALL[usize::from(input.kind) % EntryKind::ALL.len()];
        let namespace = if kind.is_namespaced() { "default" } else { "" };
        let entry = Entry::new(kind, namespace, "name").unwrap();
        let path = entry.path(store.dir());
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, input.file).unwrap();
        let _ = store.read_object::<Pod>(&entry);
        let _ = store.read_object::<Secret>(&entry);
        let _ = store.read_object::<Node>(&entry);
        fs::remove_file(&path).unwrap();

        if store.keeps(kind) && store.write(&entry, input.text).is_ok() {
            assert_eq!(store.read(&entry).unwrap().as_deref(), Some(input.text));
            let mut bytes = fs::read(&path).unwrap();
            let at = usize::from(input.at) % bytes.len();
            bytes[at] ^= input.flipped;
            fs::write(&path, &bytes).unwrap();
            assert_eq!(store.read(&entry).is_ok(), input.flipped == 0);
            store.remove(&entry).unwrap();
        }
    });
});
