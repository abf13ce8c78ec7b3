//! The process settings of a `KubeSchedulerConfiguration`: leader election and the client.

use std::{path::PathBuf, time::Duration};

use machinery::duration;
use serde::Deserialize;

/// Leader election settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaderElection {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
    /// How long others wait after the leader's last renewal.
    pub lease_duration: Duration,
    /// How long the leader tries to renew before it gives up.
    pub renew_deadline: Duration,
    /// The delay between two attempts.
    pub retry_period: Duration,
}

impl Default for LeaderElection {
    fn default() -> Self {
        Self {
            namespace: "kube-system".into(),
            name: "kube-scheduler".into(),
            lease_duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry_period: Duration::from_secs(2),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(super) struct LeaderElectionDocument {
    leader_elect: Option<bool>,
    lease_duration: Option<String>,
    renew_deadline: Option<String>,
    retry_period: Option<String>,
    resource_lock: Option<String>,
    resource_name: Option<String>,
    resource_namespace: Option<String>,
}

impl LeaderElectionDocument {
    /// `None` if the document turns the election off.
    pub(super) fn read(self) -> Result<Option<LeaderElection>, String> {
        if self.leader_elect == Some(false) {
            return Ok(None);
        }
        let default = LeaderElection::default();
        let time = |name: &str, text: Option<String>, default| match text {
            None => Ok(default),
            Some(text) => {
                duration::positive(&text).map_err(|why| format!("leaderElection.{name}: {why}"))
            }
        };
        let election = LeaderElection {
            lease_duration: time("leaseDuration", self.lease_duration, default.lease_duration)?,
            renew_deadline: time("renewDeadline", self.renew_deadline, default.renew_deadline)?,
            retry_period: time("retryPeriod", self.retry_period, default.retry_period)?,
            name: self.resource_name.unwrap_or(default.name),
            namespace: self.resource_namespace.unwrap_or(default.namespace),
        };
        if self.resource_lock.as_deref().unwrap_or("leases") != "leases" {
            return Err("leaderElection.resourceLock: Invalid value: must be \"leases\"".into());
        }
        if election.lease_duration <= election.renew_deadline {
            return Err("leaderElection.leaseDuration must be greater than renewDeadline".into());
        }
        if election.renew_deadline <= election.retry_period {
            return Err("leaderElection.renewDeadline must be greater than retryPeriod".into());
        }
        if election.retry_period.is_zero() {
            return Err("leaderElection.retryPeriod must be greater than 0".into());
        }
        if election.name.is_empty() || election.namespace.is_empty() {
            return Err("leaderElection needs resourceName and resourceNamespace".into());
        }
        Ok(Some(election))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ClientConnection {
    kubeconfig: String,
    accept_content_types: String,
    content_type: String,
    qps: f64,
    burst: i64,
}

impl ClientConnection {
    /// The kubeconfig to use, and the rate of requests.
    pub(super) fn read(self) -> Result<(Option<PathBuf>, Option<client::Rate>), String> {
        // Requests are JSON, whatever is preferred.
        let types = ["application/json", "application/vnd.kubernetes.protobuf"];
        let media = |text: &str| text.is_empty() || types.iter().any(|known| text.contains(known));
        if !media(&self.accept_content_types) || !media(&self.content_type) {
            return Err(format!(
                "clientConnection: content types are {}",
                types.join(" and ")
            ));
        }
        let rate = self.rate()?;
        let path = Some(self.kubeconfig).filter(|path| !path.is_empty());
        Ok((path.map(PathBuf::from), rate))
    }

    /// With upstream's defaults if only one of both numbers is set. If none is, only the API server limits the rate.
    fn rate(&self) -> Result<Option<client::Rate>, String> {
        let burst = u32::try_from(self.burst).map_err(|_| {
            let burst = self.burst;
            format!("clientConnection.burst: Invalid value: {burst}: must be non-negative")
        })?;
        if self.qps < 0.0 || (self.qps == 0.0 && burst == 0) {
            return Ok(None);
        }
        Ok(Some(client::Rate {
            per_second: if self.qps == 0.0 { 50.0 } else { self.qps },
            burst: if burst == 0 { 100 } else { burst },
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_of_requests_has_upstreams_defaults_once_it_is_set() {
        let rate = |qps, burst| {
            let connection = ClientConnection {
                qps,
                burst,
                content_type: "application/vnd.kubernetes.protobuf".into(),
                ..ClientConnection::default()
            };
            let rate = connection.read()?.1;
            Ok::<_, String>(rate.map(|rate| (rate.per_second, rate.burst)))
        };
        for (qps, burst, expected) in [
            (0.0, 0, None),
            (-1.0, 0, None),
            (-1.0, 7, None),
            (5.5, 7, Some((5.5, 7))),
            (5000.0, 0, Some((5000.0, 100))),
            (0.0, 7, Some((50.0, 7))),
        ] {
            assert_eq!(rate(qps, burst), Ok(expected), "{qps} {burst}");
        }
        assert!(rate(5.0, -1).unwrap_err().contains("burst"));
    }

    #[test]
    fn durations_are_read_as_go_writes_them() {
        for (text, millis) in [
            ("15s", Some(15_000)),
            ("1m30s", Some(90_000)),
            ("1.5h", Some(5_400_000)),
            ("500ms", Some(500)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("", None),
            ("5", None),
            ("s", None),
            ("-1s", None),
            ("1x", None),
        ] {
            let read = duration::positive(text).ok().map(|time| time.as_millis());
            assert_eq!(read, millis, "{text:?}");
        }
    }
}
