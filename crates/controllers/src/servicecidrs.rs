//! Marks ServiceCIDRs as ready, and keeps a deleted one while a Service has an address that no
//! other ServiceCIDR covers.

use std::{net::IpAddr, sync::Arc, time::Duration};

use client::{Api, Informer};
use jiff::Timestamp;
use k8s_openapi::{
    api::networking::v1::{IPAddress, ServiceCIDR},
    apimachinery::pkg::apis::meta::v1::{Condition, Time},
};
use kube::api::{Patch, PatchParams};
use reconcile::{Action, Controller, Error, Key};
use serde_json::{Value, json};

use crate::shared::Shared;

/// The name in [`crate::ALL`].
pub const NAME: &str = "service-cidrs";
const ACCOUNT: &str = "service-cidrs-controller";
const FINALIZER: &str = "networking.k8s.io/service-cidr-finalizer";
/// How long an address that is being allocated may take to become visible.
const GRACE: Duration = Duration::from_secs(10);

struct Ranges {
    client: kube::Client,
    ranges: Informer<ServiceCIDR>,
    addresses: Informer<IPAddress>,
    shared: Arc<Shared>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Ranges {
        client: shared.client(ACCOUNT),
        ranges: shared.informer(),
        addresses: shared.informer(),
        shared: shared.clone(),
    });
    // Each ServiceCIDR depends on what the others cover.
    let (all, leaving) = (controller.clone(), controller.ranges.clone());
    shared
        .controller(&controller)
        .watches_with(&controller.ranges, move |_| all.keys())
        .watches_with(&controller.addresses, move |_| {
            let going = |range: &&Arc<ServiceCIDR>| range.metadata.deletion_timestamp.is_some();
            let all = leaving.list();
            let going = all.iter().filter(going);
            going.map(|range| Key::from_object(&**range)).collect()
        })
        .start();
}

impl Ranges {
    fn keys(&self) -> Vec<Key> {
        self.ranges
            .list()
            .iter()
            .map(|range| Key::from_object(&**range))
            .collect()
    }
}

/// The next step for a ServiceCIDR.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Add the finalizer.
    Hold,
    /// Set the condition Ready.
    Tell {
        ready: bool,
    },
    /// Check again when the grace period is over.
    Wait,
    /// Remove the finalizer.
    Release,
    Nothing,
}

fn decide(
    range: &ServiceCIDR,
    others: &[Arc<ServiceCIDR>],
    held: &[IpAddr],
    now: Timestamp,
) -> Step {
    let finalizers = range.metadata.finalizers.iter().flatten();
    let holds = finalizers
        .into_iter()
        .any(|finalizer| finalizer == FINALIZER);
    let status = range.status.as_ref();
    let ready = status
        .and_then(|status| status.conditions.as_ref())
        .and_then(|conditions| {
            conditions
                .iter()
                .find(|condition| condition.type_ == "Ready")
        });
    let Some(Time(marked)) = &range.metadata.deletion_timestamp else {
        return match (holds, ready) {
            (false, _) => Step::Hold,
            (true, Some(ready)) if ready.status == "True" => Step::Nothing,
            (true, _) => Step::Tell { ready: true },
        };
    };
    if !holds {
        return Step::Nothing;
    }
    if !ready.is_some_and(|ready| ready.status == "False" && ready.reason == "Terminating") {
        return Step::Tell { ready: false };
    }
    let others: Vec<Network> = others
        .iter()
        .filter(|other| other.metadata.name != range.metadata.name)
        .flat_map(|other| networks(other))
        .collect();
    let orphaned = |network: &Network| {
        let covered = others.iter().any(|other| other.covers(network));
        !covered
            && held.iter().any(|address| {
                network.contains(*address) && !others.iter().any(|other| other.contains(*address))
            })
    };
    if networks(range).iter().any(orphaned) {
        Step::Nothing
    } else if now < *marked + GRACE {
        Step::Wait
    } else {
        Step::Release
    }
}

/// One network, such as `10.43.0.0/16`.
#[derive(Debug, Clone, Copy)]
struct Network {
    base: IpAddr,
    length: u32,
}

impl Network {
    fn parse(text: &str) -> Option<Self> {
        let (base, length) = text.split_once('/')?;
        let (base, length): (IpAddr, u32) = (base.parse().ok()?, length.parse().ok()?);
        let bits = if base.is_ipv4() { 32 } else { 128 };
        (length <= bits).then_some(Self { base, length })
    }

    fn contains(&self, address: IpAddr) -> bool {
        let bits = |address: IpAddr| match address {
            IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
            IpAddr::V6(address) => (address.to_bits(), 128),
        };
        let ((base, width), (address, other)) = (bits(self.base), bits(address));
        let host = width - self.length;
        width == other
            && base.checked_shr(host).unwrap_or(0) == address.checked_shr(host).unwrap_or(0)
    }

    fn covers(&self, other: &Self) -> bool {
        self.length <= other.length && self.contains(other.base)
    }
}

fn networks(range: &ServiceCIDR) -> Vec<Network> {
    let cidrs = range
        .spec
        .iter()
        .flat_map(|spec| spec.cidrs.iter().flatten());
    cidrs.filter_map(|cidr| Network::parse(cidr)).collect()
}

fn condition(ready: bool, now: Timestamp) -> Value {
    let (status, reason, message) = if ready {
        ("True", "", "Kubernetes Service CIDR is ready")
    } else {
        let why = "There are still IPAddresses referencing the ServiceCIDR, please remove them or create a new ServiceCIDR";
        ("False", "Terminating", why)
    };
    let condition = Condition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        reason: reason.to_owned(),
        message: message.to_owned(),
        last_transition_time: Time(now),
        observed_generation: None,
    };
    json!({"status": {"conditions": [condition]}})
}

impl Controller for Ranges {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let Some(range) = self.ranges.get("", &key.name) else {
            return Ok(Action::Done);
        };
        // Their names are the addresses: they are not decoded.
        let addresses = self.addresses.entries();
        let held = addresses.iter().map(|address| address.name().parse().ok());
        let held: Vec<IpAddr> = held.flatten().collect();
        let now = self.shared.now();
        let api: Api<ServiceCIDR> = Api::all(self.client.clone());
        let (params, finalizers) = (PatchParams::default(), json!([FINALIZER]));
        match decide(&range, &self.ranges.list(), &held, now) {
            Step::Nothing => {}
            Step::Wait => return Ok(Action::After(GRACE)),
            Step::Hold => {
                let patch = json!({"metadata": {"finalizers": finalizers}});
                api.patch(&key.name, &params, &Patch::Strategic(patch))
                    .await?;
            }
            Step::Release => {
                let patch =
                    json!({"metadata": {"$deleteFromPrimitiveList/finalizers": finalizers}});
                api.patch(&key.name, &params, &Patch::Strategic(patch))
                    .await?;
            }
            Step::Tell { ready } => {
                let patch = Patch::Strategic(condition(ready, now));
                api.patch_status(&key.name, &params, &patch).await?;
            }
        }
        Ok(Action::Done)
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::networking::v1::{ServiceCIDRSpec, ServiceCIDRStatus};
    use kube::api::ObjectMeta;

    use super::*;
    use crate::pods::samples::at;

    fn range(name: &str, cidr: &str) -> ServiceCIDR {
        ServiceCIDR {
            metadata: ObjectMeta {
                name: Some(name.into()),
                ..Default::default()
            },
            spec: Some(ServiceCIDRSpec {
                cidrs: Some(vec![cidr.into()]),
            }),
            status: None,
        }
    }

    fn with_condition(range: &mut ServiceCIDR, ready: bool) {
        let patch = condition(ready, at(0));
        let conditions = patch["status"]["conditions"].clone();
        range.status = Some(ServiceCIDRStatus {
            conditions: serde_json::from_value(conditions).unwrap(),
        });
    }

    #[test]
    fn a_service_cidr_is_protected_made_ready_and_released_when_unused() {
        let mut new = range("new", "10.9.0.0/24");
        assert_eq!(decide(&new, &[], &[], at(0)), Step::Hold);
        new.metadata.finalizers = Some(vec![FINALIZER.into()]);
        assert_eq!(decide(&new, &[], &[], at(0)), Step::Tell { ready: true });
        with_condition(&mut new, true);
        assert_eq!(decide(&new, &[], &[], at(0)), Step::Nothing);
        new.metadata.deletion_timestamp = Some(Time(at(100)));
        assert_eq!(decide(&new, &[], &[], at(100)), Step::Tell { ready: false });
        with_condition(&mut new, false);
        assert_eq!(decide(&new, &[], &[], at(105)), Step::Wait);
        assert_eq!(decide(&new, &[], &[], at(110)), Step::Release);
    }

    #[test]
    fn an_address_that_no_other_service_cidr_covers_protects_it() {
        let mut going = range("going", "10.9.0.0/24");
        going.metadata.finalizers = Some(vec![FINALIZER.into()]);
        going.metadata.deletion_timestamp = Some(Time(at(100)));
        with_condition(&mut going, false);
        let held: Vec<IpAddr> = vec!["10.9.0.7".parse().unwrap()];
        let decided = |others: &[Arc<ServiceCIDR>]| decide(&going, others, &held, at(200));
        assert_eq!(decided(&[Arc::new(going.clone())]), Step::Nothing);
        let wider = Arc::new(range("wider", "10.8.0.0/15"));
        assert_eq!(decided(&[wider]), Step::Release);
        let part = Arc::new(range("part", "10.9.0.0/28"));
        assert_eq!(decided(&[part]), Step::Release);
        let elsewhere = Arc::new(range("elsewhere", "10.10.0.0/24"));
        assert_eq!(decided(&[elsewhere]), Step::Nothing);
    }
}
