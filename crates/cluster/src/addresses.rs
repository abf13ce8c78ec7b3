//! The addresses of the host while the cluster runs. Addresses not set by a flag are followed:
//! netlink reports changes of addresses or the default route, and certificates, kubeconfigs, the
//! advertised endpoint, the Node, routes and listeners are updated without a restart.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use apiserver::ApiServer;
use lifecycle::{Context, Run, Service};
use network::{AddressNotices, RoutedNetwork};
use parking_lot::Mutex;
use pki::{Names, Pki};
use stdx::{Clock, SystemClock};
use tokio::sync::watch;

use crate::{Error, Role, Settings};

/// How often the host is checked without a notification.
const INTERVAL: Duration = Duration::from_secs(60);
/// The retry interval of failed updates.
const RETRY: Duration = Duration::from_secs(5);

/// The names in certificates.
pub(crate) fn names(settings: &Settings, role: Role) -> Names {
    let mut node_ips = settings.node_ips();
    node_ips.push(settings.advertise_address);
    node_ips.extend(settings.machine_ips());
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

/// Keeps the settings up to date with the host's addresses.
pub(crate) struct HostAddresses {
    /// The settings with the current addresses.
    pub(crate) current: watch::Sender<Settings>,
}

impl HostAddresses {
    pub(crate) fn new(settings: &Settings) -> Arc<Self> {
        Arc::new(Self {
            current: watch::Sender::new(settings.clone()),
        })
    }

    fn refresh(&self) {
        self.current.send_if_modified(|known| {
            let now = known.with_current_addresses();
            let is_new = now.machine_ips() != known.machine_ips()
                || now.node_ips() != known.node_ips()
                || now.advertise_address != known.advertise_address;
            if is_new {
                tracing::info!(node = ?now.node_ips(), "host addresses changed");
                *known = now;
            }
            is_new
        });
    }
}

impl Service for HostAddresses {
    fn name(&self) -> &'static str {
        "host-addresses"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let mut notices = AddressNotices::subscribe()?;
            context.ready();
            loop {
                self.refresh();
                tokio::select! {
                    noticed = notices.changed() => noticed?,
                    () = SystemClock.sleep(INTERVAL) => {}
                    () = context.shutdown() => return Ok(()),
                }
            }
        })
    }
}

/// The settings after each change; repeated after a while if they could not be applied.
struct Changes {
    current: watch::Receiver<Settings>,
    /// When the next repetition is due.
    next: Option<Duration>,
}

impl Changes {
    fn new(current: &watch::Receiver<Settings>) -> Self {
        Self {
            current: current.clone(),
            next: Some(Duration::ZERO),
        }
    }

    /// `None` at shutdown.
    async fn next(&mut self, context: &Context) -> Option<Settings> {
        let pause = self.next.take();
        let due = async {
            match pause {
                Some(pause) => SystemClock.sleep(pause).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            Ok(()) = self.current.changed() => {}
            () = context.shutdown() => return None,
        }
        Some(self.current.borrow_and_update().clone())
    }

    fn note(&mut self, applied: Result<(), Error>) {
        if let Err(error) = applied {
            tracing::error!(%error, "cannot apply changed host addresses");
            self.next = Some(RETRY);
        }
    }
}

/// Updates of a control plane: certificates, kubeconfigs, the advertised endpoint.
pub(crate) struct ServerAddresses {
    pub(crate) pki: Arc<Pki>,
    pub(crate) role: Role,
    pub(crate) apiserver: Arc<ApiServer>,
    pub(crate) current: watch::Receiver<Settings>,
}

impl Service for ServerAddresses {
    fn name(&self) -> &'static str {
        "addresses"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            context.ready();
            let mut changes = Changes::new(&self.current);
            while let Some(settings) = changes.next(&context).await {
                changes.note(self.apply(&settings));
            }
            Ok(())
        })
    }
}

impl ServerAddresses {
    fn apply(&self, settings: &Settings) -> Result<(), Error> {
        let now = SystemClock.now();
        self.pki.rename(&names(settings, self.role), now)?;
        self.pki.set_server(&settings.server_url())?;
        let advertise = SocketAddr::new(settings.advertise_address, settings.https_port);
        self.apiserver.set_advertise(advertise);
        Ok(())
    }
}

/// Updates of a node: the source address of its traffic to pods and services, and the kubelet's
/// addresses.
pub(crate) struct NodeAddresses {
    pub(crate) routed: Option<Arc<RoutedNetwork>>,
    pub(crate) kubelet: watch::Sender<Vec<IpAddr>>,
    pub(crate) current: watch::Receiver<Settings>,
}

impl Service for NodeAddresses {
    fn name(&self) -> &'static str {
        "node-addresses"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            context.ready();
            let mut changes = Changes::new(&self.current);
            while let Some(settings) = changes.next(&context).await {
                changes.note(self.apply(settings.node_ips()).await);
            }
            Ok(())
        })
    }
}

impl NodeAddresses {
    async fn apply(&self, ips: Vec<IpAddr>) -> Result<(), Error> {
        if *self.kubelet.borrow() == ips {
            return Ok(());
        }
        if let Some(routed) = &self.routed {
            routed.set_node_ips(ips.clone()).await?;
        }
        self.kubelet.send_replace(ips);
        Ok(())
    }
}

/// Builds a service for the current settings.
pub(crate) type Build = dyn Fn(&Settings) -> Result<Arc<dyn Service>, Error> + Send + Sync;

/// A service that listens at or sends from the node's addresses: rebuilt when they change.
pub(crate) struct Rebuilt {
    pub(crate) name: &'static str,
    pub(crate) after: &'static [&'static str],
    pub(crate) current: watch::Receiver<Settings>,
    pub(crate) build: Box<Build>,
    /// Guards the newest service, and the addresses it was built for.
    pub(crate) part: Mutex<Part>,
}

type Part = Option<(Vec<IpAddr>, Arc<dyn Service>)>;

impl Rebuilt {
    /// Builds the first service; fails if it cannot be built.
    pub(crate) fn new(
        current: watch::Receiver<Settings>,
        build: Box<Build>,
    ) -> Result<Arc<Self>, Error> {
        let settings = current.borrow().clone();
        let first = build(&settings)?;
        Ok(Arc::new(Self {
            name: first.name(),
            after: first.after(),
            current,
            build,
            part: Mutex::new(Some((settings.node_ips(), first))),
        }))
    }

    /// A service for these settings: the newest one if it matches.
    fn part(&self, settings: &Settings) -> Result<Arc<dyn Service>, Error> {
        let known = self.part.lock().clone();
        let ips = settings.node_ips();
        if let Some((_, part)) = known.filter(|(made_for, _)| *made_for == ips) {
            return Ok(part);
        }
        let part = (self.build)(settings)?;
        *self.part.lock() = Some((ips, part.clone()));
        Ok(part)
    }
}

impl Service for Rebuilt {
    fn name(&self) -> &'static str {
        self.name
    }

    fn after(&self) -> &'static [&'static str] {
        self.after
    }

    fn metrics(&self) -> String {
        let part = self.part.lock().clone();
        part.map(|(_, part)| part.metrics()).unwrap_or_default()
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let mut current = self.current.clone();
            loop {
                let settings = current.borrow_and_update().clone();
                let (ips, own) = (settings.node_ips(), context.part());
                let mut run = self.part(&settings)?.run(own.clone());
                let moved = async {
                    let moved = current.wait_for(|settings| settings.node_ips() != ips);
                    moved.await.is_ok()
                };
                tokio::select! {
                    ended = &mut run => {
                        own.end().await;
                        return ended;
                    }
                    true = moved => {
                        own.token().cancel();
                        if let Err(error) = run.await {
                            tracing::warn!(%error, part = self.name, "ended with an error");
                        }
                        own.end().await;
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

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn settings() -> Settings {
        Settings::resolve(Options {
            node_name: Some("n".into()),
            node_ip: "192.0.2.1".parse().ok(),
            ..Options::default()
        })
        .unwrap()
    }

    #[test]
    fn certificates_name_every_address_of_the_host_but_those_of_pods() {
        let settings = settings();
        let host = |ips: &[&str]| {
            let ips = ips.iter().map(|text| ip(text)).collect();
            settings.with_machine_ips(ips)
        };
        let before = names(&host(&[]), Role::Up);
        let after = names(&host(&["192.0.2.9", "192.0.2.1", "10.42.0.1"]), Role::Up);
        assert_eq!(before.node_ips, [ip("192.0.2.1")]);
        assert_eq!(after.node_ips, [ip("192.0.2.1"), ip("192.0.2.9")]);
        let dir = tempfile::tempdir().unwrap();
        let pki = Pki::ensure(dir.path(), &before).unwrap();
        let renamed = pki.rename(&after, SystemClock.now()).unwrap();
        assert!(!renamed.is_empty());
        assert!(pki.rename(&after, SystemClock.now()).unwrap().is_empty());
    }

    /// A service that shows the address it was built for while it runs.
    struct Shown(IpAddr, watch::Sender<Vec<IpAddr>>);

    impl Service for Shown {
        fn name(&self) -> &'static str {
            "shown"
        }

        fn run(self: Arc<Self>, context: Context) -> Run {
            Box::pin(async move {
                self.1.send_modify(|running| running.push(self.0));
                context.ready();
                context.shutdown().await;
                self.1
                    .send_modify(|running| running.retain(|ip| *ip != self.0));
                Ok(())
            })
        }
    }

    #[tokio::test]
    async fn a_service_is_rebuilt_for_a_new_address_and_never_runs_twice() {
        let (running, mut shown) = watch::channel(Vec::new());
        let current = watch::Sender::new(settings());
        let build = move |settings: &Settings| {
            let part = Shown(settings.node_ips()[0], running.clone());
            Ok(Arc::new(part) as Arc<dyn Service>)
        };
        let part = Rebuilt::new(current.subscribe(), Box::new(build)).unwrap();
        let stop = tokio_util::sync::CancellationToken::new();
        let context = Context::standalone("shown", stop.clone());
        let run = tokio::spawn(part.run(context));
        shown
            .wait_for(|all| *all == [ip("192.0.2.1")])
            .await
            .unwrap();
        current.send_modify(|settings| *settings = settings.with_node_ip(ip("192.0.2.7")));
        shown
            .wait_for(|all| *all == [ip("192.0.2.7")])
            .await
            .unwrap();
        // Another address of the machine causes no rebuild.
        current
            .send_modify(|settings| *settings = settings.with_machine_ips(vec![ip("192.0.2.8")]));
        stop.cancel();
        run.await.unwrap().unwrap();
        assert!(shown.borrow().is_empty());
    }
}
