//! Limits connections without an authorized request, per client address and in time, so that
//! clients without credentials can neither use up memory nor block others.

use std::{collections::HashMap, net::IpAddr, sync::Arc, time::Duration};

use parking_lot::Mutex;

/// The maximum number per address: more than an API server opens at once.
const PER_ADDRESS: usize = 512;
/// How long a connection may take until its first request is authorized.
pub(super) const UNAUTHORIZED_TIMEOUT: Duration = Duration::from_secs(30);

/// The number of such connections, by address.
#[derive(Clone, Default)]
pub(super) struct UnauthorizedConnections {
    /// Guards the map only.
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
}

impl UnauthorizedConnections {
    /// Counts a new connection, unless its address has too many.
    pub(super) fn enter(&self, address: IpAddr) -> Option<UnauthorizedConnection> {
        let mut counts = self.counts.lock();
        let count = counts.entry(address).or_default();
        if *count >= PER_ADDRESS {
            return None;
        }
        *count += 1;
        let counts = self.counts.clone();
        let place = AddressSlot { counts, address };
        Some(UnauthorizedConnection(Arc::new(Guest {
            slot: Mutex::new(Some(place)),
            turn: tokio::sync::Mutex::default(),
        })))
    }
}

/// A connection that counts until a request was authorized or it is closed.
#[derive(Clone)]
pub(super) struct UnauthorizedConnection(Arc<Guest>);

struct Guest {
    slot: Mutex<Option<AddressSlot>>,
    /// Held while a request is authenticated and authorized.
    turn: tokio::sync::Mutex<()>,
}

impl UnauthorizedConnection {
    /// A request was authorized: the connection no longer counts and has no time limit.
    pub(super) fn welcome(&self) {
        self.0.slot.lock().take();
    }

    /// Waits until no other request of the connection is being authorized; at once after one was. Requests with guessed
    /// tokens do not fill the queue in front of others.
    pub(super) async fn turn(&self) -> Option<tokio::sync::MutexGuard<'_, ()>> {
        if self.0.slot.lock().is_none() {
            return None;
        }
        Some(self.0.turn.lock().await)
    }

    /// Returns when the time is over without an authorized request.
    pub(super) async fn expired(&self) {
        self.expired_after(UNAUTHORIZED_TIMEOUT).await;
    }

    async fn expired_after(&self, patience: Duration) {
        tokio::time::sleep(patience).await;
        if self.0.slot.lock().is_none() {
            std::future::pending().await
        }
    }
}

struct AddressSlot {
    counts: Arc<Mutex<HashMap<IpAddr, usize>>>,
    address: IpAddr,
}

impl Drop for AddressSlot {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        if let Some(count) = counts.get_mut(&self.address) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unauthenticated_connections_are_limited_per_address() {
        let guests = UnauthorizedConnections::default();
        let (one, two) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let mut all: Vec<UnauthorizedConnection> =
            (0..PER_ADDRESS).filter_map(|_| guests.enter(one)).collect();
        assert_eq!(all.len(), PER_ADDRESS);
        assert!(guests.enter(one).is_none());
        assert!(guests.enter(two).is_some());
        // An authorized connection and a closed one free their places.
        all[0].welcome();
        all[0].welcome();
        let next = guests.enter(one);
        assert!(next.is_some() && guests.enter(one).is_none());
        all.pop();
        assert!(guests.enter(one).is_some());
        drop((all, next));
        assert!(guests.counts.lock().is_empty());
    }

    #[tokio::test]
    async fn requests_take_turns_until_one_is_authorized() {
        let guests = UnauthorizedConnections::default();
        let one = guests.enter(IpAddr::from([10, 0, 0, 1])).unwrap();
        let first = one.turn().await;
        let second = one.clone();
        let mut waits = Box::pin(second.turn());
        assert!(futures::poll!(&mut waits).is_pending());
        drop(first);
        assert!(waits.await.is_some());
        let _held = one.turn().await;
        one.welcome();
        assert!(one.turn().await.is_none());
    }

    #[tokio::test]
    async fn authorized_connections_are_kept_and_others_expire() {
        let guests = UnauthorizedConnections::default();
        let address = IpAddr::from([10, 0, 0, 1]);
        let (stranger, friend) = (
            guests.enter(address).unwrap(),
            guests.enter(address).unwrap(),
        );
        friend.welcome();
        let soon = Duration::from_millis(1);
        stranger.expired_after(soon).await;
        let waited = tokio::time::timeout(soon * 20, friend.expired_after(soon));
        assert!(waited.await.is_err());
    }
}
