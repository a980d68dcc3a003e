//! A security context as a whole.

use bollard::models::{ContainerCreateBody, HostConfig};
use cri_proto::runtime::v1::{
    LinuxContainerSecurityContext, LinuxSandboxSecurityContext, NamespaceOption,
    SupplementalGroupsPolicy,
};

use super::{apparmor, capabilities, namespaces, seccomp, selinux};
use crate::Error;

const FIELD: &str = "linux.security_context";
const NO_NEW_PRIVILEGES: &str = "no-new-privileges";

/// Puts a sandbox's security context into what the engine is asked to create. The
/// sandbox runs the pause program alone, under the engine's default profiles.
///
/// # Errors
/// `InvalidArgument` or `Unsupported`, naming the field.
pub fn apply_to_sandbox(
    context: LinuxSandboxSecurityContext,
    body: &mut ContainerCreateBody,
    host: &mut HostConfig,
) -> Result<(), Error> {
    refuse_strict_groups(context.supplemental_groups_policy())?;
    let user = user(
        context.run_as_user.map(|user| user.value.to_string()),
        context.run_as_group.map(|group| group.value),
    )?;
    // The image's own user otherwise.
    body.user = user;
    host.group_add = groups(&context.supplemental_groups);
    host.readonly_rootfs = Some(context.readonly_rootfs);
    let mut options = vec![NO_NEW_PRIVILEGES.to_owned()];
    options.extend(selinux::options(context.selinux_options.as_ref()));
    host.security_opt = Some(options);
    namespaces::of_sandbox(&context.namespace_options.unwrap_or_default(), host)
}

/// Puts a container's security context into what the engine is asked to create.
/// `target` is the full id of the container that `namespace_options.target_id` names.
///
/// # Errors
/// `InvalidArgument` or `Unsupported`, naming the field.
pub async fn apply_to_container(
    context: Option<LinuxContainerSecurityContext>,
    sandbox: &str,
    target: Option<&str>,
    body: &mut ContainerCreateBody,
    host: &mut HostConfig,
) -> Result<(), Error> {
    let Some(context) = context else {
        // Nothing said: the engine's defaults, in the sandbox's namespaces.
        return namespaces::of_container(&NamespaceOption::default(), sandbox, target, host);
    };
    refuse_strict_groups(context.supplemental_groups_policy())?;
    if !context.seccomp_profile_path.is_empty() && context.seccomp.is_none() {
        return Err(Error::unsupported(
            format!("{FIELD}.seccomp_profile_path"),
            "is out of use; give seccomp",
        ));
    }
    let by_name = Some(context.run_as_username.clone()).filter(|name| !name.is_empty());
    let by_id = context.run_as_user.map(|user| user.value.to_string());
    body.user = user(
        by_name.or(by_id),
        context.run_as_group.map(|group| group.value),
    )?;
    host.group_add = groups(&context.supplemental_groups);
    host.privileged = Some(context.privileged);
    host.readonly_rootfs = Some(context.readonly_rootfs);
    capabilities::apply(context.capabilities.clone(), host)?;

    let mut options: Vec<String> = selinux::options(context.selinux_options.as_ref()).collect();
    options.extend(apparmor::option(
        context.apparmor.as_ref(),
        &context.apparmor_profile,
    )?);
    options.extend(seccomp::option(context.seccomp.as_ref()).await?);
    if context.no_new_privs {
        options.push(NO_NEW_PRIVILEGES.to_owned());
    }
    host.security_opt = Some(options);
    if !context.privileged {
        // Exactly what is asked: none means unmasked, as a pod's `procMount` may want.
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

fn user(user: Option<String>, group: Option<i64>) -> Result<Option<String>, Error> {
    match (user, group) {
        (Some(user), Some(group)) => Ok(Some(format!("{user}:{group}"))),
        (Some(user), None) => Ok(Some(user)),
        (None, None) => Ok(None),
        (None, Some(_)) => Err(Error::invalid(
            format!("{FIELD}.run_as_group"),
            "needs run_as_user or run_as_username",
        )),
    }
}

fn groups(groups: &[i64]) -> Option<Vec<String>> {
    Some(groups.iter().map(i64::to_string).collect())
}

fn refuse_strict_groups(policy: SupplementalGroupsPolicy) -> Result<(), Error> {
    match policy {
        SupplementalGroupsPolicy::Merge => Ok(()),
        SupplementalGroupsPolicy::Strict => Err(Error::unsupported(
            format!("{FIELD}.supplemental_groups_policy"),
            "the Docker engine always merges the image's groups; Strict cannot be had",
        )),
    }
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::{Int64Value, SecurityProfile};

    use super::*;

    async fn apply(
        context: LinuxContainerSecurityContext,
    ) -> Result<(ContainerCreateBody, HostConfig), Error> {
        let (mut body, mut host) = Default::default();
        apply_to_container(Some(context), "s", None, &mut body, &mut host).await?;
        Ok((body, host))
    }

    #[tokio::test]
    async fn user_and_group() {
        let id = |value| Some(Int64Value { value });
        let context = LinuxContainerSecurityContext {
            run_as_user: id(1000),
            run_as_group: id(2000),
            supplemental_groups: vec![3, 4],
            ..Default::default()
        };
        let (body, host) = apply(context).await.unwrap();
        assert_eq!(body.user.as_deref(), Some("1000:2000"));
        assert_eq!(host.group_add.unwrap(), ["3", "4"]);
        let context = LinuxContainerSecurityContext {
            run_as_group: id(2000),
            ..Default::default()
        };
        let error = apply(context).await.unwrap_err();
        assert!(error.to_string().contains("run_as_group"), "{error}");
    }

    #[tokio::test]
    async fn options_of_an_unprivileged_container() {
        let context = LinuxContainerSecurityContext {
            no_new_privs: true,
            seccomp: Some(SecurityProfile::default()),
            masked_paths: vec!["/proc/kcore".into()],
            ..Default::default()
        };
        let (_, host) = apply(context).await.unwrap();
        assert_eq!(host.security_opt.unwrap(), ["no-new-privileges"]);
        assert_eq!(host.masked_paths.unwrap(), ["/proc/kcore"]);
        assert_eq!(host.readonly_paths.unwrap(), [""; 0]);
    }

    #[tokio::test]
    async fn strict_groups_are_refused_by_name() {
        let context = LinuxContainerSecurityContext {
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict.into(),
            ..Default::default()
        };
        let error = apply(context).await.unwrap_err();
        assert!(
            error.to_string().contains("supplemental_groups_policy"),
            "{error}"
        );
    }
}
