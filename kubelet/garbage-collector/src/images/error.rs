//! Why a collection of images fails.

use std::{fmt, time::Duration};

use kubelet_cri_client::CriError;

/// Failed removals in an error's text. Events have it, so it is short.
const SHOWN: usize = 5;

/// Why a collection of images failed. What was removed before stays removed.
#[derive(Debug, thiserror::Error)]
pub enum ImageGcError {
    /// The runtime does not report which images exist or are used.
    #[error("cannot determine the unused images: {0}")]
    Runtime(#[from] CriError),
    /// Images could not be removed.
    #[error(
        "removed {removed} unused images of {freed} bytes and failed to remove {}: {}",
        failed.len(), Shown(failed)
    )]
    Removals {
        /// The number of images that were removed.
        removed: usize,
        /// Their size in bytes.
        freed: u64,
        /// Why each of the others was not.
        failed: Vec<CriError>,
    },
    /// The image file system cannot be measured.
    #[error("cannot measure the image file system: {0}")]
    FileSystem(String),
    /// The measurement of the image file system takes too long.
    #[error("cannot measure the image file system within {0:?}")]
    FileSystemHangs(Duration),
    /// The image file system has no capacity. The text is upstream's.
    #[error("invalid capacity 0 on image filesystem")]
    NoCapacity,
    /// All unused images together were too small. The text is upstream's.
    #[error(
        "Insufficient free disk space on the node's image filesystem ({used}% of {} used). Failed to free sufficient space by deleting unused images (freed {freed} bytes). Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
        Size(*capacity)
    )]
    Insufficient {
        /// Usage before the collection in percent.
        used: u64,
        /// Size of the file system in bytes.
        capacity: u64,
        /// The size of the removed images in bytes.
        freed: u64,
    },
}

/// The first errors, in one line.
struct Shown<'a>(&'a [CriError]);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, error) in self.0.iter().take(SHOWN).enumerate() {
            let separator = if index == 0 { "" } else { "; " };
            write!(f, "{separator}{error}")?;
        }
        match self.0.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            more => write!(f, "; and {more} more"),
        }
    }
}

/// A size in bytes, formatted as upstream.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(&str, u64); 4] = [
            ("TiB", 1 << 40),
            ("GiB", 1 << 30),
            ("MiB", 1 << 20),
            ("KiB", 1 << 10),
        ];
        match UNITS.iter().find(|(_, unit)| self.0 >= *unit) {
            Some((name, unit)) => write!(f, "{:.1} {name}", self.0 as f64 / *unit as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_space_reads_as_upstream() {
        let error = |capacity| {
            let error = ImageGcError::Insufficient {
                used: 95,
                capacity,
                freed: 2048,
            };
            error.to_string()
        };
        assert_eq!(
            error(1 << 30),
            "Insufficient free disk space on the node's image filesystem (95% of 1.0 GiB used). \
             Failed to free sufficient space by deleting unused images (freed 2048 bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other \
             data."
        );
        for (capacity, text) in [
            (1023, "of 1023 B used"),
            (1536, "of 1.5 KiB used"),
            (5 << 20, "of 5.0 MiB used"),
            (2048 << 40, "of 2048.0 TiB used"),
        ] {
            assert!(error(capacity).contains(text), "{}", error(capacity));
        }
    }

    #[test]
    fn failed_removals_are_not_all_in_the_text() {
        let failed = (0..7).map(|n| CriError::Deadline {
            verb: "RemoveImage",
            object: format!("image{n}"),
            after: Duration::from_secs(1),
        });
        let error = ImageGcError::Removals {
            removed: 1,
            freed: 5,
            failed: failed.collect(),
        };
        let text = error.to_string();
        assert!(text.starts_with("removed 1 unused images of 5 bytes and failed to remove 7: "));
        assert!(
            text.contains("image4") && !text.contains("image5"),
            "{text}"
        );
        assert!(text.ends_with("; and 2 more"), "{text}");
    }
}
