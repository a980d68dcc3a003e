//! A network's plugins, run one after the other.

use serde_json::{Map, Value};

use super::{
    config::{NetworkConfig, PluginConfig},
    error::CniError,
    plugin::{PluginError, Plugins, Verb},
    version::Version,
};

/// One interface of one sandbox, on one network.
#[derive(Debug, Clone, PartialEq)]
pub struct Attachment {
    /// The sandbox's id.
    pub container_id: String,
    /// The path of its network namespace; empty when there is none any more.
    pub netns: String,
    /// The interface.
    pub ifname: String,
    /// `CNI_ARGS`.
    pub args: Vec<(String, String)>,
    /// Arguments by capability; a plugin gets those that it wants.
    pub capability_args: Map<String, Value>,
}

/// The plugins of a network.
#[derive(Debug, Clone, Copy)]
pub struct Chain<'a> {
    plugins: &'a Plugins,
    config: &'a NetworkConfig,
}

impl<'a> Chain<'a> {
    /// The chain of `config`, whose binaries are among `plugins`.
    pub fn new(plugins: &'a Plugins, config: &'a NetworkConfig) -> Self {
        Self { plugins, config }
    }

    /// `ADD` in order, each with the result of the one before. Returns the last one's. What
    /// a failure leaves behind is for [`Chain::del`].
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

    /// `DEL` in reverse order, each with the result of the `ADD`.
    ///
    /// # Errors
    /// [`CniError::Plugin`]; the plugins after the one that failed were not asked.
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

    /// `CHECK` in order. Returns whether the network allows it.
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

    /// `STATUS` in order, where the network's version has it.
    ///
    /// # Errors
    /// [`CniError::Plugin`]: an `ADD` would fail, or its sandbox reach little.
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

    /// `GC`, for a network that allows it: removes what belongs to no attachment in `valid`, pairs
    /// of sandbox id and interface. Asks every plugin; returns what failed.
    pub async fn gc(self, valid: &[(String, String)]) -> Vec<CniError> {
        let pair = |(id, ifname): &(String, String)| serde_json::json!({ "containerID": id, "ifname": ifname });
        let valid: Value = valid.iter().map(pair).collect();
        let mut failed = Vec::new();
        for plugin in &self.config.plugins {
            let mut request = self.named(plugin);
            // The first as the specification has it, the second as its first edition had.
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

    /// A result has a version; where the plugin left it out, it is the configuration's.
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
