//! The places where a node has a docker configuration.

use std::{
    fs::File,
    io::{self, Read as _},
    path::{Path, PathBuf},
};

use tracing::warn;

use crate::docker_config::{self, DockerConfig, DockerConfigError};

/// The largest file that is read, in bytes.
const LIMIT: u64 = 4 * 1024 * 1024;

type Parse = fn(&[u8]) -> Result<DockerConfig, DockerConfigError>;

/// Possible locations of the node's docker configuration.
#[derive(Clone, Debug)]
pub struct DockerConfigFiles {
    /// Files in order of preference, each with its parser.
    files: Vec<(PathBuf, Parse)>,
}

impl DockerConfigFiles {
    /// The candidate files. Only the first one that can be read and parsed counts: `config.json` in
    /// `first`, the working directory, `home/.docker` and `/.docker`; then `.dockercfg` in `first`,
    /// the working directory, `home` and `/`.
    pub fn new(first: &Path, home: &Path) -> Self {
        let (working_dir, root) = (Path::new("."), Path::new("/"));
        let json = [
            first,
            working_dir,
            &home.join(".docker"),
            Path::new("/.docker"),
        ]
        .map(|dir| {
            (
                dir.join("config.json"),
                docker_config::from_config_json as Parse,
            )
        });
        let legacy = [first, working_dir, home, root].map(|dir| {
            (
                dir.join(".dockercfg"),
                docker_config::from_dockercfg as Parse,
            )
        });
        Self {
            files: json.into_iter().chain(legacy).collect(),
        }
    }

    /// Reads the node's credentials. Blocks. Upstream caches them for five minutes; a read is cheap
    /// compared with a pull, and without a cache a new password takes effect at once.
    pub fn read(&self) -> DockerConfig {
        for (path, parse) in &self.files {
            let bytes = match read(path) {
                Ok(bytes) => bytes,
                Err(error) => {
                    if !matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) {
                        warn!(
                            path = %path.display(), %error,
                            "cannot read the node's Docker configuration"
                        );
                    }
                    continue;
                }
            };
            match parse(&bytes) {
                Ok(config) => return config,
                Err(error) => {
                    warn!(
                        path = %path.display(), %error,
                        "cannot parse the node's Docker configuration"
                    );
                }
            }
        }
        DockerConfig::new()
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(LIMIT + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > LIMIT {
        let reason = format!("larger than {LIMIT} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, reason));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_first_that_can_be_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (root, home) = (dir.path().join("root"), dir.path().join("home"));
        fs::create_dir_all(home.join(".docker")).unwrap();
        fs::create_dir(&root).unwrap();
        let node = DockerConfigFiles::new(&root, &home);
        let too_large = format!(
            "{}{}",
            r#"{"auths": {"root": {}}}"#,
            " ".repeat(usize::try_from(LIMIT).unwrap())
        );
        let registries = || node.read().into_keys().collect::<Vec<_>>();
        for (path, text, expected) in [
            (
                home.join(".dockercfg"),
                r#"{"home-legacy": {}}"#,
                "home-legacy",
            ),
            (
                root.join(".dockercfg"),
                r#"{"root-legacy": {}}"#,
                "root-legacy",
            ),
            (
                home.join(".docker/config.json"),
                r#"{"auths": {"home": {}}}"#,
                "home",
            ),
            (root.join("config.json"), "broken", "home"),
            (root.join("config.json"), too_large.as_str(), "home"),
            (
                root.join("config.json"),
                r#"{"auths": {"root": {}}}"#,
                "root",
            ),
        ] {
            fs::write(path, text).unwrap();
            assert_eq!(registries(), [expected]);
        }
    }
}
