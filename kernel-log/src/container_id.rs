//! Container IDs in the paths of cgroups.

/// Length of the IDs of Docker, containerd and CRI-O.
const LENGTH: usize = 64;
/// Suffix of the cgroups that systemd creates.
const SCOPE: &str = ".scope";
/// The monitor of a container, whose cgroup has the ID of the container in its name.
const MONITOR: &str = "conmon-";

/// The container that a cgroup belongs to: the outermost ID in its path. A container may give the
/// cgroups below its own the names of others.
pub(crate) fn of_cgroup(path: &str) -> Option<&str> {
    path.split('/').find_map(of_name)
}

fn of_name(name: &str) -> Option<&str> {
    let name = name.strip_suffix(SCOPE).unwrap_or(name);
    let id = name.rsplit(['-', '_']).next()?;
    let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    let is_id = id.len() == LENGTH && id.bytes().all(hex);
    (is_id && !name.contains(MONITOR)).then_some(id)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn cgroups_of_every_runtime_and_driver_have_the_id() {
        let pod = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice";
        for path in [
            format!("/docker/{ID}"),
            format!("/docker/{ID}/init.scope"),
            format!("/kubepods/burstable/pod1-2/{ID}"),
            format!("/kubepods/burstable/pod1-2/crio-{ID}"),
            format!("{pod}/docker-{ID}.scope"),
            format!("{pod}/cri-containerd-{ID}.scope"),
            format!("{pod}/crio-{ID}.scope/container"),
        ] {
            assert_eq!(of_cgroup(&path), Some(ID), "{path}");
        }
    }

    #[test]
    fn other_cgroups_have_none() {
        for path in [
            String::new(),
            "/".to_owned(),
            "/user.slice".to_owned(),
            format!("/docker/{}", &ID[1..]),
            format!("/docker/{ID}0"),
            format!("/docker/{}", ID.to_uppercase()),
            format!("/kubepods/pod1/crio-conmon-{ID}.scope"),
        ] {
            assert_eq!(of_cgroup(&path), None, "{path}");
        }
    }

    #[test]
    fn a_container_cannot_name_another() {
        let own = "f".repeat(64);
        let path = format!("/kubepods/pod1/{own}/kubepods/pod2/{ID}");
        assert_eq!(of_cgroup(&path), Some(own.as_str()));
    }
}
