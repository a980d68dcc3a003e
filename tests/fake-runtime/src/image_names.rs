//! Normalised image names, as real runtimes store them: with registry, full path, and tag or
//! digest.

/// The registry of names that give none.
const REGISTRY: &str = "docker.io";

/// Adds the registry, the full path and the tag to a name; a digest replaces the tag. An image id
/// stays as it is.
pub(super) fn normalised(name: &str) -> String {
    if name.starts_with("sha256:") {
        return name.to_owned();
    }
    let (rest, digest) = match name.split_once('@') {
        Some((rest, digest)) => (rest, Some(digest)),
        None => (name, None),
    };
    let path_begins = rest.rfind('/').map_or(0, |slash| slash + 1);
    let (repository, tag) = match rest[path_begins..].find(':') {
        Some(colon) => rest.split_at(path_begins + colon),
        None => (rest, ":latest"),
    };
    let (domain, path) = match repository.split_once('/') {
        Some((first, path)) if first.contains(['.', ':']) || first == "localhost" => (first, path),
        _ => (REGISTRY, repository),
    };
    let domain = if domain == "index.docker.io" {
        REGISTRY
    } else {
        domain
    };
    let library = if domain == REGISTRY && !path.contains('/') {
        "library/"
    } else {
        ""
    };
    match digest {
        Some(digest) => format!("{domain}/{library}{path}@{digest}"),
        None => format!("{domain}/{library}{path}{tag}"),
    }
}

/// What the pull of a tag resolves to: its repository and a digest derived from `id`.
pub(super) fn resolved(normalised: &str, id: &str) -> String {
    if normalised.contains('@') {
        return normalised.to_owned();
    }
    let repository = normalised.rsplit_once(':').map_or(normalised, |(r, _)| r);
    let digest: String = id.trim_start_matches("sha256:").chars().rev().collect();
    format!("{repository}@sha256:{digest}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_are_made_whole() {
        for (name, whole) in [
            ("busybox", "docker.io/library/busybox:latest"),
            ("busybox:1", "docker.io/library/busybox:1"),
            ("index.docker.io/a/b", "docker.io/a/b:latest"),
            ("localhost:5000/a", "localhost:5000/a:latest"),
            ("reg.example/a:1@sha256:ab", "reg.example/a@sha256:ab"),
            ("sha256:ab", "sha256:ab"),
        ] {
            assert_eq!(normalised(name), whole);
            assert_eq!(normalised(whole), whole);
        }
    }
}
