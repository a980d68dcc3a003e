use std::os::unix::fs::PermissionsExt as _;

use super::*;

fn entry(kind: EntryKind, name: &str) -> Entry {
    let namespace = if kind.is_namespaced() { "default" } else { "" };
    Entry::new(kind, namespace, name).unwrap()
}

fn key(dir: &Path, byte: u8) -> SealingKey {
    let path = dir.join("key");
    fs::write(&path, [byte; 32]).unwrap();
    SealingKey::read(&path).unwrap()
}

struct Setup {
    dir: tempfile::TempDir,
    store: Store,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(&dir.path().join("c"), Some(key(dir.path(), 1))).unwrap();
        Self { dir, store }
    }

    fn reopened(&self, byte: Option<u8>) -> Store {
        let key = byte.map(|byte| key(self.dir.path(), byte));
        Store::open(self.store.dir(), key).unwrap()
    }

    fn path(&self, entry: &Entry) -> PathBuf {
        entry.path(self.store.dir())
    }

    fn error(&self, entry: &Entry) -> String {
        self.store.read(entry).unwrap_err().to_string()
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn what_is_written_is_read_by_the_next_one() {
    let setup = Setup::new();
    for kind in EntryKind::ALL {
        let entry = entry(kind, "a");
        assert_eq!(setup.store.read(&entry).unwrap(), None);
        setup.store.write(&entry, b"{\"a\":\n1}").unwrap();
        setup.store.write(&entry, b"{\"a\":\n2}").unwrap();
        let next = setup.reopened(Some(1));
        assert_eq!(next.read(&entry).unwrap().unwrap(), b"{\"a\":\n2}");
        assert!(next.entries().contains(&entry));
        next.remove(&entry).unwrap();
        next.remove(&entry).unwrap();
        assert_eq!(setup.store.read(&entry).unwrap(), None);
    }
    assert!(setup.reopened(Some(1)).entries().is_empty());
}

#[test]
fn files_are_their_owners_and_secrets_are_not_to_be_read() {
    let setup = Setup::new();
    for kind in [EntryKind::Pod, EntryKind::Secret] {
        let entry = entry(kind, "a");
        setup.store.write(&entry, b"password").unwrap();
        let path = setup.path(&entry);
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let bytes = fs::read(&path).unwrap();
        let shows = bytes.windows(8).any(|part| part == b"password");
        assert_eq!(shows, kind == EntryKind::Pod);
    }
    assert_eq!(mode(setup.store.dir()), 0o700);
}

#[test]
fn what_is_the_same_is_not_written_again() {
    let setup = Setup::new();
    let entry = entry(EntryKind::Secret, "a");
    setup.store.write(&entry, b"one").unwrap();
    let before = fs::read(setup.path(&entry)).unwrap();
    setup.store.write(&entry, b"one").unwrap();
    assert_eq!(fs::read(setup.path(&entry)).unwrap(), before);
}

#[test]
fn what_is_broken_is_told_by_its_file() {
    let mut setup = Setup::new();
    setup.store.key = None;
    let (pod, other) = (entry(EntryKind::Pod, "a"), entry(EntryKind::Pod, "b"));
    setup.store.write(&pod, b"{\"a\": 1}").unwrap();
    setup.store.write(&other, b"{\"b\": 1}").unwrap();
    let path = setup.path(&pod);
    let good = fs::read(&path).unwrap();

    let mut tampered = good.clone();
    let last = tampered.len() - 2;
    tampered[last] = b'2';
    for (bytes, why) in [
        (&tampered[..], "its checksum does not match"),
        (&good[..good.len() - 3], "its checksum does not match"),
        (&good[..10], "its first line is incomplete"),
        (&b""[..], "its first line is incomplete"),
        (&b"{}\n"[..], "its first line has no checksum"),
        (&b"\xff\xff\n"[..], "its first line is not UTF-8"),
    ] {
        fs::write(&path, bytes).unwrap();
        let error = setup.error(&pod);
        assert_eq!(error, format!("{} is corrupt: {why}", path.display()));
    }
    fs::copy(setup.path(&other), &path).unwrap();
    assert!(setup.error(&pod).contains("it belongs to another object"));
    assert_eq!(setup.store.read(&other).unwrap().unwrap(), b"{\"b\": 1}");
    // Writing repairs the file.
    setup.store.write(&pod, b"{\"a\": 1}").unwrap();
    assert_eq!(fs::read(&path).unwrap(), good);
}

#[test]
fn secrets_need_their_key() {
    let setup = Setup::new();
    let (secret, other) = (entry(EntryKind::Secret, "a"), entry(EntryKind::Secret, "b"));
    setup.store.write(&secret, b"password").unwrap();
    let path = setup.path(&secret);
    let error = setup.reopened(Some(2)).read(&secret).unwrap_err();
    assert!(
        matches!(&error, StoreError::Sealed(at) if *at == path),
        "{error}"
    );
    let keyless = setup.reopened(None);
    let error = keyless.read(&secret).unwrap_err();
    assert!(
        matches!(&error, StoreError::NoKey(at) if *at == path),
        "{error}"
    );
    assert!(!keyless.keeps(EntryKind::Secret) && keyless.keeps(EntryKind::ConfigMap));
    assert!(matches!(
        keyless.write(&other, b"x"),
        Err(StoreError::NoKey(_))
    ));
    assert!(!setup.path(&other).exists());

    // A copy for another entry is rejected, even with a valid checksum.
    let bytes = fs::read(&path).unwrap();
    let end = bytes.iter().position(|byte| *byte == b'\n').unwrap();
    let said = format!("{}{SEALED}", beginning(&other));
    let sum = checksum(&said, &bytes[end + 1..]);
    let mut moved = format!("{said} sha256:{sum}\n").into_bytes();
    moved.extend(&bytes[end + 1..]);
    fs::write(setup.path(&other), moved).unwrap();
    assert!(setup.error(&other).contains("cannot decrypt"));
}

#[test]
fn with_a_key_nobody_else_writes_pods() {
    let setup = Setup::new();
    let (pod, other) = (entry(EntryKind::Pod, "a"), entry(EntryKind::Pod, "b"));
    setup.store.write(&pod, b"{\"a\": 1}").unwrap();
    let path = setup.path(&pod);
    let good = fs::read(&path).unwrap();
    let mut tampered = good.clone();
    let last = tampered.len() - 2;
    tampered[last] = b'2';
    fs::write(&path, &tampered).unwrap();
    let is_untrusted = |store: &Store, entry: &Entry| {
        let read = store.read(entry);
        matches!(read, Err(StoreError::Untrusted(at)) if at == setup.path(entry))
    };
    assert!(is_untrusted(&setup.store, &pod));
    // A valid checksum or another key does not help.
    let keyless = setup.reopened(None);
    keyless.write(&other, b"{\"b\": 1}").unwrap();
    assert!(is_untrusted(&setup.store, &other));
    fs::write(&path, &good).unwrap();
    assert!(is_untrusted(&setup.reopened(Some(2)), &pod));
    assert!(matches!(keyless.read(&pod), Err(StoreError::NoKey(at)) if at == path));
    assert_eq!(
        setup.reopened(Some(1)).read(&pod).unwrap().unwrap(),
        b"{\"a\": 1}"
    );
    // Writing with the key replaces a file that was written without one.
    setup.store.write(&other, b"{\"b\": 1}").unwrap();
    assert_eq!(setup.store.read(&other).unwrap().unwrap(), b"{\"b\": 1}");
}

#[test]
fn a_directory_that_others_may_write_to_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("c");
    fs::create_dir(&at).unwrap();
    let open = |mode: u32| {
        fs::set_permissions(&at, fs::Permissions::from_mode(mode)).unwrap();
        Store::open(&at, None)
    };
    for mode in [0o770, 0o702, 0o1777] {
        let error = open(mode).unwrap_err().to_string();
        let advice = format!("chmod go-w {}", at.display());
        assert!(error.contains(&advice), "{error}");
        assert!(error.contains(&format!("{mode:o}")), "{error}");
    }
    for mode in [0o700, 0o755] {
        open(mode).unwrap();
    }
    // Only root can change the owner.
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&at, Some(12345), None).unwrap();
        let error = open(0o700).unwrap_err().to_string();
        assert!(error.contains("it is owned by user 12345"), "{error}");
        assert!(error.contains("chown 0"), "{error}");
    }
}

#[test]
fn what_is_odd_is_passed_over() {
    let setup = Setup::new();
    let (pod, map) = (entry(EntryKind::Pod, "a"), entry(EntryKind::ConfigMap, "a"));
    setup.store.write(&map, b"{}").unwrap();
    fs::write(setup.store.dir().join("pods"), "").unwrap();
    let new = atomic_file::temporary(&setup.path(&map));
    fs::create_dir(&new).unwrap();
    fs::write(setup.store.dir().join("what-is-this"), "").unwrap();
    let next = setup.reopened(Some(1));
    assert_eq!(next.entries(), std::slice::from_ref(&map));
    assert_eq!(next.read(&map).unwrap().unwrap(), b"{}");
    next.read(&pod).unwrap_err();
    next.write(&pod, b"{}").unwrap_err();
    fs::remove_file(setup.store.dir().join("pods")).unwrap();
    next.write(&pod, b"{}").unwrap();
}

#[test]
fn a_write_that_was_cut_leaves_what_was_there() {
    let setup = Setup::new();
    let pod = entry(EntryKind::Pod, "a");
    setup.store.write(&pod, b"whole").unwrap();
    let new = atomic_file::temporary(&setup.path(&pod));
    fs::write(&new, b"ha").unwrap();
    let next = setup.reopened(Some(1));
    assert_eq!(next.entries(), std::slice::from_ref(&pod));
    assert_eq!(next.read(&pod).unwrap().unwrap(), b"whole");
    assert!(!new.exists());
    fs::write(&new, b"ha").unwrap();
    next.write(&pod, b"other").unwrap();
    assert_eq!(next.read(&pod).unwrap().unwrap(), b"other");
}

#[test]
fn there_is_room_for_so_much_alone() {
    let mut setup = Setup::new();
    setup.store.limit = 1000;
    let (one, two) = (entry(EntryKind::Pod, "one"), entry(EntryKind::Pod, "two"));
    setup.store.write(&one, &[b'a'; 500]).unwrap();
    let error = setup.store.write(&two, &[b'b'; 500]).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
    assert_eq!(setup.store.read(&two).unwrap(), None);
    // Replacing a file does not count its previous size.
    setup.store.write(&one, &[b'c'; 700]).unwrap();
    setup.store.remove(&one).unwrap();
    setup.store.write(&two, &[b'b'; 500]).unwrap();
}

#[test]
fn a_file_is_no_larger_than_it_may_be() {
    let setup = Setup::new();
    assert_eq!(setup.store.limit, 256 << 20);
    let (map, secret) = (
        entry(EntryKind::ConfigMap, "a"),
        entry(EntryKind::Secret, "a"),
    );
    let most = 4 << 20;
    for entry in [&map, &secret] {
        setup.store.write(entry, b"small").unwrap();
        // The first line counts towards the limit.
        let error = setup.store.write(entry, &vec![b'a'; most]).unwrap_err();
        assert!(matches!(error, StoreError::Full { .. }), "{error}");
        assert_eq!(setup.store.read(entry).unwrap().unwrap(), b"small");
        let large = vec![b'a'; most - 1000];
        setup.store.write(entry, &large).unwrap();
        assert_eq!(setup.store.read(entry).unwrap().unwrap(), large);
    }
    // A larger file from elsewhere is not read into memory.
    let path = setup.path(&map);
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len((4 << 20) + 1).unwrap();
    let why = format!(
        "{} is corrupt: it exceeds the maximum file size",
        path.display()
    );
    assert_eq!(setup.error(&map), why);
}

#[test]
fn what_was_there_before_takes_room_too() {
    let setup = Setup::new();
    let (one, two) = (entry(EntryKind::Pod, "one"), entry(EntryKind::Pod, "two"));
    setup.store.write(&one, &[b'a'; 500]).unwrap();
    let mut next = setup.reopened(Some(1));
    next.limit = 1000;
    let error = next.write(&two, &[b'b'; 500]).unwrap_err();
    assert!(matches!(error, StoreError::Full { .. }), "{error}");
}
