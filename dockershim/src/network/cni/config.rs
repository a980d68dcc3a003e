//! Network configurations: the files in the configuration directory, read like libcni, and the
//! copies in the cache.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs, io,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::version::Version;

/// A network: a list of plugins that run in order.
#[derive(Debug, Clone, PartialEq)]
pub struct NetworkConfig {
    /// The network's name, under which the cache and the plugins store their state.
    pub name: String,
    /// The version that is passed to every plugin, as written.
    pub cni_version: String,
    /// The parsed version.
    pub version: Version,
    /// Whether `CHECK` is disabled.
    pub disable_check: bool,
    /// Whether `GC` is disabled.
    pub disable_gc: bool,
    /// The plugins, at least one.
    pub plugins: Vec<PluginConfig>,
    /// The whole configuration in `.conflist` format, readable by [`NetworkConfig::from_list`].
    pub bytes: Vec<u8>,
}

/// The configuration of one plugin.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginConfig {
    /// The name of the plugin's binary.
    pub kind: String,
    /// The capabilities that it wants arguments for.
    pub capabilities: Vec<String>,
    /// The configuration as written.
    pub raw: Map<String, Value>,
}

/// An invalid configuration.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

/// The format of a `.conflist`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct List {
    name: Option<String>,
    cni_version: Option<String>,
    cni_versions: Option<Vec<String>>,
    disable_check: Option<Flag>,
    #[serde(rename = "disableGC")]
    disable_gc: Option<Flag>,
    load_only_inlined_plugins: Option<Flag>,
    plugins: Option<Vec<Map<String, Value>>>,
}

/// The fields read from a plugin's configuration.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Plugin {
    name: Option<String>,
    cni_version: Option<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
    capabilities: Option<BTreeMap<String, Option<bool>>>,
}

/// A boolean, or a string with its name.
#[derive(Deserialize)]
#[serde(untagged)]
enum Flag {
    Bool(bool),
    Word(String),
}

// === impl NetworkConfig ===

impl NetworkConfig {
    /// Parses a `.conflist`.
    ///
    /// # Errors
    /// A message that names the field.
    pub fn from_list(bytes: &[u8]) -> Result<Self, ConfigError> {
        let (config, _) = read_list(bytes)?;
        config.with_plugins()
    }

    /// Parses a `.conf`, the configuration of a single plugin, as a list of one.
    ///
    /// # Errors
    /// A message that names the field.
    pub fn from_single(bytes: &[u8]) -> Result<Self, ConfigError> {
        let raw: Map<String, Value> = serde_json::from_slice(bytes).map_err(unread)?;
        if !raw.contains_key("type") && raw.contains_key("plugins") {
            let reason = "has plugins but no type: a list belongs in a .conflist file";
            return Err(ConfigError(reason.into()));
        }
        let plugin: Plugin = serde_json::from_value(Value::Object(raw.clone())).map_err(unread)?;
        let list = serde_json::json!({
            "name": plugin.name.unwrap_or_default(),
            "cniVersion": plugin.cni_version.unwrap_or_default(),
            "plugins": [raw],
        });
        Self::from_list(list.to_string().as_bytes())
    }

    /// Reads a network's file in the format given by its extension.
    ///
    /// # Errors
    /// A message that names the field.
    pub fn from_file(path: &Path) -> Result<Self, ConfigError> {
        let bytes = read(path)?;
        if path.extension() != Some(OsStr::new("conflist")) {
            return Self::from_single(&bytes);
        }
        let (mut config, only_inlined) = read_list(&bytes)?;
        if !only_inlined && let Some(directory) = path.parent() {
            config.add_plugins_of(&directory.join(&config.name))?;
        }
        config.with_plugins()
    }

    /// Adds the plugins with their own configuration files.
    fn add_plugins_of(&mut self, directory: &Path) -> Result<(), ConfigError> {
        let files = files_of(directory, &["conf"])
            .map_err(|error| ConfigError(format!("{}: {error}", directory.display())))?;
        for file in &files {
            let named = |error| ConfigError(format!("{}: {error}", file.display()));
            let raw = serde_json::from_slice(&read(file)?).map_err(|error| named(unread(error)))?;
            self.plugins.push(PluginConfig::new(raw).map_err(named)?);
        }
        if !files.is_empty() {
            // The cached copy must be complete, because it is read without these files.
            let mut whole: Map<String, Value> =
                serde_json::from_slice(&self.bytes).map_err(unread)?;
            let plugins = self.plugins.iter().map(|p| Value::Object(p.raw.clone()));
            whole.insert("plugins".into(), plugins.collect());
            whole.insert("loadOnlyInlinedPlugins".into(), true.into());
            self.bytes = Value::Object(whole).to_string().into_bytes();
        }
        Ok(())
    }

    fn with_plugins(self) -> Result<Self, ConfigError> {
        if self.plugins.is_empty() {
            return Err(ConfigError("plugins: must not be empty".into()));
        }
        Ok(self)
    }

    /// Whether `GC` is run for this network.
    pub fn collects_garbage(&self) -> bool {
        self.version >= Version::STATUS && !self.disable_gc
    }

    /// Whether any plugin wants arguments for `capability`.
    pub fn wants(&self, capability: &str) -> bool {
        let mut all = self.plugins.iter().flat_map(|plugin| &plugin.capabilities);
        all.any(|wanted| wanted == capability)
    }
}

/// Parses a list that may have no plugins, and whether it excludes plugins from other files.
fn read_list(bytes: &[u8]) -> Result<(NetworkConfig, bool), ConfigError> {
    let list: List = serde_json::from_slice(bytes).map_err(unread)?;
    let name = list.name.unwrap_or_default();
    check_name(&name)?;
    let cni_version = newest(
        list.cni_version.unwrap_or_default(),
        list.cni_versions.unwrap_or_default(),
    )?;
    let version = cni_version
        .parse()
        .map_err(|reason| ConfigError(format!("cniVersion: {reason}")))?;
    let only_inlined = flag("loadOnlyInlinedPlugins", list.load_only_inlined_plugins)?;
    let mut plugins = Vec::new();
    for (index, raw) in list.plugins.unwrap_or_default().into_iter().enumerate() {
        let plugin = PluginConfig::new(raw)
            .map_err(|error| ConfigError(format!("plugins[{index}]: {error}")))?;
        plugins.push(plugin);
    }
    let config = NetworkConfig {
        name,
        cni_version,
        version,
        disable_check: flag("disableCheck", list.disable_check)?,
        disable_gc: flag("disableGC", list.disable_gc)?,
        plugins,
        bytes: bytes.to_owned(),
    };
    Ok((config, only_inlined))
}

/// The newest of the versions that the shim supports.
fn newest(single: String, several: Vec<String>) -> Result<String, ConfigError> {
    if several.is_empty() {
        return Ok(single);
    }
    let mut best: Option<(Version, String)> = None;
    let given = Some(single.clone()).filter(|version| !version.is_empty());
    for text in given.into_iter().chain(several) {
        let version: Version = text
            .parse()
            .map_err(|reason| ConfigError(format!("cniVersions: {reason}")))?;
        let better = best.as_ref().is_none_or(|(newest, _)| version > *newest);
        if version <= Version::NEWEST && better {
            best = Some((version, text));
        }
    }
    Ok(best.map_or(single, |(_, text)| text))
}

fn flag(field: &str, flag: Option<Flag>) -> Result<bool, ConfigError> {
    match flag {
        None => Ok(false),
        Some(Flag::Bool(value)) => Ok(value),
        Some(Flag::Word(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Flag::Word(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(Flag::Word(word)) => Err(ConfigError(format!(
            "{field}: {word:?}; allowed: true, false"
        ))),
    }
}

/// The name becomes part of file names, in the cache and in plugins.
fn check_name(name: &str) -> Result<(), ConfigError> {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits) {
        return Ok(());
    }
    let allowed = "letters, digits, '_', '.' and '-', beginning with a letter or digit";
    Err(ConfigError(format!("name: {name:?}; allowed: {allowed}")))
}

// === impl PluginConfig ===

impl PluginConfig {
    fn new(raw: Map<String, Value>) -> Result<Self, ConfigError> {
        let plugin: Plugin = serde_json::from_value(Value::Object(raw.clone())).map_err(unread)?;
        let kind = plugin.kind.unwrap_or_default();
        if kind.is_empty() || kind.contains('/') {
            let reason = format!("type: {kind:?}; must be the name of a plugin's binary");
            return Err(ConfigError(reason));
        }
        let capabilities = plugin.capabilities.unwrap_or_default();
        let wanted = |(name, on): (String, Option<bool>)| on.unwrap_or_default().then_some(name);
        Ok(Self {
            kind,
            capabilities: capabilities.into_iter().filter_map(wanted).collect(),
            raw,
        })
    }
}

fn unread(error: serde_json::Error) -> ConfigError {
    ConfigError(error.to_string())
}

fn read(path: &Path) -> Result<Vec<u8>, ConfigError> {
    fs::read(path).map_err(|error| ConfigError(error.to_string()))
}

/// The first valid configuration in `directory`, with its file; invalid ones before it are passed
/// to `broken`.
///
/// # Errors
/// The directory cannot be read; a missing directory has no configuration.
pub fn first_valid(
    directory: &Path,
    mut broken: impl FnMut(&Path, ConfigError),
) -> io::Result<Option<(PathBuf, NetworkConfig)>> {
    for file in files_of(directory, &["conf", "conflist", "json"])? {
        match NetworkConfig::from_file(&file) {
            Ok(config) => return Ok(Some((file, config))),
            Err(error) => broken(&file, error),
        }
    }
    Ok(None)
}

/// The files in `directory` with one of these extensions, in lexical order.
pub(super) fn files_of(directory: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut files = Vec::new();
    for entry in entries {
        let entry = entry?;
        let path = entry.path();
        let ending = path.extension().and_then(OsStr::to_str);
        let fits = ending.is_some_and(|ending| endings.contains(&ending));
        if fits && !entry.file_type()?.is_dir() {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn first(dir: &Path) -> (Option<(String, String)>, Vec<String>) {
        let mut broken = Vec::new();
        let found = first_valid(dir, |file, error| {
            let file = file.file_name().unwrap().to_string_lossy();
            broken.push(format!("{file}: {error}"));
        })
        .unwrap();
        let found = found.map(|(file, config)| {
            let file = file.file_name().unwrap().to_string_lossy();
            (file.into_owned(), config.name)
        });
        (found, broken)
    }

    #[test]
    fn the_first_valid_file_in_lexical_order_is_used() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(first(&dir.path().join("absent")), (None, vec![]));
        put("00-readme.txt", "no configuration");
        fs::create_dir(dir.path().join("00-dir.conf")).unwrap();
        assert_eq!(first(dir.path()), (None, vec![]));
        put("30-c.json", r#"{"name": "c", "type": "bridge"}"#);
        assert_eq!(first(dir.path()).0.unwrap().1, "c");
        put(
            "20-b.conflist",
            r#"{"name": "b", "plugins": [{"type": "bridge"}]}"#,
        );
        put("10-a.conf", r#"{"name": "a", "plugins": [{"type": "x"}]}"#);
        put("05-half.conflist", r#"{"name": "half", "plug"#);
        let (found, broken) = first(dir.path());
        assert_eq!(found.unwrap(), ("20-b.conflist".into(), "b".into()));
        assert_eq!(broken.len(), 2);
        assert!(broken[0].starts_with("05-half.conflist: "), "{broken:?}");
        assert!(broken[1].contains(".conflist file"), "{broken:?}");
    }

    #[test]
    fn a_single_plugin_becomes_a_list_of_one() {
        let text = r#"{"cniVersion": "0.4.0", "name": "net", "type": "bridge", "mtu": 1400,
            "capabilities": {"portMappings": true, "dns": false, "bandwidth": null}}"#;
        let config = NetworkConfig::from_single(text.as_bytes()).unwrap();
        assert_eq!((&*config.name, &*config.cni_version), ("net", "0.4.0"));
        let [plugin] = &config.plugins[..] else {
            panic!("{config:?}")
        };
        assert_eq!(plugin.kind, "bridge");
        assert_eq!(plugin.raw["mtu"], 1400);
        assert!(config.wants("portMappings") && !config.wants("dns"));
        assert_eq!(NetworkConfig::from_list(&config.bytes).unwrap(), config);
    }

    #[test]
    fn plugins_of_their_own_files_are_added_and_kept() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("10-net.conflist");
        let list = r#"{"name": "net", "cniVersion": "1.1.0", "plugins": [{"type": "a"}]}"#;
        fs::write(&file, list).unwrap();
        fs::create_dir(dir.path().join("net")).unwrap();
        fs::write(dir.path().join("net/20.conf"), r#"{"type": "c"}"#).unwrap();
        fs::write(dir.path().join("net/10.conf"), r#"{"type": "b"}"#).unwrap();
        let config = NetworkConfig::from_file(&file).unwrap();
        let kinds = |config: &NetworkConfig| -> Vec<String> {
            config.plugins.iter().map(|p| p.kind.clone()).collect()
        };
        assert_eq!(kinds(&config), ["a", "b", "c"]);
        let kept = NetworkConfig::from_list(&config.bytes).unwrap();
        assert_eq!(kinds(&kept), ["a", "b", "c"]);
        fs::write(
            &file,
            list.replace("\"plugins\"", "\"loadOnlyInlinedPlugins\":true,\"plugins\""),
        )
        .unwrap();
        assert_eq!(kinds(&NetworkConfig::from_file(&file).unwrap()), ["a"]);
    }

    #[test]
    fn the_newest_version_that_is_spoken_is_taken() {
        let text = r#"{"name": "n", "cniVersion": "0.4.0",
            "cniVersions": ["1.0.0", "1.1.0", "9.0.0"], "plugins": [{"type": "a"}]}"#;
        let config = NetworkConfig::from_list(text.as_bytes()).unwrap();
        assert_eq!(config.cni_version, "1.1.0");
        assert!(config.version >= Version::STATUS);
    }

    #[test]
    fn what_is_wrong_names_its_field() {
        for (text, field) in [
            (r#"{"plugins": [{"type": "a"}]}"#, "name"),
            (r#"{"name": "../x", "plugins": [{"type": "a"}]}"#, "name"),
            (r#"{"name": "n"}"#, "plugins"),
            (r#"{"name": "n", "plugins": []}"#, "plugins"),
            (
                r#"{"name": "n", "plugins": [{"type": "a"}, {}]}"#,
                "plugins[1]: type",
            ),
            (r#"{"name": "n", "plugins": [{"type": "../a"}]}"#, "type"),
            (
                r#"{"name": "n", "cniVersion": "one", "plugins": [{"type": "a"}]}"#,
                "cniVersion",
            ),
            (
                r#"{"name": "n", "disableCheck": "yes", "plugins": [{"type": "a"}]}"#,
                "disableCheck",
            ),
        ] {
            let error = NetworkConfig::from_list(text.as_bytes()).unwrap_err();
            assert!(error.to_string().contains(field), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".{0,80}", name in ".{0,8}", version in ".{0,8}") {
            let _ = NetworkConfig::from_list(text.as_bytes());
            let _ = NetworkConfig::from_single(text.as_bytes());
            let list = serde_json::json!({
                "name": name, "cniVersion": version, "plugins": [{ "type": text }],
            });
            if let Ok(config) = NetworkConfig::from_list(list.to_string().as_bytes()) {
                prop_assert_eq!(config.name, name);
            }
        }
    }
}
