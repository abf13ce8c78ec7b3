//! The scheduler as a process of its own, with leader election by a Lease if configured. A process
//! that loses its Lease stops scheduling at once and waits to lead again.

use std::{future::Future, sync::Arc};

use lifecycle::{Context, Service};
use parking_lot::Mutex;
use reconcile::election::{self, Ended};
use stdx::SystemClock;
use tokio_util::sync::CancellationToken;
use tracing::info;

use crate::{Config, configuration::LeaderElection};

/// Runs until `stop`. `identity` is this process's name in the Lease; `config` makes the scheduler
/// for a client, once per term of leadership.
pub async fn run(
    client: kube::Client,
    election: Option<&LeaderElection>,
    identity: &str,
    config: impl Fn(kube::Client) -> Result<Config, String>,
    stop: &CancellationToken,
) -> Result<(), String> {
    let Some(election) = election else {
        return serve(config(client)?, stop.cancelled()).await;
    };
    let lease = election::Config {
        duration: election.lease_duration,
        renew_deadline: election.renew_deadline,
        retry: election.retry_period,
        ..election::Config::new(&election.namespace, &election.name, identity)
    };
    // Report an invalid configuration before waiting for leadership.
    config(client.clone())?;
    loop {
        // Why this term ended.
        let outcome = Mutex::new(Ok(()));
        let work = |leadership: election::Leadership| {
            let (config, outcome) = (config(leadership.client(&client)), &outcome);
            async move {
                let served = match config {
                    Ok(config) => serve(config, leadership.over()).await,
                    Err(why) => Err(why),
                };
                *outcome.lock() = served;
            }
        };
        let waits = || info!(lease = election.name, "another scheduler leads");
        match election::lead(&client, &lease, &SystemClock, stop, waits, work).await {
            Ended::Stopped => return Ok(()),
            Ended::Finished => {
                return outcome.into_inner().and(Err("the scheduler ended".into()));
            }
            Ended::Lost => {}
        }
    }
}

/// Runs one scheduler until `over`.
async fn serve(config: Config, over: impl Future<Output = ()>) -> Result<(), String> {
    let token = CancellationToken::new();
    // Its tasks end with this function in any case.
    let _tasks = token.clone().drop_guard();
    let scheduler = Arc::new(config.build()).run(Context::standalone("scheduler", token));
    tokio::select! {
        outcome = scheduler => outcome.map_err(|error| error.to_string()),
        () = over => Ok(()),
    }
}
