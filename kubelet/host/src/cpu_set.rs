//! Sets of CPU numbers, in the kernel's format: `0-3,8`.

use std::{collections::BTreeSet, fmt, str::FromStr};

/// No machine has a CPU with a larger number: the kernel's limit is 8192.
const MOST: u32 = 1 << 16;

/// A set of CPU numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuSet(BTreeSet<u32>);

/// A text is not a list of CPUs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a list of CPU numbers and ranges, such as 0-1,4")]
pub struct InvalidCpuSet(String);

impl CpuSet {
    /// The set without CPUs.
    pub const EMPTY: Self = Self(BTreeSet::new());

    /// Whether the set has this CPU.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// The number of CPUs.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The CPUs in order.
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().copied()
    }

    /// The CPUs that are in either.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        Self(&self.0 | &other.0)
    }

    /// The CPUs that are in both.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        Self(&self.0 & &other.0)
    }

    /// The CPUs that are not in `other`.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        Self(&self.0 - &other.0)
    }

    /// Whether `other` has all of them.
    pub fn is_subset(&self, other: &Self) -> bool {
        self.0.is_subset(&other.0)
    }
}

impl FromStr for CpuSet {
    type Err = InvalidCpuSet;

    /// An empty text is an empty set.
    fn from_str(text: &str) -> Result<Self, InvalidCpuSet> {
        let mut cpus = BTreeSet::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let bounds = first.parse::<u32>().ok().zip(last.parse::<u32>().ok());
            match bounds.filter(|(first, last)| first <= last && *last < MOST) {
                Some((first, last)) => cpus.extend(first..=last),
                None => return Err(InvalidCpuSet(text.to_owned())),
            }
        }
        Ok(Self(cpus))
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| *next == last + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last > first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_by_the_kernel() {
        for (text, cpus, written) in [
            ("", vec![], ""),
            ("0", vec![0], "0"),
            ("8,0-3", vec![0, 1, 2, 3, 8], "0-3,8"),
            ("4,5,7,0-1,1", vec![0, 1, 4, 5, 7], "0-1,4-5,7"),
            ("65535", vec![65535], "65535"),
        ] {
            let set: CpuSet = text.parse().unwrap();
            assert_eq!(set, cpus.iter().copied().collect(), "{text}");
            assert_eq!(set.to_string(), written);
            assert_eq!((set.len(), set.is_empty()), (cpus.len(), cpus.is_empty()));
        }
    }

    #[test]
    fn sets_are_combined() {
        let set = |text: &str| text.parse::<CpuSet>().unwrap();
        let (one, other) = (set("0-3"), set("2-5"));
        assert_eq!(one.union(&other), set("0-5"));
        assert_eq!(one.intersection(&other), set("2-3"));
        assert_eq!(one.difference(&other), set("0-1"));
        assert!(set("2,3").is_subset(&other) && !one.is_subset(&other));
        assert!(one.contains(3) && !one.contains(4));
        assert_eq!(other.iter().collect::<Vec<_>>(), [2, 3, 4, 5]);
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in [
            "a",
            "1-0",
            "0;1",
            "0-1-2",
            ",",
            "0,",
            "-1",
            " 0",
            "65536",
            "0-4000000000",
            "4294967296",
        ] {
            let error = text.parse::<CpuSet>().unwrap_err().to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }
}
