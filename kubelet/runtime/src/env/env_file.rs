//! Env files (`fileKeyRef`).
//!
//! A container writes such a file to a volume, and a later container gets environment variables
//! from it. Lines have the form `NAME='value'`. A value may span several lines and is not expanded.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags};

/// Longest line, as upstream.
const MAX_LINE: usize = 64 * 1024;
/// Longest file in bytes; the file is written by a container.
const MAX_FILE: u64 = 1024 * 1024;

/// Why an env file could not be used.
#[derive(Debug, thiserror::Error)]
pub enum EnvFileError {
    /// The file could not be read.
    #[error("cannot read {path:?}: {source}")]
    Io {
        /// Its path in the volume.
        path: String,
        /// The error.
        source: io::Error,
    },
    /// The format is invalid.
    #[error("invalid environment variable format at line {line}: {fault}")]
    Format {
        /// Number of the line, starting at 1.
        line: usize,
        /// What is wrong.
        fault: &'static str,
    },
    /// The task that read the file failed.
    #[error(transparent)]
    Task(#[from] tokio::task::JoinError),
}

/// The value of `key` in the file at `path` in the volume at `root`; empty if the key is missing.
/// Symlinks cannot leave the volume. Blocks on the file system.
///
/// # Errors
/// See [`EnvFileError`].
pub(super) fn value(root: &Path, path: &str, key: &str) -> Result<String, EnvFileError> {
    let text = read(root, path).map_err(|source| EnvFileError::Io {
        path: path.to_owned(),
        source,
    })?;
    find(&text, key)
}

fn read(root: &Path, path: &str) -> io::Result<String> {
    let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = rustix::fs::openat(CWD, root, flags, Mode::empty())?;
    // Opening a FIFO would block until it has a writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = rustix::fs::openat2(&root, path, flags, Mode::empty(), ResolveFlags::IN_ROOT)?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut text = String::new();
    file.take(MAX_FILE + 1).read_to_string(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(io::Error::other("it is longer than 1 MiB"));
    }
    Ok(text)
}

fn find(text: &str, key: &str) -> Result<String, EnvFileError> {
    let mut lines = text.lines().enumerate();
    while let Some((index, line)) = lines.next() {
        let format = |fault| EnvFileError::Format {
            line: index + 1,
            fault,
        };
        if line.len() >= MAX_LINE {
            return Err(format("the line is too long"));
        }
        let line = trim_start(line);
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (name, value) = line.split_once('=').ok_or_else(|| format("missing '='"))?;
        if trim_start(name).is_empty() {
            return Err(format("empty variable name"));
        }
        if name.ends_with([' ', '\t']) {
            return Err(format("whitespace before '=' is not allowed"));
        }
        if value.starts_with([' ', '\t']) {
            // As in a shell, whitespace after `=` means that the value is empty.
            if name == key {
                return Ok(String::new());
            }
            continue;
        }
        let mut rest = value
            .strip_prefix('\'')
            .ok_or_else(|| format("value must be enclosed in single quotes"))?;
        let mut value = String::new();
        let after = loop {
            if let Some((end, after)) = rest.split_once('\'') {
                value.push_str(end);
                break trim_start(after);
            }
            value.push_str(rest);
            value.push('\n');
            rest = match lines.next() {
                Some((_, line)) if line.len() < MAX_LINE => line,
                Some(_) => return Err(format("the line is too long")),
                None => return Err(format("unclosed single quote")),
            };
        };
        if !after.is_empty() && !after.starts_with('#') {
            return Err(format("unexpected content after closing quote"));
        }
        if name == key {
            return Ok(value);
        }
    }
    Ok(String::new())
}

fn trim_start(text: &str) -> &str {
    text.trim_start_matches([' ', '\t'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn values_are_what_is_quoted() {
        let text = "# comment\n\n  A='1'\nB='a b\n c' # more\nC= 'x'\nD=''\nE='$A \\n'\n";
        for (key, value) in [
            ("A", "1"),
            ("B", "a b\n c"),
            ("C", ""),
            ("D", ""),
            ("E", "$A \\n"),
            ("F", ""),
        ] {
            assert_eq!(find(text, key).unwrap(), value, "{key}");
        }
    }

    #[test]
    fn faults_are_named_by_line() {
        for (text, fault) in [
            ("A='1'\nB\n", "at line 2: missing '='"),
            ("='1'", "at line 1: empty variable name"),
            ("A ='1'", "at line 1: whitespace before '='"),
            ("A=1", "at line 1: value must be enclosed in single quotes"),
            ("A='1\n2", "at line 1: unclosed single quote"),
            (
                "A='1'2",
                "at line 1: unexpected content after closing quote",
            ),
        ] {
            let error = find(text, "Z").unwrap_err().to_string();
            assert!(error.contains(fault), "{text:?}: {error}");
        }
    }

    #[test]
    fn links_stay_in_the_volume() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volume");
        std::fs::create_dir(&root).unwrap();
        std::fs::write(dir.path().join("secret"), "A='outside'").unwrap();
        std::fs::write(root.join("env"), "A='inside'").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("up")).unwrap();
        std::os::unix::fs::symlink("/env", root.join("absolute")).unwrap();
        assert_eq!(value(&root, "env", "A").unwrap(), "inside");
        assert_eq!(value(&root, "absolute", "A").unwrap(), "inside");
        assert!(value(&root, "up", "A").is_err());
        assert!(value(&root, ".", "A").is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_accepted_or_refused(text in "[A='# \n\\PC]{0,40}") {
            let _ = find(&text, "A");
        }
    }
}
