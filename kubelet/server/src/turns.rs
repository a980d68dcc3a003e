//! Concurrency limits on reviews by the API server. Unauthenticated callers control how many
//! reviews there are, and callers from one address must not delay those from another.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use cri_streaming::bound::Bound;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Maximum number of concurrent reviews.
const QUESTIONS: usize = 16;
/// Maximum number of concurrent reviews for callers from one address.
const OF_ADDRESS: usize = 4;

/// Limits concurrent reviews.
#[derive(Debug)]
pub(super) struct Turns {
    all: Semaphore,
    /// Slots by address, while there are active or waiting reviews for it.
    queues: Mutex<BTreeMap<Option<IpAddr>, Arc<Semaphore>>>,
    questions: Arc<Bound>,
    of_address: Arc<Bound>,
}

/// Permits one review, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    // Fields are dropped in this order. The queue comes last, to see whether its slots are unused.
    _of_all: Option<SemaphorePermit<'a>>,
    _of_address: Option<OwnedSemaphorePermit>,
    _queue: Queue<'a>,
}

/// An active or waiting review in the queue of its address.
#[derive(Debug)]
struct Queue<'a> {
    turns: &'a Turns,
    address: Option<IpAddr>,
    slots: Arc<Semaphore>,
}

impl Turns {
    /// Limits without active reviews. The names are those of the bounds on all reviews and on the
    /// reviews for one address.
    pub(super) fn new([questions, of_address]: [&'static str; 2]) -> Self {
        let bound = |name, most| Arc::new(Bound::new("secure", name, most));
        Self {
            all: Semaphore::new(QUESTIONS),
            queues: Mutex::default(),
            questions: bound(questions, QUESTIONS),
            of_address: bound(of_address, OF_ADDRESS),
        }
    }

    pub(super) fn bounds(&self) -> [Arc<Bound>; 2] {
        [&self.questions, &self.of_address].map(Arc::clone)
    }

    /// Waits for a permit to review a caller from `address`.
    pub(super) async fn wait(&self, address: Option<IpAddr>) -> Turn<'_> {
        let queue = Queue::join(self, address);
        if queue.slots.available_permits() == 0 {
            self.of_address.reach();
        }
        let of_address = Arc::clone(&queue.slots).acquire_owned().await;
        if self.all.available_permits() == 0 {
            self.questions.reach();
        }
        let of_all = self.all.acquire().await;
        Turn {
            // The semaphores are never closed.
            _of_all: of_all.ok(),
            _of_address: of_address.ok(),
            _queue: queue,
        }
    }
}

impl<'a> Queue<'a> {
    fn join(turns: &'a Turns, address: Option<IpAddr>) -> Self {
        let mut queues = turns.queues.lock();
        let slots = queues
            .entry(address)
            .or_insert_with(|| Arc::new(Semaphore::new(OF_ADDRESS)));
        Self {
            turns,
            address,
            slots: Arc::clone(slots),
        }
    }
}

impl Drop for Queue<'_> {
    fn drop(&mut self) {
        let mut queues = self.turns.queues.lock();
        // Only this queue and the map refer to the slots.
        if Arc::strong_count(&self.slots) == 2 {
            queues.remove(&self.address);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn an_address_has_its_part_of_the_questions() {
        let turns = Turns::new(["questions", "of_address"]);
        let address = |n: u8| Some(IpAddr::from([192, 0, 2, n]));
        let mut asking = Vec::new();
        for n in 0..4 {
            for _ in 0..4 {
                let turn = turns.wait(address(u8::try_from(n).unwrap()));
                asking.push(turn.now_or_never().unwrap());
            }
        }
        assert!(turns.wait(address(0)).now_or_never().is_none());
        let mut next = Box::pin(turns.wait(address(99)));
        assert!(
            (&mut next).now_or_never().is_none(),
            "all of them are taken"
        );
        let reached = turns.bounds().map(|bound| bound.reached());
        assert_eq!(reached, [1, 1]);
        asking.remove(0);
        let turn = next.now_or_never().unwrap();
        assert_eq!(turns.queues.lock().len(), 5);
        drop((turn, asking));
        assert!(turns.queues.lock().is_empty());
    }
}
