//! Connections of whom nobody was let in yet, by the addresses that they come from.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use parking_lot::Mutex;
use tokio::net::unix;

/// Where connections come from.
pub(super) trait Origin {
    /// The address, where there are addresses.
    fn ip(&self) -> Option<IpAddr>;
}

impl Origin for SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        Some(Self::ip(self))
    }
}

impl Origin for unix::SocketAddr {
    fn ip(&self) -> Option<IpAddr> {
        None
    }
}

/// Counts them.
#[derive(Debug, Default)]
pub(super) struct Strangers(Mutex<BTreeMap<IpAddr, usize>>);

/// One of them, until it is dropped.
#[derive(Debug)]
struct Stranger {
    strangers: Arc<Strangers>,
    address: IpAddr,
}

/// What is known of the client of one connection.
#[derive(Debug)]
pub(super) struct Client {
    /// None once it was let in.
    stranger: Mutex<Option<Stranger>>,
    was_let_in: AtomicBool,
    has_asked: AtomicBool,
}

impl Strangers {
    /// The client of another connection; `None` when there are `most` strangers from its
    /// address already.
    pub(super) fn client(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<Client> {
        let address = shared(address);
        let mut counts = self.0.lock();
        let count = counts.entry(address).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        let stranger = Stranger {
            strangers: Arc::clone(self),
            address,
        };
        Some(Client {
            stranger: Mutex::new(Some(stranger)),
            was_let_in: AtomicBool::new(false),
            has_asked: AtomicBool::new(false),
        })
    }
}

impl Client {
    /// A request of it was heard.
    pub(super) fn asks(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Whether a request of it was ever heard.
    pub(super) fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// It is no stranger.
    pub(super) fn let_in(&self) {
        if !self.was_let_in.swap(true, Ordering::Relaxed) {
            drop(self.stranger.lock().take());
        }
    }

    /// Whether a request of it was ever let in.
    pub(super) fn was_let_in(&self) -> bool {
        self.was_let_in.load(Ordering::Relaxed)
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let mut counts = self.strangers.0.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

/// What one machine may have many of counts as one address.
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
mod tests {
    use super::*;

    #[test]
    fn an_address_has_its_share_of_strangers_and_no_more() {
        let strangers = Arc::<Strangers>::default();
        let client = |ip: &str| strangers.client(ip.parse().unwrap(), 2);
        let first = client("192.0.2.1").unwrap();
        let second = client("::ffff:192.0.2.1").unwrap();
        assert!(client("192.0.2.1").is_none());
        // Others have theirs, of which a network of one machine has one.
        let others = [client("2001:db8::1"), client("2001:db8::2")];
        assert!(others.iter().all(Option::is_some));
        assert!(client("2001:db8::3").is_none());
        assert!(client("2001:db8:0:1::3").is_some());

        first.let_in();
        first.let_in();
        let third = client("192.0.2.1");
        assert!(third.is_some() && client("192.0.2.1").is_none());
        drop((first, second));
        assert!(client("192.0.2.1").is_some());
        drop((third, others));
        assert!(strangers.0.lock().is_empty());
    }
}
