//! The environment variables of a container.

mod config_data;
mod env_file;
mod services;

use std::{collections::BTreeMap, path::PathBuf};

use k8s_openapi::api::core::v1::{Container, EnvVarSource, FileKeySelector, Pod, PodSpec};
use kubelet_api_client::{
    allocatable::allocatable,
    objects::{ObjectError, Objects},
};
use kubelet_host::bounded_io;
use kubelet_pod_spec::{
    expansion::{Expander, TooLong},
    field_ref::{self, FieldError, Placement},
    identity,
    resource_field_ref::{self, ResourceFieldError},
    resources::ResourceList,
};
use kubelet_volume::MountedVolumes;

use self::{config_data::ConfigData, env_file::EnvFileError};

/// Why the value of a variable could not be determined.
#[derive(Debug, thiserror::Error)]
pub enum EnvError {
    /// A value is too long.
    #[error("environment variable {name:?}: {source}")]
    TooLong {
        /// Name of the variable.
        name: String,
        /// The cause.
        source: TooLong,
    },
    /// `fieldRef` references an unsupported or unavailable field.
    #[error(transparent)]
    Field(#[from] FieldError),
    /// `resourceFieldRef` references an unsupported or unavailable resource.
    #[error(transparent)]
    Resource(#[from] ResourceFieldError),
    /// The node object could not be read for its allocatable resources.
    #[error("failed to find node object, expected a node: {0}")]
    Node(#[source] ObjectError),
    /// The services could not be listed.
    #[error("failed to list services when setting up env vars: {0}")]
    Services(#[source] ObjectError),
    /// Config data cannot be read without an API server.
    #[error("couldn't get {kind} {namespace}/{name}, no kubeClient defined")]
    NoApiServer {
        /// `configMap` or `secret`.
        kind: &'static str,
        /// Namespace of the pod.
        namespace: String,
        /// Name of the object.
        name: String,
    },
    /// A config map or secret could not be read.
    #[error(transparent)]
    Object(ObjectError),
    /// A key is missing in a config map or secret.
    #[error("couldn't find key {key} in {kind} {namespace}/{name}")]
    Key {
        /// The key.
        key: String,
        /// `ConfigMap` or `Secret`.
        kind: &'static str,
        /// Namespace of the pod.
        namespace: String,
        /// Name of the object.
        name: String,
    },
    /// `fileKeyRef` references an unknown volume, or one without a directory.
    #[error("cannot find the volume {0:?} referenced by FileKeyRef")]
    FileVolume(String),
    /// An env file could not be read or parsed.
    #[error("couldn't parse env file: {0}")]
    File(#[from] EnvFileError),
    /// A key is missing in an env file, or its value is empty.
    #[error("environment variable key {key:?} not found in file {path:?}")]
    FileKey {
        /// The key.
        key: String,
        /// The file on the node.
        path: PathBuf,
    },
}

/// Sources of values other than the pod.
#[derive(Clone, Copy, Debug)]
pub struct EnvSources<'a> {
    /// Config maps, secrets, services and the node.
    pub objects: &'a dyn Objects,
    /// The pod's volumes.
    pub volumes: &'a MountedVolumes,
    /// The allocatable resources of the node without an API server.
    pub allocatable: &'a ResourceList,
}

/// Names and values of a container's environment variables: those of `envFrom`, then those of
/// `env`, then those of services that are not set yet. Values may reference earlier variables and
/// those of services.
///
/// # Errors
/// A value could not be determined.
pub async fn environment(
    pod: &Pod,
    container: &Container,
    placement: &Placement<'_>,
    sources: EnvSources<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    let nothing = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&nothing);
    let namespace = identity::namespace(pod);
    let links = spec.enable_service_links != Some(false);
    let services = match services::variables(sources.objects, namespace, links).await {
        // The API server, or something it depends on, may be a static pod itself; as upstream.
        Err(_) if identity::is_static(pod) => BTreeMap::new(),
        services => services.map_err(EnvError::Services)?,
    };
    let mut config_data = ConfigData::new(sources.objects, namespace);
    let mut variables = Variables::default();
    let mut expander = Expander::default();
    for source in container.env_from.iter().flatten() {
        let prefix = source.prefix.as_deref().unwrap_or_default();
        for (key, value) in config_data.all_of(source).await? {
            variables.set(format!("{prefix}{key}"), value);
        }
    }
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) if !value.is_empty() => {
                let expanded = expander.expand(value, |name| {
                    let service = || services.get(name).map(String::as_str);
                    variables.get(name).or_else(service)
                });
                expanded.map_err(|source| EnvError::TooLong {
                    name: variable.name.clone(),
                    source,
                })?
            }
            (_, Some(source)) => {
                let scope = Scope {
                    pod,
                    spec,
                    container,
                    placement,
                    sources,
                };
                match scope.value(source, &mut config_data).await? {
                    Some(value) => value,
                    // The value is optional and missing.
                    None => continue,
                }
            }
            _ => String::new(),
        };
        variables.set(variable.name.clone(), value);
    }
    for (name, value) in services {
        if variables.get(&name).is_none() {
            variables.set(name, value);
        }
    }
    Ok(variables.list)
}

/// The value of a variable.
pub fn lookup<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    variables
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

/// Variables in the order in which they were first set.
#[derive(Default)]
struct Variables {
    list: Vec<(String, String)>,
    places: BTreeMap<String, usize>,
}

impl Variables {
    fn get(&self, name: &str) -> Option<&str> {
        let place = self.places.get(name)?;
        self.list.get(*place).map(|(_, value)| value.as_str())
    }

    fn set(&mut self, name: String, value: String) {
        match self.places.get(&name).and_then(|at| self.list.get_mut(*at)) {
            Some(known) => known.1 = value,
            None => {
                self.places.insert(name.clone(), self.list.len());
                self.list.push((name, value));
            }
        }
    }
}

/// Everything that a value can be taken from.
struct Scope<'a> {
    pod: &'a Pod,
    spec: &'a PodSpec,
    container: &'a Container,
    placement: &'a Placement<'a>,
    sources: EnvSources<'a>,
}

impl Scope<'_> {
    /// `None` if the value is optional and missing.
    async fn value(
        &self,
        source: &EnvVarSource,
        config_data: &mut ConfigData<'_>,
    ) -> Result<Option<String>, EnvError> {
        if let Some(field) = &source.field_ref {
            Ok(Some(field_ref::value(
                self.pod,
                &field.field_path,
                self.placement,
            )?))
        } else if let Some(selector) = &source.resource_field_ref {
            let allocatable = self.allocatable().await?;
            let value =
                resource_field_ref::value(selector, self.spec, self.container, &allocatable)?;
            Ok(Some(value))
        } else if let Some(selector) = &source.config_map_key_ref {
            config_data.config_map_key(selector).await
        } else if let Some(selector) = &source.secret_key_ref {
            config_data.secret_key(selector).await
        } else if let Some(selector) = &source.file_key_ref {
            self.file_key(selector).await
        } else {
            Ok(Some(String::new()))
        }
    }

    /// The allocatable resources of the node.
    async fn allocatable(&self) -> Result<ResourceList, EnvError> {
        let EnvSources {
            allocatable: own,
            objects,
            ..
        } = self.sources;
        allocatable(own, objects).await.map_err(EnvError::Node)
    }

    async fn file_key(&self, selector: &FileKeySelector) -> Result<Option<String>, EnvError> {
        let volume = &selector.volume_name;
        let Some(root) = self.sources.volumes.path(volume) else {
            return Err(EnvError::FileVolume(volume.clone()));
        };
        let (root, path, key) = (root.to_owned(), selector.path.clone(), selector.key.clone());
        let file = root.join(&path);
        let failed = |source| EnvFileError::Io {
            path: selector.path.clone(),
            source,
        };
        let permit = bounded_io::CONTAINERS
            .acquire_for(&root)
            .await
            .map_err(failed)?;
        let read = permit.blocking(move || env_file::value(&root, &path, &key));
        let value = read.await.map_err(EnvFileError::from)??;
        if !value.is_empty() {
            Ok(Some(value))
        } else if selector.optional == Some(true) {
            Ok(None)
        } else {
            Err(EnvError::FileKey {
                key: selector.key.clone(),
                path: file,
            })
        }
    }
}

#[cfg(test)]
mod tests;
