//! Inspects single containers and stores the results in the model.

use std::{collections::HashMap, sync::Arc, time::Duration};

use cri_proto::runtime::v1::ContainerState;
use parking_lot::Mutex;
use retry_delay::RetryDelay;
use tokio::{
    sync::{Semaphore, mpsc},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    engine::{Engine, EngineError},
    images::{ImageMounts, Images},
    labels::{self, Author},
    logs::Logs,
    model::{Container, Id, Model, Record, Ticket},
    oom_kills::OomKills,
    unused_image_mounts::unmount_unused,
};

/// The number of concurrent inspects.
const CONCURRENCY: usize = 16;
const FIRST_RETRY: Duration = Duration::from_secs(1);
const LAST_RETRY: Duration = Duration::from_secs(30);

/// Inspects the engine's containers for the model.
#[derive(Debug)]
pub struct Inspector {
    engine: Arc<Engine>,
    model: Arc<Model>,
    logs: Arc<Logs>,
    images: Arc<Images>,
    image_mounts: Arc<ImageMounts>,
    /// Detects OOM kills that the engine may have missed.
    pub(super) oom_kills: OomKills,
    /// The number of inspects in progress for each id.
    pending: Mutex<HashMap<Id, usize>>,
}

/// The result of an inspect that is not in the model yet.
#[derive(Debug)]
pub(super) struct Inspected<'a> {
    ticket: Ticket<'a>,
    record: Option<Record>,
    _pending: PendingInspect<'a>,
}

/// An inspect in progress; it ends when this is dropped.
#[derive(Debug)]
struct PendingInspect<'a> {
    inspector: &'a Inspector,
    id: Id,
}

impl Drop for PendingInspect<'_> {
    fn drop(&mut self) {
        let mut pending = self.inspector.pending.lock();
        if let Some(count) = pending.get_mut(&self.id) {
            *count -= 1;
            if *count == 0 {
                pending.remove(&self.id);
            }
        }
    }
}

impl Inspector {
    /// Creates an inspector of `engine`'s containers for `model`, which starts and ends their
    /// `logs`.
    pub fn new(
        engine: Arc<Engine>,
        model: Arc<Model>,
        logs: Arc<Logs>,
        images: Arc<Images>,
        image_mounts: Arc<ImageMounts>,
        oom_kills: OomKills,
    ) -> Self {
        Self {
            engine,
            model,
            logs,
            images,
            image_mounts,
            oom_kills,
            pending: Mutex::default(),
        }
    }

    /// Whether an inspect of `id` is in progress, whose result is not in the model yet.
    pub(super) fn is_inspecting(&self, id: &str) -> bool {
        self.pending.lock().contains_key(id)
    }

    fn begin_inspect(&self, id: &str) -> PendingInspect<'_> {
        let id: Id = id.into();
        *self.pending.lock().entry(Arc::clone(&id)).or_default() += 1;
        PendingInspect {
            inspector: self,
            id,
        }
    }

    /// Inspects `id` and stores the result, or the removal, in the model. A container's exit is
    /// stored only after its log is complete.
    ///
    /// # Errors
    /// Any [`Cause`](crate::engine::Cause) but `NotFound`, which is a valid answer.
    pub async fn refresh(&self, id: &str) -> Result<(), EngineError> {
        let inspected = self.inspect(id).await?;
        self.settle(id, inspected).await;
        Ok(())
    }

    /// The first half of [`Inspector::refresh`]: the request to the engine.
    ///
    /// # Errors
    /// As [`Inspector::refresh`].
    pub(super) async fn inspect(&self, id: &str) -> Result<Inspected<'_>, EngineError> {
        let pending = self.begin_inspect(id);
        let ticket = self.model.ticket();
        let record = match self.engine.inspect_container(id).await {
            Ok(inspect) if labels::made_here(inspect.host_config.as_ref()) => {
                Record::from_inspect(inspect, Author::Shim, &self.model.snapshot())
            }
            Ok(inspect) => {
                let image = inspect.image.clone().unwrap_or_default();
                let of_image = self.label_keys(&image).await;
                let author = Author::Other(of_image.as_deref());
                Record::from_inspect(inspect, author, &self.model.snapshot())
            }
            Err(error) if error.is_not_found() => None,
            Err(error) => return Err(error),
        };
        Ok(Inspected {
            ticket,
            record,
            _pending: pending,
        })
    }

    /// The label keys of the image with this full id; `None` if it cannot be inspected.
    async fn label_keys(&self, image: &str) -> Option<Vec<String>> {
        let known = self.images.get_or_inspect(&self.engine, image).await.ok()?;
        Some(known.label_keys.to_vec())
    }

    /// The second half of [`Inspector::refresh`]. It makes no request to the engine, but may wait
    /// for a log to complete, so callers should not hold a permit meanwhile.
    pub(super) async fn settle(&self, id: &str, inspected: Inspected<'_>) {
        let Inspected {
            ticket,
            record,
            _pending,
        } = inspected;
        let Some(mut record) = record else {
            self.removed(id);
            return;
        };
        if let Record::Container(container) = &mut record
            && container.status.state() == ContainerState::ContainerExited
        {
            self.oom_kills
                .correct_reason(&mut Arc::make_mut(container).status)
                .await;
            self.logs.finish(container).await;
        }
        self.model.put(&ticket, id, Some(record));
        // The model may have newer information by now, and its inspect may have been the last one,
        // so use the model's state for the log.
        let snapshot = self.model.snapshot();
        match snapshot.container(id) {
            Ok(container) => match container.status.state() {
                ContainerState::ContainerRunning => self.logs.follow(&container),
                ContainerState::ContainerExited => self.logs.end(id),
                _ => {}
            },
            Err(_) if !snapshot.contains(id) => self.logs.forget(id),
            Err(_) => {}
        }
    }

    /// Removes the saved state of containers that are gone.
    pub(super) async fn forget_removed(&self) {
        // Looks each id up in the current snapshot, so that a container created meanwhile keeps its
        // checkpoint.
        let model = Arc::clone(&self.model);
        self.logs
            .retain(move |id| model.snapshot().contains(id))
            .await;
        let model = Arc::clone(&self.model);
        self.oom_kills
            .retain(move |id| model.snapshot().contains(id))
            .await;
        unmount_unused(&self.image_mounts, &self.model).await;
    }

    /// Records that `id` was removed, as of now.
    pub fn removed(&self, id: &str) {
        let container = self.model.snapshot().container(id).ok();
        self.model.remove(id);
        self.forget(id, container);
    }

    /// Records that `id` no longer existed when `ticket` was drawn.
    pub(super) fn removed_as_of(&self, ticket: &Ticket<'_>, id: &str) {
        let container = self.model.snapshot().container(id).ok();
        if self.model.put(ticket, id, None) {
            self.forget(id, container);
        }
    }

    /// Drops the state kept for `id`, and unmounts the images of `container` if it had any.
    fn forget(&self, id: &str, container: Option<Arc<Container>>) {
        self.logs.forget(id);
        if container.is_some_and(|container| !container.image_mounts.is_empty()) {
            let (model, images) = (Arc::clone(&self.model), Arc::clone(&self.image_mounts));
            tokio::spawn(async move { unmount_unused(&images, &model).await });
        }
    }
}

/// Queues ids for an inspect. Several requests for one id while it is queued or being inspected
/// cause one more inspect; an inspect that hangs delays only its own id.
#[derive(Debug, Clone)]
pub struct Refresher {
    queue: mpsc::UnboundedSender<Id>,
}

impl Refresher {
    /// Starts the worker task, which runs until `stop`.
    pub fn start(inspector: Arc<Inspector>, stop: CancellationToken) -> Self {
        let (queue, inbox) = mpsc::unbounded_channel();
        tokio::spawn(stop.run_until_cancelled_owned(work(inspector, inbox)));
        Self { queue }
    }

    /// Requests an inspect of `id`.
    pub fn enqueue(&self, id: Id) {
        // The task ends only at shutdown, when a request has no effect.
        let _ = self.queue.send(id);
    }
}

async fn work(inspector: Arc<Inspector>, mut inbox: mpsc::UnboundedReceiver<Id>) {
    let permits = Arc::new(Semaphore::new(CONCURRENCY));
    // True if another request arrived since the inspect began.
    let mut busy: HashMap<Id, bool> = HashMap::new();
    let mut failures: HashMap<Id, RetryDelay> = HashMap::new();
    let mut pending = JoinSet::new();
    let inspect = |id: Id, delay: Duration| {
        let (inspector, permits) = (inspector.clone(), permits.clone());
        async move {
            tokio::time::sleep(delay).await;
            let inspected = {
                let _permit = permits.acquire().await;
                inspector.inspect(&id).await
            };
            let result = match inspected {
                Ok(inspected) => {
                    inspector.settle(&id, inspected).await;
                    Ok(())
                }
                Err(error) => Err(error),
            };
            (id, result)
        }
    };
    loop {
        tokio::select! {
            queued = inbox.recv() => {
                let Some(id) = queued else { return };
                if let Some(again) = busy.get_mut(&id) {
                    *again = true;
                } else {
                    busy.insert(Arc::clone(&id), false);
                    pending.spawn(inspect(id, Duration::ZERO));
                }
            }
            Some(done) = pending.join_next() => {
                // An inspect that panicked, which is a bug and has been logged, leaves its id busy.
                let Ok((id, result)) = done else { continue };
                let again = busy.remove(&id).unwrap_or_default();
                let delay = match result {
                    Ok(()) => {
                        failures.remove(&id);
                        again.then_some(Duration::ZERO)
                    }
                    Err(error) => {
                        let first = RetryDelay::new(FIRST_RETRY, LAST_RETRY);
                        let delays = failures.entry(Arc::clone(&id)).or_insert(first);
                        let delay = delays.after_failure();
                        tracing::warn!(
                            container_id = &*id,
                            %error,
                            retry = ?delay,
                            "cannot refresh the container's record; retrying"
                        );
                        Some(delay)
                    }
                };
                if let Some(delay) = delay {
                    busy.insert(Arc::clone(&id), false);
                    pending.spawn(inspect(id, delay));
                }
            }
        }
    }
}
