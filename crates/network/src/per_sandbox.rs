//! A pod network whose calls for one sandbox run one after the other: a runtime that gives up an ADD may call DEL while
//! the ADD still runs, and what DEL removes must not be made again behind it.

use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    sync::Arc,
};

use async_trait::async_trait;
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, RwLock, RwLockReadGuard};

use crate::{AttachRequest, Attachment, IpNet, PodNetwork, Result, Status};

/// The network.
pub struct PerSandbox {
    network: Arc<dyn PodNetwork>,
    /// Read by calls for one sandbox, written by those for all.
    all: RwLock<()>,
    /// The sandboxes with calls. Guards the map only; never held across an await.
    busy: Mutex<HashMap<String, Arc<AsyncMutex<()>>>>,
}

impl PerSandbox {
    /// Wraps a network, all of whose calls go through the result.
    pub fn new(network: Arc<dyn PodNetwork>) -> Arc<Self> {
        Arc::new(Self {
            network,
            all: RwLock::default(),
            busy: Mutex::default(),
        })
    }

    /// Waits until no other call for the sandbox runs.
    async fn turn(&self, sandbox_id: &str) -> (RwLockReadGuard<'_, ()>, OwnedMutexGuard<()>) {
        let all = self.all.read().await;
        let lock = {
            let mut busy = self.busy.lock();
            busy.retain(|_, lock| Arc::strong_count(lock) > 1);
            busy.entry(sandbox_id.to_owned()).or_default().clone()
        };
        (all, lock.lock_owned().await)
    }
}

#[async_trait]
impl PodNetwork for PerSandbox {
    async fn attach(&self, request: AttachRequest) -> Result<Attachment> {
        let _turn = self.turn(&request.sandbox_id).await;
        self.network.attach(request).await
    }

    async fn attachment(&self, sandbox_id: &str) -> Option<Attachment> {
        self.network.attachment(sandbox_id).await
    }

    async fn detach(&self, sandbox_id: &str, netns: Option<&Path>) -> Result<()> {
        let _turn = self.turn(sandbox_id).await;
        self.network.detach(sandbox_id, netns).await
    }

    async fn retain(&self, alive: &BTreeSet<String>) -> Result<()> {
        let _all = self.all.write().await;
        self.network.retain(alive).await
    }

    async fn set_pod_cidrs(&self, cidrs: Vec<IpNet>) -> Result<()> {
        self.network.set_pod_cidrs(cidrs).await
    }

    async fn status(&self) -> Status {
        self.network.status().await
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures::future::poll_immediate;

    use tokio::sync::Semaphore;

    use super::*;

    /// Logs calls; each waits for a permit before it ends.
    struct Slow {
        log: Mutex<Vec<String>>,
        permits: Semaphore,
    }

    impl Slow {
        async fn call(&self, what: &str, sandbox: &str) {
            self.log.lock().push(format!("{what} {sandbox}"));
            self.permits.acquire().await.unwrap().forget();
            self.log.lock().push(format!("end of {what} {sandbox}"));
        }

        fn taken(&self) -> Vec<String> {
            std::mem::take(&mut self.log.lock())
        }
    }

    #[async_trait]
    impl PodNetwork for Slow {
        async fn attach(&self, request: AttachRequest) -> Result<Attachment> {
            self.call("attach", &request.sandbox_id).await;
            Ok(Attachment::default())
        }

        async fn attachment(&self, _: &str) -> Option<Attachment> {
            None
        }

        async fn detach(&self, sandbox_id: &str, _: Option<&Path>) -> Result<()> {
            self.call("detach", sandbox_id).await;
            Ok(())
        }

        async fn retain(&self, _: &BTreeSet<String>) -> Result<()> {
            self.call("retain", "all").await;
            Ok(())
        }

        async fn set_pod_cidrs(&self, _: Vec<IpNet>) -> Result<()> {
            Ok(())
        }

        async fn status(&self) -> Status {
            Status::Ready
        }
    }

    fn request(sandbox: &str) -> AttachRequest {
        AttachRequest {
            sandbox_id: sandbox.into(),
            ..AttachRequest::default()
        }
    }

    #[tokio::test]
    async fn a_deletion_waits_for_the_addition_of_its_sandbox_only() {
        let slow = Arc::new(Slow {
            log: Mutex::default(),
            permits: Semaphore::new(0),
        });
        let network = PerSandbox::new(slow.clone());
        let mut added = pin!(network.attach(request("a")));
        let mut removed = pin!(network.detach("a", None));
        let mut other = pin!(network.detach("b", None));
        let nothing = BTreeSet::new();
        let mut collected = pin!(network.retain(&nothing));
        assert!(poll_immediate(&mut added).await.is_none());
        assert!(poll_immediate(&mut removed).await.is_none());
        assert!(poll_immediate(&mut other).await.is_none());
        assert_eq!(slow.taken(), ["attach a", "detach b"]);
        // Garbage collection concerns every sandbox.
        assert!(poll_immediate(&mut collected).await.is_none());
        assert!(slow.taken().is_empty());
        slow.permits.add_permits(1);
        added.await.unwrap();
        assert!(poll_immediate(&mut removed).await.is_none());
        assert_eq!(slow.taken(), ["end of attach a", "detach a"]);
        slow.permits.add_permits(3);
        other.await.unwrap();
        removed.await.unwrap();
        collected.await.unwrap();
        let ended = [
            "end of detach b",
            "end of detach a",
            "retain all",
            "end of retain all",
        ];
        assert_eq!(slow.taken(), ended);
    }

    #[tokio::test]
    async fn a_call_that_is_given_up_ends_its_turn_and_leaves_nothing() {
        let slow = Arc::new(Slow {
            log: Mutex::default(),
            permits: Semaphore::new(0),
        });
        let network = PerSandbox::new(slow.clone());
        {
            let given_up = pin!(network.attach(request("a")));
            assert!(poll_immediate(given_up).await.is_none());
        }
        slow.permits.add_permits(2);
        network.detach("a", None).await.unwrap();
        network.detach("b", None).await.unwrap();
        assert_eq!(network.busy.lock().len(), 1);
    }
}
