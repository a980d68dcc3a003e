//! Rules for volume fields that are passed to the programs that mount, create and check file
//! systems. Some of these programs parse any argument with a leading dash as an option, wherever it
//! is.

use std::{collections::BTreeMap, net::Ipv6Addr};

use k8s_openapi::api::core::v1::NFSVolumeSource;

use crate::{
    field::{Faults, Path},
    names::{Rule, ensure},
};

const OPTION: &str = "must be comma-separated options of mount(8); an option may contain a \
                      comma only in the form key=\"value\"";

/// Validates the source of an NFS volume.
pub fn validate_nfs(nfs: &NFSVolumeSource, path: &Path, faults: &mut Faults) {
    faults.required_text(&path.child("server"), &nfs.server, nfs_server);
    faults.text(&path.child("path"), &nfs.path, operand_path);
}

/// Validates the driver and the options of a FlexVolume, inline or persistent.
pub fn validate_flex_volume(
    driver: &str,
    options: Option<&BTreeMap<String, String>>,
    path: &Path,
    faults: &mut Faults,
) {
    faults.required_text(&path.child("driver"), driver, flex_volume_driver);
    for key in options.into_iter().flat_map(BTreeMap::keys) {
        let namespace = key
            .split_once('/')
            .map_or(&**key, |(namespace, _)| namespace);
        let namespace = format!(".{}", namespace.to_lowercase());
        if namespace.ends_with(".kubernetes.io") || namespace.ends_with(".k8s.io") {
            let rule = "kubernetes.io and k8s.io namespaces are reserved";
            faults.invalid(&path.child("options").key(key), key, rule);
        }
    }
}

/// Checks the name of a FlexVolume driver, whose parts are names of directories and programs.
///
/// # Errors
/// What is allowed.
pub fn flex_volume_driver(text: &str) -> Rule {
    let (vendor, name) = match text.split_once('/') {
        Some((vendor, name)) => (Some(vendor), name),
        None => (None, text),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let is_plain = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphanumeric()) && part.chars().all(fits)
    };
    ensure(
        is_plain(name) && vendor.is_none_or(is_plain),
        "must be 'driver' or 'vendor/driver' of alphanumeric characters, '.', '_' or '-', and each part must start with an alphanumeric character (e.g. 'example.com/disk')",
    )?;
    ensure(text.len() <= 253, "must be no more than 253 characters")?;
    // Its directory would be that of the volumes of the driver `vendor`.
    ensure(name != "mounts", "must not be 'mounts'")
}

/// Checks a text that is passed to a program as an argument.
fn operand(text: &str) -> Rule {
    ensure(!text.starts_with('-'), "must not begin with '-'")?;
    ensure(
        !text.contains(|c: char| c.is_whitespace() || c.is_control()),
        "must not contain white space or control characters",
    )
}

/// Checks a path that is passed to a program: of a device, or of a server's export.
///
/// # Errors
/// What is allowed.
pub fn operand_path(text: &str) -> Rule {
    ensure(text.starts_with('/'), "must be an absolute path")?;
    operand(text)
}

/// Checks that the text is a single server, in the form in which `mount` expects it before the
/// exported path.
fn nfs_server(text: &str) -> Rule {
    operand(text)?;
    let bracketed = text.strip_prefix('[').and_then(|t| t.strip_suffix(']'));
    let address = match bracketed {
        Some(address) => address.split('%').next().unwrap_or_default(),
        None => text,
    };
    let is_one_name = !text.contains([':', '/', ',', '[', ']']);
    let is_one_address = !text.contains(['/', ',']) && address.parse::<Ipv6Addr>().is_ok();
    ensure(
        is_one_name || is_one_address,
        "must be the name or the address of one server",
    )
}

/// Checks a portal or an interface of iSCSI, which is passed to `iscsiadm` and is a part of paths.
///
/// # Errors
/// What is allowed.
pub fn iscsi_name(text: &str) -> Rule {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-:[]%".contains(c);
    ensure(
        !text.starts_with(['-', '.']) && text.chars().all(fits),
        "must consist of alphanumeric characters, '.', '_', '-', ':', '[', ']' or '%', and must not begin with '-' or '.'",
    )
}

/// Checks the name of a port of a Fibre Channel target.
///
/// # Errors
/// What is allowed.
pub fn fc_port(text: &str) -> Rule {
    ensure(
        text.chars().all(|c| c.is_ascii_hexdigit()),
        "must be a hexadecimal number without '0x' (e.g. '50060e801049cfd1')",
    )
}

/// Checks the name of a Fibre Channel disk, which is a part of paths.
///
/// # Errors
/// What is allowed.
pub fn fc_disk(text: &str) -> Rule {
    let fits = |c: char| c.is_ascii_alphanumeric() || "_-.:+".contains(c);
    ensure(
        !text.starts_with(['.', '-']) && text.chars().all(fits),
        "must consist of alphanumeric characters, '_', '-', '.', ':' or '+', and must not begin with '.' or '-'",
    )
}

/// Checks the name of an iSCSI target or initiator.
///
/// # Errors
/// What is allowed.
pub fn iscsi_target(text: &str) -> Rule {
    let fits = |c: char| c.is_alphanumeric() || "._-:".contains(c);
    let kinds = ["iqn.", "eui.", "naa."];
    ensure(
        kinds.iter().any(|kind| text.starts_with(kind)) && text.chars().all(fits),
        "must begin with 'iqn.', 'eui.' or 'naa.' and consist of alphanumeric characters, '.', '_', '-' or ':' (e.g. 'iqn.2003-01.com.example:disk')",
    )
}

/// Checks a file system type, which is part of program names such as `mkfs.ext4`.
///
/// # Errors
/// What is allowed.
pub fn file_system_type(text: &str) -> Rule {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+');
    ensure(
        text.starts_with(|c: char| c.is_ascii_alphanumeric()) && text.chars().all(fits),
        "a type of file system must consist of alphanumeric characters, '-', '_', '.' or '+', and must start with an alphanumeric character (e.g. 'ext4')",
    )
}

/// Checks a part of an SELinux label, which is passed to mount(8) in quotes.
///
/// # Errors
/// What is allowed.
pub fn selinux_part(text: &str) -> Rule {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | ':' | ',');
    ensure(
        text.chars().all(fits),
        "a part of an SELinux label must consist of alphanumeric characters, '.', '-', '_', ':' or ',' (e.g. 's0:c123,c456')",
    )
}

/// Splits an item of `mountOptions`, which may contain several comma-separated options, into
/// options of mount(8). No returned option can absorb what is appended after it.
///
/// # Errors
/// What is allowed.
pub fn mount_options(item: &str) -> Result<Vec<&str>, &'static str> {
    operand(item)?;
    let (mut begin, mut is_quoted) = (0, false);
    let mut options = Vec::new();
    for (at, c) in item.char_indices() {
        let (before, after) = (&item[begin..at], &item[at + c.len_utf8()..]);
        match c {
            '"' if is_quoted => {
                ensure(after.is_empty() || after.starts_with(','), OPTION)?;
                is_quoted = false;
            }
            '"' => {
                ensure(before.ends_with('='), OPTION)?;
                is_quoted = true;
            }
            ',' if !is_quoted => {
                options.push(before);
                begin = at + 1;
            }
            _ => {}
        }
    }
    ensure(!is_quoted, OPTION)?;
    options.push(&item[begin..]);
    options.retain(|option| !option.is_empty());
    for option in &options {
        operand(option)?;
        // A trailing backslash would make the next comma a part of this option.
        ensure(!option.ends_with('\\'), "must not end with a backslash")?;
    }
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_names_and_addresses() {
        for server in [
            "nfs",
            "nfs.example.",
            "192.0.2.1",
            "2001:db8::1",
            "[2001:db8::1]",
            "[fe80::1%eth0]",
        ] {
            assert_eq!(nfs_server(server), Ok(()), "{server}");
        }
        for server in [
            "-T/x",
            "--bind",
            "a b",
            "a\n",
            "a\u{a0}b",
            "a\0",
            "a,b",
            "a:/x",
            "a/b",
            "[a]",
            "[::1",
            "[::1]:/x,y]",
            "fe80::1%eth0",
            "[fe80::1%e,f]",
        ] {
            assert!(nfs_server(server).is_err(), "{server:?}");
        }
    }

    #[test]
    fn drivers_name_no_program_elsewhere() {
        for driver in ["lvm", "k8s/nfs", "kubernetes.io/lvm", "Vendor_1/a-b.c"] {
            assert_eq!(flex_volume_driver(driver), Ok(()), "{driver}");
        }
        let long = "a".repeat(254);
        for driver in [
            "", ".", "..", "/", "a/", "/a", "../a", "a/..", "a/../b", "a/b/c", "a~b", "a b", "-a",
            "a/-b", "a\0", "\u{e9}", "a/mounts", "mounts", &long,
        ] {
            assert!(flex_volume_driver(driver).is_err(), "{driver:?}");
        }
    }

    #[test]
    fn paths_of_operands_are_absolute_and_plain() {
        for path in ["/", "/dev/disk/by-id/x", "/a,b/-c"] {
            assert_eq!(operand_path(path), Ok(()), "{path}");
        }
        for path in [
            "",
            "-T",
            "a",
            "./a",
            "/a b",
            "/a\t",
            "/a\u{7f}",
            "/a\u{2028}",
        ] {
            assert!(operand_path(path).is_err(), "{path:?}");
        }
    }

    #[test]
    fn types_of_file_systems_name_no_program_elsewhere() {
        for name in ["ext4", "9p", "ntfs-3g", "fuse.glusterfs", "nfs4"] {
            assert_eq!(file_system_type(name), Ok(()), "{name}");
        }
        for name in [
            "", "-t", ".", "../x", "a/b", "ext4,xfs", "ext4 -F", "ext4\n", "\u{e9}xt",
        ] {
            assert!(file_system_type(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn each_mount_option_is_told_apart() {
        for (item, options) in [
            ("ro", vec!["ro"]),
            ("nfsvers=4.1,hard", vec!["nfsvers=4.1", "hard"]),
            ("", vec![]),
            (",a,,b,", vec!["a", "b"]),
            (
                "context=\"system_u:object_r:t:s0:c1,c2\",ro",
                vec!["context=\"system_u:object_r:t:s0:c1,c2\"", "ro"],
            ),
            ("lowerdir=a\\:b", vec!["lowerdir=a\\:b"]),
        ] {
            assert_eq!(mount_options(item), Ok(options), "{item}");
        }
        for item in [
            "-o", "a,-o", "a b", "a\nb", "x=\"", "x=\"a,ro", "x=a\"b\"", "\"a,b\"", "x=\"a\"b",
            "x\\", "x\\,y",
        ] {
            assert!(mount_options(item).is_err(), "{item:?}");
        }
    }
}
