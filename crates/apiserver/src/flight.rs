//! How many requests are at work at once. Reading, writing and the system's own clients have places
//! of their own, one user takes only some of them, and who finds none waits a moment in a short line
//! before being told to come back. A flood by one user thus costs the others next to nothing.
//!
//! A place is kept until the answer has been sent. Reads only use the processor: more of one user's at
//! once would make nothing faster, and everybody else slower. Writes wait for the disk together.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use machinery::Status;
use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{RequestInfo, User, user};

/// How long a request waits for a place.
const PATIENCE: Duration = Duration::from_secs(1);
/// Requests of one user that may wait at a time.
const LINE: usize = 100;
/// A refusal takes its time, so that who asks again at once costs little; and not everybody's the
/// same time, so that they do not all come back together.
const PAUSE: Range<Duration> = Duration::from_millis(100)..Duration::from_millis(300);
/// One user's part of the places for reading.
const READING_SHARE: usize = 16;
/// One user's part of all other places.
const SHARE: usize = 2;
/// Users that are remembered before the idle ones are forgotten.
const REMEMBERED: usize = 1024;

/// Users whose work keeps the cluster alive.
const SYSTEM: &[&str] = &[
    "system:kube-scheduler",
    "system:kube-controller-manager",
    "system:kube-proxy",
    "system:apiserver",
    "system:mainstay:dns",
];

/// The places of all kinds.
pub(crate) struct Flight {
    reading: Places,
    writing: Places,
    system: Places,
}

/// Places of one kind.
struct Places {
    all: Arc<Semaphore>,
    per_user: usize,
    /// Guards what is known of each user.
    users: Mutex<HashMap<String, Arc<Share>>>,
}

/// One user's share of the places.
struct Share {
    places: Arc<Semaphore>,
    waiting: AtomicUsize,
}

/// A place in flight; dropping it gives it back.
pub(crate) struct Place {
    _share: OwnedSemaphorePermit,
    _all: OwnedSemaphorePermit,
}

impl Flight {
    /// Two thirds of the places are for reading, one third for writing; the system has as many again.
    pub(crate) fn new(places: usize) -> Self {
        Self {
            reading: Places::new(places * 2 / 3, READING_SHARE),
            writing: Places::new(places / 3, SHARE),
            system: Places::new(places, SHARE),
        }
    }

    /// Waits for a place. `None`: this request needs none.
    pub(crate) async fn admit(
        &self,
        who: &User,
        what: &RequestInfo,
    ) -> Result<Option<Place>, Status> {
        if who.is_in(user::MASTERS) || is_health(what) {
            return Ok(None);
        }
        let places = match what.verb {
            _ if is_system(who) => &self.system,
            "get" | "list" | "watch" | "head" => &self.reading,
            _ => &self.writing,
        };
        places.admit(&who.name).await.map(Some)
    }
}

fn is_health(what: &RequestInfo) -> bool {
    let start = what.path.split('/').nth(1).unwrap_or_default();
    what.resource.is_none() && matches!(start, "healthz" | "livez" | "readyz")
}

fn is_system(who: &User) -> bool {
    SYSTEM.contains(&who.name.as_str())
        || who.is_in("system:nodes")
        || who.is_in("system:serviceaccounts:kube-system")
}

impl Places {
    fn new(places: usize, share: usize) -> Self {
        Self {
            all: Arc::new(Semaphore::new(places)),
            per_user: places.div_ceil(share),
            users: Mutex::default(),
        }
    }

    fn share(&self, name: &str) -> Arc<Share> {
        let mut users = self.users.lock();
        if users.len() >= REMEMBERED {
            users.retain(|_, share| Arc::strong_count(share) > 1 || share.in_use(self.per_user));
        }
        if let Some(share) = users.get(name) {
            return share.clone();
        }
        let places = Arc::new(Semaphore::new(self.per_user));
        let share = Arc::new(Share {
            places,
            waiting: AtomicUsize::new(0),
        });
        users.insert(name.to_owned(), share.clone());
        share
    }

    async fn admit(&self, name: &str) -> Result<Place, Status> {
        let share = self.share(name);
        if let Ok(mine) = share.places.clone().try_acquire_owned()
            && let Ok(all) = self.all.clone().try_acquire_owned()
        {
            return Ok(Place {
                _share: mine,
                _all: all,
            });
        }
        let Some(_waiting) = share.stand_in_line() else {
            tokio::time::sleep(rand::random_range(PAUSE)).await;
            return Err(busy());
        };
        let place = async {
            let mine = share.places.clone().acquire_owned().await.ok()?;
            let all = self.all.clone().acquire_owned().await.ok()?;
            Some(Place {
                _share: mine,
                _all: all,
            })
        };
        tokio::time::timeout(PATIENCE, place)
            .await
            .ok()
            .flatten()
            .ok_or_else(busy)
    }
}

impl Share {
    fn in_use(&self, places: usize) -> bool {
        self.places.available_permits() < places
    }

    fn stand_in_line(&self) -> Option<Waiting<'_>> {
        let before = self.waiting.fetch_add(1, Ordering::Relaxed);
        let waiting = Waiting(&self.waiting);
        (before < LINE).then_some(waiting)
    }
}

/// One request in line, until it is dropped.
struct Waiting<'a>(&'a AtomicUsize);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

fn busy() -> Status {
    Status::too_many_requests("Too many requests, please try again later.", 1)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn get() -> RequestInfo {
        RequestInfo {
            verb: "get",
            path: "/api/v1/pods".to_owned(),
            resource: None,
        }
    }

    #[tokio::test]
    async fn a_flood_by_one_user_leaves_room_for_others() {
        let flight = Arc::new(Flight::new(600));
        let flooder = User::new("flood", [""; 0]);
        let mut held = Vec::new();
        for _ in 0..400 / READING_SHARE {
            held.push(flight.admit(&flooder, &get()).await.unwrap());
        }
        let mut waiting = tokio::task::JoinSet::new();
        for _ in 0..2000 {
            let (flight, user) = (flight.clone(), flooder.clone());
            waiting.spawn(async move { flight.admit(&user, &get()).await.is_ok() });
        }
        tokio::task::yield_now().await;
        let eve = User::new("eve", [""; 0]);
        let node = User::new("system:node:a", ["system:nodes"]);
        for other in [&eve, &node] {
            let place = flight.admit(other, &get()).now_or_never();
            place.expect("nobody else has to wait").unwrap();
        }
        let admitted = waiting.join_all().await;
        assert!(
            admitted.iter().all(|admitted| !admitted),
            "the line is short and the wait too"
        );
        drop(held);
        flight.admit(&flooder, &get()).await.unwrap();
    }

    #[tokio::test]
    async fn who_waits_gets_the_next_free_place() {
        let flight = Arc::new(Flight::new(3));
        let user = User::new("eve", [""; 0]);
        let held = flight.admit(&user, &get()).await.unwrap();
        let (other, who) = (flight.clone(), user.clone());
        let waiting = tokio::spawn(async move { other.admit(&who, &get()).await.is_ok() });
        tokio::task::yield_now().await;
        drop(held);
        assert!(waiting.await.unwrap());
    }

    #[tokio::test]
    async fn administrators_and_health_checks_always_get_through() {
        let flight = Flight::new(3);
        let user = User::new("eve", [""; 0]);
        let _held = flight.admit(&user, &get()).await.unwrap();
        let refused = flight.admit(&user, &get()).await.err().unwrap();
        assert_eq!(
            (refused.code, refused.details.unwrap().retry_after_seconds),
            (429, 1)
        );
        let masters = User::new("root", ["system:masters"]);
        assert!(flight.admit(&masters, &get()).await.unwrap().is_none());
        let health = RequestInfo {
            verb: "get",
            path: "/readyz".to_owned(),
            resource: None,
        };
        assert!(flight.admit(&user, &health).await.unwrap().is_none());
    }
}
