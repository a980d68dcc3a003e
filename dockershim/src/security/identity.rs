//! The user and groups that a container runs as. They are resolved here, from the image's files,
//! and passed to the engine as numbers: the engine does not support the Strict policy for
//! supplemental groups, and does not report how it resolved a name.

use cri_proto::runtime::v1::{LinuxContainerSecurityContext, SupplementalGroupsPolicy};

use crate::{
    Error,
    images::{Accounts, PasswdEntry},
    labels::user::Identity,
};

const FIELD: &str = "config.linux.security_context";

impl Identity {
    /// Whether [`Identity::resolve`] needs the image's accounts: for a name, for the primary group
    /// of a user without an explicit group, or for merged groups.
    pub fn needs_accounts(context: &LinuxContainerSecurityContext, image_user: &str) -> bool {
        let (image_user, image_group) = split(image_user);
        let is_number = |text: &str| text.parse::<i64>().is_ok();
        let by_number = context.run_as_user.is_some()
            || (context.run_as_username.is_empty() && is_number(image_user))
            || is_number(&context.run_as_username);
        let of_image = context.run_as_user.is_none() && context.run_as_username.is_empty();
        let group_by_number =
            context.run_as_group.is_some() || (of_image && image_group.is_some_and(is_number));
        let strict = context.supplemental_groups_policy() == SupplementalGroupsPolicy::Strict;
        !(by_number && group_by_number && strict)
    }

    /// Resolves the identity of a container with `context`, whose image has the configured user
    /// `image_user` (`user[:group]`, or empty) and `accounts`.
    ///
    /// # Errors
    /// `InvalidArgument` naming the field.
    pub fn resolve(
        context: &LinuxContainerSecurityContext,
        image_user: &str,
        accounts: &Accounts,
    ) -> Result<Self, Error> {
        let (image_user, image_group) = split(image_user);
        let by_name = &context.run_as_username;
        let ((uid, known), image_group) = match &context.run_as_user {
            Some(user) => ((user.value, accounts.by_uid(user.value)), None),
            None if by_name.is_empty() => {
                (user(image_user, "config.image", accounts)?, image_group)
            }
            None => {
                let field = format!("{FIELD}.run_as_username");
                (user(by_name, &field, accounts)?, None)
            }
        };
        let gid = match (&context.run_as_group, image_group) {
            (Some(_), _) if context.run_as_user.is_none() && by_name.is_empty() => {
                return Err(Error::invalid(
                    format!("{FIELD}.run_as_group"),
                    "requires run_as_user or run_as_username",
                ));
            }
            (Some(group), _) => group.value,
            (None, Some(group)) => match group.parse() {
                Ok(gid) => gid,
                Err(_) => accounts.gid(group).ok_or_else(|| {
                    let reason = format!(
                        "the image runs as group {group:?}, which is not in its /etc/group"
                    );
                    Error::invalid("config.image", reason)
                })?,
            },
            (None, None) => known.map_or(0, |user| user.gid),
        };
        let mut groups = vec![gid];
        if context.supplemental_groups_policy() == SupplementalGroupsPolicy::Merge
            && let Some(known) = known
        {
            groups.extend(accounts.groups_of(&known.name));
        }
        groups.extend(&context.supplemental_groups);
        groups.sort_unstable();
        groups.dedup();
        for (name, number) in [("run_as_user", uid), ("run_as_group", gid)]
            .into_iter()
            .chain(groups.iter().map(|group| ("supplemental_groups", *group)))
        {
            if !(0..=i64::from(i32::MAX)).contains(&number) {
                let reason = format!("{number}; allowed: 0 to {}", i32::MAX);
                return Err(Error::invalid(format!("{FIELD}.{name}"), reason));
            }
        }
        Ok(Self { uid, gid, groups })
    }

    /// The user in the engine's notation.
    pub fn user(&self) -> String {
        format!("{}:{}", self.uid, self.gid)
    }

    /// The supplemental groups in the engine's notation.
    pub fn groups(&self) -> Vec<String> {
        self.groups.iter().map(i64::to_string).collect()
    }
}

/// Splits `user[:group]`; an empty group is `None`.
fn split(image_user: &str) -> (&str, Option<&str>) {
    match image_user.split_once(':') {
        Some((user, group)) => (user, Some(group).filter(|group| !group.is_empty())),
        None => (image_user, None),
    }
}

/// Resolves a name or a number, or root if empty, to the uid and the account; for a name, the
/// account is that name's even if several share the uid. A number is never treated as a name,
/// because the kubelet treats it as the uid when it checks `runAsNonRoot`.
fn user<'a>(
    text: &str,
    field: &str,
    accounts: &'a Accounts,
) -> Result<(i64, Option<&'a PasswdEntry>), Error> {
    let number = if text.is_empty() { Ok(0) } else { text.parse() };
    if let Ok(uid) = number {
        return Ok((uid, accounts.by_uid(uid)));
    }
    match accounts.by_name(text) {
        Some(found) => Ok((found.uid, Some(found))),
        None => {
            let reason = format!("user {text:?} is not in the image's /etc/passwd");
            Err(Error::invalid(field, reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use cri_proto::runtime::v1::Int64Value;

    use super::*;

    fn accounts() -> Accounts {
        Accounts::parse(
            "root:x:0:0::/:\nweb:x:1000:1001::/:\nalias:x:1000:77::/:\n",
            "wheel:x:10:root\nfiles:x:50:web\nweb:x:1001:\nmore:x:60:alias\n",
        )
    }

    fn resolve(
        context: LinuxContainerSecurityContext,
        image_user: &str,
    ) -> Result<(String, Vec<i64>), Error> {
        let identity = Identity::resolve(&context, image_user, &accounts())?;
        Ok((identity.user(), identity.groups))
    }

    fn as_user(value: i64) -> LinuxContainerSecurityContext {
        LinuxContainerSecurityContext {
            run_as_user: Some(Int64Value { value }),
            supplemental_groups: vec![7],
            ..Default::default()
        }
    }

    #[test]
    fn the_images_user_and_groups() {
        let default = LinuxContainerSecurityContext::default;
        for (image_user, user, groups) in [
            ("", "0:0", vec![0, 10]),
            ("web", "1000:1001", vec![50, 1001]),
            ("1000", "1000:1001", vec![50, 1001]),
            ("web:files", "1000:50", vec![50]),
            ("5:6", "5:6", vec![6]),
            ("5", "5:0", vec![0]),
            ("alias", "1000:77", vec![60, 77]),
            ("2147483647", "2147483647:0", vec![0]),
        ] {
            let found = resolve(default(), image_user).unwrap();
            assert_eq!(found, (user.to_owned(), groups), "{image_user}");
        }
        for unknown in ["nobody", "web:nobody"] {
            let error = resolve(default(), unknown).unwrap_err().to_string();
            assert!(error.contains("config.image"), "{error}");
        }
    }

    #[test]
    fn a_number_is_never_a_name() {
        let accounts = Accounts::parse("1000:x:0:0::/:\nroot:x:0:0::/:\n", "1000:x:0:\n");
        let context = LinuxContainerSecurityContext::default();
        for (image_user, user) in [("1000", "1000:0"), ("1000:1000", "1000:1000")] {
            let found = Identity::resolve(&context, image_user, &accounts).unwrap();
            assert_eq!(found.user(), user);
        }
        let by_name = LinuxContainerSecurityContext {
            run_as_username: "1000".into(),
            ..Default::default()
        };
        let found = Identity::resolve(&by_name, "", &accounts).unwrap();
        assert_eq!(found.user(), "1000:0");
    }

    #[test]
    fn accounts_are_needed_where_they_make_a_difference() {
        let strict = |user: Option<i64>, group: Option<i64>| LinuxContainerSecurityContext {
            run_as_user: user.map(|value| Int64Value { value }),
            run_as_group: group.map(|value| Int64Value { value }),
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict.into(),
            ..Default::default()
        };
        for (context, image_user, needed) in [
            (strict(Some(1), Some(2)), "web", false),
            (strict(None, None), "1:2", false),
            (strict(Some(1), None), "1:2", true),
            (strict(None, None), "1", true),
            (strict(None, None), "web:2", true),
            (strict(None, None), "1:web", true),
            (strict(None, None), "", true),
            (as_user(1), "1:2", true),
        ] {
            let found = Identity::needs_accounts(&context, image_user);
            assert_eq!(found, needed, "{context:?} {image_user:?}");
        }
    }

    #[test]
    fn groups_are_merged_or_strict() {
        assert_eq!(
            resolve(as_user(1000), "").unwrap(),
            ("1000:1001".to_owned(), vec![7, 50, 1001])
        );
        let strict = LinuxContainerSecurityContext {
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict.into(),
            ..as_user(1000)
        };
        assert_eq!(
            resolve(strict, "root").unwrap(),
            ("1000:1001".to_owned(), vec![7, 1001])
        );
        let group = LinuxContainerSecurityContext {
            run_as_group: Some(Int64Value { value: 9 }),
            ..as_user(1000)
        };
        assert_eq!(
            resolve(group, "").unwrap(),
            ("1000:9".to_owned(), vec![7, 9, 50])
        );
    }

    #[test]
    fn what_cannot_be_is_named() {
        let group_alone = LinuxContainerSecurityContext {
            run_as_group: Some(Int64Value { value: 9 }),
            ..Default::default()
        };
        let no_such_name = LinuxContainerSecurityContext {
            run_as_username: "nobody".into(),
            ..Default::default()
        };
        for (context, field) in [
            (group_alone, "run_as_group"),
            (no_such_name, "run_as_username"),
            (as_user(-1), "run_as_user"),
        ] {
            let error = resolve(context, "").unwrap_err();
            assert_eq!(error.code(), tonic::Code::InvalidArgument);
            assert!(error.to_string().contains(field), "{error}");
        }
    }
}
