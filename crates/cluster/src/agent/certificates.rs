//! Requests certificates from the cluster and renews them while the agent runs, without restarts.

use std::{net::IpAddr, sync::Arc, time::Duration};

use client::kube::{
    self, Api,
    api::{ObjectMeta, PostParams},
    runtime::wait::await_condition,
};
use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
};
use lifecycle::{Context, Run, Service};
use pki::{KeyedRequest, Renewing, csr::RequestedCertificate};
use stdx::{Backoff, Clock};
use tokio::sync::watch;

use super::Membership;
use crate::{Error, Settings};

/// A request that was neither approved nor denied is abandoned after this long, and made again.
const APPROVAL_TIMEOUT: Duration = Duration::from_secs(15 * 60);
/// The longest sleep, in case the machine is suspended or the clock moves.
const AT_MOST: Duration = Duration::from_secs(3600);

/// The purpose of a node's certificate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// `system:node:NAME` as a client.
    Kubelet,
    /// The kubelet's server.
    Serving,
    /// `system:node-proxy:NAME` as a client.
    Proxy,
}

impl Purpose {
    fn signer(self) -> &'static str {
        match self {
            Self::Kubelet => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
            Self::Proxy => "mainstay.local/node-proxy-client",
        }
    }

    fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Serving => ["digital signature", "server auth"],
            _ => ["digital signature", "client auth"],
        }
    }

    fn wish(self, settings: &Settings) -> RequestedCertificate {
        let node = &settings.node_name;
        let (name, group) = match self {
            Self::Proxy => (format!("system:node-proxy:{node}"), "system:node-proxies"),
            _ => (format!("system:node:{node}"), "system:nodes"),
        };
        let mut wish = RequestedCertificate {
            common_name: name,
            organizations: vec![group.to_owned()],
            ..RequestedCertificate::default()
        };
        if self == Self::Serving {
            wish.dns_names = vec![node.clone()];
            // The address that API servers connect to. Others would need manual approval: a request comes from one
            // address only (decision 9).
            wish.addresses = vec![settings.node_ip];
        }
        wish
    }
}

/// Requests a certificate and waits until it is issued.
pub(super) async fn request(
    client: &kube::Client,
    settings: &Settings,
    purpose: Purpose,
    into: &Renewing,
) -> Result<(), Error> {
    let keyed = KeyedRequest::new(&purpose.wish(settings))?;
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta {
            generate_name: Some("node-csr-".to_owned()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(keyed.request.clone().into_bytes()),
            signer_name: purpose.signer().to_owned(),
            usages: Some(purpose.usages().map(str::to_owned).into()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let requests: Api<CertificateSigningRequest> = Api::all(client.clone());
    let created = requests.create(&PostParams::default(), &csr).await?;
    let name = created.metadata.name.unwrap_or_default();
    tracing::info!(name, ?purpose, "requested a certificate");
    let decided = await_condition(
        requests,
        &name,
        |csr: Option<&CertificateSigningRequest>| {
            csr.is_none_or(|csr| issued(csr).is_some() || refusal(csr).is_some())
        },
    );
    let decided = tokio::time::timeout(APPROVAL_TIMEOUT, decided).await;
    let decided = decided
        .map_err(|_| Error::Join(format!("the request {name} is still not approved")))?
        .map_err(|error| Error::Join(format!("the request {name} cannot be watched: {error}")))?;
    let Some(csr) = decided else {
        return Err(Error::Join(format!("the request {name} was deleted")));
    };
    match (issued(&csr), refusal(&csr)) {
        (Some(certificate), _) => Ok(into.replace(&keyed, &certificate)?),
        (None, why) => {
            let why = why.unwrap_or_default();
            Err(Error::Join(format!("the request {name} was denied: {why}")))
        }
    }
}

fn issued(csr: &CertificateSigningRequest) -> Option<String> {
    let certificate = &csr.status.as_ref()?.certificate.as_ref()?.0;
    let text = String::from_utf8(certificate.clone()).ok()?;
    (!text.is_empty()).then_some(text)
}

fn refusal(csr: &CertificateSigningRequest) -> Option<String> {
    let conditions = csr.status.as_ref()?.conditions.as_ref()?;
    let mut refused = conditions
        .iter()
        .filter(|condition| matches!(condition.type_.as_str(), "Denied" | "Failed"));
    refused.next().map(|condition| {
        let text = condition
            .message
            .clone()
            .or_else(|| condition.reason.clone());
        text.unwrap_or_else(|| condition.type_.clone())
    })
}

/// The delay before the next attempt. If the servers are away for long, the certificate must not
/// expire in a delay although one of them is back.
fn retry_delay(backoff: Duration, not_after: Option<Timestamp>, now: Timestamp) -> Duration {
    const SHORTEST: Duration = Duration::from_secs(1);
    let left = not_after.and_then(|end| Duration::try_from(end.duration_since(now)).ok());
    match left.filter(|left| !left.is_zero()) {
        Some(left) => backoff.min((left / 10).max(SHORTEST)),
        None => backoff,
    }
}

/// The delay after a renewal. A new certificate may be due already, if the clocks of this machine and of the signer
/// differ, or the CA ends soon: then the next request is not made at once.
fn delay_after_renewal(due: Timestamp, now: Timestamp, backoff: &mut Backoff) -> Duration {
    if due > now {
        return Duration::ZERO;
    }
    tracing::warn!("the new certificate is due for renewal already");
    backoff.step()
}

/// Resolves when the node's addresses differ from these.
async fn moved(current: &mut watch::Receiver<Settings>, known: &[IpAddr]) -> bool {
    let moved = current.wait_for(|settings| settings.node_ips() != known);
    moved.await.is_ok()
}

/// Keeps the certificates of a member up to date.
pub struct Certificates {
    /// The settings with the host's current addresses.
    pub current: watch::Receiver<Settings>,
    pub client: kube::Client,
    pub membership: Arc<Membership>,
    pub clock: Arc<dyn Clock>,
}

impl Service for Certificates {
    fn name(&self) -> &'static str {
        "certificates"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            for purpose in [Purpose::Kubelet, Purpose::Proxy, Purpose::Serving] {
                let of = self.clone();
                context.spawn("renewal", async move { of.keep(purpose).await });
            }
            context.ready();
            context.shutdown().await;
            Ok(())
        })
    }
}

impl Certificates {
    fn pair(&self, purpose: Purpose) -> &Arc<Renewing> {
        match purpose {
            Purpose::Kubelet => &self.membership.kubelet,
            Purpose::Serving => &self.membership.serving,
            Purpose::Proxy => &self.membership.proxy,
        }
    }

    /// When a certificate is due; now if there is none or its names are outdated.
    fn due(&self, purpose: Purpose, settings: &Settings) -> Timestamp {
        let pair = self.pair(purpose);
        let wish = purpose.wish(settings);
        let mut names: Vec<String> = wish.addresses.iter().map(ToString::to_string).collect();
        names.extend(wish.dns_names);
        names.sort_unstable();
        match pair.renew_at() {
            Some(at) if pair.names() == names => at,
            _ => Timestamp::MIN,
        }
    }

    async fn keep(&self, purpose: Purpose) {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
        let mut current = self.current.clone();
        let mut known = self.current.borrow().node_ips();
        loop {
            let settings = current.borrow_and_update().clone();
            let pair = self.pair(purpose);
            if settings.node_ips() != known {
                known = settings.node_ips();
                // Connections from an address that is gone are dead.
                self.membership.kubelet.reconnect();
                self.membership.proxy.reconnect();
            }
            let now = self.clock.now();
            let due = self.due(purpose, &settings);
            let mut wait = Duration::try_from(due.duration_since(now)).unwrap_or_default();
            if due > now {
                backoff.reset();
            } else {
                let asked = request(&self.client, &settings, purpose, pair);
                let asked = tokio::select! {
                    asked = asked => asked,
                    true = moved(&mut current, &known) => continue,
                };
                wait = match asked {
                    Ok(()) => {
                        tracing::info!(?purpose, "certificate renewed");
                        let due = self.due(purpose, &settings);
                        delay_after_renewal(due, self.clock.now(), &mut backoff)
                    }
                    Err(error) => {
                        tracing::warn!(?purpose, %error, "cannot renew certificate");
                        pair.count_error();
                        retry_delay(backoff.step(), pair.not_after(), now)
                    }
                };
            }
            tokio::select! {
                () = self.clock.sleep(wait.min(AT_MOST)) => {}
                true = moved(&mut current, &known) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn a_node_of_both_families_requests_its_first_address_only() {
        let options = Options {
            node_name: Some("two".into()),
            node_ip: "192.0.2.1,2001:db8::1".parse().ok(),
            cluster_cidr: "10.42.0.0/16,fd00:42::/48".parse().ok(),
            service_cidr: "10.43.0.0/16,fd00:43::/112".parse().ok(),
            ..Options::default()
        };
        let settings = Settings::resolve(options).unwrap();
        assert_eq!(settings.node_ips().len(), 2);
        let wish = Purpose::Serving.wish(&settings);
        assert_eq!(wish.addresses, [settings.node_ip]);
        assert_eq!(wish.dns_names, ["two"]);
        assert!(Purpose::Kubelet.wish(&settings).addresses.is_empty());
    }

    #[test]
    fn certificates_that_are_due_at_once_are_not_requested_in_a_loop() {
        let mut backoff = Backoff::new(Duration::from_secs(1), Duration::from_secs(300));
        let now = Timestamp::from_second(1_000_000).unwrap();
        let later = Timestamp::from_second(1_000_001).unwrap();
        assert!(delay_after_renewal(later, now, &mut backoff).is_zero());
        let delays = [Timestamp::MIN, now].map(|due| delay_after_renewal(due, now, &mut backoff));
        assert!(delays[0] >= Duration::from_millis(500) && delays[1] > delays[0]);
    }

    #[test]
    fn a_certificate_does_not_expire_while_its_renewal_waits() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let seconds = Duration::from_secs;
        for (backoff, left, expected) in [
            (300, Some(365 * 86_400), 300),
            (300, Some(600), 60),
            (300, Some(30), 3),
            (300, Some(5), 1),
            (2, Some(600), 2),
            // It has expired, or there is none yet.
            (300, Some(0), 300),
            (300, Some(-60), 300),
            (300, None, 300),
        ] {
            let end = left.map(|left| at(1_000_000 + left));
            let delay = retry_delay(seconds(backoff), end, at(1_000_000));
            assert_eq!(delay, seconds(expected), "{backoff} s, {left:?} left");
        }
    }
}
