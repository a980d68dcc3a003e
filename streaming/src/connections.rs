//! The limit on a server's connections, and which connection is closed when it is reached.
//!
//! A connection is unauthenticated (a stranger) until a request on it is accepted. Unauthenticated
//! connections have a share of the places, and those of one address have a share of that. A new
//! connection is never refused: the oldest unauthenticated one is closed for it, from the same
//! address if that has used up its share, otherwise from the address with the most. So a client
//! that holds connections without authenticating loses them to clients that authenticate, which
//! takes only a moment. If there are no unauthenticated connections, idle ones are closed; if there
//! are no idle ones, new connections wait in the listener's backlog.

use std::{
    cmp::Reverse,
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tokio::{sync::Notify, time::Instant};

use crate::bound::Bound;

/// The limits on a server's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Concurrent connections.
    pub connections: usize,
    /// Unauthenticated connections.
    pub strangers: usize,
    /// Unauthenticated connections from one address.
    pub strangers_of_address: usize,
}

/// The connections of a server, up to its limits.
#[derive(Debug)]
pub struct Places {
    taken: Mutex<Taken>,
    /// Notified when a connection ends or becomes idle.
    freed: Notify,
    connections: Arc<Bound>,
    strangers: Arc<Bound>,
    strangers_of_address: Arc<Bound>,
}

#[derive(Debug, Default)]
struct Taken {
    next: u64,
    clients: BTreeMap<u64, Client>,
    strangers: usize,
    /// The number of unauthenticated connections by address.
    by_address: BTreeMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Client {
    address: Option<IpAddr>,
    standing: Standing,
    /// The time of the last change of the standing.
    since: Instant,
    leave: Arc<Notify>,
}

/// The authentication and activity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Stranger,
    /// An authenticated client without a request in progress.
    Idle,
    /// An authenticated client with a request in progress.
    Busy,
}

/// The place of one connection. Dropping it frees the place.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    address: Option<IpAddr>,
    leave: Arc<Notify>,
    has_asked: AtomicBool,
    was_let_in: AtomicBool,
}

/// A guard for a request in progress of an authenticated client. Dropping it makes the client idle.
#[derive(Debug)]
pub struct Busy(Arc<Place>);

// === impl Room ===

impl Room {
    /// Limits for at most `connections`: a quarter may be unauthenticated, an eighth may be
    /// unauthenticated and from one address.
    pub const fn new(connections: usize) -> Self {
        Self {
            connections,
            strangers: connections.div_ceil(4),
            strangers_of_address: connections.div_ceil(8),
        }
    }

    /// Returns limits as [`Self::new`], but with at most one connection for every `files` file
    /// descriptors that this process may open (RLIMIT_NOFILE), and never less than 8. The other
    /// descriptors are for the resources that a connection uses.
    pub fn within_open_files(connections: usize, files: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let most = limit.map_or(usize::MAX, |limit| limit / files.max(1));
        Self::new(connections.min(most).max(8))
    }

    /// Limits of a server that authenticates no clients: unauthenticated connections, and those of
    /// one address, may use all places.
    pub const fn open(connections: usize) -> Self {
        Self {
            connections,
            strangers: connections,
            strangers_of_address: connections,
        }
    }
}

// === impl Places ===

impl Places {
    /// Creates the places of the server `server`; all are free.
    pub fn new(server: &'static str, room: Room) -> Arc<Self> {
        let bound = |name, most| Arc::new(Bound::new(server, name, most));
        Arc::new(Self {
            taken: Mutex::default(),
            freed: Notify::new(),
            connections: bound("connections", room.connections),
            strangers: bound("strangers", room.strangers),
            strangers_of_address: bound("strangers_of_address", room.strangers_of_address),
        })
    }

    /// The limits on connections.
    pub fn bounds(&self) -> [Arc<Bound>; 3] {
        let bounds = [
            &self.connections,
            &self.strangers,
            &self.strangers_of_address,
        ];
        bounds.map(Arc::clone)
    }

    /// Waits until there is a free place, or a connection that can be closed for a new one. Only
    /// one task may wait: the one that accepts connections.
    pub async fn room(&self) {
        loop {
            if self.taken.lock().has_room(self.connections.most()) {
                return;
            }
            self.connections.reach();
            self.freed.notified().await;
        }
    }

    /// Takes a place for an unauthenticated connection from `address`. Closes another connection if
    /// a limit is reached.
    pub fn enter(self: &Arc<Self>, address: Option<IpAddr>) -> Place {
        let address = address.map(shared);
        let leave = Arc::<Notify>::default();
        let mut taken = self.taken.lock();
        if let Some((bound, last)) = self.reached(&taken, address) {
            bound.reach();
            if let Some(client) = last.and_then(|number| taken.remove(number)) {
                client.leave.notify_one();
            }
        }
        let number = taken.next;
        taken.next += 1;
        let client = Client {
            address,
            standing: Standing::Stranger,
            since: Instant::now(),
            leave: Arc::clone(&leave),
        };
        taken.clients.insert(number, client);
        taken.count(address);
        Place {
            places: Arc::clone(self),
            number,
            address,
            leave,
            has_asked: AtomicBool::new(false),
            was_let_in: AtomicBool::new(false),
        }
    }

    /// Returns the limit that another unauthenticated connection would exceed, and the connection
    /// to close.
    fn reached(&self, taken: &Taken, address: Option<IpAddr>) -> Option<(&Bound, Option<u64>)> {
        let of_address = address.map_or(0, |address| taken.of_address(address));
        if of_address >= self.strangers_of_address.most() {
            let oldest = taken.stranger(|client| client.address == address);
            return Some((&self.strangers_of_address, oldest));
        }
        if taken.strangers >= self.strangers.most() {
            return Some((&self.strangers, taken.stranger(|_| true)));
        }
        if taken.clients.len() >= self.connections.most() {
            let last = taken.stranger(|_| true).or_else(|| taken.idle());
            return Some((&self.connections, last));
        }
        None
    }
}

// === impl Taken ===

impl Taken {
    fn of_address(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or_default()
    }

    fn has_room(&self, most: usize) -> bool {
        let is_busy = |client: &Client| client.standing == Standing::Busy;
        self.clients.len() < most || self.strangers > 0 || !self.clients.values().all(is_busy)
    }

    /// Returns the oldest matching unauthenticated connection, from the address with the most of
    /// them.
    fn stranger(&self, of: impl Fn(&Client) -> bool) -> Option<u64> {
        let strangers = self.clients.iter().filter(|(_, client)| {
            let is_stranger = client.standing == Standing::Stranger;
            is_stranger && of(client)
        });
        let last = strangers.max_by_key(|(number, client)| {
            let beside = client.address.map_or(0, |address| self.of_address(address));
            (beside, Reverse(**number))
        });
        last.map(|(number, _)| *number)
    }

    /// Returns the authenticated client that has been idle the longest.
    fn idle(&self) -> Option<u64> {
        let clients = self.clients.iter();
        let idle = clients.filter(|(_, client)| client.standing == Standing::Idle);
        let first = idle.min_by_key(|(_, client)| client.since);
        first.map(|(number, _)| *number)
    }

    /// Counts a new unauthenticated connection.
    fn count(&mut self, address: Option<IpAddr>) {
        self.strangers += 1;
        if let Some(address) = address {
            *self.by_address.entry(address).or_default() += 1;
        }
    }

    /// Uncounts an unauthenticated connection.
    fn discount(&mut self, address: Option<IpAddr>) {
        self.strangers -= 1;
        let Some(address) = address else {
            return;
        };
        if let Some(count) = self.by_address.get_mut(&address) {
            *count -= 1;
            if *count == 0 {
                self.by_address.remove(&address);
            }
        }
    }

    fn remove(&mut self, number: u64) -> Option<Client> {
        let client = self.clients.remove(&number)?;
        if client.standing == Standing::Stranger {
            self.discount(client.address);
        }
        Some(client)
    }

    fn set(&mut self, number: u64, standing: Standing) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let (before, address) = (client.standing, client.address);
        (client.standing, client.since) = (standing, Instant::now());
        if before == Standing::Stranger {
            self.discount(address);
        }
    }
}

// === impl Place ===

impl Place {
    /// The address of the connection. It is the /64 network for IPv6, since one machine may have
    /// many addresses of it.
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Records that the client has sent a request.
    pub fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Resolves after `patience` if the client has sent no request by then; otherwise never
    /// resolves.
    pub async fn stays_silent(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        if self.has_asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Checks whether the connection is unauthenticated: no request on it was accepted yet.
    pub fn is_strangers(&self) -> bool {
        !self.was_let_in.load(Ordering::Relaxed)
    }

    /// Marks the client as authenticated and busy. Its place is not given to another client until
    /// the returned guard is dropped.
    pub fn let_in(self: &Arc<Self>) -> Busy {
        self.was_let_in.store(true, Ordering::Relaxed);
        self.places.taken.lock().set(self.number, Standing::Busy);
        Busy(Arc::clone(self))
    }

    /// Resolves when the place is given to another connection. The caller must close this one.
    pub async fn given_up(&self) {
        self.leave.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.taken.lock().remove(self.number);
        self.places.freed.notify_one();
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let Place { places, number, .. } = &*self.0;
        places.taken.lock().set(*number, Standing::Idle);
        places.freed.notify_one();
    }
}

/// Returns the address, or the /64 network of an IPv6 address, since one machine may have many
/// addresses of it.
fn shared(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(ip) => {
            let network = u128::from(ip) >> 64 << 64;
            IpAddr::V6(Ipv6Addr::from(network))
        }
        ip => ip,
    }
}

#[cfg(test)]
mod tests;
