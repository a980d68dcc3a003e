//! Environment variables from config maps and secrets. Each object is read once per container.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::{
    ConfigMap, ConfigMapKeySelector, EnvFromSource, Secret, SecretKeySelector,
};
use kubelet_api_client::objects::{ObjectError, Objects};

use super::EnvError;

/// The config maps and secrets that a container has used so far.
pub(super) struct ConfigData<'a> {
    objects: &'a dyn Objects,
    namespace: &'a str,
    config_maps: BTreeMap<String, Arc<ConfigMap>>,
    secrets: BTreeMap<String, Arc<Secret>>,
}

impl<'a> ConfigData<'a> {
    pub(super) const fn new(objects: &'a dyn Objects, namespace: &'a str) -> Self {
        Self {
            objects,
            namespace,
            config_maps: BTreeMap::new(),
            secrets: BTreeMap::new(),
        }
    }

    /// All keys and values of the object that `source` references.
    pub(super) async fn all_of(
        &mut self,
        source: &EnvFromSource,
    ) -> Result<Vec<(String, String)>, EnvError> {
        if let Some(reference) = &source.config_map_ref {
            let optional = reference.optional == Some(true);
            let config_map = self.config_map(&reference.name, optional).await?;
            let data = config_map.and_then(|config_map| config_map.data.clone());
            Ok(data.into_iter().flatten().collect())
        } else if let Some(reference) = &source.secret_ref {
            let optional = reference.optional == Some(true);
            let Some(secret) = self.secret(&reference.name, optional).await? else {
                return Ok(Vec::new());
            };
            let data = secret.data.iter().flatten();
            Ok(data
                .map(|(key, value)| (key.clone(), text(&value.0)))
                .collect())
        } else {
            Ok(Vec::new())
        }
    }

    /// `None` if the key or object is optional and missing.
    pub(super) async fn config_map_key(
        &mut self,
        selector: &ConfigMapKeySelector,
    ) -> Result<Option<String>, EnvError> {
        let optional = selector.optional == Some(true);
        let Some(config_map) = self.config_map(&selector.name, optional).await? else {
            return Ok(None);
        };
        let data = config_map.data.as_ref();
        match data.and_then(|data| data.get(&selector.key)) {
            Some(value) => Ok(Some(value.clone())),
            None if optional => Ok(None),
            None => Err(self.no_key("ConfigMap", &selector.name, &selector.key)),
        }
    }

    /// `None` if the key or object is optional and missing.
    pub(super) async fn secret_key(
        &mut self,
        selector: &SecretKeySelector,
    ) -> Result<Option<String>, EnvError> {
        let optional = selector.optional == Some(true);
        let Some(secret) = self.secret(&selector.name, optional).await? else {
            return Ok(None);
        };
        let data = secret.data.as_ref();
        match data.and_then(|data| data.get(&selector.key)) {
            Some(value) => Ok(Some(text(&value.0))),
            None if optional => Ok(None),
            None => Err(self.no_key("Secret", &selector.name, &selector.key)),
        }
    }

    async fn config_map(
        &mut self,
        name: &str,
        optional: bool,
    ) -> Result<Option<Arc<ConfigMap>>, EnvError> {
        if let Some(known) = self.config_maps.get(name) {
            return Ok(Some(Arc::clone(known)));
        }
        let answer = self.objects.config_map(self.namespace, name).await;
        let Some(config_map) = self.found("configMap", answer, optional)? else {
            return Ok(None);
        };
        let known = Arc::clone(&config_map);
        self.config_maps.insert(name.to_owned(), known);
        Ok(Some(config_map))
    }

    async fn secret(
        &mut self,
        name: &str,
        optional: bool,
    ) -> Result<Option<Arc<Secret>>, EnvError> {
        if let Some(known) = self.secrets.get(name) {
            return Ok(Some(Arc::clone(known)));
        }
        let answer = self.objects.secret(self.namespace, name).await;
        let Some(secret) = self.found("secret", answer, optional)? else {
            return Ok(None);
        };
        self.secrets.insert(name.to_owned(), Arc::clone(&secret));
        Ok(Some(secret))
    }

    fn found<T>(
        &self,
        kind: &'static str,
        answer: Result<T, ObjectError>,
        optional: bool,
    ) -> Result<Option<T>, EnvError> {
        match answer {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() && optional => Ok(None),
            Err(ObjectError::Standalone { name, .. }) => Err(EnvError::NoApiServer {
                kind,
                namespace: self.namespace.to_owned(),
                name,
            }),
            Err(error) => Err(EnvError::Object(error)),
        }
    }

    fn no_key(&self, kind: &'static str, name: &str, key: &str) -> EnvError {
        EnvError::Key {
            key: key.to_owned(),
            kind,
            namespace: self.namespace.to_owned(),
            name: name.to_owned(),
        }
    }
}

/// A secret's value as a variable. Runtimes keep environments in JSON, where bytes that are not UTF-8
/// are replaced; a keystore beside texts does not keep a container from starting.
fn text(value: &[u8]) -> String {
    String::from_utf8_lossy(value).into_owned()
}
