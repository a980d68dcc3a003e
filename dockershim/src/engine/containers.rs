//! Calls on containers.

use std::{collections::HashMap, time::Duration};

use bollard::{
    models::{
        ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerUpdateBody,
    },
    query_parameters::{
        ContainerArchiveInfoOptions, CreateContainerOptions, InspectContainerOptions,
        KillContainerOptions, ListContainersOptions, RemoveContainerOptions,
        ResizeContainerTTYOptions, StartContainerOptions, StopContainerOptions,
    },
};

use super::{CHANGE, Engine, EngineError, READ};
use crate::labels;

/// What the engine needs beyond the grace period: the kill, and its own bookkeeping.
const STOP_MARGIN: Duration = Duration::from_secs(30);

/// A container to create.
#[derive(Debug, Clone)]
pub struct NewContainer {
    /// Its Docker name.
    pub name: String,
    /// Everything else.
    pub body: ContainerCreateBody,
}

impl Engine {
    /// Every container, running or not, that carries the label key `label`.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn list_containers(&self, label: &str) -> Result<Vec<ContainerSummary>, EngineError> {
        let call = self.call("list containers", "of the engine", READ);
        let docker = call.docker(self)?;
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([("label".into(), vec![label.to_owned()])])),
            ..Default::default()
        };
        call.run(docker.list_containers(Some(options))).await
    }

    /// Every container, running or not and whoever made it, that is made from the image with this
    /// full id, or from one that is built on it.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn list_containers_of_image(
        &self,
        image: &str,
    ) -> Result<Vec<ContainerSummary>, EngineError> {
        let call = self.call("list containers of image", image, READ);
        let docker = call.docker(self)?;
        let options = ListContainersOptions {
            all: true,
            filters: Some(HashMap::from([("ancestor".into(), vec![image.to_owned()])])),
            ..Default::default()
        };
        call.run(docker.list_containers(Some(options))).await
    }

    /// Everything about one container, by id or name.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `NotFound` when there is none.
    pub async fn inspect_container(
        &self,
        id: &str,
    ) -> Result<ContainerInspectResponse, EngineError> {
        let call = self.call("inspect container", id, READ);
        let docker = call.docker(self)?;
        call.run(docker.inspect_container(id, None::<InspectContainerOptions>))
            .await
    }

    /// Creates a container, signed as the shim's, and returns its id.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `NotFound` when its image does not exist,
    /// `Conflict` when its name is taken.
    pub async fn create_container(&self, mut new: NewContainer) -> Result<String, EngineError> {
        labels::sign(&new.name, &mut new.body);
        let name = new.name.clone();
        let call = self.call("create container", &name, CHANGE);
        let docker = call.docker(self)?;
        let options = CreateContainerOptions {
            name: Some(new.name),
            ..Default::default()
        };
        let created = call
            .run(docker.create_container(Some(options), new.body))
            .await?;
        for warning in &created.warnings {
            tracing::warn!(container_id = created.id, warning, "the engine warns");
        }
        Ok(created.id)
    }

    /// Whether there is something at `path` in a container, whose mounts the engine makes
    /// for the look where it does not run.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause), without the engine's words; `NotFound` when nothing is
    /// there, `Refused` when a mount cannot be made.
    pub async fn stat_in_container(&self, id: &str, path: &str) -> Result<(), EngineError> {
        let call = self.call("look into container", id, CHANGE);
        let docker = call.docker(self)?;
        let options = ContainerArchiveInfoOptions {
            path: path.to_owned(),
        };
        call.run(docker.get_container_archive_info(id, Some(options)))
            .await
            .map(drop)
    }

    /// Starts a created container.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn start_container(&self, id: &str) -> Result<(), EngineError> {
        let call = self.call("start container", id, CHANGE);
        let docker = call.docker(self)?;
        call.run(docker.start_container(id, None::<StartContainerOptions>))
            .await
    }

    /// Sends the stop signal, after `grace` SIGKILL, and waits for the end.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn stop_container(&self, id: &str, grace: Duration) -> Result<(), EngineError> {
        let deadline = grace.saturating_add(STOP_MARGIN);
        let call = self.call("stop container", id, deadline);
        let docker = call.docker(self)?;
        let options = StopContainerOptions {
            signal: None,
            t: Some(i32::try_from(grace.as_secs()).unwrap_or(i32::MAX)),
        };
        call.run(docker.stop_container(id, Some(options))).await
    }

    /// Sends SIGKILL.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `Conflict` when it does not run.
    pub async fn kill_container(&self, id: &str) -> Result<(), EngineError> {
        let call = self.call("kill container", id, STOP_MARGIN);
        let docker = call.docker(self)?;
        let options = KillContainerOptions {
            signal: "SIGKILL".into(),
        };
        call.run(docker.kill_container(id, Some(options))).await
    }

    /// Removes a container with its anonymous volumes; one that runs only by `force`.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `Conflict` when it runs or is being removed.
    pub async fn remove_container(&self, id: &str, force: bool) -> Result<(), EngineError> {
        let call = self.call("remove container", id, CHANGE);
        let docker = call.docker(self)?;
        let options = RemoveContainerOptions {
            v: true,
            force,
            link: false,
        };
        call.run(docker.remove_container(id, Some(options))).await
    }

    /// Changes limits of a container; what is `None` stays.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn update_container(
        &self,
        id: &str,
        change: ContainerUpdateBody,
    ) -> Result<(), EngineError> {
        let call = self.call("update container", id, CHANGE);
        let docker = call.docker(self)?;
        call.run(docker.update_container(id, change)).await
    }

    /// Sets the size of the container's terminal, in characters.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause).
    pub async fn resize_container(
        &self,
        id: &str,
        width: u16,
        height: u16,
    ) -> Result<(), EngineError> {
        let call = self.call("resize the terminal of container", id, READ);
        let docker = call.docker(self)?;
        let options = ResizeContainerTTYOptions {
            h: height.into(),
            w: width.into(),
        };
        call.run(docker.resize_container_tty(id, options)).await
    }
}
