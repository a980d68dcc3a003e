//! The sandboxes, from run to removal.

use cri_proto::runtime::v1 as cri;
use tonic::Status;

use super::{World, unambiguous};
use crate::{
    history::EndCause,
    objects::{Container, Sandbox},
};

impl World {
    pub(crate) fn run_sandbox(
        &mut self,
        config: cri::PodSandboxConfig,
        runtime_handler: String,
    ) -> Result<String, Status> {
        let Some(metadata) = config.metadata.clone() else {
            return Err(Status::invalid_argument("config.metadata is not set"));
        };
        if self
            .sandboxes
            .values()
            .any(|s| s.config.metadata.as_ref() == Some(&metadata))
        {
            return Err(Status::already_exists(format!(
                "sandbox {}_{}_{}_{} already exists",
                metadata.name, metadata.namespace, metadata.uid, metadata.attempt
            )));
        }
        let id = self.next_id();
        let n = self.made;
        let on_host = config
            .linux
            .as_ref()
            .and_then(|l| l.security_context.as_ref())
            .and_then(|s| s.namespace_options.as_ref())
            .is_some_and(|n| n.network() == cri::NamespaceMode::Node);
        let ip = if on_host {
            String::new()
        } else {
            format!("10.88.{}.{}", (n / 250) % 250, n % 250 + 2)
        };
        let sandbox = Sandbox {
            id: id.clone(),
            config,
            runtime_handler,
            state: cri::PodSandboxState::SandboxReady,
            created_at: self.now(),
            second_ip: if self.dual_stack && !ip.is_empty() {
                format!("fd00::{n:x}")
            } else {
                String::new()
            },
            ip,
        };
        self.sandboxes.insert(id.clone(), sandbox);
        self.publish(&id, &id, cri::ContainerEventType::ContainerCreatedEvent);
        self.publish(&id, &id, cri::ContainerEventType::ContainerStartedEvent);
        Ok(id)
    }

    /// Stops a sandbox and ends its containers, which record `end` as the cause.
    pub(crate) fn stop_sandbox(&mut self, id: &str, end: EndCause) {
        let running: Vec<String> = self.running_in(id);
        for container in running {
            self.exit(&container, end, 137);
        }
        let Some(sandbox) = self.sandboxes.get_mut(id) else {
            return;
        };
        if sandbox.state == cri::PodSandboxState::SandboxReady {
            sandbox.state = cri::PodSandboxState::SandboxNotready;
            self.publish(id, id, cri::ContainerEventType::ContainerStoppedEvent);
        }
    }

    pub(crate) fn remove_sandbox(&mut self, id: &str) {
        self.stop_sandbox(id, EndCause::SandboxStop);
        let of_sandbox: Vec<String> = self.containers_of(id).map(|c| c.id.clone()).collect();
        for container in of_sandbox {
            self.remove_container(&container);
        }
        if self.sandboxes.contains_key(id) {
            self.publish(id, id, cri::ContainerEventType::ContainerDeletedEvent);
            self.sandboxes.remove(id);
        }
    }

    /// Finds a sandbox by its id or an unambiguous prefix of it.
    pub(crate) fn sandbox_id(&self, id: &str) -> Option<String> {
        unambiguous(&self.sandboxes, id)
    }

    pub(crate) fn sandbox(&self, id: &str) -> Result<&Sandbox, Status> {
        self.sandbox_id(id)
            .and_then(|id| self.sandboxes.get(&id))
            .ok_or_else(|| Status::not_found(format!("no sandbox {id}")))
    }

    pub(crate) fn sandbox_mut(&mut self, id: &str) -> Result<&mut Sandbox, Status> {
        self.sandbox_id(id)
            .and_then(|id| self.sandboxes.get_mut(&id))
            .ok_or_else(|| Status::not_found(format!("no sandbox {id}")))
    }

    /// The containers of a sandbox, ordered by id.
    pub(crate) fn containers_of(&self, sandbox: &str) -> impl Iterator<Item = &Container> {
        let all = self.containers.values();
        all.filter(move |c| c.sandbox_id == sandbox)
    }

    fn running_in(&self, sandbox: &str) -> Vec<String> {
        self.containers_of(sandbox)
            .filter(|c| c.state == cri::ContainerState::ContainerRunning)
            .map(|c| c.id.clone())
            .collect()
    }
}
