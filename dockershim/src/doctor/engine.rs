//! Checks that the engine is reachable, and that it serves a supported API.

use std::{
    fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
    time::Duration,
};

use rustix::fs::{Access, access};

use super::{
    Check, Verdict,
    engine_info::{self, Host},
    paths,
};
use crate::{
    config::LogDriver,
    engine::{Connection, DialError, Endpoint, Engine, OLDEST_API, ProbeError, probe},
    security::{CAP_SYS_RESOURCE, effective_capabilities},
};

/// How long the engine may take to answer.
const PATIENCE: Duration = Duration::from_secs(15);
const ENGINE: &str = "engine";
const START: &str = "start the engine (systemctl enable --now docker), or set its address with \
                     --docker-endpoint";
const CERTIFICATES: &str = "provide the engine's CA, and a certificate and key that the engine \
                            accepts, as ca.pem, cert.pem and key.pem with --docker-cert-path";
/// A user who can write to the engine's socket has root access to the node.
const WRITE_BY_OTHERS: u32 = 0o002;

/// Checks the engine at `endpoint`; skips the checks that depend on a failed one.
pub(super) async fn check(endpoint: &Endpoint, log_driver: LogDriver) -> Vec<Check> {
    let mut checks = Vec::new();
    if let Endpoint::Unix(path) = endpoint {
        let socket = socket(path);
        let failed = socket.verdict == Verdict::Fail;
        checks.push(socket);
        if failed {
            return checks;
        }
    }
    let (api, reachable) = api(endpoint).await;
    checks.push(api);
    if !reachable {
        return checks;
    }
    let engine = Engine::new(endpoint.clone());
    let described = match engine.connect().await {
        Ok(connection) => engine.describe().await.map(|info| (connection, info)),
        Err(error) => Err(error),
    };
    match described {
        Ok((connection, info)) => {
            let local = connection.is_local;
            let host = Host {
                systemd: local && sd_notify::booted().unwrap_or_default(),
                log_driver,
            };
            checks.extend(engine_info::check(&info, &host));
            if local {
                checks.push(paths::engine_disk(Path::new(&connection.info.root_dir)));
            }
            checks.extend(score(&connection));
        }
        Err(error) => checks.push(Check::fail(
            ENGINE,
            error.to_string(),
            "check the engine's log (journalctl -u docker)",
        )),
    }
    checks
}

/// Checks that the engine's socket exists, and who can access it.
fn socket(path: &Path) -> Check {
    let name = "engine socket";
    let shown = path.display();
    let found = match fs::metadata(path) {
        Ok(found) => found,
        Err(error) => return Check::fail(name, format!("{shown}: {error}"), START),
    };
    if !found.file_type().is_socket() {
        return Check::fail(name, format!("{shown} is not a socket"), START);
    }
    let detail = format!(
        "{shown}: mode {:04o}, user {}, group {}",
        found.mode() & 0o7777,
        found.uid(),
        found.gid()
    );
    if access(path, Access::READ_OK | Access::WRITE_OK).is_err() {
        return Check::fail(
            name,
            format!("{detail}; not accessible to this user"),
            "run the shim as root, or as a user in the socket's group",
        );
    }
    if found.mode() & WRITE_BY_OTHERS != 0 {
        return Check::warn(
            name,
            format!("{detail}; every user on this node can become root"),
            format!("chmod o-rwx {shown}"),
        );
    }
    Check::ok(name, detail)
}

/// Checks the engine's API version; also returns whether further checks are possible.
async fn api(endpoint: &Endpoint) -> (Check, bool) {
    let name = "engine API";
    let (major, minor) = OLDEST_API;
    match tokio::time::timeout(PATIENCE, probe(endpoint)).await {
        Ok(Ok(probe)) => {
            let detail = format!(
                "{}.{} ({major}.{minor} or newer is required)",
                probe.api.0, probe.api.1
            );
            (Check::ok(name, detail), true)
        }
        Ok(Err(error @ ProbeError::TooOld { .. })) => {
            let remedy = "upgrade the engine to Docker 20.10 or newer";
            (Check::fail(name, error.to_string(), remedy), false)
        }
        Ok(Err(error @ ProbeError::Dial(DialError::Tls(_)))) => {
            let detail = format!("cannot reach {endpoint}: {error}");
            (Check::fail(ENGINE, detail, CERTIFICATES), false)
        }
        Ok(Err(error)) => {
            let detail = format!("cannot reach {endpoint}: {error}");
            (Check::fail(ENGINE, detail, START), false)
        }
        Err(_) => {
            let detail = format!("{endpoint} did not answer within {PATIENCE:?}");
            let remedy = "check the engine's log (journalctl -u docker), and restart the engine";
            (Check::fail(ENGINE, detail, remedy), false)
        }
    }
}

/// Checks whether the engine may lower `oom_score_adj`; `None` if its process is not visible.
fn score(engine: &Connection) -> Option<Check> {
    let capabilities = effective_capabilities(engine.pid?)?;
    let name = "oom_score_adj";
    Some(if capabilities & CAP_SYS_RESOURCE == 0 {
        Check::warn(
            name,
            "the engine lacks CAP_SYS_RESOURCE: lower scores of pods are raised to its own",
            "run the engine with CAP_SYS_RESOURCE, or accept it: --clamp-oom-score-adj=auto",
        )
    } else {
        Check::ok(name, "the engine has CAP_SYS_RESOURCE")
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::{fs::PermissionsExt as _, net::UnixListener};

    use super::*;

    #[test]
    fn a_socket_is_judged_by_what_it_is_and_for_whom() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker.sock");
        let missing = socket(&path);
        assert_eq!(missing.verdict, Verdict::Fail);
        assert!(missing.remedy.unwrap().contains("--docker-endpoint"));
        fs::write(&path, "").unwrap();
        assert_eq!(socket(&path).verdict, Verdict::Fail);
        fs::remove_file(&path).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        for (mode, verdict) in [(0o660, Verdict::Ok), (0o666, Verdict::Warn)] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(socket(&path).verdict, verdict, "{mode:o}");
        }
    }

    #[tokio::test]
    async fn an_engine_that_is_not_there_is_one_failure() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("docker.sock");
        drop(UnixListener::bind(&path).unwrap());
        let checks = check(&Endpoint::Unix(path), LogDriver::JsonFile).await;
        let failed: Vec<_> = checks
            .iter()
            .filter(|c| c.verdict == Verdict::Fail)
            .collect();
        assert_eq!(failed.len(), 1, "{checks:?}");
        assert!(failed[0].detail.contains("cannot reach"), "{checks:?}");
    }
}
