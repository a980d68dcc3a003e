//! The containers, from creation to removal.

use cri_proto::runtime::v1 as cri;
use tonic::Status;

use super::{World, unambiguous};
use crate::{
    history::{ContainerEvent, ContainerHistory, EndCause},
    objects::{Behaviour, Container, Sandbox, Usage},
};

impl World {
    pub(crate) fn create_container(
        &mut self,
        sandbox: &str,
        config: cri::ContainerConfig,
    ) -> Result<String, Status> {
        let Some(in_sandbox) = self.sandbox_id(sandbox) else {
            return Err(Status::not_found(format!("no sandbox {sandbox}")));
        };
        if self.sandboxes[&in_sandbox].state != cri::PodSandboxState::SandboxReady {
            return Err(Status::failed_precondition(format!(
                "sandbox {in_sandbox} does not run"
            )));
        }
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::invalid_argument("config.metadata is not set"));
        };
        let image = config
            .image
            .as_ref()
            .map_or("", |spec| spec.image.as_str())
            .to_owned();
        let Some(image_id) = self.image(&image).map(|image| image.id.clone()) else {
            return Err(Status::not_found(format!("no image {image:?}")));
        };
        if self
            .containers
            .values()
            .any(|c| c.sandbox_id == in_sandbox && c.config.metadata.as_ref() == Some(&metadata))
        {
            return Err(Status::already_exists(format!(
                "container {} (attempt {}) already exists in sandbox {in_sandbox}",
                metadata.name, metadata.attempt
            )));
        }
        let id = self.next_id();
        let spec = config.image.as_ref();
        self.histories.begin(ContainerHistory {
            id: id.clone(),
            pod_uid: self.sandboxes[&in_sandbox].pod_uid().to_owned(),
            sandbox_id: in_sandbox.clone(),
            name: metadata.name,
            attempt: metadata.attempt,
            image: spec.map_or_else(String::new, |spec| spec.user_specified_image.clone()),
            events: Vec::new(),
        });
        let container = Container {
            id: id.clone(),
            sandbox_id: in_sandbox.clone(),
            config,
            state: cri::ContainerState::ContainerCreated,
            created_at: self.now(),
            started_at: 0,
            finished_at: 0,
            exit_code: 0,
            reason: String::new(),
            image_id,
            usage: Usage::default(),
            is_lost: false,
        };
        self.containers.insert(id.clone(), container);
        self.publish(
            &in_sandbox,
            &id,
            cri::ContainerEventType::ContainerCreatedEvent,
        );
        Ok(id)
    }

    /// Starts a container. Returns its behaviour.
    pub(crate) fn start_container(&mut self, id: &str) -> Result<Behaviour, Status> {
        let now = self.now();
        let container = self.container_mut(id)?;
        if container.state != cri::ContainerState::ContainerCreated {
            return Err(Status::failed_precondition(format!(
                "container {id} was started before"
            )));
        }
        container.state = cri::ContainerState::ContainerRunning;
        container.started_at = now;
        let (sandbox, name) = (container.sandbox_id.clone(), container.name().to_owned());
        let pod = self.sandboxes.get(&sandbox).map_or("", Sandbox::pod_uid);
        let twice = self.containers.values().filter(|other| {
            other.state == cri::ContainerState::ContainerRunning
                && other.id != id
                && other.name() == name
                && self.sandboxes.get(&other.sandbox_id).map(Sandbox::pod_uid) == Some(pod)
        });
        let twice: Vec<String> = twice
            .map(|other| format!("{name} of pod {pod}: {id} beside {}", other.id))
            .collect();
        self.started_twice.extend(twice);
        self.histories.note(id, ContainerEvent::Started);
        self.open_log(id);
        self.publish(&sandbox, id, cri::ContainerEventType::ContainerStartedEvent);
        Ok(self.behaviour(&name))
    }

    /// Creates a container's log file, empty, if it is missing and its directory exists.
    pub(crate) fn open_log(&self, id: &str) {
        let Some(container) = self.containers.get(id) else {
            return;
        };
        let dir = self.sandboxes.get(&container.sandbox_id);
        let dir = dir.map_or("", |sandbox| sandbox.config.log_directory.as_str());
        if dir.is_empty() || container.config.log_path.is_empty() {
            return;
        }
        let path = std::path::Path::new(dir).join(&container.config.log_path);
        // Most tests do not need the log, so errors are ignored.
        let _ = std::fs::File::options()
            .create(true)
            .append(true)
            .open(path);
    }

    pub(crate) fn behaviour(&self, name: &str) -> Behaviour {
        self.behaviours.get(name).cloned().unwrap_or_default()
    }

    /// Ends a container if it is running.
    pub(crate) fn exit(&mut self, id: &str, end: EndCause, code: i32) {
        let reason = if code == 0 { "Completed" } else { "Error" };
        self.exit_because(id, end, code, reason);
    }

    pub(crate) fn exit_because(&mut self, id: &str, end: EndCause, code: i32, reason: &str) {
        let now = self.now();
        let Some(container) = self.containers.get_mut(id) else {
            return;
        };
        if container.state != cri::ContainerState::ContainerRunning {
            return;
        }
        container.state = cri::ContainerState::ContainerExited;
        container.exit_code = code;
        container.finished_at = now;
        container.reason = reason.to_owned();
        let sandbox = container.sandbox_id.clone();
        self.histories.note(id, ContainerEvent::Ended(end, code));
        self.publish(&sandbox, id, cri::ContainerEventType::ContainerStoppedEvent);
    }

    pub(crate) fn remove_container(&mut self, id: &str) {
        self.exit(id, EndCause::Removal, 137);
        if let Some(container) = self.containers.get(id) {
            let sandbox = container.sandbox_id.clone();
            self.histories.note(id, ContainerEvent::Removed);
            self.publish(&sandbox, id, cri::ContainerEventType::ContainerDeletedEvent);
            self.containers.remove(id);
        }
    }

    /// Finds a container by its id or an unambiguous prefix of it.
    pub(crate) fn container_id(&self, id: &str) -> Option<String> {
        unambiguous(&self.containers, id)
    }

    pub(crate) fn container(&self, id: &str) -> Result<&Container, Status> {
        self.container_id(id)
            .and_then(|id| self.containers.get(&id))
            .ok_or_else(|| Status::not_found(format!("no container {id}")))
    }

    pub(crate) fn container_mut(&mut self, id: &str) -> Result<&mut Container, Status> {
        self.container_id(id)
            .and_then(|id| self.containers.get_mut(&id))
            .ok_or_else(|| Status::not_found(format!("no container {id}")))
    }

    pub(crate) fn running(&self, id: &str) -> Result<&Container, Status> {
        let container = self.container(id)?;
        if container.reported_state() == cri::ContainerState::ContainerRunning {
            Ok(container)
        } else {
            Err(Status::failed_precondition(format!(
                "container {id} does not run"
            )))
        }
    }
}
