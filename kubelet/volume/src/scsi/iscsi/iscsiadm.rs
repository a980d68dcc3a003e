//! The `iscsiadm` program, which opens and ends sessions with targets. Everything here blocks.

use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::{Command, Stdio},
};

use tracing::warn;

use super::target::{Chap, IscsiDisk};
use crate::VolumeError;

/// Exit codes of `iscsiadm`: there is no such session, or no such record.
const GONE: [i32; 2] = [2, 21];
/// Exit code of `iscsiadm` if the session or the interface exists.
const EXISTS: i32 = 15;
/// The parts of CHAP credentials, below a prefix. Secrets have them as keys.
const CREDENTIALS: [&str; 4] = ["username", "password", "username_in", "password_in"];

/// The CHAP credentials of a volume.
#[derive(Clone, Default)]
pub(super) struct Credentials {
    pub(super) chap: Chap,
    /// Contents of the secret.
    pub(super) secret: BTreeMap<String, String>,
}

/// The program.
#[derive(Clone, Debug)]
pub(super) struct Iscsiadm {
    pub(super) program: PathBuf,
}

impl Default for Iscsiadm {
    fn default() -> Self {
        Self {
            program: "iscsiadm".into(),
        }
    }
}

impl Iscsiadm {
    /// Opens a session with a portal of a disk's target. Nothing of the target is scanned.
    pub(super) fn log_in(
        &self,
        disk: &IscsiDisk,
        portal: &str,
        credentials: &Credentials,
    ) -> Result<(), VolumeError> {
        let iface = disk.iface.as_str();
        let database = [
            "-m",
            "discoverydb",
            "-t",
            "sendtargets",
            "-p",
            portal,
            "-I",
            iface,
        ];
        let with = |more: &[&str]| self.run(&[&database[..], more].concat(), &[]);
        // It may exist.
        let _ = with(&["-o", "new"]);
        if credentials.chap.discovery {
            self.set_chap(&database, "discovery.sendtargets.auth", &credentials.secret)?;
        }
        if let Err(error) = with(&["--discover"]) {
            let _ = with(&["-o", "delete"]);
            return Err(error);
        }
        let node = ["-m", "node", "-p", portal, "-T", &disk.iqn, "-I", iface];
        let with = |more: &[&str]| self.run(&[&node[..], more].concat(), &[EXISTS]);
        // Otherwise the kernel would make devices of all logical units of the target. Old versions
        // do not know it.
        let scan = ["-o", "update", "-n", "node.session.scan", "-v", "manual"];
        let startup = ["-o", "update", "-n", "node.startup", "-v", "manual"];
        report(disk, with(&scan));
        if credentials.chap.session {
            self.set_chap(&node, "node.session.auth", &credentials.secret)?;
        }
        if let Err(error) = with(&["--login"]) {
            let _ = with(&["-o", "delete"]);
            return Err(error);
        }
        // The next boot must not wait for the target.
        report(disk, with(&startup));
        Ok(())
    }

    fn set_chap(
        &self,
        record: &[&str],
        prefix: &str,
        secret: &BTreeMap<String, String>,
    ) -> Result<(), VolumeError> {
        let method = format!("{prefix}.authmethod");
        let method = ["-o", "update", "-n", &method, "-v", "CHAP"];
        self.run(&[record, &method[..]].concat(), &[])?;
        for part in CREDENTIALS {
            let key = format!("{prefix}.{part}");
            let Some(value) = secret.get(&key).filter(|value| !value.is_empty()) else {
                continue;
            };
            let update = ["-o", "update", "-n", &key, "-v", value];
            let updated = self.run(&[record, &update[..]].concat(), &[]);
            // Neither its text nor the program's may show the credentials.
            updated.map_err(|_| VolumeError::Program {
                program: format!("iscsiadm {} -o update -n {key}", record.join(" ")),
                output: "it failed".to_owned(),
            })?;
        }
        Ok(())
    }

    /// Makes the interface of a disk with an initiator name: a copy of the configured one.
    pub(super) fn make_interface(&self, disk: &IscsiDisk) -> Result<(), VolumeError> {
        if disk.initiator_name.is_empty() {
            return Ok(());
        }
        let interface = ["-m", "iface", "-I", &disk.iface];
        let shown = self.run(&["-m", "iface", "-I", &disk.init_iface, "-o", "show"], &[])?;
        let with = |more: &[&str]| self.run(&[&interface[..], more].concat(), &[EXISTS]);
        with(&["-o", "new"])?;
        let mut settings = settings(&shown);
        settings.insert("iface.initiatorname", &disk.initiator_name);
        for (name, value) in settings {
            if let Err(error) = with(&["-o", "update", "-n", name, "-v", value]) {
                let _ = with(&["-o", "delete"]);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Ends the sessions with a disk's target, and removes their records.
    pub(super) fn log_out(&self, disk: &IscsiDisk) -> Result<(), VolumeError> {
        for portal in &disk.portals {
            let node = [
                "-m",
                "node",
                "-p",
                portal,
                "-T",
                &disk.iqn,
                "-I",
                &disk.iface,
            ];
            self.run(&[&node[..], &["--logout"]].concat(), &GONE)?;
            self.run(&[&node[..], &["-o", "delete"]].concat(), &GONE)?;
        }
        self.remove_interface(disk)
    }

    /// Removes the interface of a disk with an initiator name.
    pub(super) fn remove_interface(&self, disk: &IscsiDisk) -> Result<(), VolumeError> {
        let own = format!("{}:{}", disk.portals[0], disk.vol_name);
        if disk.initiator_name.is_empty() || disk.iface != own {
            return Ok(());
        }
        self.run(&["-m", "iface", "-I", &disk.iface, "-o", "delete"], &GONE)
            .map(drop)
    }

    /// Runs the program, and returns what it prints. These exit codes are no errors.
    fn run(&self, arguments: &[&str], codes: &[i32]) -> Result<String, VolumeError> {
        let failed = |output: String| VolumeError::Program {
            program: format!("iscsiadm {}", arguments.join(" ")),
            output,
        };
        let mut command = Command::new(&self.program);
        let output = command.args(arguments).stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed(format!("{error} (install open-iscsi)")))?;
        let code = output.status.code();
        if output.status.success() || code.is_some_and(|code| codes.contains(&code)) {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let wrote = String::from_utf8_lossy(&output.stderr);
        Err(failed(format!("{}: {}", output.status, wrote.trim())))
    }
}

fn report(disk: &IscsiDisk, updated: Result<String, VolumeError>) {
    if let Err(error) = updated {
        let volume = &disk.vol_name;
        warn!(volume, %error, "cannot change the record of an iSCSI target");
    }
}

/// The settings of an interface that its copy gets.
fn settings(shown: &str) -> BTreeMap<&str, &str> {
    let lines = shown.lines().filter_map(|line| line.split_once(" = "));
    let lines = lines.map(|(name, value)| (name.trim(), value.trim()));
    lines
        .filter(|(name, value)| {
            // The name belongs to the interface, and `<empty>` is no value.
            name.starts_with("iface.") && *name != "iface.iscsi_ifacename" && *value != "<empty>"
        })
        .collect()
}
