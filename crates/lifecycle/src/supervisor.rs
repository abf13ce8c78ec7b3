//! Starts services in dependency order, restarts them with backoff, and drains them at shutdown.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    panic::AssertUnwindSafe,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use futures::FutureExt;
use stdx::Backoff;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::{Context, Failure, Outcome, Problems, Service};

/// A run of at least this duration resets the backoff.
const HEALTHY_AFTER: Duration = Duration::from_secs(30);

/// The state of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum State {
    /// Waits for its dependencies.
    Waiting,
    /// Runs, not ready yet.
    Starting,
    /// Ready.
    Ready,
    /// Failed with this message; will be restarted.
    Failed(String),
    /// Ended at shutdown.
    Stopped,
}

/// The state and restart count of one service.
#[derive(Debug, Clone)]
pub struct ServiceHealth {
    /// The service.
    pub name: &'static str,
    /// Its state.
    pub state: State,
    /// The number of restarts.
    pub restarts: u64,
    /// Why it does not work although it runs.
    pub problems: Problems,
}

/// The dependency graph is invalid.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum GraphError {
    /// Two services share a name.
    #[error("two services are named {0:?}")]
    Duplicate(&'static str),
    /// A service depends on one that does not exist.
    #[error("service {0:?} depends on {1:?}, which does not exist")]
    Missing(&'static str, &'static str),
    /// The health view belongs to another supervisor.
    #[error("the health view belongs to another supervisor")]
    TakenHealth,
    /// A dependency cycle.
    #[error("services wait for each other: {0:?}")]
    Cycle(Vec<&'static str>),
}

#[derive(Clone)]
struct Slot {
    state: watch::Sender<State>,
    problems: watch::Sender<Problems>,
    restarts: Arc<AtomicU64>,
    /// Weak, since a service may hold the health view that contains this.
    service: Weak<dyn Service>,
}

/// A view of all services' states, cheap to clone, for `/readyz` and metrics. It may be passed on
/// before the services exist, for example to one of them: it is empty until a supervisor fills it.
#[derive(Clone, Default)]
pub struct Health {
    slots: Arc<OnceLock<BTreeMap<&'static str, Slot>>>,
}

impl Health {
    /// Every service, by name.
    pub fn all(&self) -> Vec<ServiceHealth> {
        let of = |(name, slot): (&&'static str, &Slot)| ServiceHealth {
            name,
            state: slot.state.borrow().clone(),
            restarts: slot.restarts.load(Ordering::Relaxed),
            problems: slot.problems.borrow().clone(),
        };
        self.slots.get().into_iter().flatten().map(of).collect()
    }

    /// The metrics of all services.
    pub fn metrics(&self) -> String {
        let slots = self.slots.get().into_iter().flat_map(BTreeMap::values);
        let services = slots.filter_map(|slot| slot.service.upgrade());
        services.map(|service| service.metrics()).collect()
    }

    fn slot(&self, name: &str) -> Option<&Slot> {
        self.slots.get()?.get(name)
    }

    /// Waits until the named service is ready. An unknown name is never ready.
    pub async fn ready(&self, name: &str) {
        match self.slot(name) {
            Some(slot) => {
                // The sender is in the slot that is borrowed here: the channel cannot close.
                let _ = slot
                    .state
                    .subscribe()
                    .wait_for(|state| *state == State::Ready)
                    .await;
            }
            None => std::future::pending().await,
        }
    }
}

/// Owns the services and runs them.
pub struct Supervisor {
    services: Vec<Arc<dyn Service>>,
    health: Health,
    drain: Duration,
}

impl Supervisor {
    /// Validates the graph; nothing runs yet. At shutdown, services have `drain` to end. `health`
    /// is filled with the services' states; it must not belong to another supervisor.
    pub fn new(
        services: Vec<Arc<dyn Service>>,
        drain: Duration,
        health: Health,
    ) -> Result<Self, GraphError> {
        check_graph(&services)?;
        let slots = services.iter().map(|service| {
            let slot = Slot {
                state: watch::Sender::new(State::Waiting),
                problems: watch::Sender::default(),
                restarts: Arc::default(),
                service: Arc::downgrade(service),
            };
            (service.name(), slot)
        });
        if health.slots.set(slots.collect()).is_err() {
            return Err(GraphError::TakenHealth);
        }
        Ok(Self {
            services,
            health,
            drain,
        })
    }

    /// The states, also while running.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs everything until `shutdown` is cancelled, then stops the services in reverse dependency
    /// order. Returns the names of those that did not end before the drain deadline.
    pub async fn run(self, shutdown: CancellationToken) -> Vec<&'static str> {
        let mut running = JoinSet::new();
        let dependents = dependents(&self.services);
        for service in &self.services {
            let stop = CancellationToken::new();
            running.spawn(supervise(
                service.clone(),
                self.health.clone(),
                stop.clone(),
            ));
            let users = dependents.get(service.name()).cloned().unwrap_or_default();
            running.spawn(stop_after_users(
                users,
                self.health.clone(),
                shutdown.clone(),
                stop,
            ));
        }
        shutdown.cancelled().await;
        let all = async { while running.join_next().await.is_some() {} };
        if tokio::time::timeout(self.drain, all).await.is_ok() {
            return Vec::new();
        }
        running.abort_all();
        let unfinished =
            |health: ServiceHealth| (health.state != State::Stopped).then_some(health.name);
        self.health
            .all()
            .into_iter()
            .filter_map(unfinished)
            .collect()
    }
}

/// Cancels `stop` once shutdown has begun and every dependent of the service has stopped.
async fn stop_after_users(
    users: Vec<&'static str>,
    health: Health,
    shutdown: CancellationToken,
    stop: CancellationToken,
) {
    shutdown.cancelled().await;
    for user in users {
        let Some(slot) = health.slot(user) else {
            continue;
        };
        let mut state = slot.state.subscribe();
        let _ = state.wait_for(|state| *state == State::Stopped).await;
    }
    stop.cancel();
}

/// Runs one service for the life of the process: waits for its dependencies, restarts it.
async fn supervise(service: Arc<dyn Service>, health: Health, stop: CancellationToken) {
    let name = service.name();
    let Some(slot) = health.slot(name).cloned() else {
        return;
    };
    let dependencies = async {
        for dependency in service.after() {
            health.ready(dependency).await;
        }
    };
    let started = tokio::select! {
        () = dependencies => true,
        () = stop.cancelled() => false,
    };
    if started {
        run_until_stopped(service, &slot, stop).await;
    }
    slot.state.send_replace(State::Stopped);
}

async fn run_until_stopped(service: Arc<dyn Service>, slot: &Slot, stop: CancellationToken) {
    let name = service.name();
    let mut backoff = Backoff::new(Duration::from_millis(100), Duration::from_secs(30));
    loop {
        slot.state.send_replace(State::Starting);
        let context = Context::new(
            name,
            stop.child_token(),
            slot.state.clone(),
            slot.problems.clone(),
        );
        let begun = Instant::now();
        let outcome = tokio::select! {
            biased;
            outcome = catch(service.clone().run(context.clone())) => outcome,
            () = stopped_before_ready(slot, &stop) => Ok(()),
        };
        context.close().await;
        if stop.is_cancelled() {
            if let Err(failure) = outcome {
                warn!(service = name, %failure, "failed while stopping");
            }
            return;
        }
        let message = match outcome {
            Ok(()) => "ended before shutdown".to_owned(),
            Err(failure) => failure.to_string(),
        };
        if begun.elapsed() >= HEALTHY_AFTER {
            backoff.reset();
        }
        let delay = backoff.step();
        error!(service = name, error = message, retry_in = ?delay, "service failed");
        slot.state.send_replace(State::Failed(message));
        slot.restarts.fetch_add(1, Ordering::Relaxed);
        tokio::select! {
            () = tokio::time::sleep(delay) => info!(service = name, "restarting"),
            () = stop.cancelled() => return,
        }
    }
}

/// Resolves when a run that is not ready is stopped. A start waits for caches, the API or a
/// runtime, which may have stopped already: such a run is dropped instead of drained. It has
/// acknowledged nothing yet, and every start handles what a crash leaves behind.
async fn stopped_before_ready(slot: &Slot, stop: &CancellationToken) {
    stop.cancelled().await;
    // A run that became ready meanwhile handles its shutdown signal.
    if *slot.state.borrow() == State::Ready {
        std::future::pending::<()>().await;
    }
}

static PANICS: AtomicU64 = AtomicU64::new(0);

/// The number of panics caught since the process started.
pub fn panics_caught() -> u64 {
    PANICS.load(Ordering::Relaxed)
}

/// Turns a panic of a run into a failure.
async fn catch(run: crate::Run) -> Outcome {
    AssertUnwindSafe(run)
        .catch_unwind()
        .await
        .unwrap_or_else(|panic| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            Err(Failure::from(format!(
                "panicked: {}",
                panic_message(&*panic)
            )))
        })
}

/// Wraps a task of a service: its panic is logged and counted, and not propagated.
pub(crate) async fn guard(
    service: &'static str,
    task: &'static str,
    future: impl Future<Output = ()>,
) {
    if let Err(panic) = AssertUnwindSafe(future).catch_unwind().await {
        PANICS.fetch_add(1, Ordering::Relaxed);
        error!(
            service,
            task,
            panic = panic_message(&*panic),
            "task panicked"
        );
    }
}

fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("(no message)")
}

fn dependents(services: &[Arc<dyn Service>]) -> BTreeMap<&'static str, Vec<&'static str>> {
    let mut users: BTreeMap<&'static str, Vec<&'static str>> = BTreeMap::new();
    for service in services {
        for dependency in service.after() {
            users.entry(dependency).or_default().push(service.name());
        }
    }
    users
}

fn check_graph(services: &[Arc<dyn Service>]) -> Result<(), GraphError> {
    let mut names = BTreeSet::new();
    for service in services {
        if !names.insert(service.name()) {
            return Err(GraphError::Duplicate(service.name()));
        }
    }
    for service in services {
        if let Some(missing) = service.after().iter().find(|name| !names.contains(**name)) {
            return Err(GraphError::Missing(service.name(), missing));
        }
    }
    let mut left: Vec<_> = services.iter().collect();
    let mut started = BTreeSet::new();
    loop {
        let before = left.len();
        left.retain(|service| {
            let free = service.after().iter().all(|name| started.contains(name));
            if free {
                started.insert(service.name());
            }
            !free
        });
        if left.is_empty() {
            return Ok(());
        }
        if left.len() == before {
            return Err(GraphError::Cycle(
                left.iter().map(|service| service.name()).collect(),
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::Run;

    type Log = Arc<Mutex<Vec<String>>>;

    struct Fake {
        name: &'static str,
        after: &'static [&'static str],
        fail_first: bool,
        runs: AtomicU64,
        log: Log,
    }

    fn fake(name: &'static str, after: &'static [&'static str], log: &Log) -> Fake {
        Fake {
            name,
            after,
            fail_first: false,
            runs: AtomicU64::new(0),
            log: log.clone(),
        }
    }

    impl Service for Fake {
        fn name(&self) -> &'static str {
            self.name
        }

        fn after(&self) -> &'static [&'static str] {
            self.after
        }

        fn run(self: Arc<Self>, context: Context) -> Run {
            Box::pin(async move {
                self.log
                    .lock()
                    .unwrap()
                    .push(format!("{} starts", self.name));
                if self.runs.fetch_add(1, Ordering::SeqCst) == 0 && self.fail_first {
                    panic!("first run breaks");
                }
                context.ready();
                context.shutdown().await;
                self.log
                    .lock()
                    .unwrap()
                    .push(format!("{} stops", self.name));
                Ok(())
            })
        }
    }

    #[tokio::test]
    async fn services_start_after_their_dependencies_and_stop_before_them() {
        let log = Log::default();
        let services: Vec<Arc<dyn Service>> = vec![
            Arc::new(fake("api", &["store"], &log)),
            Arc::new(fake("store", &[], &log)),
        ];
        let supervisor =
            Supervisor::new(services, Duration::from_secs(5), Health::default()).unwrap();
        let (health, shutdown) = (supervisor.health(), CancellationToken::new());
        let run = tokio::spawn(supervisor.run(shutdown.clone()));
        health.ready("api").await;
        shutdown.cancel();
        assert!(run.await.unwrap().is_empty());
        let expected = ["store starts", "api starts", "api stops", "store stops"];
        assert_eq!(*log.lock().unwrap(), expected);
    }

    #[tokio::test]
    async fn a_panicking_service_is_restarted_and_counted() {
        let log = Log::default();
        let flaky = Fake {
            fail_first: true,
            ..fake("flaky", &[], &log)
        };
        let supervisor = Supervisor::new(
            vec![Arc::new(flaky)],
            Duration::from_secs(5),
            Health::default(),
        )
        .unwrap();
        let (health, shutdown) = (supervisor.health(), CancellationToken::new());
        let run = tokio::spawn(supervisor.run(shutdown.clone()));
        health.ready("flaky").await;
        assert_eq!(health.all()[0].restarts, 1);
        assert!(panics_caught() >= 1);
        shutdown.cancel();
        run.await.unwrap();
    }

    /// Starts, and never becomes ready.
    struct NeverReady;

    impl Service for NeverReady {
        fn name(&self) -> &'static str {
            "never ready"
        }

        fn run(self: Arc<Self>, context: Context) -> Run {
            Box::pin(async move {
                let (sender, receiver) = tokio::sync::oneshot::channel::<()>();
                // This task is dropped at shutdown, as a cache that never syncs.
                context.spawn("cache", async move {
                    std::future::pending::<()>().await;
                    drop(sender);
                });
                let _ = receiver.await;
                std::future::pending().await
            })
        }
    }

    #[tokio::test]
    async fn a_service_that_is_still_starting_does_not_hold_up_the_shutdown() {
        // Longer than the test waits: only a dropped run ends in time.
        let drain = Duration::from_secs(3600);
        let supervisor =
            Supervisor::new(vec![Arc::new(NeverReady)], drain, Health::default()).unwrap();
        let (health, shutdown) = (supervisor.health(), CancellationToken::new());
        let run = tokio::spawn(supervisor.run(shutdown.clone()));
        while health.all()[0].state != State::Starting {
            tokio::task::yield_now().await;
        }
        shutdown.cancel();
        let stopped = tokio::time::timeout(Duration::from_secs(30), run).await;
        assert!(stopped.expect("it was waited for").unwrap().is_empty());
    }

    #[test]
    fn a_graph_that_cannot_start_is_refused() {
        let log = Log::default();
        let refuse = |services: Vec<Fake>| {
            let services = services
                .into_iter()
                .map(|s| Arc::new(s) as Arc<dyn Service>)
                .collect();
            Supervisor::new(services, Duration::ZERO, Health::default())
                .err()
                .unwrap()
        };
        assert_eq!(
            refuse(vec![fake("a", &["b"], &log), fake("b", &["a"], &log)]),
            GraphError::Cycle(vec!["a", "b"])
        );
        assert_eq!(
            refuse(vec![fake("a", &["x"], &log)]),
            GraphError::Missing("a", "x")
        );
        assert_eq!(
            refuse(vec![fake("a", &[], &log), fake("a", &[], &log)]),
            GraphError::Duplicate("a")
        );
    }
}
