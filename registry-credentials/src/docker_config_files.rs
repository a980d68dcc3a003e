//! The node's own docker configuration.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use tracing::warn;

use super::docker_config::{self, DockerConfig, DockerConfigError};

type Read = fn(&[u8]) -> Result<DockerConfig, DockerConfigError>;

/// Possible locations of the node's docker configuration.
#[derive(Debug)]
pub struct NodeDockerConfig {
    /// Files in order of preference, each with its parser.
    files: Vec<(PathBuf, Read)>,
}

impl NodeDockerConfig {
    /// The candidate files. Only the first one that can be read and parsed counts: `config.json` in
    /// `root_dir`, the working directory, `$HOME/.docker` and `/.docker`; then `.dockercfg` in
    /// `root_dir`, the working directory, `$HOME` and `/`.
    pub fn new(root_dir: &Path) -> Self {
        let home = std::env::var_os("HOME").map(PathBuf::from);
        Self::with_home(root_dir, &home.unwrap_or_default())
    }

    fn with_home(root_dir: &Path, home: &Path) -> Self {
        let working_dir = Path::new(".");
        let json = [
            root_dir,
            working_dir,
            &home.join(".docker"),
            Path::new("/.docker"),
        ]
        .map(|dir| {
            (
                dir.join("config.json"),
                docker_config::from_config_json as Read,
            )
        });
        let legacy = [root_dir, working_dir, home, Path::new("/")].map(|dir| {
            (
                dir.join(".dockercfg"),
                docker_config::from_dockercfg as Read,
            )
        });
        Self {
            files: json.into_iter().chain(legacy).collect(),
        }
    }

    /// Reads the node's credentials. Blocks. Upstream caches them for five minutes; a read is cheap
    /// compared with a pull, and without a cache a new password takes effect at once.
    pub fn read(&self) -> DockerConfig {
        for (path, read) in &self.files {
            let bytes = match fs::read(path) {
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
            match read(&bytes) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_that_can_be_read_counts() {
        let dir = tempfile::tempdir().unwrap();
        let (root, home) = (dir.path().join("root"), dir.path().join("home"));
        fs::create_dir_all(home.join(".docker")).unwrap();
        fs::create_dir(&root).unwrap();
        let node = NodeDockerConfig::with_home(&root, &home);
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
