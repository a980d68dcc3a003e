//! Kernel tunables that the kubelet and its pods rely on, see sysctl(8).

use std::{
    fmt,
    fs::{self, OpenOptions},
    io::{self, Write as _},
    path::Path,
};

use tracing::{info, warn};

/// The files of the tunables on a real machine.
pub const ROOT: &str = "/proc/sys";

/// The required values, as upstream: memory may be overcommitted, the OOM killer runs instead of a
/// panic, the machine reboots 10 seconds after a panic or an oops, and root has enough keys for its
/// containers, which need one each.
const REQUIRED: [(&str, i64); 6] = [
    ("vm/overcommit_memory", 1),
    ("vm/panic_on_oom", 0),
    ("kernel/panic", 10),
    ("kernel/panic_on_oops", 1),
    ("kernel/keys/root_maxkeys", 1_000_000),
    ("kernel/keys/root_maxbytes", 25_000_000),
];

/// What the kubelet does about tunables that differ.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TunableBehavior {
    /// Sets them.
    #[default]
    Set,
    /// Refuses to start (`protectKernelDefaults`).
    Refuse,
    /// Logs them.
    Keep,
}

/// A tunable without its required value.
#[derive(Debug)]
pub struct WrongTunable {
    /// Its name, such as `vm.overcommit_memory`.
    pub name: String,
    /// The required value.
    pub required: i64,
    /// Its value, or why that is unknown.
    pub found: Result<i64, io::Error>,
}

impl fmt::Display for WrongTunable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            name,
            required,
            found,
        } = self;
        match found {
            Ok(found) => write!(f, "{name} is {found} and must be {required}"),
            Err(error) => write!(f, "{name} must be {required} and cannot be read: {error}"),
        }
    }
}

/// Tunables differ, and the kubelet must not set them.
#[derive(Debug, thiserror::Error)]
#[error(
    "protectKernelDefaults (--protect-kernel-defaults) is true, but {}; set them with sysctl, or \
     set the field to false", list(.0)
)]
pub struct ProtectedTunables(Vec<WrongTunable>);

fn list(all: &[impl fmt::Display]) -> String {
    let all: Vec<String> = all.iter().map(ToString::to_string).collect();
    all.join(", ")
}

/// Gives the tunables below `root` ([`ROOT`]) their required values, or refuses; briefly blocking.
///
/// Upstream's kubelet ends if the machine refuses a value. This one logs it, and runs pods with the
/// machine's values: containers and nested machines refuse them all.
///
/// # Errors
/// Tunables differ, and `behavior` is [`TunableBehavior::Refuse`].
pub fn apply(root: &Path, behavior: TunableBehavior) -> Result<(), ProtectedTunables> {
    let wrong = wrong_tunables(root);
    if wrong.is_empty() {
        return Ok(());
    }
    match behavior {
        TunableBehavior::Refuse => return Err(ProtectedTunables(wrong)),
        TunableBehavior::Keep => info!("kernel tunables are kept: {}", list(&wrong)),
        TunableBehavior::Set => set_all(root, &wrong),
    }
    Ok(())
}

fn wrong_tunables(root: &Path) -> Vec<WrongTunable> {
    let wrong = REQUIRED.iter().filter_map(|(file, required)| {
        let found = read(&root.join(file));
        let differs = found.as_ref().ok() != Some(required);
        differs.then(|| WrongTunable {
            name: file.replace('/', "."),
            required: *required,
            found,
        })
    });
    wrong.collect()
}

fn read(path: &Path) -> io::Result<i64> {
    let text = fs::read_to_string(path)?;
    let value = text.trim().parse();
    value.map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{text:?} is no number")))
}

fn set_all(root: &Path, wrong: &[WrongTunable]) {
    let mut refused = Vec::new();
    let mut settings = Vec::new();
    for tunable in wrong {
        let WrongTunable { name, required, .. } = tunable;
        match set(&root.join(name.replace('.', "/")), *required) {
            Ok(()) => info!("set a kernel tunable: {tunable}"),
            Err(error) => {
                refused.push(format!("{tunable} ({error})"));
                settings.push(format!("{name}={required}"));
            }
        }
    }
    if !refused.is_empty() {
        warn!(
            "cannot set kernel tunables: {}; pods run with the machine's values. Set them on the \
             host (sysctl -w {}), or keep them with --set-kernel-tunables=false",
            refused.join(", "),
            settings.join(" ")
        );
    }
}

fn set(path: &Path, value: i64) -> io::Result<()> {
    // A tunable that the kernel lacks is not created.
    let mut file = OpenOptions::new().write(true).truncate(true).open(path)?;
    file.write_all(value.to_string().as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tunables with these values; the others are missing.
    fn machine(values: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (file, value) in values {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, value).unwrap();
        }
        root
    }

    const RIGHT: [(&str, &str); 6] = [
        ("vm/overcommit_memory", "1\n"),
        ("vm/panic_on_oom", "0\n"),
        ("kernel/panic", "10\n"),
        ("kernel/panic_on_oops", "1\n"),
        ("kernel/keys/root_maxkeys", "1000000\n"),
        ("kernel/keys/root_maxbytes", "25000000\n"),
    ];

    fn values(root: &Path) -> Vec<(&'static str, String)> {
        let read = |(file, _): &(&'static str, _)| {
            let text = fs::read_to_string(root.join(file)).unwrap_or_default();
            (*file, text.trim().to_owned())
        };
        RIGHT.iter().map(read).collect()
    }

    #[test]
    fn tunables_that_differ_are_set() {
        let mut files = RIGHT;
        (files[0].1, files[2].1) = ("0", "100000");
        let root = machine(&files);
        apply(root.path(), TunableBehavior::Set).unwrap();
        let right = RIGHT.map(|(file, value)| (file, value.trim().to_owned()));
        assert_eq!(values(root.path()), right);
    }

    #[test]
    fn protected_tunables_are_named_with_both_values() {
        let mut files = RIGHT;
        files[0].1 = "0";
        let root = machine(&files[..5]);
        let error = apply(root.path(), TunableBehavior::Refuse).unwrap_err();
        let text = error.to_string();
        for part in [
            "protectKernelDefaults",
            "vm.overcommit_memory is 0 and must be 1",
            "kernel.keys.root_maxbytes must be 25000000 and cannot be read",
        ] {
            assert!(text.contains(part), "{text}");
        }
        assert!(!text.contains("panic"), "{text}");
        assert_eq!(values(root.path())[0].1, "0");
        let root = machine(&RIGHT);
        apply(root.path(), TunableBehavior::Refuse).unwrap();
    }

    #[test]
    fn a_machine_without_them_runs_pods_all_the_same() {
        let root = machine(&[("vm/overcommit_memory", "0")]);
        apply(root.path(), TunableBehavior::Keep).unwrap();
        assert_eq!(values(root.path())[0].1, "0");
        apply(root.path(), TunableBehavior::Set).unwrap();
        assert_eq!(values(root.path())[0].1, "1");
        assert!(!root.path().join("kernel").exists());
    }
}
