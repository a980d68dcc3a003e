//! The environment of a container.

use k8s_openapi::api::core::v1::{Container, Pod};

use super::expansion::expand;
use crate::pod::identity;

/// Why a variable has no value.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum EnvError {
    /// `fieldRef` names a field that environment variables cannot have.
    #[error("env {name}: fieldRef {path:?} is not supported")]
    FieldPath {
        /// Name of the variable.
        name: String,
        /// The path as the spec has it.
        path: String,
    },
    /// The variable comes from a source that is not built.
    #[error("env {0}: the source of its value is not supported")]
    Source(String),
}

/// What a pod learns when it runs on this node.
#[derive(Clone, Debug, Default)]
pub struct Placement<'a> {
    /// Name of the node.
    pub node_name: &'a str,
    /// Addresses of the node, the primary first.
    pub host_ips: &'a [String],
    /// Addresses of the pod, the primary first.
    pub pod_ips: &'a [String],
}

/// Names and values of a container's variables, in the order of its spec. A
/// value may use the variables before it.
///
/// # Errors
/// A value cannot be had.
pub fn environment(
    pod: &Pod,
    container: &Container,
    placement: &Placement<'_>,
) -> Result<Vec<(String, String)>, EnvError> {
    let mut variables: Vec<(String, String)> = Vec::new();
    for variable in container.env.iter().flatten() {
        let value = match (&variable.value, &variable.value_from) {
            (Some(value), _) if !value.is_empty() => expand(value, |name| lookup(&variables, name)),
            (_, Some(source)) => {
                let Some(field) = &source.field_ref else {
                    return Err(EnvError::Source(variable.name.clone()));
                };
                field_value(pod, &field.field_path, placement).ok_or_else(|| {
                    EnvError::FieldPath {
                        name: variable.name.clone(),
                        path: field.field_path.clone(),
                    }
                })?
            }
            _ => String::new(),
        };
        match variables
            .iter_mut()
            .find(|(name, _)| *name == variable.name)
        {
            Some(known) => known.1 = value,
            None => variables.push((variable.name.clone(), value)),
        }
    }
    Ok(variables)
}

/// The value of a variable.
pub fn lookup<'a>(variables: &'a [(String, String)], name: &str) -> Option<&'a str> {
    variables
        .iter()
        .find(|(known, _)| known == name)
        .map(|(_, value)| value.as_str())
}

/// Whether a variable can have the field.
pub fn is_known_field(path: &str) -> bool {
    field_value(&Pod::default(), path, &Placement::default()).is_some()
}

fn field_value(pod: &Pod, path: &str, placement: &Placement<'_>) -> Option<String> {
    if let Some((field, key)) = subscript(path) {
        let map = match field {
            "metadata.labels" => &pod.metadata.labels,
            "metadata.annotations" => &pod.metadata.annotations,
            _ => return None,
        };
        let value = map.as_ref().and_then(|map| map.get(key));
        return Some(value.cloned().unwrap_or_default());
    }
    let spec = pod.spec.as_ref();
    let first = |ips: &[String]| ips.first().cloned().unwrap_or_default();
    Some(match path {
        "metadata.name" => identity::name(pod).to_owned(),
        "metadata.namespace" => identity::namespace(pod).to_owned(),
        "metadata.uid" => pod.metadata.uid.clone().unwrap_or_default(),
        "spec.nodeName" => placement.node_name.to_owned(),
        "spec.serviceAccountName" => spec
            .and_then(|spec| spec.service_account_name.clone())
            .unwrap_or_default(),
        "status.hostIP" => first(placement.host_ips),
        "status.hostIPs" => placement.host_ips.join(","),
        "status.podIP" => first(placement.pod_ips),
        "status.podIPs" => placement.pod_ips.join(","),
        _ => return None,
    })
}

/// `field['key']`.
fn subscript(path: &str) -> Option<(&str, &str)> {
    let (field, rest) = path.split_once("['")?;
    Some((field, rest.strip_suffix("']")?))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::{EnvVar, EnvVarSource, ObjectFieldSelector};

    use super::*;

    fn plain(name: &str, value: &str) -> EnvVar {
        EnvVar {
            name: name.to_owned(),
            value: Some(value.to_owned()),
            value_from: None,
        }
    }

    fn field(name: &str, path: &str) -> EnvVar {
        EnvVar {
            name: name.to_owned(),
            value: None,
            value_from: Some(EnvVarSource {
                field_ref: Some(ObjectFieldSelector {
                    api_version: None,
                    field_path: path.to_owned(),
                }),
                ..EnvVarSource::default()
            }),
        }
    }

    fn environment_of(env: Vec<EnvVar>) -> Result<Vec<(String, String)>, EnvError> {
        let mut pod = Pod::default();
        pod.metadata.name = Some("web".to_owned());
        pod.metadata.labels = Some([("app.x/y".to_owned(), "z".to_owned())].into());
        let container = Container {
            env: Some(env),
            ..Container::default()
        };
        let placement = Placement {
            node_name: "node",
            host_ips: &[],
            pod_ips: &["10.0.0.2".to_owned(), "fd00::2".to_owned()],
        };
        environment(&pod, &container, &placement)
    }

    #[test]
    fn values_use_earlier_variables_and_fields() {
        let env = environment_of(vec![
            field("NAME", "metadata.name"),
            field("IPS", "status.podIPs"),
            field("LABEL", "metadata.labels['app.x/y']"),
            plain("ALL", "$(NAME) $(LABEL) $(LATER)"),
            plain("LATER", "1"),
            plain("LATER", "2"),
        ])
        .unwrap();
        assert_eq!(lookup(&env, "ALL"), Some("web z $(LATER)"));
        assert_eq!(lookup(&env, "IPS"), Some("10.0.0.2,fd00::2"));
        assert_eq!(lookup(&env, "LATER"), Some("2"));
        assert_eq!(env.len(), 5);
    }

    #[test]
    fn an_unknown_field_is_named() {
        let error = environment_of(vec![field("X", "status.phase")]).unwrap_err();
        assert!(error.to_string().contains("status.phase"));
    }
}
