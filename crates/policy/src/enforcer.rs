//! The IO part: informers and this node's attachments in, batches out.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Duration,
};

use client::informer::{Informer, Object, Subscription};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod as KubePod},
    networking::v1::NetworkPolicy,
};
use kube::ResourceExt;
use lifecycle::{Context, Failure, Outcome, Run};
use network::{
    CheckTimer, Error, names,
    nft::{Batch, Nft},
};
use parking_lot::Mutex;
use tokio::sync::{Mutex as AsyncMutex, mpsc, oneshot};
use tracing::warn;

use crate::{
    policy::{Key, Policy},
    state::{Pod, State},
};

/// How long a new pod waits for its rules.
const ADMIT_WITHIN: Duration = Duration::from_secs(10);
/// The maximum number of queued attachments.
const WAITING: usize = 256;

/// The configuration of a node's enforcer.
pub struct Config {
    /// The cluster's id on this machine.
    pub id: String,
    /// A client that reads Pods, Namespaces and NetworkPolicies.
    pub client: kube::Client,
    /// This node's name.
    pub node_name: String,
}

impl Config {
    /// Makes the enforcer without starting it.
    pub fn build(self, nft: Nft) -> Arc<Enforcer> {
        let (notices, inbox) = mpsc::channel(WAITING);
        Arc::new(Enforcer {
            config: self,
            nft,
            attached: Mutex::default(),
            notices,
            inbox: AsyncMutex::new(inbox),
        })
    }
}

/// Enforces the network policies of a node's pods.
pub struct Enforcer {
    config: Config,
    nft: Nft,
    /// Guards this node's attached sandboxes. Survives a run; never held across an await.
    attached: Mutex<BTreeMap<String, Attached>>,
    notices: mpsc::Sender<Notice>,
    /// Held by the current run.
    inbox: AsyncMutex<mpsc::Receiver<Notice>>,
}

/// The pod of a sandbox, and the addresses that it has. No other sandbox has one of them.
struct Attached {
    pod: Key,
    addresses: BTreeSet<IpAddr>,
}

/// A change of this node's attachments.
pub(crate) enum Notice {
    Attached(Key, Vec<IpAddr>, oneshot::Sender<()>),
    Detached(Key, BTreeSet<IpAddr>),
}

/// The informers that a run reads.
#[derive(Clone)]
pub struct Sources {
    /// All Pods.
    pub pods: Informer<KubePod>,
    /// All Namespaces.
    pub namespaces: Informer<Namespace>,
    /// All NetworkPolicies.
    pub policies: Informer<NetworkPolicy>,
}

impl Sources {
    fn start(client: &kube::Client, context: &Context) -> Self {
        Self {
            pods: Informer::builder(client.clone()).start(context),
            namespaces: Informer::builder(client.clone()).start(context),
            policies: Informer::builder(client.clone()).start(context),
        }
    }

    /// Informers without a server, for tests.
    pub fn offline(client: &kube::Client) -> Self {
        Self {
            pods: Informer::builder(client.clone()).offline(),
            namespaces: Informer::builder(client.clone()).offline(),
            policies: Informer::builder(client.clone()).offline(),
        }
    }
}

fn key_of<K: ResourceExt>(object: &K) -> Key {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn lost() -> Failure {
    "an informer ended".into()
}

/// Which objects changed.
#[derive(Default)]
struct Dirty {
    pods: BTreeSet<Key>,
    namespaces: BTreeSet<Key>,
    policies: BTreeSet<Key>,
}

/// The objects of pending events.
fn drain<K: Object + ResourceExt>(events: &mut Subscription<K>, into: &mut BTreeSet<Key>) {
    while let Some(event) = events.try_next() {
        into.insert(key_of(event.object().as_ref()));
    }
}

impl Enforcer {
    /// Returns when the policies of a new pod's addresses are applied.
    pub async fn admit(
        &self,
        sandbox: &str,
        pod: Key,
        addresses: &[IpAddr],
    ) -> network::Result<()> {
        let (notice, answer) = self.remember(sandbox, pod, addresses);
        self.notify(notice).await?;
        let answer = tokio::time::timeout(ADMIT_WITHIN, answer).await;
        match answer {
            Ok(Ok(())) => Ok(()),
            _ => Err(Error::Policy("the pod's rules are not in place".into())),
        }
    }

    /// Records that a pod had these addresses before this process started.
    pub fn note_attached(&self, sandbox: &str, pod: Key, addresses: &[IpAddr]) {
        let (notice, _) = self.remember(sandbox, pod, addresses);
        // Without a run the notice is lost, but the next run starts with the recorded pods.
        let _ = self.notices.try_send(notice);
    }

    fn remember(
        &self,
        sandbox: &str,
        pod: Key,
        addresses: &[IpAddr],
    ) -> (Notice, oneshot::Receiver<()>) {
        let mut attached = self.attached.lock();
        for other in attached.values_mut() {
            // The network has assigned these addresses again, but has not reported yet that their old sandbox is detached.
            other.addresses.retain(|ip| !addresses.contains(ip));
        }
        let new = Attached {
            pod: pod.clone(),
            addresses: addresses.iter().copied().collect(),
        };
        attached.insert(sandbox.to_owned(), new);
        let (done, answer) = oneshot::channel();
        (Notice::Attached(pod, addresses.to_vec(), done), answer)
    }

    /// Records that sandboxes were detached. Addresses that belong to other sandboxes now stay theirs.
    pub async fn release(&self, is_gone: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        self.attached.lock().retain(|sandbox, attached| {
            let keeps = !is_gone(sandbox);
            if !keeps {
                let addresses = std::mem::take(&mut attached.addresses);
                gone.push((attached.pod.clone(), addresses));
            }
            keeps
        });
        gone.retain(|(_, addresses)| !addresses.is_empty());
        for (pod, addresses) in gone {
            let shown = addresses.clone();
            if let Err(error) = self.notify(Notice::Detached(pod, addresses)).await {
                warn!(%error, addresses = ?shown, "cannot remove the rules of released addresses until the next start");
            }
        }
    }

    /// Whether a sandbox of a pod has an address.
    fn has(&self, pod: &Key, ip: &IpAddr) -> bool {
        let attached = self.attached.lock();
        let mut attached = attached.values();
        attached.any(|one| one.pod == *pod && one.addresses.contains(ip))
    }

    async fn notify(&self, notice: Notice) -> network::Result<()> {
        let sent = tokio::time::timeout(ADMIT_WITHIN, self.notices.send(notice)).await;
        match sent {
            Ok(Ok(())) => Ok(()),
            _ => Err(Error::Policy("the policies are not known yet".into())),
        }
    }

    /// Follows the informers until shutdown.
    pub async fn follow(&self, sources: Sources, context: &Context) -> Outcome {
        let mut inbox = self.inbox.lock().await;
        let mut pods = sources.pods.subscribe();
        let mut namespaces = sources.namespaces.subscribe();
        let mut policies = sources.policies.subscribe();
        tokio::join!(
            sources.pods.synced(),
            sources.namespaces.synced(),
            sources.policies.synced()
        );
        let table = names::table_of(&self.config.id, "policy");
        let mut worker = Worker {
            enforcer: self,
            sources,
            state: State::new(table),
            waiting: Vec::new(),
            refused: BTreeSet::new(),
        };
        // Existing objects arrive as events, too: the first round writes the whole table.
        let mut dirty = Dirty::default();
        drain(&mut pods, &mut dirty.pods);
        drain(&mut namespaces, &mut dirty.namespaces);
        drain(&mut policies, &mut dirty.policies);
        worker.start(dirty).await?;
        context.ready();
        let mut check = CheckTimer::start();
        loop {
            let mut dirty = Dirty::default();
            tokio::select! {
                event = pods.next() => {
                    dirty.pods.insert(key_of(event.ok_or_else(lost)?.object().as_ref()));
                }
                event = namespaces.next() => {
                    dirty.namespaces.insert(key_of(event.ok_or_else(lost)?.object().as_ref()));
                }
                event = policies.next() => {
                    dirty.policies.insert(key_of(event.ok_or_else(lost)?.object().as_ref()));
                }
                notice = inbox.recv() => worker.note(notice.ok_or_else(lost)?),
                () = check.due() => worker.repair().await?,
                () = context.shutdown() => return Ok(()),
            }
            drain(&mut pods, &mut dirty.pods);
            drain(&mut namespaces, &mut dirty.namespaces);
            drain(&mut policies, &mut dirty.policies);
            while let Ok(notice) = inbox.try_recv() {
                worker.note(notice);
            }
            worker.apply(dirty).await?;
        }
    }
}

/// The state of one run.
struct Worker<'a> {
    enforcer: &'a Enforcer,
    sources: Sources,
    state: State,
    /// Answered when the next batch is applied.
    waiting: Vec<oneshot::Sender<()>>,
    /// The namespaces whose policies cost too much.
    refused: BTreeSet<String>,
}

impl Worker<'_> {
    fn note(&mut self, notice: Notice) {
        match notice {
            Notice::Attached(key, addresses, done) => {
                self.state.attach(&key, &addresses);
                self.waiting.push(done);
            }
            Notice::Detached(key, mut addresses) => {
                // The next sandbox of the same pod can have the same address already.
                addresses.retain(|ip| !self.enforcer.has(&key, ip));
                self.state.detach(&key, &addresses);
            }
        }
    }

    fn decide(&mut self, dirty: Dirty) {
        let node = &self.enforcer.config.node_name;
        for (_, name) in dirty.namespaces {
            let namespace = self.sources.namespaces.get("", &name);
            let labels = namespace.map(|found| found.metadata.labels.clone().unwrap_or_default());
            self.state.set_namespace(&name, labels);
        }
        for key in dirty.policies {
            let policy = self.sources.policies.get(&key.0, &key.1);
            let policy = policy.map(|found| Policy::from_object(&found));
            self.state.set_policy(&key, policy);
        }
        for key in dirty.pods {
            let pod = self.sources.pods.get(&key.0, &key.1);
            let pod = pod.and_then(|found| Pod::from_object(&found, node));
            self.state.set_pod(&key, pod);
        }
    }

    /// The statements for all changes.
    fn commit(&mut self) -> Batch {
        let batch = self.state.commit();
        if self.refused != *self.state.refused() {
            self.refused.clone_from(self.state.refused());
            let namespaces = &self.refused;
            warn!(
                ?namespaces,
                "policies of namespaces that have too many rules and selectors allow nothing on this node"
            );
        }
        batch
    }

    async fn start(&mut self, dirty: Dirty) -> Outcome {
        self.decide(dirty);
        for attached in self.enforcer.attached.lock().values() {
            let addresses: Vec<IpAddr> = attached.addresses.iter().copied().collect();
            self.state.attach(&attached.pod, &addresses);
        }
        self.commit();
        self.enforcer.nft.apply(&self.state.full()).await?;
        Ok(())
    }

    async fn apply(&mut self, dirty: Dirty) -> Outcome {
        self.decide(dirty);
        let batch = self.commit();
        if let Err(error) = self.enforcer.nft.apply(&batch).await {
            warn!(%error, "rewriting the nftables table of network policies");
            self.enforcer.nft.apply(&self.state.full()).await?;
        }
        for waiting in self.waiting.drain(..) {
            // The caller may have given up.
            let _ = waiting.send(());
        }
        Ok(())
    }

    /// Writes the table again if another program has changed or removed it. No change is pending
    /// here: every change is applied before waiting for the next.
    async fn repair(&mut self) -> Outcome {
        let (nft, table) = (&self.enforcer.nft, self.state.table().to_owned());
        if let Some(full) = nft.find_drift(&table, || self.state.full()).await? {
            warn!("nftables table of network policies was changed, rewriting it");
            self.enforcer.nft.apply(&full).await?;
        }
        Ok(())
    }
}

impl lifecycle::Service for Enforcer {
    fn name(&self) -> &'static str {
        "network-policy"
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let sources = Sources::start(&self.config.client, &context);
            self.follow(sources, &context).await
        })
    }
}
