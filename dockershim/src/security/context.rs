//! Security contexts.

use bollard::models::{ContainerCreateBody, HostConfig, HostConfigCgroupnsModeEnum};
use cri_proto::runtime::v1::{
    Int64Value, LinuxContainerSecurityContext, LinuxSandboxSecurityContext, NamespaceOption,
};

use super::{apparmor, capabilities, namespaces, seccomp, selinux};
use crate::Error;

const FIELD: &str = "linux.security_context";
const NO_NEW_PRIVILEGES: &str = "no-new-privileges";

/// Sets a sandbox's security context in the engine's create request. The sandbox runs only the
/// pause program, with the engine's default profiles.
///
/// # Errors
/// `InvalidArgument` or `Unsupported`, naming the field.
pub fn apply_to_sandbox(
    context: LinuxSandboxSecurityContext,
    body: &mut ContainerCreateBody,
    host: &mut HostConfig,
) -> Result<(), Error> {
    // Without a user, the image's. The image has no group file, so both supplemental groups
    // policies have the same result.
    body.user = user(context.run_as_user, context.run_as_group)?;
    let groups = context.supplemental_groups.iter().map(i64::to_string);
    host.group_add = Some(groups.collect());
    host.readonly_rootfs = Some(context.readonly_rootfs);
    let mut options = vec![NO_NEW_PRIVILEGES.to_owned()];
    options.extend(selinux::options(context.selinux_options.as_ref()));
    host.security_opt = Some(options);
    namespaces::of_sandbox(&context.namespace_options.unwrap_or_default(), host)
}

/// The objects that a container's security context refers to.
pub struct SecurityInputs<'a> {
    /// The sandbox's full id.
    pub sandbox: &'a str,
    /// The full id of the container in `namespace_options.target_id`.
    pub target: Option<&'a str>,
    /// The capabilities that the engine can grant, as a bit set.
    pub capabilities: u64,
}

/// Sets a container's security context in the engine's create request, except for its user, which
/// is handled by [`Identity`](crate::labels::user::Identity).
///
/// # Errors
/// `InvalidArgument` or `Unsupported`, naming the field.
pub async fn apply_to_container(
    context: Option<LinuxContainerSecurityContext>,
    inputs: SecurityInputs<'_>,
    host: &mut HostConfig,
) -> Result<(), Error> {
    let SecurityInputs {
        sandbox,
        target,
        capabilities: available,
    } = inputs;
    let Some(context) = context else {
        // Without a context: the engine's defaults, in the sandbox's namespaces.
        return namespaces::of_container(&NamespaceOption::default(), sandbox, target, host);
    };
    if !context.seccomp_profile_path.is_empty() && context.seccomp.is_none() {
        return Err(Error::unsupported(
            format!("{FIELD}.seccomp_profile_path"),
            "deprecated; use seccomp",
        ));
    }
    host.privileged = Some(context.privileged);
    host.readonly_rootfs = Some(context.readonly_rootfs);
    capabilities::apply(context.capabilities.as_ref(), available, host)?;

    let mut options: Vec<String> = selinux::options(context.selinux_options.as_ref()).collect();
    options.extend(apparmor::option(
        context.apparmor.as_ref(),
        &context.apparmor_profile,
    )?);
    // CRI specifies that privileged containers run without a seccomp profile, but newer engines
    // apply one if it is set.
    let profile = context.seccomp.as_ref().filter(|_| !context.privileged);
    options.extend(seccomp::option(profile).await?);
    if context.no_new_privs {
        options.push(NO_NEW_PRIVILEGES.to_owned());
    }
    host.security_opt = Some(options);
    if context.privileged {
        // It sees the node's cgroups by their names on the node, as with other runtimes.
        host.cgroupns_mode = Some(HostConfigCgroupnsModeEnum::HOST);
    } else {
        // Exactly what was requested: an empty list means unmasked, as for a pod's `procMount`.
        host.masked_paths = Some(context.masked_paths);
        host.readonly_paths = Some(context.readonly_paths);
    }
    namespaces::of_container(
        &context.namespace_options.unwrap_or_default(),
        sandbox,
        target,
        host,
    )
}

fn user(user: Option<Int64Value>, group: Option<Int64Value>) -> Result<Option<String>, Error> {
    match (user, group) {
        (Some(user), Some(group)) => Ok(Some(format!("{}:{}", user.value, group.value))),
        (Some(user), None) => Ok(Some(user.value.to_string())),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::invalid(
            format!("{FIELD}.run_as_group"),
            "requires run_as_user",
        )),
    }
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::{SecurityProfile, security_profile::ProfileType};

    use super::*;

    #[tokio::test]
    async fn options_of_an_unprivileged_container() {
        let context = LinuxContainerSecurityContext {
            no_new_privs: true,
            seccomp: Some(SecurityProfile::default()),
            masked_paths: vec!["/proc/kcore".into()],
            ..Default::default()
        };
        let inputs = SecurityInputs {
            sandbox: "s",
            target: None,
            capabilities: 0,
        };
        let mut host = HostConfig::default();
        apply_to_container(Some(context), inputs, &mut host)
            .await
            .unwrap();
        assert_eq!(host.cgroupns_mode, None);
        assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
        assert_eq!(host.masked_paths.unwrap(), ["/proc/kcore"]);
        assert_eq!(host.readonly_paths.unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn a_privileged_container_has_no_seccomp_profile() {
        let context = LinuxContainerSecurityContext {
            privileged: true,
            seccomp: Some(SecurityProfile {
                profile_type: ProfileType::Localhost.into(),
                localhost_ref: "/profiles/block-hostname.json".into(),
            }),
            ..Default::default()
        };
        let inputs = SecurityInputs {
            sandbox: "s",
            target: None,
            capabilities: 0,
        };
        let mut host = HostConfig::default();
        apply_to_container(Some(context), inputs, &mut host)
            .await
            .unwrap();
        assert_eq!(host.cgroupns_mode, Some(HostConfigCgroupnsModeEnum::HOST));
        assert_eq!(host.security_opt.unwrap(), ["seccomp=unconfined"]);
    }

    #[test]
    fn a_sandboxs_group_needs_a_user() {
        let context = LinuxSandboxSecurityContext {
            run_as_group: Some(Int64Value { value: 5 }),
            ..Default::default()
        };
        let (mut body, mut host) = Default::default();
        let error = apply_to_sandbox(context, &mut body, &mut host).unwrap_err();
        assert!(error.to_string().contains("run_as_group"), "{error}");
    }
}
