//! Volumes whose files change all at once. The files are in a time-stamped directory, `..data` is a
//! symlink to it, and users see symlinks through `..data`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _, symlink},
    path::{Component, Path, PathBuf},
};

use kubelet_host::clock;
use tree_walk::{Step, Walk};

use super::{VolumeError, entries, mount};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";
const MAX_NAME: usize = 255;
const MAX_PATH: usize = 4096;

/// One file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileProjection {
    /// Its contents.
    pub data: Vec<u8>,
    /// Its mode.
    pub mode: u32,
    /// Its owner; `None` for the kubelet's user.
    pub user: Option<u32>,
}

/// Files by their paths relative to the volume.
pub type Payload = BTreeMap<String, FileProjection>;

/// Makes a volume contain exactly these files. Unchanged contents are not written again. `finish`
/// is called when everything is written but nothing is visible yet. Until then only this process
/// has access to the files; each gets its owner and mode before its contents. Blocks.
///
/// # Errors
/// A path leads out of the volume, or a file system operation fails.
pub fn write(
    dir: &Path,
    payload: &Payload,
    finish: impl FnOnce() -> Result<(), VolumeError>,
) -> Result<(), VolumeError> {
    let payload = clean(dir, payload)?;
    let failed = |error| VolumeError::io("write the files of the volume", dir, error);
    let shown = match fs::read_link(dir.join(DATA)) {
        Ok(name) => Some(dir.join(name)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(failed(error)),
    };
    let removed = match &shown {
        None => BTreeSet::new(),
        Some(shown) => names_in(shown)?
            .into_iter()
            .filter(|name| {
                !payload
                    .keys()
                    .any(|path| first(path) == Some(name.as_str()))
            })
            .collect(),
    };
    if shown.as_deref().is_none_or(|shown| !shows(shown, &payload)) {
        let new = new_dir(dir).map_err(failed)?;
        write_files(&new, &payload).map_err(failed)?;
        finish()?;
        open_up(&new).map_err(failed)?;
        swap(dir, &new).map_err(failed)?;
    }
    show(dir, &payload).map_err(failed)?;
    for name in removed {
        mount::remove_mount_point(&dir.join(name))?;
    }
    remove_old(dir)
}

/// The payload with normalised paths, all of them inside the volume.
fn clean(dir: &Path, payload: &Payload) -> Result<BTreeMap<PathBuf, FileProjection>, VolumeError> {
    payload
        .iter()
        .map(|(path, file)| match check(path) {
            Ok(()) => Ok((Path::new(path).components().collect(), file.clone())),
            Err(why) => Err(VolumeError::io(
                "write the files of the volume",
                dir,
                io::Error::new(
                    io::ErrorKind::InvalidInput,
                    format!("invalid path: {why}: {path:?}"),
                ),
            )),
        })
        .collect()
}

fn check(path: &str) -> Result<(), &'static str> {
    if path.is_empty() {
        return Err("must not be empty");
    }
    if path.starts_with('/') {
        return Err("must be relative path");
    }
    if path.len() > MAX_PATH {
        return Err("must be less than or equal to 4096 characters");
    }
    for name in path.split('/') {
        if name == ".." {
            return Err("must not contain '..'");
        }
        if name.len() > MAX_NAME {
            return Err("filenames must be less than or equal to 255 characters");
        }
    }
    if path.starts_with("..") {
        return Err("must not start with '..'");
    }
    Ok(())
}

fn first(path: &Path) -> Option<&str> {
    match path.components().next()? {
        Component::Normal(name) => name.to_str(),
        _ => None,
    }
}

fn names_in(dir: &Path) -> Result<Vec<String>, VolumeError> {
    let children = entries::children(dir)?;
    Ok(children.into_iter().map(|(name, _)| name).collect())
}

/// Whether a directory has exactly these files with these contents.
fn shows(dir: &Path, payload: &BTreeMap<PathBuf, FileProjection>) -> bool {
    let same = |(path, file): (&PathBuf, &FileProjection)| {
        fs::read(dir.join(path)).is_ok_and(|data| data == file.data)
    };
    dir.is_dir() && payload.iter().all(same) && count_files(dir).is_ok_and(|n| n == payload.len())
}

fn count_files(dir: &Path) -> io::Result<usize> {
    let mut walk = Walk::open(dir)?;
    let mut count = 0;
    while let Some(step) = walk.step()? {
        step.ensure_passed()?;
        count += usize::from(matches!(step, Step::File(_)));
    }
    Ok(count)
}

fn new_dir(dir: &Path) -> io::Result<PathBuf> {
    let now = clock::now();
    let time = now.strftime("..%Y_%m_%d_%H_%M_%S");
    // Count up if several directories are created in the same nanosecond.
    for n in now.subsec_nanosecond().. {
        let path = dir.join(format!("{time}.{n:09}"));
        match fs::DirBuilder::new().mode(0o700).create(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path),
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Makes the directory accessible to everyone, whatever the umask is.
fn open_up(dir: &Path) -> io::Result<()> {
    let mode = fs::metadata(dir)?.permissions().mode() | 0o755;
    fs::set_permissions(dir, fs::Permissions::from_mode(mode))
}

fn write_files(dir: &Path, payload: &BTreeMap<PathBuf, FileProjection>) -> io::Result<()> {
    for (path, file) in payload {
        let path = dir.join(path);
        if let Some(parent) = path.parent() {
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create(parent)?;
        }
        let mut options = fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600);
        let mut open = options.open(&path)?;
        if file.user.is_some() {
            std::os::unix::fs::fchown(&open, file.user, None)?;
        }
        open.set_permissions(fs::Permissions::from_mode(file.mode))?;
        open.write_all(&file.data)?;
    }
    Ok(())
}

/// Switches users to the new directory.
fn swap(dir: &Path, new: &Path) -> io::Result<()> {
    let link = dir.join(NEW_DATA);
    // A kubelet that was killed may have left a link.
    match fs::remove_file(&link) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(new.file_name().unwrap_or_default(), &link)?;
    fs::rename(link, dir.join(DATA))
}

/// Creates the symlinks that users see.
fn show(dir: &Path, payload: &BTreeMap<PathBuf, FileProjection>) -> io::Result<()> {
    let names: BTreeSet<&str> = payload.keys().filter_map(|path| first(path)).collect();
    for name in names {
        let link = dir.join(name);
        let target = Path::new(DATA).join(name);
        match fs::symlink_metadata(&link) {
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => symlink(target, link)?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Removes all data directories except the current one, including those of killed kubelets.
fn remove_old(dir: &Path) -> Result<(), VolumeError> {
    let failed = |error| VolumeError::io("read", dir, error);
    let shown = fs::read_link(dir.join(DATA)).map_err(failed)?;
    for (name, path) in entries::children(dir)? {
        if name.starts_with("..") && name != DATA && Path::new(&name) != shown {
            tree_walk::remove_all(&path)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::fs::MetadataExt as _,
        process::{Command, Stdio},
    };

    use super::*;
    use crate::{ownership, ownership_progress::OwnershipProgress, plugin::FsGroup};

    fn payload(files: &[(&str, &str)]) -> Payload {
        files
            .iter()
            .map(|(path, data)| {
                let file = FileProjection {
                    data: data.as_bytes().to_vec(),
                    mode: 0o640,
                    user: None,
                };
                ((*path).to_owned(), file)
            })
            .collect()
    }

    fn put(dir: &Path, files: &[(&str, &str)]) {
        write(dir, &payload(files), || Ok(())).unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names = names_in(dir).unwrap();
        names.retain(|name| !name.starts_with(".."));
        names
    }

    #[test]
    fn a_volume_shows_the_newest_payload_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        put(
            path,
            &[("a", "1"), ("sub/b", "2"), ("sub/c", "3"), (".d", "4")],
        );
        assert_eq!(fs::read_to_string(path.join("sub/b")).unwrap(), "2");
        assert_eq!(names(path), [".d", "a", "sub"]);
        let mode = fs::metadata(path.join("a")).unwrap().permissions().mode();
        assert_eq!(mode & 0o7777, 0o640);
        put(path, &[("sub/b", "2"), ("e", "5")]);
        assert_eq!(names(path), ["e", "sub"]);
        assert!(path.join("sub/b").exists() && !path.join("sub/c").exists());
        // The other two are the data directory and the `..data` link.
        assert_eq!(names_in(path).unwrap().len(), 4);
        put(path, &[]);
        assert_eq!(names(path), Vec::<String>::new());
    }

    #[test]
    fn what_is_right_is_not_written_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        put(path, &[("a", "1"), ("b/c", "2")]);
        let shown = fs::read_link(path.join(DATA)).unwrap();
        let again = payload(&[("a", "1"), ("b/c", "2")]);
        write(path, &again, || panic!("it is written again")).unwrap();
        assert_eq!(fs::read_link(path.join(DATA)).unwrap(), shown);
        put(path, &[("a", "2"), ("b/c", "2")]);
        assert_ne!(fs::read_link(path.join(DATA)).unwrap(), shown);
    }

    #[test]
    fn what_a_killed_kubelet_left_is_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        put(path, &[("a", "1")]);
        fs::create_dir(path.join("..2020_01_01_00_00_00.1")).unwrap();
        symlink("..2020_01_01_00_00_00.1", path.join(NEW_DATA)).unwrap();
        fs::remove_file(path.join("a")).unwrap();
        put(path, &[("a", "1")]);
        assert_eq!(names_in(path).unwrap().len(), 3);
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
    }

    #[test]
    fn a_failed_finish_shows_nothing_new() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path();
        put(path, &[("a", "1")]);
        let failed = || Err(VolumeError::Unsupported("v".to_owned()));
        write(path, &payload(&[("a", "2")]), failed).unwrap_err();
        assert_eq!(fs::read_to_string(path.join("a")).unwrap(), "1");
    }

    /// Polls the files that are being written to a directory, and prints the first line that it can
    /// read.
    const READER: &str = r#"
        while :; do
            for file in "$0"/..2*/key "$0"/..2*/sub/key; do
                if read -r line <"$file"; then echo "$line"; exit; fi
            done
        done 2>/dev/null"#;

    #[test]
    fn nobody_else_reads_a_file_while_it_is_written() {
        // User and group of the reader, mode and owner of the file, and the `fsGroup`.
        for (reader, mode, user, group) in [
            ([65534, 65534], 0o400, None, None),
            ([65534, 65534], 0o600, Some(1000), None),
            ([65534, 0], 0o640, None, Some(4321)),
        ] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
            let [uid, gid] = reader;
            let mut child = Command::new("setpriv")
                .args([format!("--reuid={uid}"), format!("--regid={gid}")])
                .args(["--clear-groups", "--", "sh", "-c", READER])
                .arg(path)
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            for n in 0..300 {
                let mut data = format!("secret {n}\n").into_bytes();
                data.resize(1 << 19, b'x');
                let file = FileProjection { data, mode, user };
                let files = ["key", "sub/key"].map(|name| (name.to_owned(), file.clone()));
                let finish = || match group {
                    Some(gid) => {
                        let group = FsGroup {
                            gid,
                            on_root_mismatch: false,
                        };
                        ownership::set(path, group, true, &OwnershipProgress::default())
                    }
                    None => Ok(()),
                };
                write(path, &files.into(), finish).unwrap();
            }
            child.kill().unwrap();
            let read = child.wait_with_output().unwrap().stdout;
            assert_eq!(
                String::from_utf8_lossy(&read),
                "",
                "by {reader:?} of mode {mode:o}"
            );
            // Permitted users can reach the files.
            for dir in [path.join(DATA), path.join(DATA).join("sub")] {
                let found = fs::metadata(dir).unwrap();
                assert_eq!(found.permissions().mode() & 0o777, 0o755);
            }
            let found = fs::metadata(path.join("sub/key")).unwrap();
            assert_eq!(found.permissions().mode() & 0o777, mode);
            assert_eq!(
                (found.uid(), found.gid()),
                (user.unwrap_or(0), group.unwrap_or(0))
            );
        }
    }

    #[test]
    fn no_path_leaves_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["", "/etc/x", "../x", "a/../../x", "..data", "..x", "a/.."] {
            let error = write(dir.path(), &payload(&[(path, "")]), || Ok(())).unwrap_err();
            assert!(error.to_string().contains("invalid path"), "{error}");
        }
        assert_eq!(names_in(dir.path()).unwrap(), Vec::<String>::new());
        let long = "x".repeat(256);
        write(dir.path(), &payload(&[(&long, "")]), || Ok(())).unwrap_err();
    }
}
