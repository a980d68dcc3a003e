//! A watch of all services in the cluster.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Service;
use kube::{Api, Client};
use tokio::{sync::watch, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{ObjectError, watch_cache::FIRST_ANSWER};
use crate::list_watch::{ListWatch, ObjectChange};

/// By namespace and name.
type ByName = BTreeMap<(String, String), Arc<Service>>;

/// The last known state of all services in the cluster.
#[derive(Clone, Debug)]
pub(super) struct Services {
    /// `None` until the first list.
    known: watch::Receiver<Option<ByName>>,
}

impl Services {
    /// Watches services in a task until cancelled.
    pub(super) fn follow(client: Client, tasks: &TaskTracker, cancel: CancellationToken) -> Self {
        let (sender, known) = watch::channel(None);
        let changes = ListWatch::new(Api::all(client), String::new());
        tasks.spawn(async move { cancel.run_until_cancelled(follow(changes, sender)).await });
        Self { known }
    }

    /// All services, ordered by namespace and name. Waits briefly for the first list.
    pub(super) async fn all(&self) -> Result<Vec<Arc<Service>>, ObjectError> {
        let mut known = self.known.clone();
        let read = timeout(FIRST_ANSWER, known.wait_for(Option::is_some)).await;
        let read = read.ok().and_then(Result::ok);
        let services = read.as_ref().and_then(|services| services.as_ref());
        let services = services.ok_or(ObjectError::ServicesUnread)?;
        Ok(services.values().cloned().collect())
    }
}

async fn follow(mut changes: ListWatch<Service>, known: watch::Sender<Option<ByName>>) {
    loop {
        match changes.next().await {
            ObjectChange::Replaced(services) => {
                let services = services.into_iter().map(|service| (key(&service), service));
                let services = services.map(|(key, service)| (key, kept(service)));
                known.send_replace(Some(services.collect()));
            }
            ObjectChange::Updated(service) => known.send_modify(|known| {
                let key = key(&service);
                known.get_or_insert_default().insert(key, kept(service));
            }),
            ObjectChange::Deleted(service) => known.send_modify(|known| {
                known.get_or_insert_default().remove(&key(&service));
            }),
        }
    }
}

fn key(service: &Service) -> (String, String) {
    let metadata = &service.metadata;
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    (text(&metadata.namespace), text(&metadata.name))
}

/// Clusters can have many services, so fields that no environment variable needs are dropped.
fn kept(mut service: Service) -> Arc<Service> {
    service.metadata.managed_fields = None;
    service.metadata.annotations = None;
    service.metadata.labels = None;
    service.status = None;
    Arc::new(service)
}
