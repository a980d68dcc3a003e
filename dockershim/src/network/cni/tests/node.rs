//! A node with fake CNI plugins.

use std::{fs, os::unix::fs::PermissionsExt as _, path::PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use super::super::{Cni, Directories};

/// Fails if a file `fail-<verb>-<plugin>` exists next to it.
const SCRIPT: &str = r#"#!/bin/sh
dir=$(dirname "$0") name=$(basename "$0")
printf '{"verb":"%s","plugin":"%s","netns":"%s","args":"%s","config":%s}\n' \
  "$CNI_COMMAND" "$name" "$CNI_NETNS" "$CNI_ARGS" "$(cat)" >>"$dir/calls"
if [ -e "$dir/fail-$CNI_COMMAND-$name" ]; then
  echo noise >&2
  echo '{"cniVersion":"1.0.0","code":999,"msg":"broken","details":"on purpose"}'
  exit 1
fi
[ "$CNI_COMMAND" != ADD ] || printf '{"ips":[{"address":"10.1.0.2/24"}],"by":"%s"}' "$name"
"#;

/// A node with CNI plugins that record their requests.
pub(super) struct Node {
    dir: TempDir,
}

impl Node {
    pub(super) fn new(plugins: &[&str]) -> Self {
        let node = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        for directory in ["bin", "net.d"] {
            fs::create_dir(node.path(directory)).unwrap();
        }
        for plugin in plugins {
            let path = node.path("bin").join(plugin);
            fs::write(&path, SCRIPT).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        node
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(super) fn configure(&self, config: &Value) {
        fs::write(self.path("net.d/10-net.conflist"), config.to_string()).unwrap();
    }

    pub(super) fn cni(&self) -> Cni {
        self.cni_of("root", &[])
    }

    /// The network of a shim with this root directory and these pod CIDRs.
    pub(super) fn cni_of(&self, root: &str, pod_cidrs: &[&str]) -> Cni {
        let directories = Directories {
            bin: vec![self.path("bin")],
            conf: self.path("net.d"),
            cache: self.path("cache"),
        };
        let pod_cidrs = pod_cidrs.iter().map(|&cidr| cidr.to_owned()).collect();
        Cni::new(directories, pod_cidrs, &self.path(root))
    }

    pub(super) fn fail(&self, verb: &str, plugin: &str, fails: bool) {
        let path = self.path("bin").join(format!("fail-{verb}-{plugin}"));
        if fails {
            fs::write(path, "").unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }

    /// The plugins' requests since the last call.
    pub(super) fn calls(&self) -> Vec<Value> {
        let path = self.path("bin/calls");
        let text = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// The same requests in short form.
    pub(super) fn asked(&self) -> Vec<String> {
        let word = |value: &Value| value.as_str().unwrap().to_owned();
        let short = |call: &Value| format!("{} {}", word(&call["verb"]), word(&call["plugin"]));
        self.calls().iter().map(short).collect()
    }

    pub(super) fn remembered(&self) -> usize {
        fs::read_dir(self.path("cache/results")).map_or(0, Iterator::count)
    }
}
