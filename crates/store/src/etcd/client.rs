//! Calls to any member that answers, and translation of etcd's errors.

use std::{error::Error as _, sync::Arc, time::Duration};

use futures::future::BoxFuture;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tonic::{Code, Status, transport::Channel};

use super::{
    connect::{Member, NotConnected},
    members::{ANSWER, Condition, Members},
    proto::etcdserverpb::{
        CompactionRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseTimeToLiveRequest,
        LeaseTimeToLiveResponse, RangeRequest, RangeResponse, ResponseHeader, StatusRequest,
        TxnRequest, TxnResponse, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient,
    },
    revisions::Revisions,
    version::Version,
};
use crate::{Error, Revision};

/// The timeout of one call to one member.
const CALL: Duration = Duration::from_secs(7);
/// The timeout of a write if there are other members, and no new leader is elected. A write in
/// flight when the leader died is never answered by the member that forwarded it, and may or may
/// not be applied.
const WRITE: Duration = Duration::from_secs(3);
/// The timeout of a read until every member was asked once; and of a version request.
const SOON: Duration = Duration::from_secs(2);
/// A call that takes longer triggers a check of the members.
pub(super) const SLOW: Duration = Duration::from_millis(300);
/// The code of a call that was cancelled because of a new leader; etcd does not use it.
const SUPERSEDED: Code = Code::Aborted;

/// A client of all members.
pub(super) struct Client {
    members: Arc<Members>,
    /// One per member. Each lock guards the connection of later calls; never held across an await.
    channels: Vec<Mutex<Connection>>,
    /// The runtime of the channels.
    runtime: Handle,
    /// Translates between etcd's revisions and the store's.
    revisions: Arc<Revisions>,
}

/// The connection to a member, and its number.
#[derive(Clone)]
struct Connection {
    number: u64,
    channel: Channel,
}

/// Whether a transaction can be applied a second time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Effect {
    /// Its own preconditions allow it only once, whenever it arrives: if its outcome is unknown, it
    /// is sent again.
    Once,
    /// It is sent again only if it cannot have reached a member.
    Repeatable,
}

/// Whether a call may be retried.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// It is idempotent.
    Freely,
    /// Only if the request cannot have reached a member.
    WhenUnsent,
}

impl Client {
    /// Channels run on the calling runtime.
    pub(super) fn new(members: Arc<Members>, revisions: Arc<Revisions>) -> Self {
        let connection = |member: &Member| {
            Mutex::new(Connection {
                number: 0,
                channel: member.channel(),
            })
        };
        Self {
            channels: members.all().iter().map(connection).collect(),
            members,
            runtime: Handle::current(),
            revisions,
        }
    }

    /// Sets the translation of revisions.
    pub(super) fn set_revisions(&mut self, revisions: Arc<Revisions>) {
        self.revisions = revisions;
    }

    pub(super) fn revisions(&self) -> &Arc<Revisions> {
        &self.revisions
    }

    pub(super) fn members(&self) -> &Arc<Members> {
        &self.members
    }

    fn connection(&self, index: usize) -> Connection {
        self.channels[index].lock().clone()
    }

    /// The channel to a member.
    pub(super) fn channel(&self, index: usize) -> Channel {
        self.connection(index).channel
    }

    /// Later calls use a new connection instead of this unresponsive one: it notices the end of a
    /// network partition at once, an old one only when it sends again. Calls in flight on the old
    /// one continue.
    fn abandon(&self, index: usize, number: u64) {
        let mut connection = self.channels[index].lock();
        if connection.number == number {
            let _runtime = self.runtime.enter();
            *connection = Connection {
                number: number + 1,
                channel: self.members.all()[index].channel(),
            };
        }
    }

    /// Checks a member, which answers without asking the others.
    pub(super) async fn condition(&self, index: usize) -> Condition {
        let Connection { number, channel } = self.connection(index);
        let mut client = MaintenanceClient::new(channel);
        match tokio::time::timeout(ANSWER, client.status(StatusRequest {})).await {
            Ok(Ok(status)) => {
                self.report_term(status.get_ref().header);
                match status.get_ref().leader {
                    0 => Condition::Leaderless,
                    _ => Condition::Serving,
                }
            }
            Ok(Err(_)) => Condition::Silent,
            Err(_) => {
                self.abandon(index, number);
                Condition::Silent
            }
        }
    }

    fn report_term(&self, header: Option<ResponseHeader>) {
        if let Some(header) = header {
            self.members.term().report(header.raft_term);
        }
    }

    /// A range request.
    pub(super) async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        let asked = request.revision as Revision;
        let revision = self.revisions.moment(request.revision);
        let request = RangeRequest {
            revision: revision.ok_or_else(|| compacted(asked))?,
            ..request
        };
        let call = |channel| {
            let request = request.clone();
            Box::pin(async move { kv(channel).range(request).await }) as BoxFuture<'_, _>
        };
        let answer = self.call(Repeat::Freely, call).await;
        let mut answer: RangeResponse = answer.map_err(|status| translate(&status, asked))?;
        self.report_term(answer.header);
        self.revisions.translate_range(&mut answer);
        Ok(answer)
    }

    /// A transaction. After an error it may have been applied, or may be applied later.
    pub(super) async fn transact(
        &self,
        mut request: TxnRequest,
        effect: Effect,
    ) -> Result<TxnResponse, Error> {
        self.revisions.translate_request(&mut request);
        let call = |channel| {
            let request = request.clone();
            Box::pin(async move { kv(channel).txn(request).await }) as BoxFuture<'_, _>
        };
        let mut answer: Result<TxnResponse, Status> = self.call(Repeat::WhenUnsent, call).await;
        if let Err(status) = &answer
            && effect == Effect::Once
            && is_transient(status)
            && !was_unsent(status)
        {
            match self.call(Repeat::WhenUnsent, call).await {
                // The first one, or another client's write, was applied: still unknown.
                Ok(again) if !again.succeeded => {}
                again => answer = again,
            }
        }
        let mut answer = answer.map_err(|status| translate(&status, 0))?;
        self.report_term(answer.header);
        self.revisions.translate_transaction(&mut answer);
        Ok(answer)
    }

    /// Compacts history.
    pub(super) async fn compact(&self, revision: Revision) -> Result<(), Error> {
        // This etcd never had history from before the migration.
        let Some(moment) = self.revisions.moment(revision as i64) else {
            return Err(compacted(revision));
        };
        let request = CompactionRequest {
            revision: moment,
            physical: false,
        };
        let call = |channel| {
            Box::pin(async move { kv(channel).compact(request).await }) as BoxFuture<'_, _>
        };
        let compacted = self.call(Repeat::Freely, call).await;
        compacted
            .map(drop)
            .map_err(|status| translate(&status, revision))
    }

    /// Grants a lease.
    pub(super) async fn grant(&self, seconds: i64) -> Result<i64, Error> {
        let request = LeaseGrantRequest {
            ttl: seconds,
            id: 0,
        };
        let call = |channel| {
            let mut client = LeaseClient::new(channel);
            Box::pin(async move { client.lease_grant(request).await }) as BoxFuture<'_, _>
        };
        let granted = self.call(Repeat::Freely, call).await;
        granted
            .map(|granted: LeaseGrantResponse| granted.id)
            .map_err(|status| translate(&status, 0))
    }

    /// The remaining seconds of a lease; -1 if it has expired.
    pub(super) async fn seconds_left(&self, lease: i64) -> Result<i64, Error> {
        let request = LeaseTimeToLiveRequest {
            id: lease,
            keys: false,
        };
        let call = |channel| {
            let mut client = LeaseClient::new(channel);
            Box::pin(async move { client.lease_time_to_live(request).await }) as BoxFuture<'_, _>
        };
        let answer = self.call(Repeat::Freely, call).await;
        answer
            .map(|answer: LeaseTimeToLiveResponse| answer.ttl)
            .map_err(|status| translate(&status, 0))
    }

    async fn call<T>(
        &self,
        repeat: Repeat,
        call: impl Fn(Channel) -> BoxFuture<'static, Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Status> {
        let count = self.channels.len();
        let mut last = Status::unavailable("no etcd member answers");
        // Each member twice: a broken channel is noticed by the first call.
        for attempt in 0..2 * count {
            let patience = match repeat {
                Repeat::WhenUnsent if count > 1 => WRITE,
                Repeat::Freely if count > 1 && attempt < count => SOON,
                _ => CALL,
            };
            let current = self.members.current();
            match self.attempt(current, patience, &call).await {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if is_transient(&status) => {
                    // A member that knows the new leader is as good as any.
                    if status.code() != SUPERSEDED {
                        self.members.leave(current);
                    }
                    if repeat == Repeat::WhenUnsent && !was_unsent(&status) {
                        return Err(status);
                    }
                    last = status;
                }
                Err(status) => return Err(status),
            }
        }
        Err(last)
    }

    /// One call to one member, cancelled if the member is found unresponsive, or if etcd has elected
    /// a new leader meanwhile.
    async fn attempt<T>(
        &self,
        index: usize,
        patience: Duration,
        call: impl Fn(Channel) -> BoxFuture<'static, Result<T, Status>>,
    ) -> Result<T, Status> {
        let Connection { number, channel } = self.connection(index);
        // All members are unresponsive, or this one would not be chosen: let it try.
        let is_hopeless = self.members.is_silent(index);
        let term = self.members.term().newest();
        let mut answer = call(channel);
        let waiting = async {
            if let Ok(answer) = tokio::time::timeout(SLOW.min(patience), &mut answer).await {
                return answer;
            }
            self.members.doubt();
            tokio::select! {
                answer = &mut answer => answer,
                () = self.members.silence(index), if !is_hopeless => {
                    Err(Status::unavailable("the member no longer answers"))
                }
                () = self.members.term().superseded(term) => {
                    Err(Status::new(SUPERSEDED, "a new leader was elected before it was answered"))
                }
            }
        };
        match tokio::time::timeout(patience, waiting).await {
            Ok(answer) => answer,
            Err(_) => {
                self.abandon(index, number);
                Err(Status::deadline_exceeded("no answer in time"))
            }
        }
    }
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// A member's version.
pub(super) async fn version(member: &Member, channel: Channel) -> Result<Version, Error> {
    let mut client = MaintenanceClient::new(channel);
    let answer = tokio::time::timeout(SOON, client.status(StatusRequest {})).await;
    let answer = answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time")));
    let status = answer.map_err(|status| translate(&status, 0))?.into_inner();
    let version = Version::parse(&status.version).filter(|version| version.is_supported());
    version.ok_or_else(|| {
        Error::Invalid(format!(
            "etcd at {} has version {}; 3.4 or later is needed",
            member.endpoint, status.version
        ))
    })
}

fn is_transient(status: &Status) -> bool {
    matches!(
        status.code(),
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown | SUPERSEDED
    )
}

/// Whether the connection was refused, so that nothing was sent.
fn was_unsent(status: &Status) -> bool {
    let mut source = status.source();
    while let Some(error) = source {
        if error.is::<NotConnected>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The error for a compacted revision.
fn compacted(requested: Revision) -> Error {
    Error::Compacted {
        requested,
        oldest: 0,
    }
}

/// Translates etcd's error; `requested` is the revision of the call.
pub(super) fn translate(status: &Status, requested: Revision) -> Error {
    let message = status.message();
    match status.code() {
        Code::OutOfRange if message.contains("compacted") => compacted(requested),
        Code::OutOfRange if message.contains("future") => Error::Future {
            requested,
            newest: 0,
        },
        Code::InvalidArgument => Error::Invalid(message.to_owned()),
        Code::ResourceExhausted if message.contains("space") => Error::Full(message.to_owned()),
        _ => {
            let mut text = format!("etcd: {message}");
            let mut source = status.source();
            while let Some(error) = source {
                text = format!("{text}: {error}");
                source = error.source();
            }
            Error::Unavailable(text)
        }
    }
}
