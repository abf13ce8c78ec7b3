//! Calls to whichever member answers, and etcd's errors in the store's own words.

use std::{
    error::Error as _,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::future::BoxFuture;
use tonic::{Code, Status, transport::Channel};

use super::{
    connect::{Member, NotConnected},
    proto::etcdserverpb::{
        CompactionRequest, LeaseGrantRequest, LeaseGrantResponse, LeaseTimeToLiveRequest,
        LeaseTimeToLiveResponse, RangeRequest, RangeResponse, StatusRequest, TxnRequest,
        TxnResponse, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient,
    },
    revisions::Revisions,
    version::Version,
};
use crate::{Error, Revision};

/// How long one call to one member may take.
const CALL: Duration = Duration::from_secs(7);
/// The same of a write where there are other members. One that was under way when the leader died is
/// never answered by the member that passed it on, and is not known to be made or not: its caller is told
/// so while the next write already finds the new leader.
const WRITE: Duration = Duration::from_secs(3);
/// The same of a read that another member may answer sooner, until every member was asked once; and how long
/// a member may take to say that it is there.
const SOON: Duration = Duration::from_secs(2);

/// The members behind one face.
pub struct Client {
    members: Vec<(Member, Channel)>,
    /// The member that answered last.
    current: AtomicUsize,
    /// Translates between etcd's revisions and the store's.
    revisions: Arc<Revisions>,
}

/// Whether a call may be made twice.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Repeat {
    /// It changes nothing, or the same thing.
    Freely,
    /// Only when nothing can have reached a member.
    WhenUnsent,
}

impl Client {
    /// Channels live on the runtime that calls this.
    pub fn new(members: Vec<Member>, revisions: Arc<Revisions>) -> Self {
        let members = members
            .into_iter()
            .map(|member| (member.clone(), member.channel()));
        Self {
            members: members.collect(),
            current: AtomicUsize::new(0),
            revisions,
        }
    }

    /// How revisions are translated from now on.
    pub fn set_revisions(&mut self, revisions: Arc<Revisions>) {
        self.revisions = revisions;
    }

    pub fn revisions(&self) -> &Arc<Revisions> {
        &self.revisions
    }

    /// The members, the one that answered last first.
    pub fn members(&self) -> impl Iterator<Item = &(Member, Channel)> {
        let first = self.current.load(Ordering::Relaxed);
        let count = self.members.len();
        (0..count).map(move |step| &self.members[(first + step) % count])
    }

    /// Whether there is another member to go to.
    pub fn has_others(&self) -> bool {
        self.members.len() > 1
    }

    /// Keys and values.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
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
        self.revisions.translate_range(&mut answer);
        Ok(answer)
    }

    /// A transaction.
    pub async fn transact(&self, mut request: TxnRequest) -> Result<TxnResponse, Error> {
        self.revisions.translate_request(&mut request);
        let call = |channel| {
            let request = request.clone();
            Box::pin(async move { kv(channel).txn(request).await }) as BoxFuture<'_, _>
        };
        let answer = self.call(Repeat::WhenUnsent, call).await;
        let mut answer: TxnResponse = answer.map_err(|status| translate(&status, 0))?;
        self.revisions.translate_transaction(&mut answer);
        Ok(answer)
    }

    /// Forgets history.
    pub async fn compact(&self, revision: Revision) -> Result<(), Error> {
        // History from before the store was moved here has never been in this etcd.
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

    /// A new lease.
    pub async fn grant(&self, seconds: i64) -> Result<i64, Error> {
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

    /// How many seconds a lease has left; -1 when it is over.
    pub async fn seconds_left(&self, lease: i64) -> Result<i64, Error> {
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
        let count = self.members.len();
        let mut last = Status::unavailable("no etcd member answers");
        // Each member twice: a channel that was cut learns it by the first call.
        for attempt in 0..2 * count {
            let patience = match repeat {
                Repeat::WhenUnsent if count > 1 => WRITE,
                Repeat::Freely if count > 1 && attempt < count => SOON,
                _ => CALL,
            };
            let current = self.current.load(Ordering::Relaxed);
            let answer =
                tokio::time::timeout(patience, call(self.members[current].1.clone())).await;
            match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer in time"))) {
                Ok(answer) => return Ok(answer.into_inner()),
                Err(status) if is_transient(&status) => {
                    let next = (current + 1) % count;
                    let _ = self.current.compare_exchange(
                        current,
                        next,
                        Ordering::Relaxed,
                        Ordering::Relaxed,
                    );
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
}

fn kv(channel: Channel) -> KvClient<Channel> {
    KvClient::new(channel)
        .max_decoding_message_size(usize::MAX)
        .max_encoding_message_size(usize::MAX)
}

/// A member's version.
pub async fn version(member: &Member, channel: Channel) -> Result<Version, Error> {
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
        Code::Unavailable | Code::DeadlineExceeded | Code::Unknown
    )
}

/// Whether the connection itself was refused.
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

/// The answer to a question about a moment that is forgotten.
fn compacted(requested: Revision) -> Error {
    Error::Compacted {
        requested,
        oldest: 0,
    }
}

/// etcd's error; `requested` is the revision that the call named.
pub fn translate(status: &Status, requested: Revision) -> Error {
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
