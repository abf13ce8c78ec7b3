//! Limits the open connections of each client address, so that one client cannot use up a server's descriptors.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;

/// The number of connections per client address. Clones share them.
#[derive(Clone)]
pub struct ClientShares {
    per_client: usize,
    /// Guards the counts; addresses without a connection are absent.
    open: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

/// A connection's place in the client's share; released when dropped.
pub struct Share {
    shares: ClientShares,
    client: IpAddr,
}

impl ClientShares {
    /// Every client address may have this many connections.
    pub fn new(per_client: usize) -> Self {
        Self {
            per_client,
            open: Arc::default(),
        }
    }

    /// `None` if the client has reached its limit.
    pub fn enter(&self, client: IpAddr) -> Option<Share> {
        let client = client.to_canonical();
        let mut open = self.open.lock();
        let count = open.entry(client).or_default();
        if *count >= self.per_client {
            return None;
        }
        *count += 1;
        let shares = self.clone();
        Some(Share { shares, client })
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut open = self.shares.open.lock();
        if let Some(count) = open.get_mut(&self.client) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.client);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_has_a_share_of_the_connections_and_gives_it_back() {
        let shares = ClientShares::new(3);
        let one: IpAddr = "192.0.2.1".parse().unwrap();
        let mut held: Vec<Share> = (0..3).filter_map(|_| shares.enter(one)).collect();
        assert_eq!(held.len(), 3);
        assert!(shares.enter(one).is_none());
        // The same client in another spelling, and another client.
        assert!(shares.enter("::ffff:192.0.2.1".parse().unwrap()).is_none());
        assert!(shares.enter("192.0.2.2".parse().unwrap()).is_some());
        held.pop();
        assert!(shares.enter(one).is_some());
        drop(held);
        assert!(shares.open.lock().is_empty());
    }
}
