//! A control plane component with a single instance: the controllers, the scheduler. Servers elect
//! a leader by a Lease; the leader builds the component anew with clients whose writes end with its
//! term.

use std::sync::Arc;

use apiserver::User;
use client::{Connector, kube};
use lifecycle::{Context, Outcome, Run, Service};
use parking_lot::Mutex;
use reconcile::election::{self, Ended, Leadership};
use stdx::SystemClock;

use crate::connector::InProcess;

/// Builds the component for a term.
pub(crate) type Build = dyn Fn(Term) -> Arc<dyn Service> + Send + Sync;

/// The clients of one term.
#[derive(Clone)]
pub(crate) struct Term {
    connector: InProcess,
    leadership: Leadership,
}

impl Term {
    /// A client that acts as this user during the term. It sends nothing after its lease expired by
    /// its own clock, and the store rejects earlier requests that arrive late.
    pub(crate) fn as_user(&self, user: User) -> kube::Client {
        let fence = self.leadership.fence();
        self.leadership.client(&self.connector.fenced(user, fence))
    }
}

impl Connector for Term {
    fn client(&self, name: &str) -> kube::Client {
        self.as_user(crate::connector::user(name))
    }
}

/// Runs a component on one server at a time.
pub(crate) struct Elected {
    /// The component's name.
    pub name: &'static str,
    /// Its Lease in kube-system, as upstream's.
    pub lease: &'static str,
    /// The identity of this server among the candidates.
    pub identity: String,
    /// The user that writes the Lease.
    pub user: User,
    pub connector: InProcess,
    pub build: Box<Build>,
    /// Guards the component of the current term.
    pub current: Mutex<Option<Arc<dyn Service>>>,
}

impl Service for Elected {
    fn name(&self) -> &'static str {
        self.name
    }

    fn after(&self) -> &'static [&'static str] {
        &["apiserver"]
    }

    fn metrics(&self) -> String {
        let current = self.current.lock().clone();
        current.map(|part| part.metrics()).unwrap_or_default()
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            loop {
                if let Some(outcome) = self.campaign(&context).await {
                    return outcome;
                }
            }
        })
    }
}

impl Elected {
    /// Waits for a term and runs it. Returns the outcome of the run when it is over.
    async fn campaign(&self, context: &Context) -> Option<Outcome> {
        let config = election::Config::new("kube-system", self.lease, &self.identity);
        let client = self.connector.as_user(self.user.clone());
        let (part, stop) = (context.part(), context.token());
        let outcome = Mutex::new(None);
        // A standby server is ready: another one does the work.
        let waits = || context.ready();
        let work = async |leadership: Leadership| {
            let service = (self.build)(Term {
                connector: self.connector.clone(),
                leadership: leadership.clone(),
            });
            *self.current.lock() = Some(service.clone());
            let mut run = service.run(part.clone());
            let ended = tokio::select! {
                ended = &mut run => ended,
                () = leadership.over() => {
                    part.token().cancel();
                    run.await
                }
            };
            part.end().await;
            *outcome.lock() = Some(ended);
        };
        let ended = election::lead(&client, &config, &SystemClock, &stop, waits, work).await;
        *self.current.lock() = None;
        part.end().await;
        match ended {
            Ended::Lost => None,
            Ended::Stopped => Some(Ok(())),
            Ended::Finished => Some(outcome.into_inner().unwrap_or(Ok(()))),
        }
    }
}
