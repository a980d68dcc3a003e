//! `hostPath`: a file or directory of the node. Its type is checked if the spec requires one.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use futures::future::{self, FutureExt as _};
use k8s_openapi::api::core::v1::HostPathVolumeSource;

use super::{
    VolumeError, blocking_at,
    plugin::{Attributes, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    spec::VolumeSpec,
    usage::UsageSource,
};

/// The plugin.
#[derive(Debug)]
pub(super) struct HostPath;

impl VolumePlugin for HostPath {
    fn name(&self) -> &'static str {
        "kubernetes.io/host-path"
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        source(spec).is_some()
    }

    fn attributes(&self, spec: &VolumeSpec) -> Attributes {
        Attributes {
            read_only: spec.read_only,
            ..Attributes::default()
        }
    }

    /// The files belong to the node.
    fn usage(&self, _: &MountRequest) -> UsageSource {
        UsageSource::None
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        let Some(source) = source(&request.spec).cloned() else {
            let error = VolumeError::Unsupported(request.spec.name.clone());
            return future::ready(Err(error)).boxed();
        };
        async move {
            let path = PathBuf::from(&source.path);
            blocking_at(&path, move || set_up(&source).map(Mounted::Path)).await
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, _: &'a PodVolume) -> PluginFuture<'a, ()> {
        future::ready(Ok(())).boxed()
    }
}

fn source(spec: &VolumeSpec) -> Option<&HostPathVolumeSource> {
    match spec.persistent() {
        None => spec.inline()?.host_path.as_ref(),
        Some(volume) => volume.spec.as_ref()?.host_path.as_ref(),
    }
}

fn set_up(source: &HostPathVolumeSource) -> Result<PathBuf, VolumeError> {
    let path = PathBuf::from(&source.path);
    let wanted = source.type_.as_deref().unwrap_or_default();
    if wanted.is_empty() {
        return Ok(path);
    }
    let found = match fs::metadata(&path) {
        Ok(metadata) => Some(metadata.file_type()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => return Err(VolumeError::io("inspect", &path, error)),
    };
    let right = match (wanted, found) {
        ("DirectoryOrCreate", None) => {
            return create_dir(&path)
                .map(|()| path.clone())
                .map_err(|error| VolumeError::io("create the directory", &path, error));
        }
        ("FileOrCreate", None) => {
            return create_file(&path)
                .map(|()| path.clone())
                .map_err(|error| VolumeError::io("create the file", &path, error));
        }
        (_, None) => false,
        ("DirectoryOrCreate" | "Directory", Some(found)) => found.is_dir(),
        ("FileOrCreate" | "File", Some(found)) => found.is_file(),
        ("Socket", Some(found)) => found.is_socket(),
        ("CharDevice", Some(found)) => found.is_char_device(),
        ("BlockDevice", Some(found)) => found.is_block_device(),
        (_, Some(_)) => false,
    };
    if right {
        return Ok(path);
    }
    Err(VolumeError::HostPathType {
        path: source.path.clone(),
        wanted: in_words(wanted),
    })
}

fn create_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
}

fn create_file(path: &Path) -> io::Result<()> {
    let mut options = fs::OpenOptions::new();
    options.create(true).append(true).mode(0o644);
    options.open(path).map(drop)
}

/// A type, in the wording of upstream's messages.
fn in_words(wanted: &str) -> &'static str {
    match wanted {
        "Directory" | "DirectoryOrCreate" => "a directory",
        "File" | "FileOrCreate" => "a file",
        "Socket" => "a socket file",
        "CharDevice" => "a character device",
        "BlockDevice" => "a block device",
        _ => "of a known type",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_up_at(path: &Path, wanted: &str) -> Result<PathBuf, VolumeError> {
        let source = HostPathVolumeSource {
            path: path.to_str().unwrap().to_owned(),
            type_: Some(wanted.to_owned()),
        };
        set_up(&source)
    }

    #[test]
    fn the_type_is_checked_or_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(set_up_at(dir.path(), "Directory").is_ok());
        assert!(set_up_at(Path::new("/dev/null"), "CharDevice").is_ok());
        let error = set_up_at(dir.path(), "Socket").unwrap_err();
        assert!(
            error.to_string().ends_with("is not a socket file"),
            "{error}"
        );
        let new = dir.path().join("a/b");
        let error = set_up_at(&new, "Directory").unwrap_err();
        assert!(error.to_string().ends_with("is not a directory"), "{error}");
        assert!(set_up_at(&new, "").is_ok() && !new.exists());
        set_up_at(&new, "DirectoryOrCreate").unwrap();
        assert!(new.is_dir());
        set_up_at(&new.join("f"), "FileOrCreate").unwrap();
        assert!(new.join("f").is_file());
    }
}
