//! Calls to whichever member answers, and etcd's errors in the store's own words.

use std::{
    error::Error as _,
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use futures::future::BoxFuture;
use tonic::{Code, Status, transport::Channel};

use super::{
    connect::{Member, NotConnected},
    proto::etcdserverpb::{
        CompactionRequest, LeaseGrantRequest, LeaseGrantResponse, RangeRequest, RangeResponse,
        StatusRequest, TxnRequest, TxnResponse, kv_client::KvClient, lease_client::LeaseClient,
        maintenance_client::MaintenanceClient,
    },
    version::Version,
};
use crate::{Error, Revision};

/// How long one call to one member may take.
const CALL: Duration = Duration::from_secs(7);
/// The same of a write where there are other members. One that was under way when the leader died is
/// never answered by the member that passed it on, and is not known to be made or not: its caller is told
/// so while the next write already finds the new leader.
const WRITE: Duration = Duration::from_secs(3);

/// The members behind one face.
pub struct Client {
    members: Vec<(Member, Channel)>,
    /// The member that answered last.
    current: AtomicUsize,
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
    pub fn new(members: Vec<Member>) -> Self {
        let members = members
            .into_iter()
            .map(|member| (member.clone(), member.channel()));
        Self {
            members: members.collect(),
            current: AtomicUsize::new(0),
        }
    }

    /// The members, the one that answered last first.
    pub fn members(&self) -> impl Iterator<Item = &(Member, Channel)> {
        let first = self.current.load(Ordering::Relaxed);
        let count = self.members.len();
        (0..count).map(move |step| &self.members[(first + step) % count])
    }

    /// Keys and values.
    pub async fn range(&self, request: RangeRequest) -> Result<RangeResponse, Error> {
        let call = |channel| {
            let request = request.clone();
            Box::pin(async move { kv(channel).range(request).await }) as BoxFuture<'_, _>
        };
        let asked = request.revision as Revision;
        self.call(Repeat::Freely, call)
            .await
            .map_err(|status| translate(&status, asked))
    }

    /// A transaction.
    pub async fn transact(&self, request: TxnRequest) -> Result<TxnResponse, Error> {
        let call = |channel| {
            let request = request.clone();
            Box::pin(async move { kv(channel).txn(request).await }) as BoxFuture<'_, _>
        };
        self.call(Repeat::WhenUnsent, call)
            .await
            .map_err(|status| translate(&status, 0))
    }

    /// Forgets history.
    pub async fn compact(&self, revision: Revision) -> Result<(), Error> {
        let request = CompactionRequest {
            revision: revision as i64,
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

    async fn call<T>(
        &self,
        repeat: Repeat,
        call: impl Fn(Channel) -> BoxFuture<'static, Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Status> {
        let count = self.members.len();
        let mut last = Status::unavailable("no etcd member answers");
        let patience = match repeat {
            Repeat::WhenUnsent if count > 1 => WRITE,
            _ => CALL,
        };
        // Each member twice: a channel that was cut learns it by the first call.
        for _ in 0..2 * count {
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
    let status = MaintenanceClient::new(channel)
        .status(StatusRequest {})
        .await;
    let status = status.map_err(|status| translate(&status, 0))?.into_inner();
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

/// etcd's error; `requested` is the revision that the call named.
pub fn translate(status: &Status, requested: Revision) -> Error {
    let message = status.message();
    match status.code() {
        Code::OutOfRange if message.contains("compacted") => Error::Compacted {
            requested,
            oldest: 0,
        },
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
