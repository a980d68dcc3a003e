//! The mount table, from `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::{
    collections::HashMap,
    ffi::OsString,
    fs, io,
    os::unix::ffi::OsStringExt as _,
    path::{Path, PathBuf},
};

/// The directory of plugins in the root directory.
const PLUGINS: &str = "/plugins/kubernetes.io/";

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountInfo {
    /// Unique among the current mounts.
    pub id: u64,
    /// Device numbers, `major:minor`.
    pub device: String,
    /// The mounted directory within the file system.
    pub root: PathBuf,
    /// The mount point.
    pub mount_point: PathBuf,
    /// Mount options, comma-separated.
    pub options: String,
    /// Mounts below it appear in its copies, and theirs here.
    pub shared: bool,
    /// File system type.
    pub fs_type: String,
    /// What is mounted: a device, `server:/path`, or any name.
    pub source: String,
    /// File system options, comma-separated.
    pub super_options: String,
}

impl MountInfo {
    /// Whether the mount, or its file system, has this option.
    pub fn has_option(&self, option: &str) -> bool {
        let mut all = self.options.split(',').chain(self.super_options.split(','));
        all.any(|one| one == option)
    }
}

/// The file that lists the mounts of a node.
#[derive(Clone, Debug)]
pub struct MountTable(PathBuf);

impl MountTable {
    /// The mount table of the node whose root file system is at `root`, as this process sees it.
    pub fn of(root: &Path) -> Self {
        Self(root.join("proc/self/mountinfo"))
    }

    /// Every mount, in the order in which they were made.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn read(&self) -> io::Result<Vec<MountInfo>> {
        Ok(parse(&fs::read(&self.0)?))
    }

    /// The mount that a path is on, not following its last component.
    ///
    /// # Errors
    /// As [`read`](Self::read), and the path's parent cannot be resolved.
    pub fn holding(&self, path: &Path) -> io::Result<Option<MountInfo>> {
        match resolve(path)? {
            Some(path) => Ok(nearest(self.read()?, &path)),
            None => Ok(None),
        }
    }
}

/// Every mount that this process sees, in the order in which they were made.
///
/// # Errors
/// `/proc/self/mountinfo` cannot be read.
pub fn read() -> io::Result<Vec<MountInfo>> {
    MountTable::of(Path::new("/")).read()
}

/// The mount at a path; the newest, if mounts cover each other. Reads only the path's parent,
/// so that a dead server behind the mount does not block.
///
/// # Errors
/// As [`read`], and the parent cannot be resolved.
pub fn at(path: &Path) -> io::Result<Option<MountInfo>> {
    let Some(path) = resolve(path)? else {
        return Ok(None);
    };
    let mut mounts = read()?.into_iter();
    Ok(mounts.rfind(|mount| mount.mount_point == path))
}

/// The mounts at a path and below it, the deepest first.
///
/// # Errors
/// As [`at`].
pub fn within(path: &Path) -> io::Result<Vec<MountInfo>> {
    let Some(path) = resolve(path)? else {
        return Ok(Vec::new());
    };
    let mut mounts = read()?;
    mounts.retain(|mount| mount.mount_point.starts_with(&path));
    mounts.reverse();
    mounts.sort_by_key(|mount| std::cmp::Reverse(mount.mount_point.components().count()));
    Ok(mounts)
}

/// Device numbers of the mount that holds a path: the mount point that is its longest prefix.
/// Reads no file on the mount, so that a dead server does not block.
///
/// # Errors
/// As [`read`].
pub fn device_of(path: &Path) -> io::Result<String> {
    let mount = nearest(read()?, path);
    Ok(mount.map(|mount| mount.device).unwrap_or_default())
}

/// Device numbers of the mounts that hold these paths, as [`device_of`] with the parents of the
/// paths resolved. Reads the mount table once.
///
/// # Errors
/// As [`read`].
pub fn devices_of(paths: &[PathBuf]) -> io::Result<Vec<String>> {
    let mounts = read()?.into_iter();
    // The newest, if mounts cover each other.
    let devices: HashMap<PathBuf, String> = mounts
        .map(|mount| (mount.mount_point, mount.device))
        .collect();
    let device = |path: &PathBuf| {
        let resolved = resolve(path).ok().flatten();
        let path = resolved.as_ref().unwrap_or(path);
        let mut above = path.ancestors();
        let device = above.find_map(|path| devices.get(path));
        device.cloned().unwrap_or_default()
    };
    Ok(paths.iter().map(device).collect())
}

/// Where else the same is mounted as at a path, or a part of it: not below the path, and not
/// by way of another mount that shows the path itself. The path of a plugin's mount counts from the
/// directory of plugins on, as upstream: the root directory may be seen in other places.
///
/// # Errors
/// As [`at`].
pub fn elsewhere(path: &Path) -> io::Result<Vec<MountInfo>> {
    let Some(own) = at(path)? else {
        return Ok(Vec::new());
    };
    let shown = own.mount_point.to_string_lossy().into_owned();
    let shown = match shown.find(PLUGINS) {
        Some(start) => &shown[start..],
        None => &shown,
    };
    let mut mounts = read()?;
    mounts.retain(|other| {
        other.device == own.device
            && other.root.starts_with(&own.root)
            && !other.mount_point.to_string_lossy().contains(shown)
    });
    Ok(mounts)
}

/// The mount whose mount point is the longest prefix of the path; the newest, if mounts cover
/// each other.
fn nearest(mounts: Vec<MountInfo>, path: &Path) -> Option<MountInfo> {
    let mounts = mounts.into_iter();
    let above = mounts.filter(|mount| path.starts_with(&mount.mount_point));
    above.max_by_key(|mount| mount.mount_point.components().count())
}

/// The path with its parent resolved, its last component not followed; `None` if the parent
/// does not exist.
fn resolve(path: &Path) -> io::Result<Option<PathBuf>> {
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Ok(Some(path.to_owned()));
    };
    match parent.canonicalize() {
        Ok(parent) => Ok(Some(parent.join(name))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(text: &[u8]) -> Vec<MountInfo> {
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn line(line: &[u8]) -> Option<MountInfo> {
    let mut fields = line.split(|byte| *byte == b' ');
    let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    let device = text(fields.nth(1)?);
    let root = path(fields.next()?);
    let mount_point = path(fields.next()?);
    let options = text(fields.next()?);
    // Any number of optional fields, then a dash.
    let mut optional = fields.by_ref().take_while(|field| *field != b"-");
    let shared = optional.any(|field| field.starts_with(b"shared:"));
    optional.for_each(drop);
    let fs_type = text(fields.next()?);
    let source = path(fields.next().unwrap_or_default());
    let super_options = fields.next().map(text).unwrap_or_default();
    Some(MountInfo {
        id,
        device,
        root,
        mount_point,
        options,
        shared,
        fs_type,
        source: source.to_string_lossy().into_owned(),
        super_options,
    })
}

/// Decodes the kernel's octal escapes of white space and backslashes.
fn path(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, after @ ..] = rest {
        let escape = (*first == b'\\')
            .then(|| after.get(..3).and_then(octal))
            .flatten();
        if let Some(byte) = escape {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn octal(digits: &[u8]) -> Option<u8> {
    u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_told_apart_whatever_is_optional() {
        let text = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:2 - ext3 /dev/root rw,x=y\n\
            40 36 0:5 / /var/with\\040blank\\134 rw - tmpfs tmpfs rw,size=4k\n\
            41 36 0:6 / /last ro - proc none\n\
            broken\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!(mounts[0].id, 36);
        assert_eq!(mounts[0].device, "98:0");
        assert_eq!(mounts[0].root, Path::new("/mnt1"));
        assert_eq!(mounts[0].fs_type, "ext3");
        assert!(mounts[0].shared && !mounts[1].shared);
        assert_eq!(mounts[0].super_options, "rw,x=y");
        assert!(mounts[0].has_option("noatime") && mounts[0].has_option("x=y"));
        assert!(!mounts[0].has_option("ro") && mounts[2].has_option("ro"));
        assert_eq!(mounts[1].mount_point, Path::new("/var/with blank\\"));
        assert_eq!(mounts[2].super_options, "");
    }

    #[test]
    fn what_is_mounted_twice_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let [source, own, other] = ["source", "own", "other"].map(|name| dir.path().join(name));
        for path in [&source, &own, &other] {
            fs::create_dir(path).unwrap();
        }
        assert_eq!(elsewhere(&own).unwrap(), []);
        rustix::mount::mount_bind(&source, &own).unwrap();
        assert_eq!(elsewhere(&own).unwrap(), []);
        rustix::mount::mount_bind(&own, &other).unwrap();
        let found = elsewhere(&own).unwrap();
        for path in [&own, &other] {
            rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).unwrap();
        }
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].mount_point, other.canonicalize().unwrap());

        // The root directory is mounted in a second place.
        let [own, again] = ["root", "again"].map(|root| {
            dir.path()
                .join(root)
                .join("plugins/kubernetes.io/csi/mount")
        });
        for path in [&own, &again] {
            fs::create_dir_all(path).unwrap();
            rustix::mount::mount_bind(&source, path).unwrap();
        }
        let found = elsewhere(&own).unwrap();
        for path in [&own, &again] {
            rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).unwrap();
        }
        assert_eq!(found, []);
        let own = dir.path().join("own");

        // A part of it that a container has is in use as well.
        fs::create_dir(source.join("part")).unwrap();
        rustix::mount::mount_bind(&source, &own).unwrap();
        rustix::mount::mount_bind(source.join("part"), &other).unwrap();
        let found = elsewhere(&own).unwrap();
        for path in [&own, &other] {
            rustix::mount::unmount(path, rustix::mount::UnmountFlags::empty()).unwrap();
        }
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn paths_have_the_devices_of_their_mounts() {
        let dir = tempfile::tempdir().unwrap();
        let (mounted, link) = (dir.path().join("mounted"), dir.path().join("link"));
        fs::create_dir(&mounted).unwrap();
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        rustix::mount::mount_bind("/dev/shm", &mounted).unwrap();
        let paths = ["/dev/shm", "/none/at/all", "/proc/1"].map(PathBuf::from);
        let paths = [&paths[..], &[mounted.clone(), link.join("mounted/x")]].concat();
        let devices = devices_of(&paths);
        rustix::mount::unmount(&mounted, rustix::mount::UnmountFlags::empty()).unwrap();
        let devices = devices.unwrap();
        let of = |path: &str| device_of(Path::new(path)).unwrap();
        let shm = of("/dev/shm");
        assert_eq!(devices, [&*shm, &of("/"), &of("/proc"), &shm, &shm]);
    }

    #[test]
    fn a_path_that_is_no_mount_point_has_no_mount() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(at(dir.path()).unwrap(), None);
        assert_eq!(at(&dir.path().join("a/b")).unwrap(), None);
        assert_eq!(within(dir.path()).unwrap(), []);
        let proc = at(Path::new("/proc")).unwrap().unwrap();
        assert_eq!(device_of(Path::new("/proc/none/x")).unwrap(), proc.device);
        assert_ne!(device_of(Path::new("/")).unwrap(), proc.device);
    }
}
