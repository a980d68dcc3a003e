//! Engine calls for containers.

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

/// The time beyond the grace period that the engine needs for the kill and its bookkeeping.
const STOP_MARGIN: Duration = Duration::from_secs(30);

/// A container to create.
#[derive(Debug, Clone)]
pub struct NewContainer {
    /// The Docker name.
    pub name: String,
    /// The engine's request.
    pub body: ContainerCreateBody,
}

impl Engine {
    /// Lists all containers, running or not, that have the label key `label`.
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

    /// Lists all containers, running or not and regardless of who created them, that use the image
    /// with this full id or an image built on it.
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

    /// Inspects a container by id or name.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `NotFound` if there is no such container.
    pub async fn inspect_container(
        &self,
        id: &str,
    ) -> Result<ContainerInspectResponse, EngineError> {
        let call = self.call("inspect container", id, READ);
        let docker = call.docker(self)?;
        call.run(docker.inspect_container(id, None::<InspectContainerOptions>))
            .await
    }

    /// Creates a container, marked as the shim's, and returns its id.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `NotFound` if its image does not exist, `Conflict` if its name
    /// is in use.
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
            tracing::warn!(
                container_id = created.id,
                warning,
                "warning from the engine"
            );
        }
        Ok(created.id)
    }

    /// Checks that `path` exists in a container. If the container is not running, the engine mounts
    /// its mounts for the check.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause), without the engine's message; `NotFound` if the path does not
    /// exist, `Refused` if a mount fails.
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

    /// Sends the stop signal, then SIGKILL after `grace`, and waits for the exit.
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
    /// Any [`Cause`](super::Cause); `Conflict` if it is not running.
    pub async fn kill_container(&self, id: &str) -> Result<(), EngineError> {
        let call = self.call("kill container", id, STOP_MARGIN);
        let docker = call.docker(self)?;
        let options = KillContainerOptions {
            signal: "SIGKILL".into(),
        };
        call.run(docker.kill_container(id, Some(options))).await
    }

    /// Removes a container and its anonymous volumes; a running one only with `force`.
    ///
    /// # Errors
    /// Any [`Cause`](super::Cause); `Conflict` if it is running or being removed.
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

    /// Changes a container's limits; `None` leaves a limit unchanged.
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
