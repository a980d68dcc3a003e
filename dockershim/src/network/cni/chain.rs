//! Runs a network's plugins in order.

use serde_json::{Map, Value};

use super::{
    config::{NetworkConfig, PluginConfig},
    error::CniError,
    plugin::{PluginError, Plugins, Verb},
    version::Version,
};

/// One interface of a sandbox on a network.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The sandbox's id.
    pub container_id: String,
    /// The path of the network namespace; empty if it no longer exists.
    pub netns: String,
    /// The interface's name.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// Arguments by capability; each plugin gets those that it declares.
    pub capability_args: Map<String, Value>,
}

/// A network's plugins.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a> {
    plugins: &'a Plugins,
    config: &'a NetworkConfig,
}

impl<'a> Chain<'a> {
    /// Creates the chain of `config`, with binaries from `plugins`.
    pub fn new(plugins: &'a Plugins, config: &'a NetworkConfig) -> Self {
        Self { plugins, config }
    }

    /// Runs `ADD` in order, each with the previous plugin's result, and returns the last result.
    /// After a failure, the caller cleans up with [`Chain::del`].
    ///
    /// # Errors
    /// [`CniError::Plugin`].
    pub async fn add(self, attachment: &Attachment) -> Result<Value, CniError> {
        let mut result = None;
        for plugin in &self.config.plugins {
            let stdin = self.request(plugin, Some(attachment), result.as_ref());
            let answer = self.run(plugin, Verb::Add, Some(attachment), &stdin).await;
            let read = answer.and_then(|stdout| self.read_result(&stdout));
            result = Some(read.map_err(|source| self.failed(Verb::Add, plugin, source))?);
        }
        Ok(result.unwrap_or_default())
    }

    /// Runs `DEL` in reverse order, each with the result of `ADD`.
    ///
    /// # Errors
    /// [`CniError::Plugin`]; the plugins after the failed one were not run.
    pub async fn del(
        self,
        attachment: &Attachment,
        result: Option<&Value>,
    ) -> Result<(), CniError> {
        let result = result.filter(|_| self.config.version >= Version::CHECK);
        for plugin in self.config.plugins.iter().rev() {
            let stdin = self.request(plugin, Some(attachment), result);
            self.run(plugin, Verb::Del, Some(attachment), &stdin)
                .await
                .map_err(|source| self.failed(Verb::Del, plugin, source))?;
        }
        Ok(())
    }

    /// Runs `CHECK` in order. Returns whether the network supports and allows it.
    ///
    /// # Errors
    /// [`CniError::Plugin`].
    pub async fn check(
        self,
        attachment: &Attachment,
        result: Option<&Value>,
    ) -> Result<bool, CniError> {
        if self.config.version < Version::CHECK || self.config.disable_check {
            return Ok(false);
        }
        for plugin in &self.config.plugins {
            let stdin = self.request(plugin, Some(attachment), result);
            self.run(plugin, Verb::Check, Some(attachment), &stdin)
                .await
                .map_err(|source| self.failed(Verb::Check, plugin, source))?;
        }
        Ok(true)
    }

    /// Runs `STATUS` in order, if the network's version supports it.
    ///
    /// # Errors
    /// [`CniError::Plugin`]: an `ADD` would fail or give only limited connectivity.
    pub async fn status(self) -> Result<(), CniError> {
        if self.config.version < Version::STATUS {
            return Ok(());
        }
        for plugin in &self.config.plugins {
            let stdin = self.request(plugin, None, None);
            self.run(plugin, Verb::Status, None, &stdin)
                .await
                .map_err(|source| self.failed(Verb::Status, plugin, source))?;
        }
        Ok(())
    }

    /// Runs `GC` for a network that allows it: removes everything that belongs to no attachment in
    /// `valid`, which are pairs of sandbox id and interface. Runs all plugins; returns the
    /// failures.
    pub async fn gc(self, valid: &[(String, String)]) -> Vec<CniError> {
        let pair = |(id, ifname): &(String, String)| serde_json::json!({ "containerID": id, "ifname": ifname });
        let valid: Value = valid.iter().map(pair).collect();
        let mut failed = Vec::new();
        for plugin in &self.config.plugins {
            let mut request = self.named(plugin);
            // The key of the specification, and the key of its first edition.
            request.insert("cni.dev/valid-attachments".into(), valid.clone());
            request.insert("cni.dev/attachments".into(), valid.clone());
            let stdin = Value::Object(request).to_string();
            if let Err(source) = self.run(plugin, Verb::Gc, None, stdin.as_bytes()).await {
                failed.push(self.failed(Verb::Gc, plugin, source));
            }
        }
        failed
    }

    async fn run(
        self,
        plugin: &PluginConfig,
        verb: Verb,
        attachment: Option<&Attachment>,
        stdin: &[u8],
    ) -> Result<Vec<u8>, PluginError> {
        self.plugins
            .run(&plugin.kind, verb, attachment, stdin)
            .await
    }

    /// The plugin's configuration, with the network's name and version.
    fn named(self, plugin: &PluginConfig) -> Map<String, Value> {
        let mut request = plugin.raw.clone();
        request.insert("name".into(), self.config.name.clone().into());
        request.insert("cniVersion".into(), self.config.cni_version.clone().into());
        request
    }

    fn request(
        self,
        plugin: &PluginConfig,
        attachment: Option<&Attachment>,
        result: Option<&Value>,
    ) -> Vec<u8> {
        let mut request = self.named(plugin);
        if let Some(result) = result {
            request.insert("prevResult".into(), result.clone());
        }
        if let Some(attachment) = attachment {
            let given = |name: &String| {
                let value = attachment.capability_args.get(name)?;
                Some((name.clone(), value.clone()))
            };
            let wanted: Map<_, _> = plugin.capabilities.iter().filter_map(given).collect();
            if !wanted.is_empty() {
                request.insert("runtimeConfig".into(), wanted.into());
            }
        }
        Value::Object(request).to_string().into_bytes()
    }

    /// Reads a result; a missing version is set to the configuration's.
    fn read_result(self, stdout: &[u8]) -> Result<Value, PluginError> {
        let read: Option<Map<String, Value>> = serde_json::from_slice(stdout)
            .map_err(|error| PluginError::Answer(error.to_string()))?;
        let mut result = read.unwrap_or_default();
        let versioned = result
            .get("cniVersion")
            .and_then(Value::as_str)
            .is_some_and(|version| !version.is_empty());
        if !versioned {
            result.insert("cniVersion".into(), self.config.cni_version.clone().into());
        }
        Ok(result.into())
    }

    fn failed(self, verb: Verb, plugin: &PluginConfig, source: PluginError) -> CniError {
        CniError::Plugin {
            verb,
            plugin: plugin.kind.clone(),
            network: self.config.name.clone(),
            source,
        }
    }
}
