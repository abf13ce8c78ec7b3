//! The context of a running service: the shutdown signal, its readiness, and its tasks.

use std::{collections::BTreeMap, future::Future};

use futures::future::BoxFuture;
use tokio::sync::watch;
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::supervisor::{State, guard};

/// Passed to every run of a service. Clones share the same run.
#[derive(Clone)]
pub struct Context {
    name: &'static str,
    shutdown: CancellationToken,
    state: watch::Sender<State>,
    problems: watch::Sender<Problems>,
    tasks: TaskTracker,
}

/// Why a running service does not work: source and text of each problem.
pub type Problems = BTreeMap<String, String>;

impl Context {
    pub(crate) fn new(
        name: &'static str,
        shutdown: CancellationToken,
        state: watch::Sender<State>,
        problems: watch::Sender<Problems>,
    ) -> Self {
        // Clear the problems of an earlier run.
        problems.send_modify(Problems::clear);
        Self {
            name,
            shutdown,
            state,
            problems,
            tasks: TaskTracker::new(),
        }
    }

    /// A context outside any supervisor, for tests and one-shot tools. Cancel the token to stop.
    pub fn standalone(name: &'static str, shutdown: CancellationToken) -> Self {
        Self::new(
            name,
            shutdown,
            watch::Sender::new(State::Starting),
            watch::Sender::default(),
        )
    }

    /// A part of this run that may end before it: it has a shutdown token of its own, which this
    /// run's shutdown cancels, too, and owns its tasks. End it with [`Context::end`].
    pub fn part(&self) -> Self {
        self.part_with(self.shutdown.child_token())
    }

    /// A part of this run with an independent shutdown token: it still works while the run stops.
    /// End it with [`Context::end`].
    pub fn part_with(&self, shutdown: CancellationToken) -> Self {
        Self {
            name: self.name,
            shutdown,
            state: self.state.clone(),
            problems: self.problems.clone(),
            tasks: TaskTracker::new(),
        }
    }

    /// Stops the tasks of a part of a run and waits for them.
    pub async fn end(&self) {
        self.close().await;
    }

    /// The service's name.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Marks the service as ready; services that depend on it may start.
    pub fn ready(&self) {
        self.state.send_replace(State::Ready);
    }

    /// Sets a problem by source, or clears it with `None`. A service with problems is not ready in
    /// `/readyz`.
    pub fn set_problem(&self, source: &str, problem: Option<String>) {
        self.problems.send_if_modified(|problems| match problem {
            Some(text) => problems.insert(source.to_owned(), text.clone()) != Some(text),
            None => problems.remove(source).is_some(),
        });
    }

    /// Watches the problems of this run.
    pub fn problems(&self) -> watch::Receiver<Problems> {
        self.problems.subscribe()
    }

    /// Resolves when the process is asked to stop, or when this run has failed.
    pub async fn shutdown(&self) {
        self.shutdown.cancelled().await;
    }

    /// The shutdown token.
    pub fn token(&self) -> CancellationToken {
        self.shutdown.clone()
    }

    /// Runs a task owned by this run of the service: it is dropped at shutdown, and a panic in it
    /// is caught, logged and counted. A task that must finish its work listens to `token()` itself
    /// and is spawned with [`Context::spawn_draining`].
    pub fn spawn(&self, task: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        self.spawn_boxed(task, Box::pin(future));
    }

    // Boxed before it is wrapped: the wrappers and tokio's task are compiled once instead of for every future, and a
    // large future is not copied into each of them.
    fn spawn_boxed(&self, task: &'static str, future: BoxFuture<'static, ()>) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(guard(self.name, task, async move {
            tokio::select! {
                () = future => {}
                () = shutdown.cancelled() => {}
            }
        }));
    }

    /// Like [`Context::spawn`], but the task is waited for at shutdown instead of dropped.
    pub fn spawn_draining(
        &self,
        task: &'static str,
        future: impl Future<Output = ()> + Send + 'static,
    ) {
        let future: BoxFuture<'static, ()> = Box::pin(future);
        self.tasks.spawn(guard(self.name, task, future));
    }

    /// Stops this run's tasks and waits for them.
    pub(crate) async fn close(&self) {
        self.shutdown.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
