//! Leader election by a Lease: of several that could run, one does. Pure decisions here; the holder
//! renews, the others wait until the lease has not changed for its duration by their own clock, so
//! that clocks of different machines need not agree.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::{
    Api,
    api::{ObjectMeta, PostParams},
};
use stdx::Clock;
use tokio::time::Instant;
use tracing::{debug, info};

/// How long a lease is believed, and how the holder renews it.
#[derive(Debug, Clone)]
pub struct Config {
    /// Where the Lease is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Who we are.
    pub identity: String,
    /// Others may take over when nothing changed for this long.
    pub duration: Duration,
    /// How often the holder renews and the others look.
    pub retry: Duration,
}

/// What an observer knows: the lease as last seen changing, and when that was by its own clock.
#[derive(Debug, Clone, Default)]
struct Observation {
    version: Option<String>,
    at: Option<Instant>,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create,
    Renew,
    TakeOver,
    Wait,
}

fn decide(lease: Option<&Lease>, identity: &str, unchanged_for: Duration) -> Step {
    let Some(spec) = lease.and_then(|lease| lease.spec.as_ref()) else {
        return if lease.is_some() {
            Step::TakeOver
        } else {
            Step::Create
        };
    };
    let holder = spec.holder_identity.as_deref().unwrap_or("");
    let seconds = spec.lease_duration_seconds.unwrap_or(0).max(0);
    if holder == identity {
        Step::Renew
    } else if holder.is_empty()
        || unchanged_for >= Duration::from_secs(seconds.unsigned_abs().into())
    {
        Step::TakeOver
    } else {
        Step::Wait
    }
}

/// Waits until this identity holds the lease.
pub async fn acquire(client: &kube::Client, config: &Config, clock: &dyn Clock) {
    let mut seen = Observation::default();
    loop {
        match attempt(client, config, clock.now(), &mut seen).await {
            Ok(true) => {
                info!(lease = config.name, identity = config.identity, "leading");
                return;
            }
            Ok(false) => {}
            Err(error) => debug!(lease = config.name, %error, "cannot look at the lease"),
        }
        tokio::time::sleep(config.retry).await;
    }
}

/// Renews until that has failed for longer than others believe the lease; then leading is over.
pub async fn hold(client: &kube::Client, config: &Config, clock: &dyn Clock) {
    let mut seen = Observation::default();
    let mut renewed = Instant::now();
    // Stop two retries before the others may begin.
    let patience = config.duration.saturating_sub(config.retry * 2);
    while renewed.elapsed() < patience {
        tokio::time::sleep(config.retry).await;
        let attempt = attempt(client, config, clock.now(), &mut seen);
        match tokio::time::timeout(config.retry * 2, attempt).await {
            Ok(Ok(true)) => renewed = Instant::now(),
            Ok(Ok(false)) => return,
            Ok(Err(error)) => debug!(lease = config.name, %error, "cannot renew"),
            Err(_) => debug!(lease = config.name, "renewing takes too long"),
        }
    }
}

async fn attempt(
    client: &kube::Client,
    config: &Config,
    now: Timestamp,
    seen: &mut Observation,
) -> Result<bool, kube::Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), &config.namespace);
    let lease = api.get_opt(&config.name).await?;
    let version = lease
        .as_ref()
        .and_then(|lease| lease.metadata.resource_version.clone());
    if seen.at.is_none() || seen.version != version {
        *seen = Observation {
            version,
            at: Some(Instant::now()),
        };
    }
    let unchanged = seen.at.map(|at| at.elapsed()).unwrap_or_default();
    let written = match decide(lease.as_ref(), &config.identity, unchanged) {
        Step::Wait => return Ok(false),
        Step::Create => {
            api.create(&PostParams::default(), &next(None, config, now))
                .await
        }
        Step::Renew | Step::TakeOver => {
            let lease = next(lease, config, now);
            api.replace(&config.name, &PostParams::default(), &lease)
                .await
        }
    };
    match written {
        Ok(_) => Ok(true),
        // Somebody else was quicker.
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(false),
        Err(error) => Err(error),
    }
}

/// The lease as we want to write it; its version makes sure that nobody wrote in between.
fn next(lease: Option<Lease>, config: &Config, now: Timestamp) -> Lease {
    let metadata = match &lease {
        Some(lease) => lease.metadata.clone(),
        None => ObjectMeta {
            name: Some(config.name.clone()),
            namespace: Some(config.namespace.clone()),
            ..Default::default()
        },
    };
    let mut spec: LeaseSpec = lease.and_then(|lease| lease.spec).unwrap_or_default();
    if spec.holder_identity.as_deref() != Some(&config.identity) {
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |count| count + 1));
        spec.acquire_time = Some(MicroTime(now));
        spec.holder_identity = Some(config.identity.clone());
    }
    spec.renew_time = Some(MicroTime(now));
    spec.lease_duration_seconds = i32::try_from(config.duration.as_secs()).ok();
    Lease {
        metadata,
        spec: Some(spec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str) -> Lease {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            ..Default::default()
        };
        Lease {
            spec: Some(spec),
            ..Default::default()
        }
    }

    #[test]
    fn a_lease_is_taken_over_only_when_it_is_free_or_has_not_changed_for_its_duration() {
        let (young, old) = (Duration::from_secs(14), Duration::from_secs(15));
        assert_eq!(decide(None, "me", young), Step::Create);
        assert_eq!(decide(Some(&lease("me")), "me", young), Step::Renew);
        assert_eq!(decide(Some(&lease("")), "me", young), Step::TakeOver);
        assert_eq!(decide(Some(&lease("other")), "me", young), Step::Wait);
        assert_eq!(decide(Some(&lease("other")), "me", old), Step::TakeOver);
    }
}
