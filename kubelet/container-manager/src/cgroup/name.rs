//! Names of cgroups, the same for both cgroup drivers.

use std::{fmt, path::PathBuf};

use super::CgroupError;

/// Suffix of systemd's units for inner cgroups, systemd.slice(5).
pub(crate) const SLICE: &str = ".slice";
/// The longest name of a unit or a directory.
const MAX_COMPONENT: usize = 255;

/// The cgroup driver: who creates cgroups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Driver {
    /// Directories of the cgroup file system.
    Cgroupfs,
    /// Slices of systemd.
    Systemd,
}

/// A cgroup by its components below the root, such as `kubepods`, `burstable`, `pod<uid>`.
///
/// With the systemd driver, each component is a part of a slice's name:
/// `kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice`. Names separate
/// parts by `-`, so a `-` of a component is written as `_`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct CgroupName(Vec<String>);

impl CgroupName {
    /// The cgroup of a path in the cgroup file system, such as `/kubelet/pods`; `/` is the root.
    ///
    /// # Errors
    /// A component is no valid name.
    pub fn parse(path: &str) -> Result<Self, CgroupError> {
        let mut components = path.split('/').filter(|component| !component.is_empty());
        components.try_fold(Self::default(), |name, component| name.child(component))
    }

    /// A cgroup that the kubelet did not create, by its path or, with the systemd driver, its slice.
    ///
    /// # Errors
    /// A component is no valid name.
    pub fn parse_existing(path: &str, driver: Driver) -> Result<Self, CgroupError> {
        let last = path
            .trim_end_matches('/')
            .rsplit('/')
            .next()
            .unwrap_or_default();
        match last.strip_suffix(SLICE) {
            Some(slice) if driver == Driver::Systemd => {
                let components = slice.split('-').map(|part| part.replace('_', "-"));
                components
                    .filter(|part| !part.is_empty())
                    .try_fold(Self::default(), |name, part| name.child(&part))
            }
            _ => Self::parse(path),
        }
    }

    /// The cgroup `component` in this one.
    ///
    /// # Errors
    /// `component` is no valid name.
    pub fn child(&self, component: &str) -> Result<Self, CgroupError> {
        let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:".contains(&byte);
        if component.is_empty()
            || matches!(component, "." | "..")
            || component.len() > MAX_COMPONENT
            || !component.bytes().all(is_valid)
        {
            return Err(CgroupError::Name {
                component: component.to_owned(),
                rule: "must have 1 to 255 letters, digits, `-`, `_`, `.` and `:`",
            });
        }
        let mut components = self.0.clone();
        components.push(component.to_owned());
        Ok(Self(components))
    }

    /// Whether this is the root of the hierarchy.
    pub const fn is_root(&self) -> bool {
        self.0.is_empty()
    }

    /// The path below the hierarchy's root, with a leading slash.
    ///
    /// # Errors
    /// The name is ambiguous or too long for the driver.
    pub fn path(&self, driver: Driver) -> Result<String, CgroupError> {
        let mut path = String::new();
        match driver {
            Driver::Cgroupfs => {
                for component in &self.0 {
                    path.push('/');
                    path.push_str(component);
                }
            }
            Driver::Systemd => {
                for depth in 1..=self.0.len() {
                    path.push('/');
                    path.push_str(&slice(&self.0[..depth])?);
                }
            }
        }
        if path.is_empty() {
            path.push('/');
        }
        Ok(path)
    }

    /// The path relative to the mount point of a hierarchy.
    pub(crate) fn relative_path(&self, driver: Driver) -> Result<PathBuf, CgroupError> {
        Ok(PathBuf::from(&self.path(driver)?[1..]))
    }

    /// The slice of this cgroup, `-.slice` for the root.
    pub(crate) fn slice(&self) -> Result<String, CgroupError> {
        slice(&self.0)
    }

    /// The parent; `None` for the root.
    pub(crate) fn parent(&self) -> Option<Self> {
        let (_, above) = self.0.split_last()?;
        Some(Self(above.to_vec()))
    }

    /// The component that `directory` has in this cgroup, if it is one of the kubelet's.
    pub(crate) fn component(&self, directory: &str, driver: Driver) -> Option<String> {
        match driver {
            Driver::Cgroupfs => Some(directory.to_owned()),
            Driver::Systemd => {
                let own = self.slice().ok()?;
                let prefix = match own.strip_suffix(SLICE)? {
                    "-" => String::new(),
                    prefix => format!("{prefix}-"),
                };
                let component = directory.strip_suffix(SLICE)?.strip_prefix(&prefix)?;
                (!component.contains('-')).then(|| component.replace('_', "-"))
            }
        }
    }
}

impl fmt::Display for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}", self.0.join("/"))
    }
}

fn slice(components: &[String]) -> Result<String, CgroupError> {
    if components.is_empty() {
        return Ok(format!("-{SLICE}"));
    }
    let mut name = String::new();
    for (i, component) in components.iter().enumerate() {
        if component.contains('_') {
            return Err(CgroupError::Name {
                component: component.clone(),
                rule: "must not have `_`, which is a `-` in the names of systemd's slices",
            });
        }
        if i > 0 {
            name.push('-');
        }
        name.push_str(&component.replace('-', "_"));
    }
    name.push_str(SLICE);
    if name.len() > MAX_COMPONENT {
        return Err(CgroupError::Name {
            component: name,
            rule: "must not be longer than 255 bytes",
        });
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(path: &str) -> CgroupName {
        CgroupName::parse(path).unwrap()
    }

    #[test]
    fn paths_of_both_drivers() {
        for (path, cgroupfs, systemd) in [
            ("/", "/", "/"),
            ("", "/", "/"),
            ("/kubepods", "/kubepods", "/kubepods.slice"),
            (
                "/kubepods/burstable/pod12-ab",
                "/kubepods/burstable/pod12-ab",
                "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_ab.slice",
            ),
            (
                "my-root/kubepods/",
                "/my-root/kubepods",
                "/my_root.slice/my_root-kubepods.slice",
            ),
        ] {
            assert_eq!(
                name(path).path(Driver::Cgroupfs).unwrap(),
                cgroupfs,
                "{path}"
            );
            assert_eq!(name(path).path(Driver::Systemd).unwrap(), systemd, "{path}");
        }
        assert_eq!(name("/").slice().unwrap(), "-.slice");
        assert_eq!(name("/a/b").parent(), Some(name("/a")));
        assert_eq!(name("/").parent(), None);
    }

    #[test]
    fn a_name_cannot_lead_elsewhere() {
        let long = "x".repeat(256);
        for component in [
            "", ".", "..", "a/b", "../x", "a b", "a\n", "a\0", "ü", &long,
        ] {
            let error = CgroupName::default().child(component).unwrap_err();
            assert!(matches!(error, CgroupError::Name { .. }), "{component:?}");
        }
        // Both would be one slice.
        assert!(name("/kubepods/poda_b").path(Driver::Systemd).is_err());
        assert!(name("/kubepods/poda_b").path(Driver::Cgroupfs).is_ok());
        let deep = "/aaaaaaaaaaaaaaaa".repeat(16);
        assert!(name(&deep).path(Driver::Systemd).is_err());
    }

    #[test]
    fn components_are_read_back_from_directories() {
        let parent = name("/kubepods/besteffort");
        for (driver, directory, component) in [
            (Driver::Cgroupfs, "pod1-2", Some("pod1-2")),
            (
                Driver::Systemd,
                "kubepods-besteffort-pod1_2.slice",
                Some("pod1-2"),
            ),
            (Driver::Systemd, "kubepods-burstable.slice", None),
            (Driver::Systemd, "kubepods-besteffort-pod1_2.scope", None),
            (Driver::Systemd, "kubepods-besteffort-pod1-2.slice", None),
            (Driver::Systemd, "docker-1.scope", None),
        ] {
            let found = parent.component(directory, driver);
            assert_eq!(found.as_deref(), component, "{directory}");
        }
        let of_root = name("/").component("kubepods.slice", Driver::Systemd);
        assert_eq!(of_root.as_deref(), Some("kubepods"));
    }
}
