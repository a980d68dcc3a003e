//! Names of Docker containers, as in cri-dockerd: `k8s_POD_<pod>_<namespace>_<uid>_<attempt>` for a
//! sandbox, `k8s_<container>_<pod>_<namespace>_<uid>_<attempt>` for a container. The engine refuses
//! a second container with the same name, which makes creation idempotent.

use cri_proto::runtime::v1::{ContainerMetadata, PodSandboxMetadata};

use crate::Error;

const PREFIX: &str = "k8s";
const SANDBOX: &str = "POD";
const DELIMITER: char = '_';

/// The Docker name of a sandbox.
///
/// # Errors
/// `InvalidArgument` names the field that is missing or not allowed in a name.
pub fn sandbox_name(metadata: &PodSandboxMetadata) -> Result<String, Error> {
    join(SANDBOX, metadata, metadata.attempt)
}

/// The Docker name of a container of the pod `sandbox`.
///
/// # Errors
/// `InvalidArgument` names the field that is missing or not allowed in a name.
pub fn container_name(
    sandbox: &PodSandboxMetadata,
    metadata: &ContainerMetadata,
) -> Result<String, Error> {
    part("config.metadata.name", &metadata.name, false)?;
    if metadata.name == SANDBOX {
        return Err(Error::invalid(
            "config.metadata.name",
            "\"POD\" names the sandbox itself",
        ));
    }
    join(&metadata.name, sandbox, metadata.attempt)
}

fn join(first: &str, pod: &PodSandboxMetadata, attempt: u32) -> Result<String, Error> {
    let name = part("sandbox metadata.name", &pod.name, false)?;
    let namespace = part("sandbox metadata.namespace", &pod.namespace, false)?;
    let uid = part("sandbox metadata.uid", &pod.uid, true)?;
    Ok(format!(
        "{PREFIX}_{first}_{name}_{namespace}_{uid}_{attempt}"
    ))
}

fn part<'a>(field: &str, value: &'a str, may_be_empty: bool) -> Result<&'a str, Error> {
    if value.is_empty() && !may_be_empty {
        return Err(Error::invalid(field, "must not be empty"));
    }
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    match value.chars().find(|c| !fits(*c)) {
        Some(c) => Err(Error::invalid(
            field,
            format!("{value:?} contains {c:?}; allowed: letters, digits, '-', '.'"),
        )),
        None => Ok(value),
    }
}

/// Parses a sandbox's metadata from its Docker name; `None` if it is not a sandbox's name.
/// Tolerates a leading `/` and the random suffix that is added after a name conflict.
pub fn parse_sandbox_name(name: &str) -> Option<PodSandboxMetadata> {
    let [first, pod, namespace, uid, attempt] = split(name)?;
    (first == SANDBOX).then_some(PodSandboxMetadata {
        name: pod.into(),
        uid: uid.into(),
        namespace: namespace.into(),
        attempt: attempt.parse().ok()?,
    })
}

/// Parses a container's metadata from its Docker name; `None` if it is not a container's name.
pub fn parse_container_name(name: &str) -> Option<ContainerMetadata> {
    let [first, _, _, _, attempt] = split(name)?;
    (first != SANDBOX).then_some(ContainerMetadata {
        name: first.into(),
        attempt: attempt.parse().ok()?,
    })
}

fn split(name: &str) -> Option<[&str; 5]> {
    let mut parts = name.trim_start_matches('/').split(DELIMITER);
    if parts.next()? != PREFIX {
        return None;
    }
    let found = [
        parts.next()?,
        parts.next()?,
        parts.next()?,
        parts.next()?,
        parts.next()?,
    ];
    let _random_suffix = parts.next();
    parts.next().is_none().then_some(found)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod() -> impl Strategy<Value = PodSandboxMetadata> {
        (
            "[a-z0-9][a-z0-9.-]{0,30}",
            "[a-z0-9][a-z0-9-]{0,20}",
            "[a-f0-9-]{0,36}",
            any::<u32>(),
        )
            .prop_map(|(name, namespace, uid, attempt)| PodSandboxMetadata {
                name,
                uid,
                namespace,
                attempt,
            })
    }

    proptest! {
        #[test]
        fn sandbox_names_round_trip(metadata in pod()) {
            let name = sandbox_name(&metadata).unwrap();
            prop_assert_eq!(parse_sandbox_name(&format!("/{name}")), Some(metadata.clone()));
            prop_assert_eq!(parse_sandbox_name(&format!("{name}_0a1b2c3d")), Some(metadata));
            prop_assert_eq!(parse_container_name(&name), None);
        }

        #[test]
        fn container_names_round_trip(
            sandbox in pod(),
            name in "[a-z0-9][a-z0-9-]{0,30}",
            attempt in any::<u32>(),
        ) {
            let metadata = ContainerMetadata { name, attempt };
            let docker = container_name(&sandbox, &metadata).unwrap();
            prop_assert_eq!(parse_container_name(&docker), Some(metadata));
            prop_assert_eq!(parse_sandbox_name(&docker), None);
        }

        #[test]
        fn any_name_is_read_without_panic(name in ".{0,80}") {
            let _ = parse_sandbox_name(&name);
            let _ = parse_container_name(&name);
        }
    }

    #[test]
    fn a_delimiter_in_a_name_is_refused_by_field() {
        let metadata = PodSandboxMetadata {
            name: "my_pod".into(),
            namespace: "default".into(),
            ..Default::default()
        };
        let error = sandbox_name(&metadata).unwrap_err();
        assert!(error.to_string().contains("metadata.name"), "{error}");
    }
}
