//! The machine's files below `/proc`, `/sys` and `/etc`, read up to a limit.

use std::{
    fs::{self, File},
    io::Read as _,
    path::PathBuf,
    str::FromStr,
};

/// `/proc/cpuinfo` of the largest machines has a few MiB.
const LONGEST: u64 = 8 << 20;
/// Entries read of one directory.
const MOST_ENTRIES: usize = 32_768;

/// Where the files are. Paths given to the methods are relative. All methods block briefly.
#[derive(Clone, Debug)]
pub(super) struct MachineFiles {
    pub(super) root: PathBuf,
}

impl MachineFiles {
    /// A file's text without white space and zero bytes around it.
    pub(super) fn text(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        let file = File::open(self.root.join(path)).ok()?;
        file.take(LONGEST).read_to_end(&mut bytes).ok()?;
        let text = String::from_utf8_lossy(&bytes);
        let around = |letter: char| letter.is_whitespace() || letter == '\0';
        Some(text.trim_matches(around).to_owned())
    }

    /// The text of the first of these files that can be read.
    pub(super) fn first(&self, paths: &[&str]) -> String {
        let mut texts = paths.iter().filter_map(|path| self.text(path));
        texts.next().unwrap_or_default()
    }

    /// A file that consists of one value, such as a number.
    pub(super) fn value<V: FromStr>(&self, path: &str) -> Option<V> {
        self.text(path)?.parse().ok()
    }

    /// Names in a directory, sorted. Empty if it cannot be read.
    pub(super) fn names(&self, dir: &str) -> Vec<String> {
        let entries = fs::read_dir(self.root.join(dir)).into_iter().flatten();
        let mut names: Vec<String> = entries
            .take(MOST_ENTRIES)
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// The numbers of entries such as `cpu0`, sorted.
    pub(super) fn numbered(&self, dir: &str, prefix: &str) -> Vec<u32> {
        let names = self.names(dir).into_iter();
        let mut numbers: Vec<u32> = names
            .filter_map(|name| name.strip_prefix(prefix)?.parse().ok())
            .collect();
        numbers.sort_unstable();
        numbers
    }

    /// Whether a path is a directory, or a symlink to one.
    pub(super) fn is_dir(&self, path: &str) -> bool {
        self.root.join(path).is_dir()
    }
}
