//! `downwardAPI`: fields of the pod and resources of its containers, as files.

use std::{collections::BTreeMap, fmt::Write as _};

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::{DownwardAPIVolumeFile, Pod, ResourceFieldSelector};
use kubelet_api_client::allocatable::allocatable;
use kubelet_pod_spec::{field_ref, resource_field_ref};

use super::{
    VolumeError, VolumeHost,
    atomic_writer::{FileProjection, Payload},
    files::{self, FileStorage},
    plugin::{Attributes, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    spec::VolumeSpec,
    usage::UsageSource,
};

/// The plugin.
#[derive(Debug)]
pub(super) struct DownwardApi {
    pub(super) host: VolumeHost,
}

impl VolumePlugin for DownwardApi {
    fn name(&self) -> &'static str {
        "kubernetes.io/downward-api"
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        spec.inline()
            .is_some_and(|volume| volume.downward_api.is_some())
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
            let source = request.spec.inline().and_then(|v| v.downward_api.as_ref());
            let Some(source) = source else {
                return Err(VolumeError::Unsupported(request.name().to_owned()));
            };
            let items = source.items.as_deref().unwrap_or_default();
            let payload = payload(&self.host, request, items, source.default_mode).await?;
            files::set_up(&self.host, request, payload, FileStorage::InMemory).await
        }
        .boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        files::tear_down(&self.host, volume).boxed()
    }
}

/// The files for the requested items.
pub(super) async fn payload(
    host: &VolumeHost,
    request: &MountRequest,
    items: &[DownwardAPIVolumeFile],
    default_mode: Option<i32>,
) -> Result<Payload, VolumeError> {
    let pod = &*request.pod;
    let mut payload = Payload::new();
    for item in items {
        let value = match (&item.field_ref, &item.resource_field_ref) {
            (Some(field), _) => field_value(pod, &field.field_path)
                .ok_or_else(|| format!("unsupported fieldPath: {}", field.field_path)),
            (None, Some(selector)) => resource_value(host, pod, selector).await,
            (None, None) => continue,
        };
        let file = FileProjection {
            data: value
                .map_err(|why| VolumeError::invalid(request.name(), why))?
                .into_bytes(),
            mode: files::mode(item.mode, default_mode),
            user: None,
        };
        payload.insert(item.path.clone(), file);
    }
    Ok(payload)
}

async fn resource_value(
    host: &VolumeHost,
    pod: &Pod,
    selector: &ResourceFieldSelector,
) -> Result<String, String> {
    let Some(spec) = &pod.spec else {
        return Err("the pod has no spec".to_owned());
    };
    // A volume belongs to no container, so the selector has to name one.
    let Some(container) = spec.containers.first().filter(|_| {
        let name = selector.container_name.as_deref();
        name.is_some_and(|name| !name.is_empty())
    }) else {
        return Err("resourceFieldRef: containerName is required for volumes".to_owned());
    };
    let allocatable = allocatable(&host.allocatable, &*host.objects).await;
    let allocatable = allocatable.map_err(|error| error.to_string())?;
    resource_field_ref::value(selector, spec, container, &allocatable)
        .map_err(|error| error.to_string())
}

/// The value of a field that is supported in volumes.
fn field_value(pod: &Pod, path: &str) -> Option<String> {
    let map = match path {
        "metadata.labels" => &pod.metadata.labels,
        "metadata.annotations" => &pod.metadata.annotations,
        _ => return field_ref::of_metadata(pod, path),
    };
    Some(map.as_ref().map(lines).unwrap_or_default())
}

/// `key="value"`, one per line.
fn lines(map: &BTreeMap<String, String>) -> String {
    let lines: Vec<String> = map
        .iter()
        .map(|(key, value)| format!("{key}={}", quoted(value)))
        .collect();
    lines.join("\n")
}

/// A quoted string in Go's syntax.
fn quoted(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for c in text.chars() {
        let escape = match c {
            '"' => r#"\""#,
            '\\' => r"\\",
            '\n' => r"\n",
            '\r' => r"\r",
            '\t' => r"\t",
            '\u{7}' => r"\a",
            '\u{8}' => r"\b",
            '\u{b}' => r"\v",
            '\u{c}' => r"\f",
            _ => "",
        };
        // Writing to a string cannot fail.
        let _ = match c {
            _ if !escape.is_empty() => quoted.write_str(escape),
            c if c.is_ascii_control() => write!(quoted, "\\x{:02x}", u32::from(c)),
            c if c.is_control() => write!(quoted, "\\u{:04x}", u32::from(c)),
            c => quoted.write_char(c),
        };
    }
    quoted.push('"');
    quoted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_lines_of_quoted_values() {
        let pod: Pod = serde_json::from_value(serde_json::json!({
            "metadata": {
                "name": "web", "uid": "u",
                "labels": {"b": "2", "a": "1"},
                "annotations": {"text": "a \"b\"\n\u{1}\u{e9}\\"}
            }
        }))
        .unwrap();
        for (path, expected) in [
            ("metadata.name", Some("web")),
            ("metadata.uid", Some("u")),
            ("metadata.labels", Some("a=\"1\"\nb=\"2\"")),
            ("metadata.labels['b']", Some("2")),
            ("metadata.labels['c']", Some("")),
            ("metadata.annotations", Some(r#"text="a \"b\"\n\x01é\\""#)),
            ("spec.nodeName", None),
            ("spec['a']", None),
        ] {
            assert_eq!(field_value(&pod, path).as_deref(), expected, "{path}");
        }
        assert_eq!(field_value(&Pod::default(), "metadata.labels").unwrap(), "");
    }
}
