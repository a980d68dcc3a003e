//! The sandbox image: the built-in one, loaded into the engine if missing, or another one that is
//! pulled.

use std::{io, sync::Arc};

use cri_proto::runtime::v1::AuthConfig;
use image_reference::ImageReference;
use registry_credentials::{Credential, docker_config_files::DockerConfigFiles, keyring::Keyring};
use sha2::{Digest as _, Sha256};

use super::pull;
use crate::{
    Error, Shim,
    engine::{Cause, EngineError},
    images::BUILT_IN_PAUSE,
};

/// The pause program, built by `build.rs` from `pause/pause.rs`.
const PROGRAM: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/pause"));
/// The uid and gid of the upstream pause image; no user of the host has them.
const USER: &str = "65535:65535";

/// Returns the id of the sandbox image. Loads or pulls it first if it is missing, because it may be
/// pruned at any time.
///
/// # Errors
/// The error of the engine or the registry.
pub async fn ensure(shim: &Arc<Shim>) -> Result<String, Error> {
    let name = &shim.config.pod_infra_container_image;
    match shim.images.get_or_inspect(&shim.engine, name).await {
        Ok(known) => return Ok(known.image.id.clone()),
        Err(Error::NotFound { .. }) => {}
        Err(error) => return Err(error),
    }
    if name != BUILT_IN_PAUSE {
        return pull_privately(shim, name).await;
    }
    let _one_at_a_time = shim.loading_pause.lock().await;
    if let Ok(known) = shim.images.snapshot().find(name) {
        return Ok(known.image.id.clone());
    }
    let archive = archive(name, PROGRAM).map_err(|source| Error::File {
        action: "build an image of",
        path: "pause".into(),
        source,
    })?;
    shim.engine.load_image(name, archive.into()).await?;
    let known = match shim.images.inspect(&shim.engine, name).await {
        Err(Error::NotFound { .. }) => {
            let cause = Cause::Protocol("the engine accepted it but does not have it".into());
            return Err(Error::Engine(EngineError {
                action: "load image",
                object: name.clone(),
                cause,
            }));
        }
        other => other?,
    };
    let id = known.image.id.clone();
    tracing::info!(image = name, id, "loaded the built-in pause image");
    Ok(id)
}

/// Pulls an image with the credentials in this machine's docker configuration, one after the other,
/// or without if none are for its registry: no kubelet sends credentials for the sandbox image.
async fn pull_privately(shim: &Arc<Shim>, name: &str) -> Result<String, Error> {
    let repository = ImageReference::parse(name)
        .map_err(|error| Error::invalid("pod-infra-container-image", error.to_string()))?
        .repository();
    let files = shim.config.docker_config.clone();
    // Fails only if the read panics, which counts as no credentials.
    let credentials = tokio::task::spawn_blocking(move || credentials(&files, &repository))
        .await
        .unwrap_or_default();
    let mut pulled = None;
    for credential in credentials {
        let auth = AuthConfig {
            username: credential.username,
            password: credential.password,
            ..AuthConfig::default()
        };
        match pull::by_name(shim, name, Some(auth)).await {
            Ok(id) => return Ok(id),
            Err(error) => pulled = Some(Err(error)),
        }
    }
    match pulled {
        Some(failed) => failed,
        None => pull::by_name(shim, name, None).await,
    }
}

fn credentials(files: &DockerConfigFiles, repository: &str) -> Vec<Credential> {
    let mut keyring = Keyring::default();
    keyring.add(files.read(), |credential| credential);
    keyring.lookup(repository)
}

/// A `docker save` archive of an image that contains only `program`. The archive is reproducible,
/// so the image id is the same on every machine.
fn archive(name: &str, program: &[u8]) -> io::Result<Vec<u8>> {
    let layer = tar([("pause", program, 0o755)])?;
    let config = serde_json::json!({
        "architecture": architecture(),
        "os": "linux",
        "created": "1970-01-01T00:00:00Z",
        "config": {
            "Entrypoint": ["/pause"],
            "User": USER,
            "WorkingDir": "/",
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{}", hex(&layer))] },
        "history": [{ "created": "1970-01-01T00:00:00Z", "created_by": "dockershim" }],
    })
    .to_string();
    let config_name = format!("{}.json", hex(config.as_bytes()));
    let layer_name = format!("{}/layer.tar", hex(&layer));
    let manifest = serde_json::json!([{
        "Config": config_name,
        "RepoTags": [name],
        "Layers": [layer_name],
    }])
    .to_string();
    tar([
        (layer_name.as_str(), layer.as_slice(), 0o644),
        (config_name.as_str(), config.as_bytes(), 0o644),
        ("manifest.json", manifest.as_bytes(), 0o644),
    ])
}

fn tar<'a>(files: impl IntoIterator<Item = (&'a str, &'a [u8], u32)>) -> io::Result<Vec<u8>> {
    let mut tar = tar::Builder::new(Vec::new());
    for (name, content, mode) in files {
        let mut header = tar::Header::new_ustar();
        header.set_mode(mode);
        header.set_size(content.len() as u64);
        header.set_mtime(0);
        tar.append_data(&mut header, name, content)?;
    }
    tar.into_inner()
}

fn hex(content: &[u8]) -> String {
    format!("{:x}", Sha256::digest(content))
}

/// This machine's architecture, by Go's name.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, io::Read as _};

    use super::*;

    #[test]
    fn the_program_is_static_and_small() {
        assert_eq!(&PROGRAM[..4], b"\x7fELF");
        assert!(PROGRAM.len() < 16 * 1024, "{} bytes", PROGRAM.len());
    }

    #[test]
    fn the_archive_is_a_loadable_image() {
        let archive = super::archive(BUILT_IN_PAUSE, PROGRAM).unwrap();
        assert_eq!(archive, super::archive(BUILT_IN_PAUSE, PROGRAM).unwrap());
        let mut files = HashMap::new();
        for entry in tar::Archive::new(&archive[..]).entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut content = Vec::new();
            entry.read_to_end(&mut content).unwrap();
            files.insert(name, content);
        }
        let manifest: serde_json::Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
        assert_eq!(manifest[0]["RepoTags"][0], BUILT_IN_PAUSE);
        let config = &files[manifest[0]["Config"].as_str().unwrap()];
        let layer = &files[manifest[0]["Layers"][0].as_str().unwrap()];
        let config: serde_json::Value = serde_json::from_slice(config).unwrap();
        assert_eq!(
            config["rootfs"]["diff_ids"][0],
            format!("sha256:{}", hex(layer))
        );
    }
}
