//! The names in certificates are those that the host has: an address that comes or goes while the
//! cluster runs heals them, without a restart.

use std::{net::IpAddr, sync::Arc, time::Duration};

use lifecycle::{Context, Run, Service};
use pki::{Names, Pki};
use stdx::{Clock, SystemClock};

use crate::{Role, Settings, host};

/// How often the host is looked at.
const INTERVAL: Duration = Duration::from_secs(15);

/// The names that certificates say, with the addresses that the host has now.
pub(crate) fn names(settings: &Settings, role: Role, host: Vec<IpAddr>) -> Names {
    let mut named = settings.node_ips();
    named.push(settings.advertise_address);
    let mut node_ips = [named.clone(), host].concat();
    let own = |ip: &IpAddr| named.contains(ip);
    // Addresses of pods' own networks come and go with pods and are nobody's way to us.
    node_ips.retain(|ip| own(ip) || !settings.cluster_cidr.contains(ip));
    node_ips.sort_unstable();
    node_ips.dedup();
    Names {
        node_name: (role == Role::Up).then(|| settings.node_name.clone()),
        node_ips,
        host_names: vec![settings.node_name.clone()],
        service_ips: vec![settings.api_service()],
        cluster_domain: settings.cluster_domain.clone(),
    }
}

/// Looks at the host's addresses as long as the cluster runs.
pub(crate) struct Addresses {
    pub(crate) pki: Arc<Pki>,
    pub(crate) settings: Settings,
    pub(crate) role: Role,
}

impl Service for Addresses {
    fn name(&self) -> &'static str {
        "addresses"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            context.ready();
            let mut known = names(&self.settings, self.role, host::addresses());
            loop {
                tokio::select! {
                    () = SystemClock.sleep(INTERVAL) => {}
                    () = context.shutdown() => return Ok(()),
                }
                let now = names(&self.settings, self.role, host::addresses());
                if now == known {
                    continue;
                }
                match self.pki.rename(&now, SystemClock.now()) {
                    Ok(_) => known = now,
                    Err(error) => {
                        tracing::error!(%error, "certificates could not be given the host's addresses");
                    }
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Options;

    #[test]
    fn certificates_name_every_address_of_the_host_but_those_of_pods() {
        let settings = Settings::resolve(Options {
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            ..Options::default()
        })
        .unwrap();
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let host = vec![ip("192.0.2.9"), ip("192.0.2.1"), ip("10.42.0.1")];
        let before = names(&settings, Role::Up, Vec::new());
        let after = names(&settings, Role::Up, host);
        assert_eq!(before.node_ips, [ip("192.0.2.1")]);
        assert_eq!(after.node_ips, [ip("192.0.2.1"), ip("192.0.2.9")]);
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(dir.path(), &before).unwrap();
        let renamed = pki.rename(&after, SystemClock.now()).unwrap();
        assert!(!renamed.is_empty());
        assert!(pki.rename(&after, SystemClock.now()).unwrap().is_empty());
    }
}
