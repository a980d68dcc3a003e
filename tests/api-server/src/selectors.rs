//! The label and field selectors of lists and watches.

use serde_json::Value;

use super::{errors::ApiError, resources::Resource};

/// The selectors of a list or watch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Selectors {
    labels: Vec<LabelRequirement>,
    fields: Vec<FieldRequirement>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum LabelRequirement {
    In(String, Vec<String>),
    NotIn(String, Vec<String>),
    Exists(String),
    Missing(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct FieldRequirement {
    field: String,
    value: String,
    equal: bool,
}

/// The fields by which a resource can be selected, besides its name and namespace.
fn selectable(resource: &Resource) -> &'static [&'static str] {
    match resource.plural {
        "pods" => &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ],
        "nodes" => &["spec.unschedulable"],
        "namespaces" => &["status.phase"],
        "secrets" => &["type"],
        "services" => &["spec.clusterIP", "spec.type"],
        "certificatesigningrequests" | "clustertrustbundles" => &["spec.signerName"],
        "resourceslices" => &["spec.nodeName", "spec.driver"],
        "events" => &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "regarding.kind",
            "regarding.namespace",
            "regarding.name",
            "regarding.uid",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
        _ => &[],
    }
}

impl Selectors {
    /// Parses `labelSelector` and `fieldSelector`.
    pub(super) fn parse(resource: &Resource, labels: &str, fields: &str) -> Result<Self, ApiError> {
        let mut parsed = Self::default();
        for requirement in split_outside_parentheses(labels) {
            parsed.labels.push(label_requirement(requirement)?);
        }
        for requirement in fields.split(',').filter(|one| !one.is_empty()) {
            let requirement = field_requirement(requirement)?;
            let field = requirement.field.as_str();
            let known = field == "metadata.name"
                || (resource.namespaced && field == "metadata.namespace")
                || selectable(resource).contains(&field);
            if !known {
                return Err(ApiError::bad_request(format!(
                    "Unable to find {:?} that match label selector {labels:?}, field selector {fields:?}: field label not supported: {field}",
                    resource.api_version() + ", Resource=" + resource.plural,
                )));
            }
            parsed.fields.push(requirement);
        }
        Ok(parsed)
    }

    /// Whether a stored object matches.
    pub(super) fn match_object(&self, object: &Value) -> bool {
        let labels = &object["metadata"]["labels"];
        self.labels.iter().all(|one| one.matches(labels))
            && self
                .fields
                .iter()
                .all(|one| (field(object, &one.field) == one.value) == one.equal)
    }
}

/// The value of a field for selectors; empty if the field is missing.
fn field(object: &Value, path: &str) -> String {
    let path = match path.strip_prefix("regarding.") {
        Some(rest) => format!("involvedObject.{rest}"),
        None => path.to_owned(),
    };
    if path == "source" {
        let component = object["source"]["component"].as_str().unwrap_or_default();
        return if component.is_empty() {
            object["reportingComponent"]
                .as_str()
                .unwrap_or_default()
                .to_owned()
        } else {
            component.to_owned()
        };
    }
    let boolean = matches!(path.as_str(), "spec.unschedulable" | "spec.hostNetwork");
    match path.split('.').fold(object, |value, key| &value[key]) {
        Value::String(text) => text.clone(),
        Value::Null if boolean => "false".to_owned(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

impl LabelRequirement {
    fn matches(&self, labels: &Value) -> bool {
        match self {
            Self::In(key, values) => labels[key]
                .as_str()
                .is_some_and(|value| values.iter().any(|one| one == value)),
            Self::NotIn(key, values) => labels[key]
                .as_str()
                .is_none_or(|value| values.iter().all(|one| one != value)),
            Self::Exists(key) => labels[key].is_string(),
            Self::Missing(key) => !labels[key].is_string(),
        }
    }
}

fn split_outside_parentheses(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0_i32;
    text.split(move |character| {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        character == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|one| !one.is_empty())
}

fn label_requirement(text: &str) -> Result<LabelRequirement, ApiError> {
    if let Some(key) = text.strip_prefix('!') {
        return Ok(LabelRequirement::Missing(key.trim().to_owned()));
    }
    if let Some((head, list)) = text.split_once('(') {
        let list = list.trim_end().strip_suffix(')');
        let values = list
            .ok_or_else(|| unreadable(text))?
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let words: Vec<_> = head.split_whitespace().collect();
        return match words.as_slice() {
            [key, "in"] => Ok(LabelRequirement::In((*key).to_owned(), values)),
            [key, "notin"] => Ok(LabelRequirement::NotIn((*key).to_owned(), values)),
            _ => Err(unreadable(text)),
        };
    }
    let pair = |key: &str, value: &str| (key.trim().to_owned(), vec![value.trim().to_owned()]);
    if let Some((key, value)) = text.split_once("!=") {
        let (key, values) = pair(key, value);
        return Ok(LabelRequirement::NotIn(key, values));
    }
    if let Some((key, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        let (key, values) = pair(key, value);
        return Ok(LabelRequirement::In(key, values));
    }
    if text.contains(char::is_whitespace) {
        return Err(unreadable(text));
    }
    Ok(LabelRequirement::Exists(text.to_owned()))
}

fn field_requirement(text: &str) -> Result<FieldRequirement, ApiError> {
    let (field, value, equal) = if let Some((field, value)) = text.split_once("!=") {
        (field, value, false)
    } else if let Some((field, value)) = text.split_once("==").or_else(|| text.split_once('=')) {
        (field, value, true)
    } else {
        return Err(unreadable(text));
    };
    Ok(FieldRequirement {
        field: field.trim().to_owned(),
        value: value.trim().to_owned(),
        equal,
    })
}

fn unreadable(text: &str) -> ApiError {
    ApiError::bad_request(format!(
        "unable to parse requirement: found {text:?}, expected: a selector"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::resources::find;

    fn matches(labels: &str, fields: &str) -> bool {
        let pods = find("", "v1", "pods").unwrap();
        let pod = json!({
            "metadata": {"name": "web", "namespace": "shop", "labels": {"app": "web", "tier": "front"}},
            "spec": {"nodeName": "n1"}, "status": {"phase": "Running"},
        });
        Selectors::parse(pods, labels, fields)
            .unwrap()
            .match_object(&pod)
    }

    #[test]
    fn labels_select_as_kubectl_writes_them() {
        for (selector, expected) in [
            ("app=web", true),
            ("app==web,tier=front", true),
            ("app in (api, web),tier", true),
            ("app notin (api,web)", false),
            ("!app", false),
            ("!other,app!=api", true),
            ("other!=x", true),
        ] {
            assert_eq!(matches(selector, ""), expected, "{selector}");
        }
    }

    #[test]
    fn fields_select_by_node_phase_and_name() {
        for (selector, expected) in [
            ("spec.nodeName=n1", true),
            ("spec.nodeName=n2", false),
            ("spec.nodeName!=n2,metadata.name=web", true),
            ("status.phase!=Succeeded,metadata.namespace==shop", true),
            ("spec.hostNetwork=false", true),
        ] {
            assert_eq!(matches("", selector), expected, "{selector}");
        }
    }

    #[test]
    fn a_field_that_cannot_be_selected_by_is_refused() {
        let pods = find("", "v1", "pods").unwrap();
        let error = Selectors::parse(pods, "", "spec.colour=red").unwrap_err();
        assert_eq!(error.code, 400);
        assert!(error.message.contains("field label not supported"));
    }
}
