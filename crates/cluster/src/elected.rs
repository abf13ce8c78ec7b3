//! A part of the control plane of which one server runs the only instance: the controllers, the
//! scheduler. Servers elect by a Lease; who leads builds the part anew with clients whose writes end
//! with its term.

use std::sync::Arc;

use apiserver::User;
use client::{Connector, kube};
use lifecycle::{Context, Outcome, Run, Service};
use parking_lot::Mutex;
use reconcile::election::{self, Ended, Leadership};
use stdx::SystemClock;

use crate::connector::InProcess;

/// Makes the part for a term.
pub(crate) type Build = dyn Fn(Term) -> Arc<dyn Service> + Send + Sync;

/// The clients of one term.
#[derive(Clone)]
pub(crate) struct Term {
    connector: InProcess,
    leadership: Leadership,
}

impl Term {
    /// A client that counts as this user while the term lasts. It sends nothing after its lease ran out
    /// by its own clock, and what it sent before and arrives late is refused by the store.
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

/// Runs a part on one server at a time.
pub(crate) struct Elected {
    /// The part's name.
    pub name: &'static str,
    /// Its Lease in kube-system, as upstream's component has it.
    pub lease: &'static str,
    /// This server, among all that could lead.
    pub identity: String,
    /// Who writes the Lease.
    pub user: User,
    pub connector: InProcess,
    pub build: Box<Build>,
    /// Guards the part of the current term.
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
    /// One term, after waiting for it. Gives the outcome of the run when it is over.
    async fn campaign(&self, context: &Context) -> Option<Outcome> {
        let config = election::Config::new("kube-system", self.lease, &self.identity);
        let client = self.connector.as_user(self.user.clone());
        let (part, stop) = (context.part(), context.token());
        let outcome = Mutex::new(None);
        // A server that stands by is ready: another one does the work.
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
