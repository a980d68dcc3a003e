//! Test images, built from Debian's busybox-static, so that no registry is needed.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use bollard::{
    Docker, auth::DockerCredentials, body_full, query_parameters::CreateImageOptionsBuilder,
    query_parameters::PushImageOptionsBuilder, query_parameters::TagImageOptionsBuilder,
};
use bytes::Bytes;
use futures::TryStreamExt as _;
use serde_json::json;
use sha2::{Digest as _, Sha256};

/// An image with busybox. It runs `sh` by default.
pub const BUSYBOX: &str = "e2e.local/busybox:1";

/// The applets that the test image links to `/bin/busybox`.
const APPLETS: &[&str] = &[
    "cat",
    "date",
    "echo",
    "env",
    "false",
    "hostname",
    "httpd",
    "id",
    "kill",
    "ls",
    "mount",
    "nc",
    "printf",
    "ps",
    "pwd",
    "rm",
    "sh",
    "sha256sum",
    "sleep",
    "stat",
    "stty",
    "tar",
    "touch",
    "true",
    "wc",
    "wget",
    "yes",
];

const BUSYBOX_BINARY: &str = "/bin/busybox";

/// Loads [`BUSYBOX`] into an engine.
pub async fn load_busybox(docker: &Docker) -> Result<()> {
    load(docker, BUSYBOX, &["CMD [\"sh\"]"]).await
}

/// Loads a busybox image named `reference` into an engine. `changes` are Dockerfile instructions.
pub async fn load(docker: &Docker, reference: &str, changes: &[&str]) -> Result<()> {
    load_of_size(docker, reference, changes, 0).await
}

/// [`load`] with a file of this size.
pub async fn load_of_size(
    docker: &Docker,
    reference: &str,
    changes: &[&str],
    bytes: usize,
) -> Result<()> {
    let (repo, tag) = reference
        .rsplit_once(':')
        .with_context(|| format!("{reference} has no tag"))?;
    let mut lines = vec!["ENV PATH=/bin".to_owned()];
    lines.extend(changes.iter().map(|&line| line.to_owned()));
    let options = CreateImageOptionsBuilder::new()
        .from_src("-")
        .repo(repo)
        .tag(tag)
        .changes(lines)
        .build();
    docker
        .create_image(
            Some(options),
            Some(body_full(root_filesystem(bytes)?)),
            None,
        )
        .try_for_each(|_| async { Ok(()) })
        .await
        .with_context(|| format!("cannot import {reference}"))
}

/// Tags an image of the engine for a registry and pushes it.
pub async fn push(
    docker: &Docker,
    image: &str,
    to: &str,
    credentials: Option<DockerCredentials>,
) -> Result<()> {
    let (repo, tag) = to
        .rsplit_once(':')
        .with_context(|| format!("{to} has no tag"))?;
    let target = TagImageOptionsBuilder::new().repo(repo).tag(tag).build();
    docker.tag_image(image, Some(target)).await?;
    let options = PushImageOptionsBuilder::new().tag(tag).build();
    docker
        .push_image(repo, Some(options), credentials)
        .try_for_each(|_| async { Ok(()) })
        .await
        .with_context(|| format!("cannot push {to}"))
}

/// A busybox image that runs this command, in the format of `docker save`.
pub fn archive(reference: &str, command: &[&str]) -> Result<Vec<u8>> {
    archive_of_size(reference, command, 0)
}

/// [`archive`] with a file of this size.
pub fn archive_of_size(reference: &str, command: &[&str], bytes: usize) -> Result<Vec<u8>> {
    let layer = root_filesystem(bytes)?;
    let digest: String = Sha256::digest(&layer)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let config = json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": command},
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{digest}")]},
    });
    let manifest = json!([{
        "Config": "config.json",
        "RepoTags": [reference],
        "Layers": ["layer.tar"],
    }]);
    let mut archive = tar::Builder::new(Vec::new());
    for (path, content) in [
        ("config.json", config.to_string().into_bytes()),
        ("manifest.json", manifest.to_string().into_bytes()),
        ("layer.tar", layer.into()),
    ] {
        let mut header = header(tar::EntryType::Regular, 0o644, content.len() as u64);
        archive.append_data(&mut header, path, content.as_slice())?;
    }
    Ok(archive.into_inner()?)
}

/// The architecture of this machine, as image configs name it.
const fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") {
        "arm64"
    } else {
        "amd64"
    }
}

/// A tar archive of the image's root filesystem.
/// The files of busybox, and one of `filler` bytes.
fn root_filesystem(filler: usize) -> Result<Bytes> {
    let busybox = fs::read(Path::new(BUSYBOX_BINARY))
        .with_context(|| format!("no {BUSYBOX_BINARY}: apt-get install busybox-static"))?;
    let mut archive = tar::Builder::new(Vec::new());
    for dir in ["bin/", "dev/", "etc/", "proc/", "sys/", "tmp/", "www/"] {
        let mut header = header(tar::EntryType::Directory, 0o755, 0);
        archive.append_data(&mut header, dir, std::io::empty())?;
    }
    let filler = vec![1; filler];
    let files: [(&str, u32, &[u8]); 5] = [
        ("bin/busybox", 0o755, &busybox),
        (
            "etc/passwd",
            0o644,
            b"root:x:0:0::/:/bin/sh\nuser:x:1000:1000::/:/bin/sh\n",
        ),
        ("etc/group", 0o644, b"root:x:0:\nuser:x:1000:\n"),
        ("www/index.html", 0o644, b"hello from the pod\n"),
        ("filler", 0o644, &filler),
    ];
    for (path, mode, content) in files {
        let mut header = header(tar::EntryType::Regular, mode, content.len() as u64);
        archive.append_data(&mut header, path, content)?;
    }
    for applet in APPLETS {
        let mut header = header(tar::EntryType::Symlink, 0o777, 0);
        archive.append_link(&mut header, format!("bin/{applet}"), "busybox")?;
    }
    Ok(Bytes::from(archive.into_inner()?))
}

fn header(kind: tar::EntryType, mode: u32, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_size(size);
    header
}
