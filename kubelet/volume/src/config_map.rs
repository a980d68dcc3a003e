//! `configMap`: the keys of a config map as files.

use std::collections::BTreeMap;

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::{ConfigMap as Object, KeyToPath};
use kubelet_api_client::objects::Objects;
use kubelet_pod_spec::identity;

use super::{
    VolumeError, VolumeHost,
    atomic_writer::{FileProjection, Payload},
    files::{self, FileStorage},
    plugin::{Attributes, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    spec::VolumeSpec,
    usage::UsageSource,
};

const KIND: &str = "configmap references non-existent config";

/// The plugin.
#[derive(Debug)]
pub(super) struct ConfigMap {
    pub(super) host: VolumeHost,
}

impl VolumePlugin for ConfigMap {
    fn name(&self) -> &'static str {
        "kubernetes.io/configmap"
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        spec.inline()
            .is_some_and(|volume| volume.config_map.is_some())
    }

    fn attributes(&self, _: &VolumeSpec) -> Attributes {
        files::ATTRIBUTES
    }

    fn usage(&self, request: &MountRequest) -> UsageSource {
        UsageSource::Directory(request.dir.clone())
    }

    fn refreshes(&self, _: &VolumeSpec) -> bool {
        true
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        async move {
            let source = request.spec.inline().and_then(|v| v.config_map.as_ref());
            let Some(source) = source else {
                return Err(VolumeError::Unsupported(request.name().to_owned()));
            };
            let projection = Projection {
                name: &source.name,
                items: source.items.as_deref().unwrap_or_default(),
                optional: source.optional.unwrap_or_default(),
                default_mode: source.default_mode,
            };
            let namespace = identity::namespace(&request.pod);
            let payload = projection.payload(&*self.host.objects, namespace).await?;
            files::set_up(&self.host, request, payload, FileStorage::OnDisk).await
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        files::tear_down(&self.host, volume).boxed()
    }
}

/// A config map or secret, and the files that its keys are written to.
#[derive(Debug)]
pub(super) struct Projection<'a> {
    pub(super) name: &'a str,
    /// Empty for all keys, under their own names.
    pub(super) items: &'a [KeyToPath],
    pub(super) optional: bool,
    pub(super) default_mode: Option<i32>,
}

impl Projection<'_> {
    /// The files of a config map.
    pub(super) async fn payload(
        &self,
        objects: &dyn Objects,
        namespace: &str,
    ) -> Result<Payload, VolumeError> {
        let object = match objects.config_map(namespace, self.name).await {
            Err(error) if error.is_not_found() && self.optional => None,
            object => Some(object?),
        };
        self.files(
            KIND,
            &object.map(|object| contents(&object)).unwrap_or_default(),
        )
    }

    /// The files for an object with these contents.
    pub(super) fn files(
        &self,
        kind: &'static str,
        contents: &BTreeMap<String, Vec<u8>>,
    ) -> Result<Payload, VolumeError> {
        let file = |data: &Vec<u8>, mode| FileProjection {
            data: data.clone(),
            mode: files::mode(mode, self.default_mode),
            user: None,
        };
        if self.items.is_empty() {
            let all = contents.iter();
            return Ok(all
                .map(|(key, data)| (key.clone(), file(data, None)))
                .collect());
        }
        let mut payload = Payload::new();
        for item in self.items {
            match contents.get(&item.key) {
                Some(data) => {
                    payload.insert(item.path.clone(), file(data, item.mode));
                }
                None if self.optional => {}
                None => {
                    return Err(VolumeError::Key {
                        kind,
                        key: item.key.clone(),
                    });
                }
            }
        }
        Ok(payload)
    }
}

fn contents(object: &Object) -> BTreeMap<String, Vec<u8>> {
    let text = object.data.iter().flatten();
    let text = text.map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = object.binary_data.iter().flatten();
    let binary = binary.map(|(key, value)| (key.clone(), value.0.clone()));
    // For a key in both, the text takes precedence.
    binary.chain(text).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(key: &str, path: &str, mode: Option<i32>) -> KeyToPath {
        KeyToPath {
            key: key.to_owned(),
            path: path.to_owned(),
            mode,
        }
    }

    #[test]
    fn items_choose_and_name_files() {
        let object: Object = serde_json::from_value(serde_json::json!({
            "data": {"a": "1"}, "binaryData": {"b": "//4="}
        }))
        .unwrap();
        let contents = contents(&object);
        let mut projection = Projection {
            name: "c",
            items: &[],
            optional: false,
            default_mode: Some(0o600),
        };
        let all = projection.files(KIND, &contents).unwrap();
        assert_eq!(all["b"].data, [0xff, 0xfe]);
        assert_eq!(all["a"].mode, 0o600);
        let items = [item("a", "x/y", Some(0o400)), item("gone", "z", None)];
        projection.items = &items;
        let error = projection.files(KIND, &contents).unwrap_err();
        assert_eq!(
            error.to_string(),
            "configmap references non-existent config key: gone"
        );
        projection.optional = true;
        let some = projection.files(KIND, &contents).unwrap();
        assert_eq!(some.len(), 1);
        assert_eq!(some["x/y"].mode, 0o400);
    }
}
