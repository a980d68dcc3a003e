//! Concurrency limits on reviews by the API server. Unauthenticated callers control how many
//! reviews there are, and callers from one address must not delay those from another.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use cri_streaming::bound::Bound;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// Maximum number of concurrent reviews.
const MAX_REVIEWS: usize = 16;
/// Maximum number of concurrent reviews for callers from one address.
const MAX_REVIEWS_OF_ADDRESS: usize = 4;

/// Limits concurrent reviews.
#[derive(Debug)]
pub(super) struct ReviewLimit {
    all: Semaphore,
    /// Slots by address, while there are active or waiting reviews for it.
    queues: Mutex<BTreeMap<Option<IpAddr>, Arc<Semaphore>>>,
    all_bound: Arc<Bound>,
    address_bound: Arc<Bound>,
}

/// Permits one review, until it is dropped.
#[derive(Debug)]
pub(super) struct ReviewPermit<'a> {
    // Fields are dropped in this order. The slots come last, to see whether they are unused.
    _of_all: Option<SemaphorePermit<'a>>,
    _of_address: Option<OwnedSemaphorePermit>,
    _slots: AddressSlots<'a>,
}

/// The slots of the address of an active or waiting review.
#[derive(Debug)]
struct AddressSlots<'a> {
    limit: &'a ReviewLimit,
    address: Option<IpAddr>,
    slots: Arc<Semaphore>,
}

impl ReviewLimit {
    /// Limits without active reviews. The names are those of the bounds on all reviews and on the
    /// reviews for one address.
    pub(super) fn new([all_bound, address_bound]: [&'static str; 2]) -> Self {
        let bound = |name, most| Arc::new(Bound::new("secure", name, most));
        Self {
            all: Semaphore::new(MAX_REVIEWS),
            queues: Mutex::default(),
            all_bound: bound(all_bound, MAX_REVIEWS),
            address_bound: bound(address_bound, MAX_REVIEWS_OF_ADDRESS),
        }
    }

    pub(super) fn bounds(&self) -> [Arc<Bound>; 2] {
        [&self.all_bound, &self.address_bound].map(Arc::clone)
    }

    /// Waits for a permit to review a caller from `address`.
    pub(super) async fn acquire(&self, address: Option<IpAddr>) -> ReviewPermit<'_> {
        let slots = AddressSlots::join(self, address);
        if slots.slots.available_permits() == 0 {
            self.address_bound.reach();
        }
        let of_address = Arc::clone(&slots.slots).acquire_owned().await;
        if self.all.available_permits() == 0 {
            self.all_bound.reach();
        }
        let of_all = self.all.acquire().await;
        ReviewPermit {
            // The semaphores are never closed.
            _of_all: of_all.ok(),
            _of_address: of_address.ok(),
            _slots: slots,
        }
    }
}

impl<'a> AddressSlots<'a> {
    fn join(limit: &'a ReviewLimit, address: Option<IpAddr>) -> Self {
        let mut queues = limit.queues.lock();
        let slots = queues
            .entry(address)
            .or_insert_with(|| Arc::new(Semaphore::new(MAX_REVIEWS_OF_ADDRESS)));
        Self {
            limit,
            address,
            slots: Arc::clone(slots),
        }
    }
}

impl Drop for AddressSlots<'_> {
    fn drop(&mut self) {
        let mut queues = self.limit.queues.lock();
        // Only this review and the map refer to the slots.
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
    async fn an_address_has_its_part_of_the_reviews() {
        let limit = ReviewLimit::new(["questions", "of_address"]);
        let address = |n: u8| Some(IpAddr::from([192, 0, 2, n]));
        let mut permits = Vec::new();
        for n in 0..4 {
            for _ in 0..4 {
                let permit = limit.acquire(address(u8::try_from(n).unwrap()));
                permits.push(permit.now_or_never().unwrap());
            }
        }
        assert!(limit.acquire(address(0)).now_or_never().is_none());
        let mut next = Box::pin(limit.acquire(address(99)));
        assert!(
            (&mut next).now_or_never().is_none(),
            "all of them are taken"
        );
        let reached = limit.bounds().map(|bound| bound.reached());
        assert_eq!(reached, [1, 1]);
        permits.remove(0);
        let permit = next.now_or_never().unwrap();
        assert_eq!(limit.queues.lock().len(), 5);
        drop((permit, permits));
        assert!(limit.queues.lock().is_empty());
    }
}
