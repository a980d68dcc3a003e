//! Checks whether another process serves the CRI socket.

use std::{fs, os::unix::net::UnixStream, path::Path};

use rustix::{net::sockopt::socket_peercred, process::Pid};

use super::Check;

/// The kernel's name for this program.
const SHIM: &str = env!("CARGO_PKG_NAME");

/// The process that serves a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Server {
    pid: Option<Pid>,
    /// Its name in the kernel; empty if it is not visible.
    name: String,
}

impl Server {
    /// Whether it is a dockershim.
    pub(super) fn is_shim(&self) -> bool {
        self.name == SHIM
    }

    /// Whether it is init, which holds the socket for a service started on demand.
    fn is_init(&self) -> bool {
        self.pid == Some(Pid::INIT)
    }

    fn describe(&self) -> String {
        match self.pid {
            Some(pid) => format!("{:?}, process {}", self.name, pid.as_raw_nonzero()),
            None => "a process that is not visible from here".into(),
        }
    }
}

/// The process that serves `socket`; `None` if there is none.
pub(super) fn who_serves(socket: &Path) -> Option<Server> {
    let stream = UnixStream::connect(socket).ok()?;
    // The kernel reports pid 0 if the process is not visible, as in another pid namespace.
    let pid = socket_peercred(&stream)
        .ok()
        .map(|peer| peer.pid)
        .filter(|pid| pid.as_raw_pid() > 0);
    let name = pid.and_then(|pid| {
        let file = format!("/proc/{}/comm", pid.as_raw_nonzero());
        fs::read_to_string(file).ok()
    });
    Some(Server {
        pid,
        name: name.unwrap_or_default().trim().to_owned(),
    })
}

/// Checks whether the shim can serve on `socket`.
pub(super) fn check(socket: &Path, server: Option<&Server>) -> Check {
    let name = "CRI socket";
    let shown = socket.display();
    let Some(server) = server else {
        return match fs::symlink_metadata(socket) {
            Ok(found) if !is_socket(&found) => Check::fail(
                name,
                format!("{shown} exists and is not a socket"),
                format!("remove {shown}, or choose another --container-runtime-endpoint"),
            ),
            _ => Check::ok(name, format!("{shown} is free")),
        };
    };
    let by = server.describe();
    if server.is_shim() {
        return Check::ok(name, format!("{shown} is served by {by}"));
    }
    if server.is_init() {
        return Check::fail(
            name,
            format!("{by} holds {shown} for a socket-activated service"),
            "run the shim with --container-runtime-endpoint=fd:// as that socket's service, or \
             stop the socket unit (systemctl list-sockets)",
        );
    }
    Check::fail(
        name,
        format!("{shown} is served by {by}"),
        "stop that process (cri-dockerd: systemctl disable --now cri-docker.socket \
         cri-docker.service), or choose another --container-runtime-endpoint",
    )
}

fn is_socket(found: &fs::Metadata) -> bool {
    use std::os::unix::fs::FileTypeExt as _;
    found.file_type().is_socket()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::{super::Verdict, *};

    #[test]
    fn whoever_serves_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("cri.sock");
        let look = || check(&socket, who_serves(&socket).as_ref());
        assert_eq!(look().verdict, Verdict::Ok);
        let listener = UnixListener::bind(&socket).unwrap();
        let taken = look();
        assert_eq!(taken.verdict, Verdict::Fail);
        let pid = format!("process {}", std::process::id());
        assert!(taken.detail.contains(&pid), "{taken:?}");
        drop(listener);
        // The shim replaces a stale socket.
        assert_eq!(look().verdict, Verdict::Ok);
        fs::remove_file(&socket).unwrap();
        fs::write(&socket, "").unwrap();
        assert_eq!(look().verdict, Verdict::Fail);
    }

    #[test]
    fn a_shim_that_runs_is_no_obstacle() {
        let server = Server {
            pid: Pid::from_raw(42),
            name: "dockershim".into(),
        };
        let found = check(Path::new("/run/cri-dockerd.sock"), Some(&server));
        assert_eq!(found.verdict, Verdict::Ok);
    }
}
