//! Checks that there is a CNI configuration, and that its plugins are installed.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::fs::{Access, access};
use serde_json::Value;

use super::Check;

const CONFIGURATION: &str = "CNI configuration";
const PLUGINS: &str = "CNI plugins";
/// The extensions of configuration files, as in libcni.
const EXTENSIONS: [&str; 3] = ["conf", "conflist", "json"];
const INSTALL: &str = "install a network add-on, or add a CNI configuration list there";

/// Checks the configurations in `configurations` and the plugins in `programs`.
pub(super) fn check(configurations: &Path, programs: &[&Path]) -> Vec<Check> {
    let shown = configurations.display();
    let files = match files(configurations) {
        Ok(files) => files,
        Err(error) => {
            return vec![Check::fail(
                CONFIGURATION,
                format!("{shown}: {error}"),
                format!("{INSTALL}; or set its directory with --cni-conf-dir"),
            )];
        }
    };
    let mut checks = Vec::new();
    // The first valid configuration is the network.
    for file in files {
        match types(&file) {
            Ok(types) => {
                let detail = format!("{}: {}", file.display(), types.join(", "));
                checks.push(Check::ok(CONFIGURATION, detail));
                checks.push(plugins(&types, programs));
                return checks;
            }
            Err(reason) => checks.push(Check::warn(
                CONFIGURATION,
                format!("{}: {reason}", file.display()),
                "fix or remove the file",
            )),
        }
    }
    checks.push(Check::fail(
        CONFIGURATION,
        format!("{shown} has no valid configuration"),
        INSTALL,
    ));
    checks
}

fn files(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let extension = path.extension().and_then(|extension| extension.to_str());
        if extension.is_some_and(|extension| EXTENSIONS.contains(&extension)) && path.is_file() {
            files.push(path);
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// The plugin types in a configuration, without duplicates.
fn types(file: &Path) -> Result<Vec<String>, String> {
    let text = fs::read(file).map_err(|error| error.to_string())?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| error.to_string())?;
    let is_list = file.extension().is_some_and(|e| e == "conflist") || value["plugins"].is_array();
    let plugins = match &value["plugins"] {
        Value::Array(plugins) if plugins.is_empty() => {
            return Err("field \"plugins\": empty".into());
        }
        Value::Array(plugins) => plugins.as_slice(),
        _ if is_list => return Err("field \"plugins\": must be a list".into()),
        _ => std::slice::from_ref(&value),
    };
    let mut types: Vec<String> = Vec::new();
    for plugin in plugins {
        let Some(own) = plugin["type"].as_str() else {
            return Err("field \"type\": must be a string in each plugin".into());
        };
        for name in [Some(own), plugin["ipam"]["type"].as_str()]
            .into_iter()
            .flatten()
        {
            if !types.iter().any(|known| known == name) {
                types.push(name.to_owned());
            }
        }
    }
    Ok(types)
}

fn plugins(types: &[String], programs: &[&Path]) -> Check {
    let runs = |path: PathBuf| path.is_file() && access(&path, Access::EXEC_OK).is_ok();
    let is_missing = |name: &&String| !programs.iter().any(|dir| runs(dir.join(name)));
    let missing: Vec<&str> = types
        .iter()
        .filter(is_missing)
        .map(String::as_str)
        .collect();
    let dirs: Vec<_> = programs.iter().map(|d| d.display().to_string()).collect();
    let dirs = dirs.join(", ");
    if missing.is_empty() {
        return Check::ok(PLUGINS, format!("all found in {dirs}"));
    }
    Check::fail(
        PLUGINS,
        format!("{} not found in {dirs}", missing.join(", ")),
        "install the plugins (containernetworking-plugins, or those of the network add-on), or set \
         their directory with --cni-bin-dir",
    )
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::{super::Verdict, *};

    const LIST: &str = r#"{"cniVersion": "1.0.0", "name": "pods", "plugins": [
        {"type": "bridge", "ipam": {"type": "host-local"}}, {"type": "portmap"}]}"#;

    fn verdicts(checks: &[Check]) -> Vec<(&'static str, Verdict)> {
        checks.iter().map(|c| (c.name, c.verdict)).collect()
    }

    fn install(dir: &Path, name: &str, mode: u32) {
        let path = dir.join(name);
        fs::write(&path, "").unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn every_plugin_of_the_first_configuration_has_to_be_there() {
        let (conf, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let more = tempfile::tempdir().unwrap();
        let look = || check(conf.path(), &[bin.path(), more.path()]);
        assert_eq!(verdicts(&look()), [(CONFIGURATION, Verdict::Fail)]);

        fs::write(conf.path().join("20-pods.conflist"), LIST).unwrap();
        fs::write(conf.path().join("notes.txt"), "{").unwrap();
        install(bin.path(), "bridge", 0o755);
        install(bin.path(), "host-local", 0o644);
        let checks = look();
        let expected = [(CONFIGURATION, Verdict::Ok), (PLUGINS, Verdict::Fail)];
        assert_eq!(verdicts(&checks), expected);
        let detail = &checks[1].detail;
        assert!(
            detail.starts_with("host-local, portmap not found in "),
            "{detail}"
        );

        install(bin.path(), "host-local", 0o755);
        install(more.path(), "portmap", 0o755);
        let expected = [(CONFIGURATION, Verdict::Ok), (PLUGINS, Verdict::Ok)];
        assert_eq!(verdicts(&look()), expected);
    }

    #[test]
    fn a_broken_file_is_named_and_the_next_one_used() {
        let (conf, bin) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for (file, text) in [
            ("10-cut.conflist", "{\"plugins\": ["),
            ("11-empty.conflist", "{\"plugins\": []}"),
            ("12-single.conflist", "{\"type\": \"bridge\"}"),
            ("20-good.conf", "{\"type\": \"loopback\"}"),
        ] {
            fs::write(conf.path().join(file), text).unwrap();
        }
        install(bin.path(), "loopback", 0o755);
        let checks = check(conf.path(), &[bin.path()]);
        let expected = [
            (CONFIGURATION, Verdict::Warn),
            (CONFIGURATION, Verdict::Warn),
            (CONFIGURATION, Verdict::Warn),
            (CONFIGURATION, Verdict::Ok),
            (PLUGINS, Verdict::Ok),
        ];
        assert_eq!(verdicts(&checks), expected);
        assert!(checks[0].detail.contains("10-cut.conflist"), "{checks:?}");
    }

    #[test]
    fn a_directory_that_is_not_there_names_the_flag() {
        let checks = check(Path::new("/nowhere/net.d"), &[Path::new("/nowhere/bin")]);
        assert_eq!(verdicts(&checks), [(CONFIGURATION, Verdict::Fail)]);
        let remedy = checks[0].remedy.as_deref().unwrap();
        assert!(remedy.contains("--cni-conf-dir"), "{remedy}");
    }
}
