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
pub struct ConnectionLimits {
    /// Concurrent connections.
    pub connections: usize,
    /// Unauthenticated connections.
    pub unauthenticated: usize,
    /// Unauthenticated connections from one address.
    pub unauthenticated_of_address: usize,
}

/// The connections of a server, up to its limits.
#[derive(Debug)]
pub struct ConnectionLimiter {
    table: Mutex<ConnectionTable>,
    /// Notified when a connection ends or becomes idle.
    freed: Notify,
    connections: Arc<Bound>,
    unauthenticated: Arc<Bound>,
    unauthenticated_of_address: Arc<Bound>,
}

#[derive(Debug, Default)]
struct ConnectionTable {
    next: u64,
    clients: BTreeMap<u64, TrackedConnection>,
    unauthenticated: usize,
    /// The number of unauthenticated connections by address.
    by_address: BTreeMap<IpAddr, usize>,
}

#[derive(Debug)]
struct TrackedConnection {
    address: Option<IpAddr>,
    state: ClientState,
    /// The time of the last change of the state.
    since: Instant,
    leave: Arc<Notify>,
}

/// The authentication and activity of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    Unauthenticated,
    /// An authenticated client without a request in progress.
    Idle,
    /// An authenticated client with a request in progress.
    Busy,
}

/// The slot of one connection. Dropping it frees the slot.
#[derive(Debug)]
pub struct ConnectionSlot {
    limiter: Arc<ConnectionLimiter>,
    number: u64,
    address: Option<IpAddr>,
    leave: Arc<Notify>,
    has_sent_request: AtomicBool,
    is_authenticated: AtomicBool,
}

/// A guard for a request in progress of an authenticated client. Dropping it makes the client idle.
#[derive(Debug)]
pub struct RequestGuard(Arc<ConnectionSlot>);

// === impl ConnectionLimits ===

impl ConnectionLimits {
    /// Limits for at most `connections`: a quarter may be unauthenticated, an eighth may be
    /// unauthenticated and from one address.
    pub const fn new(connections: usize) -> Self {
        Self {
            connections,
            unauthenticated: connections.div_ceil(4),
            unauthenticated_of_address: connections.div_ceil(8),
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
            unauthenticated: connections,
            unauthenticated_of_address: connections,
        }
    }
}

// === impl ConnectionLimiter ===

impl ConnectionLimiter {
    /// Creates the limiter of the server `server`, without connections.
    pub fn new(server: &'static str, room: ConnectionLimits) -> Arc<Self> {
        let bound = |name, most| Arc::new(Bound::new(server, name, most));
        Arc::new(Self {
            table: Mutex::default(),
            freed: Notify::new(),
            connections: bound("connections", room.connections),
            unauthenticated: bound("strangers", room.unauthenticated),
            unauthenticated_of_address: bound(
                "strangers_of_address",
                room.unauthenticated_of_address,
            ),
        })
    }

    /// The limits on connections.
    pub fn bounds(&self) -> [Arc<Bound>; 3] {
        let bounds = [
            &self.connections,
            &self.unauthenticated,
            &self.unauthenticated_of_address,
        ];
        bounds.map(Arc::clone)
    }

    /// Waits until there is a free slot, or a connection that can be closed for a new one. Only
    /// one task may wait: the one that accepts connections.
    pub async fn wait_for_slot(&self) {
        loop {
            if self.table.lock().has_room(self.connections.most()) {
                return;
            }
            self.connections.reach();
            self.freed.notified().await;
        }
    }

    /// Takes a slot for an unauthenticated connection from `address`. Closes another connection if
    /// a limit is reached.
    pub fn admit(self: &Arc<Self>, address: Option<IpAddr>) -> ConnectionSlot {
        let address = address.map(shared);
        let leave = Arc::<Notify>::default();
        let mut table = self.table.lock();
        if let Some((bound, last)) = self.exceeded(&table, address) {
            bound.reach();
            if let Some(client) = last.and_then(|number| table.remove(number)) {
                client.leave.notify_one();
            }
        }
        let number = table.next;
        table.next += 1;
        let client = TrackedConnection {
            address,
            state: ClientState::Unauthenticated,
            since: Instant::now(),
            leave: Arc::clone(&leave),
        };
        table.clients.insert(number, client);
        table.count(address);
        ConnectionSlot {
            limiter: Arc::clone(self),
            number,
            address,
            leave,
            has_sent_request: AtomicBool::new(false),
            is_authenticated: AtomicBool::new(false),
        }
    }

    /// Returns the limit that another unauthenticated connection would exceed, and the connection
    /// to close.
    fn exceeded(
        &self,
        table: &ConnectionTable,
        address: Option<IpAddr>,
    ) -> Option<(&Bound, Option<u64>)> {
        let of_address = address.map_or(0, |address| table.of_address(address));
        if of_address >= self.unauthenticated_of_address.most() {
            let oldest = table.oldest_unauthenticated(|client| client.address == address);
            return Some((&self.unauthenticated_of_address, oldest));
        }
        if table.unauthenticated >= self.unauthenticated.most() {
            return Some((
                &self.unauthenticated,
                table.oldest_unauthenticated(|_| true),
            ));
        }
        if table.clients.len() >= self.connections.most() {
            let last = table
                .oldest_unauthenticated(|_| true)
                .or_else(|| table.longest_idle());
            return Some((&self.connections, last));
        }
        None
    }
}

// === impl ConnectionTable ===

impl ConnectionTable {
    fn of_address(&self, address: IpAddr) -> usize {
        self.by_address.get(&address).copied().unwrap_or_default()
    }

    fn has_room(&self, most: usize) -> bool {
        let is_busy = |client: &TrackedConnection| client.state == ClientState::Busy;
        self.clients.len() < most || self.unauthenticated > 0 || !self.clients.values().all(is_busy)
    }

    /// Returns the oldest matching unauthenticated connection, from the address with the most of
    /// them.
    fn oldest_unauthenticated(&self, of: impl Fn(&TrackedConnection) -> bool) -> Option<u64> {
        let unauthenticated = self.clients.iter().filter(|(_, client)| {
            let is_unauthenticated = client.state == ClientState::Unauthenticated;
            is_unauthenticated && of(client)
        });
        let last = unauthenticated.max_by_key(|(number, client)| {
            let beside = client.address.map_or(0, |address| self.of_address(address));
            (beside, Reverse(**number))
        });
        last.map(|(number, _)| *number)
    }

    /// Returns the authenticated client that has been idle the longest.
    fn longest_idle(&self) -> Option<u64> {
        let clients = self.clients.iter();
        let idle = clients.filter(|(_, client)| client.state == ClientState::Idle);
        let first = idle.min_by_key(|(_, client)| client.since);
        first.map(|(number, _)| *number)
    }

    /// Counts a new unauthenticated connection.
    fn count(&mut self, address: Option<IpAddr>) {
        self.unauthenticated += 1;
        if let Some(address) = address {
            *self.by_address.entry(address).or_default() += 1;
        }
    }

    /// Uncounts an unauthenticated connection.
    fn discount(&mut self, address: Option<IpAddr>) {
        self.unauthenticated -= 1;
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

    fn remove(&mut self, number: u64) -> Option<TrackedConnection> {
        let client = self.clients.remove(&number)?;
        if client.state == ClientState::Unauthenticated {
            self.discount(client.address);
        }
        Some(client)
    }

    fn set(&mut self, number: u64, state: ClientState) {
        let Some(client) = self.clients.get_mut(&number) else {
            return;
        };
        let (before, address) = (client.state, client.address);
        (client.state, client.since) = (state, Instant::now());
        if before == ClientState::Unauthenticated {
            self.discount(address);
        }
    }
}

// === impl ConnectionSlot ===

impl ConnectionSlot {
    /// The address of the connection. It is the /64 network for IPv6, since one machine may have
    /// many addresses of it.
    pub const fn address(&self) -> Option<IpAddr> {
        self.address
    }

    /// Records that the client has sent a request.
    pub fn note_request(&self) {
        self.has_sent_request.store(true, Ordering::Relaxed);
    }

    /// Resolves after `patience` if the client has sent no request by then; otherwise never
    /// resolves.
    pub async fn first_request_timeout(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        if self.has_sent_request.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
    }

    /// Checks whether the connection is unauthenticated: no request on it was accepted yet.
    pub fn is_unauthenticated(&self) -> bool {
        !self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Marks the client as authenticated and busy. Its slot is not given to another client until
    /// the returned guard is dropped.
    pub fn mark_authenticated(self: &Arc<Self>) -> RequestGuard {
        self.is_authenticated.store(true, Ordering::Relaxed);
        self.limiter
            .table
            .lock()
            .set(self.number, ClientState::Busy);
        RequestGuard(Arc::clone(self))
    }

    /// Resolves when the slot is given to another connection. The caller must close this one.
    pub async fn evicted(&self) {
        self.leave.notified().await;
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.limiter.table.lock().remove(self.number);
        self.limiter.freed.notify_one();
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        let ConnectionSlot {
            limiter, number, ..
        } = &*self.0;
        limiter.table.lock().set(*number, ClientState::Idle);
        limiter.freed.notify_one();
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
