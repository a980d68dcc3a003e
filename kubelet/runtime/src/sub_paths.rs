//! Sub-paths of volumes (`subPath`, `subPathExpr`).

use std::{
    collections::BTreeSet,
    error::Error,
    path::{Component, Path, PathBuf},
    sync::Arc,
};

use k8s_openapi::api::core::v1::VolumeMount;
use kubelet_host::bounded_io;
use kubelet_pod_spec::expansion::Expander;
use kubelet_volume::{
    plugin::Mounted,
    subpath::{self, SubPath},
};
use tracing::warn;

use super::{
    env,
    mounts::{MountError, MountParts, SubPaths},
};

impl MountParts {
    /// Binds the sub-paths that the container mounts. A hanging file server blocks only sub-paths
    /// of volumes on the same server.
    ///
    /// # Errors
    /// See [`MountError`].
    pub async fn bind_sub_paths(self: &Arc<Self>) -> Result<SubPaths, MountError> {
        let mut bound = SubPaths::default();
        let mounts = self.container.volume_mounts.iter().flatten();
        for (index, mount) in mounts.enumerate() {
            let sub_path = self.sub_path(mount)?;
            let Some(volume) = self.volumes.get(&mount.name) else {
                continue;
            };
            let Mounted::Path(path) = volume.mounted.clone() else {
                continue;
            };
            if sub_path.is_empty() {
                continue;
            }
            let failed = |error: &dyn Error| self.no_sub_path("prepare", "", mount, error);
            let permit = bounded_io::CONTAINERS.acquire_for(&path).await;
            let permit = permit.map_err(|error| failed(&error))?;
            let (this, mount) = (Arc::clone(self), mount.clone());
            let dir_name = volume.spec.dir_name();
            let work = move || this.bind_sub_path(index, &mount, &path, &dir_name, &sub_path);
            let place = permit
                .blocking(work)
                .await
                .map_err(|error| failed(&error))??;
            bound.0.insert(index, place);
        }
        Ok(bound)
    }

    /// The sub-path of a mount; empty for the whole volume.
    pub(super) fn sub_path(&self, mount: &VolumeMount) -> Result<String, MountError> {
        let expression = mount.sub_path_expr.as_deref().unwrap_or_default();
        let path = if expression.is_empty() {
            mount.sub_path.clone().unwrap_or_default()
        } else {
            let missing = std::cell::RefCell::new(BTreeSet::new());
            let path = Expander::default().expand(expression, |name| {
                let value = env::lookup(&self.variables, name);
                if value.is_none_or(str::is_empty) {
                    missing.borrow_mut().insert(name.to_owned());
                }
                value
            })?;
            let missing = missing.into_inner();
            if !missing.is_empty() {
                return Err(MountError::MissingValue(missing.into_iter().collect()));
            }
            path
        };
        if path.starts_with('/') {
            return Err(MountError::Absolute(path));
        }
        let mut components = Path::new(&path).components();
        if components.any(|component| component == Component::ParentDir) {
            return Err(MountError::Backsteps(path));
        }
        Ok(path)
    }

    /// Blocks on the file system of the volume.
    fn bind_sub_path(
        &self,
        index: usize,
        mount: &VolumeMount,
        volume_path: &Path,
        dir_name: &str,
        sub_path: &str,
    ) -> Result<PathBuf, MountError> {
        let failed = |action, what, error: &dyn Error| self.no_sub_path(action, what, mount, error);
        subpath::make_dir(volume_path, sub_path)
            .map_err(|error| failed("create", " directory", &error))?;
        let part = SubPath {
            pod_dir: &self.pod_dir,
            volume: dir_name,
            container: &self.container.name,
            index,
            volume_path,
            sub_path,
            file_work: &self.file_work,
        };
        subpath::bind(&part).map_err(|error| failed("prepare", "", &error))
    }

    pub(super) fn no_sub_path(
        &self,
        action: &'static str,
        what: &'static str,
        mount: &VolumeMount,
        error: &dyn Error,
    ) -> MountError {
        warn!(
            container = %self.container.name, volume = %mount.name, %error,
            "cannot {action} a subPath"
        );
        MountError::SubPath {
            action,
            what,
            volume: mount.name.clone(),
            container: self.container.name.clone(),
        }
    }
}
