//! The IDs for user namespaces of pods: the subordinate IDs of the user `kubelet` as printed by
//! `getsubids`, or all IDs except the first range.

use std::{fs, io, process::Command};

/// The user whose subordinate IDs the kubelet allocates.
const USER: &str = "kubelet";
const PASSWD: &str = "/etc/passwd";
/// Smallest number of IDs per pod.
const UNIT: u32 = 65_536;

/// Why the subordinate IDs cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RangeError {
    /// `getsubids` could not be run.
    #[error("error retrieving additional ids for user \"{USER}\": {0}")]
    Run(#[source] io::Error),
    /// `getsubids` failed.
    #[error("error retrieving additional ids for user \"{USER}\": getsubids {0}")]
    Failed(String),
    /// The output of `getsubids` is not a single range.
    #[error("error parsing the output of getsubids {0:?}: it must be one range")]
    Answer(String),
    /// The subordinate UIDs and GIDs differ.
    #[error("mismatched subuids and subgids for user \"{USER}\"")]
    Mismatch,
    /// The IDs are not aligned to ranges, or include the first range.
    #[error("kubelet user assigned ids {first} to {} are not multiples of {per_pod}, from {per_pod} on", u64::from(*first) + u64::from(*length))]
    Unaligned {
        /// The first ID.
        first: u32,
        /// Number of IDs.
        length: u32,
        /// IDs per pod.
        per_pod: u32,
    },
    /// There are not enough IDs.
    #[error("kubelet user assigned IDs are not enough to support {max_pods} pods")]
    TooFew {
        /// `maxPods`.
        max_pods: u32,
    },
}

/// The ID ranges for pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct IdRange {
    /// First ID of the first range.
    pub(super) first: u32,
    /// Number of ranges.
    pub(super) count: u32,
    /// IDs per range.
    pub(super) per_pod: u32,
}

impl IdRange {
    /// The kubelet's IDs in ranges of `per_pod`. Blocks on processes.
    ///
    /// # Errors
    /// See [`RangeError`].
    pub(super) fn of_kubelet(per_pod: u32, max_pods: u32) -> Result<Self, RangeError> {
        match subordinate_ids()? {
            Some((first, length)) => Self::new(first, length, per_pod, max_pods),
            None => Self::new(per_pod, u32::MAX - per_pod + 1, per_pod, max_pods),
        }
    }

    /// The ranges in `length` IDs starting at `first`. The first `per_pod` IDs belong to the node
    /// and are never allocated.
    fn new(first: u32, length: u32, per_pod: u32, max_pods: u32) -> Result<Self, RangeError> {
        let per_pod = per_pod.max(UNIT);
        if !first.is_multiple_of(per_pod) || first < per_pod || !length.is_multiple_of(per_pod) {
            return Err(RangeError::Unaligned {
                first,
                length,
                per_pod,
            });
        }
        let count = length / per_pod;
        if count < max_pods {
            return Err(RangeError::TooFew { max_pods });
        }
        Ok(Self {
            first,
            count,
            per_pod,
        })
    }

    /// The first ID of each range.
    pub(super) fn firsts(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |index| self.first + index * self.per_pod)
    }

    /// Whether a range starts at `id`.
    pub(super) fn contains(self, id: u32) -> bool {
        id.checked_sub(self.first).is_some_and(|offset| {
            offset.is_multiple_of(self.per_pod) && offset / self.per_pod < self.count
        })
    }
}

/// First ID and number of IDs; `None` if the user `kubelet` or `getsubids` does not exist.
fn subordinate_ids() -> Result<Option<(u32, u32)>, RangeError> {
    let passwd = fs::read_to_string(PASSWD).unwrap_or_default();
    if !passwd
        .lines()
        .any(|line| line.split(':').next() == Some(USER))
    {
        return Ok(None);
    }
    let Some(users) = getsubids(&[USER])? else {
        return Ok(None);
    };
    if getsubids(&["-g", USER])?.as_ref() != Some(&users) {
        return Err(RangeError::Mismatch);
    }
    parse(&users).map(Some).ok_or(RangeError::Answer(users))
}

/// `None` if `getsubids` does not exist.
fn getsubids(args: &[&str]) -> Result<Option<String>, RangeError> {
    match Command::new("getsubids").args(args).output() {
        Ok(output) if output.status.success() => {
            Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()))
        }
        Ok(output) => Err(RangeError::Failed(output.status.to_string())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(RangeError::Run(error)),
    }
}

/// Parses `0: kubelet <first> <number>`.
fn parse(answer: &str) -> Option<(u32, u32)> {
    let mut lines = answer.trim_matches('\n').lines();
    let line = lines.next()?;
    let words: Vec<&str> = line.split_whitespace().collect();
    match (&*words, lines.next()) {
        ([_, _, first, number], None) => Some((first.parse().ok()?, number.parse().ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_answer_is_one_range() {
        assert_eq!(
            parse("0: kubelet 65536 2147483648\n"),
            Some((65_536, 1 << 31))
        );
        for answer in [
            "",
            "0: kubelet 65536",
            "0: kubelet a b",
            "a b 1 2\na b 3 4\n",
        ] {
            assert_eq!(parse(answer), None, "{answer:?}");
        }
    }

    #[test]
    fn ranges_are_whole_and_not_the_nodes_own() {
        let range = IdRange::new(65_536, 3 * 65_536, 65_536, 3).unwrap();
        assert_eq!(
            range.firsts().collect::<Vec<_>>(),
            [65_536, 131_072, 196_608]
        );
        assert!(range.contains(131_072));
        for id in [0, 65_537, 262_144] {
            assert!(!range.contains(id), "{id}");
        }
        for (first, length, max_pods) in [
            (0, 65_536, 1),
            (65_537, 65_536, 1),
            (65_536, 65_537, 1),
            (65_536, 65_536, 2),
        ] {
            assert!(IdRange::new(first, length, 65_536, max_pods).is_err());
        }
        let all = IdRange::new(65_536, u32::MAX - 65_535, 65_536, 110).unwrap();
        assert_eq!(all.count, 65_535);
    }
}
