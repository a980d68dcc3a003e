//! `nfs`: a directory of an NFS server, mounted for each pod.

use std::{net::Ipv6Addr, pin::pin, time::Duration};

use futures::future::FutureExt as _;
use k8s_openapi::api::core::v1::NFSVolumeSource;
use kubelet_pod_spec::{field::Faults, validation::mounts};
use rustix::mount::UnmountFlags;
use tokio::time::timeout;
use tracing::warn;

use super::{
    VolumeError, VolumeHost, blocking_on_own_files, blocking_on_server,
    host::{permit_for, unless_panicked},
    mount,
    plugin::{Attributes, MountRequest, Mounted, PluginFuture, PodVolume, VolumePlugin},
    spec::{VolumeSource, VolumeSpec},
    usage::UsageSource,
};

/// An unmount that takes longer is forced.
const UNMOUNT_LIMIT: Duration = Duration::from_secs(60);

/// The plugin.
#[derive(Debug)]
pub(super) struct Nfs {
    pub(super) host: VolumeHost,
}

impl VolumePlugin for Nfs {
    fn name(&self) -> &'static str {
        "kubernetes.io/nfs"
    }

    fn supports(&self, spec: &VolumeSpec) -> bool {
        source(spec).is_some()
    }

    fn attributes(&self, spec: &VolumeSpec) -> Attributes {
        Attributes {
            read_only: is_read_only(spec),
            ..Attributes::default()
        }
    }

    fn takes_mount_options(&self) -> bool {
        true
    }

    fn usage(&self, request: &MountRequest) -> UsageSource {
        UsageSource::FileSystem(request.dir.clone())
    }

    fn set_up<'a>(&'a self, request: &'a MountRequest) -> PluginFuture<'a, Mounted> {
        let request = request.clone();
        let server = source(&request.spec).map(|source| source.server.clone());
        let mount = move || {
            let Some(source) = source(&request.spec) else {
                return Err(VolumeError::Unsupported(request.spec.name));
            };
            if !mount::is_mounted(&request.dir)? {
                let mut faults = Faults::default();
                mounts::validate_nfs(source, &request.field().child("nfs"), &mut faults);
                faults.into_result()?;
                let mut options = request.mount_options()?;
                mount::make_dir(&request.dir, 0o750)?;
                if is_read_only(&request.spec) {
                    options.push("ro".to_owned());
                }
                mount::mount_program(&export(source), &request.dir, "nfs", &options)?;
            }
            Ok(Mounted::Path(request.dir))
        };
        async move { blocking_on_server(&server.unwrap_or_default(), mount).await }.boxed()
    }

    fn tear_down<'a>(&'a self, volume: &'a PodVolume) -> PluginFuture<'a, ()> {
        async move {
            let dir = self.host.volume_dir(volume);
            let path = dir.display();
            // The time limit is for the server, not for the unmounts that are queued before this
            // one.
            let permit = permit_for(&dir).await?;
            let target = dir.clone();
            let unmounted = permit.blocking(move || mount::clean_up(&target));
            let force = || async {
                warn!(%path, "unmounting timed out; forcing the unmount");
                let dir = dir.clone();
                let force = move || mount::unmount(&dir, UnmountFlags::FORCE);
                // Needs no thread of the server: all of these may be waiting for the forced
                // unmount.
                if let Err(error) = blocking_on_own_files(force).await {
                    warn!(%path, %error, "cannot force the unmount");
                }
            };
            unless_panicked(ended(unmounted, force).await)
        }
        .boxed()
    }
}

/// Waits for work on a server, and runs `force` whenever the time limit has passed. The work is not
/// restarted, because each attempt would occupy another thread.
async fn ended<T, F: Future<Output = ()>>(
    work: impl Future<Output = T>,
    force: impl Fn() -> F,
) -> T {
    let mut work = pin!(work);
    loop {
        match timeout(UNMOUNT_LIMIT, &mut work).await {
            Ok(ended) => return ended,
            Err(_) => force().await,
        }
    }
}

fn source(spec: &VolumeSpec) -> Option<&NFSVolumeSource> {
    match spec.persistent() {
        None => spec.inline()?.nfs.as_ref(),
        Some(volume) => volume.spec.as_ref()?.nfs.as_ref(),
    }
}

/// Whether the volume is read-only. For a persistent volume, the pod's reference to the claim
/// decides.
fn is_read_only(spec: &VolumeSpec) -> bool {
    match &spec.source {
        VolumeSource::Persistent(_) => spec.read_only,
        VolumeSource::Inline(volume) => {
            let source = volume.nfs.as_ref();
            source
                .and_then(|source| source.read_only)
                .unwrap_or_default()
        }
    }
}

fn export(source: &NFSVolumeSource) -> String {
    let NFSVolumeSource { server, path, .. } = source;
    match server.parse::<Ipv6Addr>() {
        Ok(_) => format!("[{server}]:{path}"),
        Err(_) => format!("{server}:{path}"),
    }
}

#[cfg(test)]
mod tests {
    use tokio::{sync::Notify, time::Instant};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_server_that_does_not_let_go_is_forced_until_it_does() {
        let begin = Instant::now();
        let (forced, lets_go) = (parking_lot::Mutex::new(Vec::new()), Notify::new());
        let force = || async {
            forced.lock().push(begin.elapsed());
            if forced.lock().len() == 2 {
                lets_go.notify_one();
            }
        };
        let ended = ended(lets_go.notified(), force);
        timeout(3 * UNMOUNT_LIMIT, ended).await.unwrap();
        assert_eq!(*forced.lock(), [UNMOUNT_LIMIT, 2 * UNMOUNT_LIMIT]);
        assert_eq!(UNMOUNT_LIMIT, Duration::from_secs(60));
    }

    #[test]
    fn servers_are_written_as_mount_reads_them() {
        for (server, expected) in [
            ("nfs.example", "nfs.example:/data"),
            ("192.0.2.1", "192.0.2.1:/data"),
            ("2001:db8::1", "[2001:db8::1]:/data"),
        ] {
            let source = NFSVolumeSource {
                server: server.to_owned(),
                path: "/data".to_owned(),
                read_only: None,
            };
            assert_eq!(export(&source), expected);
        }
    }
}
