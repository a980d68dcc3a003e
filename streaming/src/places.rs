//! The limit on a server's connections, and which connection is closed when it is reached.
//!
//! A connection is unauthenticated until a request on it was let in. Unauthenticated connections
//! have a share of the places, and those of one address a share of that. A new connection is never
//! refused: the oldest unauthenticated one is closed for it, from the same address when that
//! has used up its share, otherwise from the address with the most. So a client that holds
//! connections without authenticating loses them to clients that do, which takes only a moment.
//! Without unauthenticated connections, idle ones are closed; without idle ones, new connections
//! wait in the listener's backlog.

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

/// What a server has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Connections at the same time.
    pub connections: usize,
    /// Connections of strangers.
    pub strangers: usize,
    /// Connections of strangers from one address.
    pub strangers_of_address: usize,
}

/// The places of a server.
#[derive(Debug)]
pub struct Places {
    taken: Mutex<Taken>,
    /// Somebody left, or can be asked to.
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
    /// The number of strangers by their address.
    by_address: BTreeMap<IpAddr, usize>,
}

#[derive(Debug)]
struct Client {
    address: Option<IpAddr>,
    standing: Standing,
    /// When it got that standing.
    since: Instant,
    leave: Arc<Notify>,
}

/// What a client is to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Stranger,
    /// A client that was let in, and asks for nothing.
    Idle,
    /// A client that was let in, and is being answered.
    Busy,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub struct Place {
    places: Arc<Places>,
    number: u64,
    address: Option<IpAddr>,
    leave: Arc<Notify>,
    has_asked: AtomicBool,
    was_let_in: AtomicBool,
}

/// Somebody who was let in is being answered, until this is dropped.
#[derive(Debug)]
pub struct Busy(Arc<Place>);

// === impl Room ===

impl Room {
    /// Room for at most `connections`: a quarter of them for strangers, half of that for those of
    /// an address.
    pub const fn new(connections: usize) -> Self {
        Self {
            connections,
            strangers: connections.div_ceil(4),
            strangers_of_address: connections.div_ceil(8),
        }
    }

    /// As [`Self::new`], but no more than one connection for every `files` that this
    /// process may have open: the rest is for what connections lead to.
    pub fn within_open_files(connections: usize, files: usize) -> Self {
        let limit = getrlimit(Resource::Nofile).current;
        let limit = limit.and_then(|limit| usize::try_from(limit).ok());
        let most = limit.map_or(usize::MAX, |limit| limit / files.max(1));
        Self::new(connections.min(most).max(8))
    }

    /// Room where everybody may be let in: strangers and those of one address can take all.
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
    /// The places of a server of that name, all of them free.
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

    /// The bounds on connections.
    pub fn bounds(&self) -> [Arc<Bound>; 3] {
        let bounds = [
            &self.connections,
            &self.strangers,
            &self.strangers_of_address,
        ];
        bounds.map(Arc::clone)
    }

    /// Waits until there is a place, or somebody who would make room. Only one caller may wait: the
    /// task that accepts connections.
    pub async fn room(&self) {
        loop {
            if self.taken.lock().has_room(self.connections.most()) {
                return;
            }
            self.connections.reach();
            self.freed.notified().await;
        }
    }

    /// A stranger's place for a connection from `address`.
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

    /// The bound that another stranger would break, and who is to make room.
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

    /// The stranger that has been there longest, among those of the address with the most.
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

    /// The client that was let in and has asked for nothing for the longest time.
    fn idle(&self) -> Option<u64> {
        let clients = self.clients.iter();
        let idle = clients.filter(|(_, client)| client.standing == Standing::Idle);
        let first = idle.min_by_key(|(_, client)| client.since);
        first.map(|(number, _)| *number)
    }

    /// Counts another stranger.
    fn count(&mut self, address: Option<IpAddr>) {
        self.strangers += 1;
        if let Some(address) = address {
            *self.by_address.entry(address).or_default() += 1;
        }
    }

    /// Counts one stranger less.
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
    /// The address of the connection; addresses that one machine may have many of count as one.
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Notes that a request of the client was heard.
    pub fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Returns after `patience` if no request of the client was heard by then, and else never.
    pub async fn stays_silent(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        if self.has_asked.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Whether no request of it was let in so far.
    pub fn is_strangers(&self) -> bool {
        !self.was_let_in.load(Ordering::Relaxed)
    }

    /// Lets the client in: its place is no stranger's, and is not given up before what is returned
    /// is dropped.
    pub fn let_in(self: &Arc<Self>) -> Busy {
        self.was_let_in.store(true, Ordering::Relaxed);
        self.places.taken.lock().set(self.number, Standing::Busy);
        Busy(Arc::clone(self))
    }

    /// Returns when the place is for somebody else: the connection is to be cut off.
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

/// The address, or its network where one machine may have many addresses.
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
