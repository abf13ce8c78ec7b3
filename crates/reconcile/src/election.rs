//! Leader election by a Lease.
//!
//! The leader renews the lease; the others wait until it has not changed for its duration by their
//! own clock, so that machines' clocks need not agree. A leader that cannot renew gives up at the
//! renew deadline, which is before others may take over, and a client bound to its [`Leadership`]
//! writes nothing from then on. A leader that stops cleanly ends its work first and then releases
//! the lease, so that the next one starts at once.
//!
//! A paused leader may check its clock before the pause and write after it. Therefore each term has
//! a second Lease, `NAME-term`, which is written once, before the term's work starts. Its
//! resourceVersion is the term's [`Fence`]: writes with the precondition that it is unchanged
//! cannot happen in a later term.
//!
//! Administrators may delete or change both Leases. Terms continue after the highest number that
//! either of them has, and a leader whose fence was changed begins a new term.

use std::{future::Future, pin::pin, sync::Arc, time::Duration};

use client::Api;
use jiff::Timestamp;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
};
use kube::api::{ObjectMeta, PostParams};
use parking_lot::Mutex;
use stdx::Clock;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};

/// The lease and its timings.
#[derive(Debug, Clone)]
pub struct Config {
    /// The namespace of the Lease.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// This candidate's identity; unique per process.
    pub identity: String,
    /// Others may take over if nothing changed for this long.
    pub duration: Duration,
    /// The leader gives up if it could not renew for this long; less than `duration`.
    pub renew_deadline: Duration,
    /// How often the leader renews and the others check.
    pub retry: Duration,
}

impl Config {
    /// Kubernetes' default timings.
    pub fn new(namespace: &str, name: &str, identity: &str) -> Self {
        Self {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            identity: identity.to_owned(),
            duration: Duration::from_secs(15),
            renew_deadline: Duration::from_secs(10),
            retry: Duration::from_secs(2),
        }
    }
}

/// Proof of leadership, while it lasts. Clones share it.
#[derive(Clone)]
pub struct Leadership {
    shared: Arc<Shared>,
}

/// The Lease of a term, as written when the term started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fence {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// The resourceVersion that it has for the duration of the term.
    pub resource_version: String,
}

struct Shared {
    over: CancellationToken,
    fence: Fence,
    /// The number of leader transitions when this term started: later terms have higher numbers.
    term: i32,
    /// Guards until when the lease is valid by its last renewal.
    until: Mutex<Instant>,
}

impl Leadership {
    /// Whether this candidate leads now. Always false after the renew deadline.
    pub fn holds(&self) -> bool {
        !self.shared.over.is_cancelled() && Instant::now() < *self.shared.until.lock()
    }

    /// Resolves when the leadership has ended or is to end: the work must end.
    pub async fn over(&self) {
        self.shared.over.cancelled().await;
    }

    /// The number of this term; that of each later leader is higher.
    pub fn term(&self) -> i32 {
        self.shared.term
    }

    /// The Lease that is unchanged as long as no later term has started.
    pub fn fence(&self) -> &Fence {
        &self.shared.fence
    }

    /// A client whose writes are rejected once the leadership is over.
    pub fn client(&self, client: &kube::Client) -> kube::Client {
        let leadership = self.clone();
        client::fenced(client, move || leadership.holds())
    }

    fn renewed(&self, begun: Instant, config: &Config) {
        *self.shared.until.lock() = begun + config.renew_deadline;
    }
}

/// The outcome of an attempt to begin a term.
#[derive(Debug, PartialEq, Eq)]
enum Begun {
    Term(Fence),
    /// A term of this number has begun, which is later or another candidate's.
    Superseded(i32),
    /// Another candidate wrote at the same time.
    Conflict,
}

/// Why [`lead`] returned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It was asked to stop; the lease is released if it was held.
    Stopped,
    /// The lease could not be renewed in time, or another candidate took it.
    Lost,
    /// The work has finished; the lease is released.
    Finished,
}

/// Waits until this candidate leads, and runs `work` until that is over. On `stop` the work is
/// notified by [`Leadership::over`], may take as long as the lease lasts to end, and the lease is
/// released. If the lease is lost, the work is dropped at once. `waits` is called when another
/// candidate leads.
pub async fn lead<W: Future<Output = ()>>(
    client: &kube::Client,
    config: &Config,
    clock: &dyn Clock,
    stop: &CancellationToken,
    waits: impl Fn(),
    work: impl FnOnce(Leadership) -> W,
) -> Ended {
    let mut election = Election::new(client, config, clock);
    let leadership = tokio::select! {
        biased;
        () = stop.cancelled() => return Ended::Stopped,
        leadership = election.acquire(waits) => leadership,
    };
    info!(
        lease = config.name,
        identity = config.identity,
        term = leadership.term(),
        "leading"
    );
    let over = leadership.shared.over.clone();
    // However this ends, also when dropped, the leadership becomes invalid.
    let _void = over.clone().drop_guard();
    let ended = {
        let mut work = pin!(work(leadership.clone()));
        let mut renewing = pin!(election.renew(&leadership));
        tokio::select! {
            biased;
            () = &mut renewing => Ended::Lost,
            () = &mut work => Ended::Finished,
            () = stop.cancelled() => {
                over.cancel();
                tokio::select! {
                    () = &mut work => Ended::Stopped,
                    () = &mut renewing => Ended::Lost,
                }
            }
        }
    };
    over.cancel();
    match ended {
        Ended::Lost => warn!(
            lease = config.name,
            identity = config.identity,
            "leadership lost"
        ),
        Ended::Stopped | Ended::Finished => election.release().await,
    }
    ended
}

/// An observer's state: the lease when it last changed, and when that was by its own clock.
#[derive(Debug, Clone)]
struct Observation {
    spec: Option<LeaseSpec>,
    at: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Step {
    Create,
    Renew,
    TakeOver,
    Wait,
}

fn decide(lease: Option<&Lease>, identity: &str, unchanged_for: Duration) -> Step {
    let Some(lease) = lease else {
        return Step::Create;
    };
    let Some(spec) = &lease.spec else {
        return Step::TakeOver;
    };
    let holder = spec.holder_identity.as_deref().unwrap_or("");
    let seconds = spec.lease_duration_seconds.unwrap_or(0).max(0);
    let duration = Duration::from_secs(seconds.unsigned_abs().into());
    if holder == identity {
        Step::Renew
    } else if holder.is_empty() || unchanged_for >= duration {
        Step::TakeOver
    } else {
        Step::Wait
    }
}

struct Election<'a> {
    api: Api<Lease>,
    config: &'a Config,
    clock: &'a dyn Clock,
    seen: Option<Observation>,
}

impl<'a> Election<'a> {
    fn new(client: &kube::Client, config: &'a Config, clock: &'a dyn Clock) -> Self {
        Self {
            api: Api::namespaced(client.clone(), &config.namespace),
            config,
            clock,
            seen: None,
        }
    }

    async fn acquire(&mut self, waits: impl Fn()) -> Leadership {
        loop {
            let begun = Instant::now();
            match self.attempt_term(begun).await {
                Ok(Some(leadership)) => return leadership,
                Ok(None) if self.is_held_by_another() => waits(),
                Ok(None) => {}
                Err(error) => debug!(lease = self.config.name, %error, "cannot get the lease"),
            }
            tokio::time::sleep(jittered(self.config.retry)).await;
        }
    }

    /// Acquires the lease and starts its term; `None` if another candidate has it.
    async fn attempt_term(&mut self, begun: Instant) -> Result<Option<Leadership>, kube::Error> {
        let Some(mut lease) = self.attempt().await? else {
            return Ok(None);
        };
        let transitions = |lease: &Lease| lease.spec.as_ref()?.lease_transitions;
        let mut term = transitions(&lease).unwrap_or(0);
        let mut begun_term = self.begin_term(term).await?;
        if let Begun::Superseded(last) = begun_term {
            // Either the lease was lost since, or it was deleted, which set its transitions to zero.
            term = last.saturating_add(1);
            lease.spec.get_or_insert_default().lease_transitions = Some(term);
            let params = PostParams::default();
            match self.api.replace(&self.config.name, &params, &lease).await {
                Ok(_) => begun_term = self.begin_term(term).await?,
                Err(kube::Error::Api(status)) if status.code == 409 => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        let Begun::Term(fence) = begun_term else {
            return Ok(None);
        };
        let shared = Shared {
            over: CancellationToken::new(),
            fence,
            term,
            until: Mutex::new(begun + self.config.renew_deadline),
        };
        Ok(Some(Leadership {
            shared: Arc::new(shared),
        }))
    }

    /// Writes the Lease of the term.
    async fn begin_term(&self, term: i32) -> Result<Begun, kube::Error> {
        let name = format!("{}-term", self.config.name);
        let known = self.api.get_opt(&name).await?;
        let last = known.as_ref().and_then(|lease| lease.spec.as_ref());
        if let Some(last) = last {
            let is_own = last.holder_identity.as_deref() == Some(&self.config.identity);
            let number = last.lease_transitions.unwrap_or(0);
            if number > term || (number == term && !is_own && number < i32::MAX) {
                return Ok(Begun::Superseded(number));
            }
        }
        let is_new = known.is_none();
        let mut lease = known.unwrap_or_default();
        lease.metadata.name = Some(name.clone());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some(self.config.identity.clone()),
            lease_transitions: Some(term),
            acquire_time: Some(MicroTime(self.clock.now())),
            ..LeaseSpec::default()
        });
        let params = PostParams::default();
        let written = match is_new {
            true => self.api.create(&params, &lease).await,
            false => self.api.replace(&name, &params, &lease).await,
        };
        match written {
            Ok(written) => Ok(Begun::Term(Fence {
                namespace: self.config.namespace.clone(),
                name,
                resource_version: written.metadata.resource_version.unwrap_or_default(),
            })),
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Begun::Conflict),
            Err(error) => Err(error),
        }
    }

    /// Renews until that has failed for the renew deadline, another candidate has the lease, or the
    /// fence was changed, so that no write can succeed any more.
    async fn renew(&mut self, leadership: &Leadership) {
        loop {
            let until = *leadership.shared.until.lock();
            let next = Instant::now() + self.config.retry;
            tokio::time::sleep_until(next.min(until)).await;
            let begun = Instant::now();
            if begun >= until {
                return;
            }
            match tokio::time::timeout_at(until, self.attempt()).await {
                Ok(Ok(Some(_))) => leadership.renewed(begun, self.config),
                // Another candidate has it, or there was a conflict: check again.
                Ok(Ok(None)) if self.is_held_by_another() => return,
                Ok(Ok(None)) => {}
                Ok(Err(error)) => debug!(lease = self.config.name, %error, "cannot renew"),
                Err(_) => return,
            }
            let until = *leadership.shared.until.lock();
            let fenced_off = self.is_fenced_off(leadership.fence());
            match tokio::time::timeout_at(until, fenced_off).await {
                Ok(Ok(false)) => {}
                Ok(Ok(true)) => return,
                Ok(Err(error)) => debug!(lease = self.config.name, %error, "cannot check the term"),
                Err(_) => return,
            }
        }
    }

    /// Whether the Lease of the term was changed or deleted: the store rejects all writes of the term.
    async fn is_fenced_off(&self, fence: &Fence) -> Result<bool, kube::Error> {
        let lease = self.api.get_opt(&fence.name).await?;
        let version = lease.and_then(|lease| lease.metadata.resource_version);
        Ok(version.as_ref() != Some(&fence.resource_version))
    }

    fn is_held_by_another(&self) -> bool {
        let seen = self.seen.as_ref().and_then(|seen| seen.spec.as_ref());
        let holder = seen.and_then(|spec| spec.holder_identity.as_deref());
        holder.is_some_and(|holder| !holder.is_empty() && holder != self.config.identity)
    }

    /// The written lease, if this candidate now holds it.
    async fn attempt(&mut self) -> Result<Option<Lease>, kube::Error> {
        let lease = self.api.get_opt(&self.config.name).await?;
        let spec = lease.as_ref().and_then(|lease| lease.spec.clone());
        let known = self.seen.take().filter(|seen| seen.spec == spec);
        let seen = known.unwrap_or_else(|| Observation {
            spec,
            at: Instant::now(),
        });
        let unchanged = seen.at.elapsed();
        self.seen = Some(seen);
        let now = self.clock.now();
        let params = PostParams::default();
        let written = match decide(lease.as_ref(), &self.config.identity, unchanged) {
            Step::Wait => return Ok(None),
            Step::Create => {
                self.api
                    .create(&params, &lease_held_by(None, self.config, now))
                    .await
            }
            Step::Renew | Step::TakeOver => {
                let lease = lease_held_by(lease, self.config, now);
                self.api.replace(&self.config.name, &params, &lease).await
            }
        };
        match written {
            Ok(lease) => Ok(Some(lease)),
            // Another candidate was faster.
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Releases the lease, if it is still held.
    async fn release(&self) {
        let released = async {
            let Some(lease) = self.api.get_opt(&self.config.name).await? else {
                return Ok(());
            };
            let spec = lease.spec.as_ref();
            let holder = spec.and_then(|spec| spec.holder_identity.as_deref());
            if holder != Some(&self.config.identity) {
                return Ok(());
            }
            let lease = released(lease, self.clock.now());
            let params = PostParams::default();
            self.api.replace(&self.config.name, &params, &lease).await?;
            info!(
                lease = self.config.name,
                identity = self.config.identity,
                "released the lease"
            );
            Ok::<_, kube::Error>(())
        };
        match tokio::time::timeout(self.config.retry, released).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => warn!(lease = self.config.name, %error, "cannot release the lease"),
            Err(_) => warn!(lease = self.config.name, "cannot release the lease in time"),
        }
    }
}

/// Adds up to a fifth, so that candidates do not check all at once.
fn jittered(retry: Duration) -> Duration {
    retry.mul_f64(1.0 + rand::random::<f64>() * 0.2)
}

/// The lease as its holder writes it; its resourceVersion is the precondition.
fn lease_held_by(lease: Option<Lease>, config: &Config, now: Timestamp) -> Lease {
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
        let next = |count: i32| count.saturating_add(1);
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, next));
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

/// The lease without a holder; keeps the number of transitions.
fn released(lease: Lease, now: Timestamp) -> Lease {
    let transitions = lease.spec.and_then(|spec| spec.lease_transitions);
    let spec = LeaseSpec {
        holder_identity: Some(String::new()),
        lease_duration_seconds: Some(1),
        lease_transitions: transitions,
        renew_time: Some(MicroTime(now)),
        acquire_time: Some(MicroTime(now)),
        ..Default::default()
    };
    Lease {
        metadata: lease.metadata,
        spec: Some(spec),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::{Value, json};
    use stdx::SystemClock;
    use tokio::sync::mpsc;

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

    /// Two Leases with resourceVersions, and clients that can be disconnected.
    #[derive(Clone, Default)]
    struct Server {
        lease: Arc<Mutex<Option<(u64, Value)>>>,
        term: Arc<Mutex<Option<(u64, Value)>>>,
    }

    impl Server {
        fn client(&self) -> (kube::Client, CancellationToken) {
            let (server, cut) = (self.clone(), CancellationToken::new());
            let is_cut = cut.clone();
            let service = tower::service_fn(move |request: Request<Body>| {
                let (server, is_cut) = (server.clone(), is_cut.clone());
                async move {
                    if is_cut.is_cancelled() {
                        std::future::pending::<()>().await;
                    }
                    let (parts, body) = request.into_parts();
                    let bytes = body.collect_bytes().await.unwrap();
                    let (code, answer) = server.answer(&parts, &bytes);
                    let body = Body::from(answer.to_string().into_bytes());
                    let response = Response::builder().status(code).body(body);
                    Ok::<_, Infallible>(response.unwrap())
                }
            });
            (client::in_process(service), cut)
        }

        fn answer(&self, parts: &http::request::Parts, body: &[u8]) -> (u16, Value) {
            let method = &parts.method;
            let sent = serde_json::from_slice::<Value>(body).unwrap_or_default();
            let is_term =
                parts.uri.path().ends_with("-term") || sent["metadata"]["name"] == "test-term";
            let status = |code: u16, reason: &str| {
                let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {},
                    "status": "Failure", "code": code, "message": "", "reason": reason});
                (code, status)
            };
            let mut stored = if is_term { &self.term } else { &self.lease }.lock();
            if method == Method::GET {
                let found = stored.as_ref().map(|(_, lease)| (200, lease.clone()));
                return found.unwrap_or_else(|| status(404, "NotFound"));
            }
            let mut sent = sent;
            let known = stored.as_ref().map(|(version, _)| version.to_string());
            let expected = sent["metadata"]["resourceVersion"].as_str();
            if known.as_deref() != expected {
                return status(409, "Conflict");
            }
            let version = stored.as_ref().map_or(1, |(version, _)| version + 1);
            sent["metadata"]["resourceVersion"] = json!(version.to_string());
            *stored = Some((version, sent.clone()));
            (200, sent)
        }

        fn holder(&self) -> String {
            let lease = self.lease.lock();
            let (_, lease) = lease.as_ref().unwrap();
            lease["spec"]["holderIdentity"].as_str().unwrap().to_owned()
        }
    }

    struct Candidate {
        stop: CancellationToken,
        cut: CancellationToken,
        ended: tokio::task::JoinHandle<Ended>,
        leading: mpsc::UnboundedReceiver<(Leadership, kube::Client)>,
    }

    /// A lease that others would have to wait an hour for.
    const LONG: (Duration, Duration) = (Duration::from_secs(3600), Duration::from_secs(1800));
    const SHORT: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(1));

    fn candidate(server: &Server, identity: &str, times: (Duration, Duration)) -> Candidate {
        let (client, cut) = server.client();
        let config = Config {
            duration: times.0,
            renew_deadline: times.1,
            retry: Duration::from_millis(20),
            ..Config::new("kube-system", "test", identity)
        };
        let stop = CancellationToken::new();
        let (sender, leading) = mpsc::unbounded_channel();
        let stopped = stop.clone();
        let ended = tokio::spawn(async move {
            let fenced = client.clone();
            lead(
                &client,
                &config,
                &SystemClock,
                &stopped,
                || (),
                |leadership| async move {
                    let fenced = leadership.client(&fenced);
                    sender.send((leadership.clone(), fenced)).unwrap();
                    leadership.over().await;
                },
            )
            .await
        });
        Candidate {
            stop,
            cut,
            ended,
            leading,
        }
    }

    async fn next_leader(candidate: &mut Candidate) -> (Leadership, kube::Client) {
        let leading = candidate.leading.recv();
        let leading = tokio::time::timeout(Duration::from_secs(30), leading).await;
        leading.expect("there is no leader").unwrap()
    }

    #[tokio::test]
    async fn a_clean_stop_hands_over_at_once() {
        let server = Server::default();
        let mut first = candidate(&server, "first", LONG);
        let (leading, _) = next_leader(&mut first).await;
        assert_eq!((leading.term(), leading.holds()), (0, true));
        let mut second = candidate(&server, "second", LONG);
        let renewed = server.lease.lock().as_ref().unwrap().0 + 3;
        while server.lease.lock().as_ref().unwrap().0 < renewed {
            tokio::task::yield_now().await;
        }
        assert!(second.leading.try_recv().is_err(), "two leaders");
        first.stop.cancel();
        assert_eq!(first.ended.await.unwrap(), Ended::Stopped);
        assert!(!leading.holds());
        let (next, _) = next_leader(&mut second).await;
        assert_eq!((next.term(), next.holds()), (1, true));
        let [before, after] = [&leading, &next].map(|one| one.fence().clone());
        assert_ne!(before.resource_version, after.resource_version);
        let current = server.term.lock().as_ref().unwrap().0.to_string();
        assert_eq!(after.resource_version, current);
        assert_eq!(server.holder(), "second");
    }

    #[tokio::test]
    async fn a_holder_that_is_cut_off_gives_up_before_another_may_begin() {
        let server = Server::default();
        let mut first = candidate(&server, "first", SHORT);
        let (leading, _) = next_leader(&mut first).await;
        let mut second = candidate(&server, "second", SHORT);
        first.cut.cancel();
        let (next, _) = next_leader(&mut second).await;
        assert!(!leading.holds(), "two leaders");
        assert!(next.term() > leading.term());
        assert_eq!(first.ended.await.unwrap(), Ended::Lost);
        second.stop.cancel();
        assert_eq!(second.ended.await.unwrap(), Ended::Stopped);
        assert_eq!(server.holder(), "");
    }

    #[tokio::test]
    async fn a_term_that_is_over_cannot_be_begun_any_more() {
        let server = Server::default();
        let (client, _cut) = server.client();
        let config = Config::new("kube-system", "test", "slow");
        let slow = Election::new(&client, &config, &SystemClock);
        let config = Config::new("kube-system", "test", "next");
        let next = Election::new(&client, &config, &SystemClock);
        let begun = next.begin_term(6).await.unwrap();
        assert_eq!(slow.begin_term(5).await.unwrap(), Begun::Superseded(6));
        let current = server.term.lock().as_ref().unwrap().0.to_string();
        assert!(matches!(begun, Begun::Term(fence) if fence.resource_version == current));
    }

    /// As `kubectl delete lease` does, which people use to force an election.
    #[tokio::test]
    async fn terms_continue_after_the_lease_was_deleted() {
        let server = Server::default();
        let mut fence = None;
        for (round, expected) in [0, 1, 2].into_iter().enumerate() {
            let mut next = candidate(&server, &format!("candidate-{round}"), LONG);
            let (leading, _) = next_leader(&mut next).await;
            assert_eq!(leading.term(), expected);
            assert_ne!(
                fence.replace(leading.fence().clone()),
                Some(leading.fence().clone())
            );
            // Released, so that the next one need not wait; then deleted.
            next.stop.cancel();
            assert_eq!(next.ended.await.unwrap(), Ended::Stopped);
            *server.lease.lock() = None;
        }
        let mut leader = candidate(&server, "leader", LONG);
        let (leading, _) = next_leader(&mut leader).await;
        *server.lease.lock() = None;
        // The leader writes it again, or the other one takes it, and then begins a later term.
        let mut other = candidate(&server, "other", LONG);
        leader.stop.cancel();
        leader.ended.await.unwrap();
        let (next, _) = next_leader(&mut other).await;
        assert!(next.term() > leading.term() && next.holds());
        assert_ne!(next.fence(), leading.fence());
    }

    #[tokio::test]
    async fn a_leader_whose_fence_was_changed_or_deleted_gives_up() {
        let server = Server::default();
        for is_deleted in [false, true] {
            let mut leader = candidate(&server, "leader", LONG);
            let (leading, _) = next_leader(&mut leader).await;
            {
                let mut term = server.term.lock();
                match is_deleted {
                    true => *term = None,
                    false => {
                        let (version, lease) = term.as_mut().unwrap();
                        *version += 1;
                        lease["metadata"]["resourceVersion"] = json!(version.to_string());
                    }
                }
            }
            assert_eq!(leader.ended.await.unwrap(), Ended::Lost);
            assert!(!leading.holds());
        }
        let mut again = candidate(&server, "leader", LONG);
        let (leading, _) = next_leader(&mut again).await;
        let current = server.term.lock().as_ref().unwrap().0.to_string();
        assert_eq!(leading.fence().resource_version, current);
    }

    #[tokio::test]
    async fn a_fenced_client_writes_only_while_it_leads() {
        let server = Server::default();
        let mut first = candidate(&server, "first", LONG);
        let (_leading, fenced) = next_leader(&mut first).await;
        let api: Api<Lease> = Api::namespaced(fenced, "kube-system");
        let read = api.get("test").await.unwrap();
        let params = PostParams::default();
        let written = api.replace("test", &params, &read).await;
        // The renewal may have been faster; in either case the write reached the server.
        assert!(matches!(written, Ok(_) | Err(kube::Error::Api(_))));
        first.stop.cancel();
        first.ended.await.unwrap();
        let read = api.get("test").await.expect("reading is allowed");
        let refused = api.replace("test", &params, &read).await;
        assert!(
            matches!(refused, Err(kube::Error::Service(_))),
            "{refused:?}"
        );
        assert_eq!(server.holder(), "");
    }
}
