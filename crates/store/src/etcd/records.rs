//! Records of the server itself: etcd keys outside of the store's root, which the API never serves.

use std::sync::Arc;

use super::{
    Config, Etcd,
    client::{Client, Effect},
    config::ConnectRetry,
    connect,
    members::Members,
    proto::etcdserverpb::{
        Compare, PutRequest, RangeRequest, RequestOp, TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
    },
};
use crate::{Codec, Error, Key};

/// The prefix of the records.
const ROOT: &str = "/mainstay/";

/// Access to the records.
pub struct Records<'a>(&'a Client);

impl Config {
    /// Reads a record without connecting to the store, also if the objects cannot be served.
    pub async fn read_record(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let members = connect::members(&self.endpoints, self.tls.as_ref())?;
        let client = Client::new(Members::new(members), Arc::default());
        let mut patience = ConnectRetry::new(self);
        loop {
            match Records(&client).get(name).await {
                Ok(found) => return Ok(found),
                Err(error) => patience.after(error).await?,
            }
        }
    }
}

impl<C: Codec> Etcd<C> {
    /// The records of the server itself.
    pub fn records(&self) -> Records<'_> {
        Records(&self.client)
    }
}

impl Records<'_> {
    /// A record's content, if it is there.
    pub async fn get(&self, name: &str) -> Result<Option<Vec<u8>>, Error> {
        let request = RangeRequest {
            key: key(name),
            ..RangeRequest::default()
        };
        let answer = self.0.range(request).await?;
        let found = answer.kvs.into_iter().next();
        Ok(found.map(|found| found.value.to_vec()))
    }

    /// Creates a record unless it exists; returns whether it did. An error leaves that open.
    pub async fn create(&self, name: &str, content: Vec<u8>) -> Result<bool, Error> {
        let key = key(name);
        let absent = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Compare::default()
        };
        self.write(key, content, vec![absent]).await
    }

    /// Replaces a record if it still has this content; returns whether it did. An error leaves that
    /// open.
    pub async fn replace(
        &self,
        name: &str,
        before: &[u8],
        content: Vec<u8>,
    ) -> Result<bool, Error> {
        let unchanged = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Value.into(),
            key: key(name),
            target_union: Some(TargetUnion::Value(Key::copy_from_slice(before))),
            ..Compare::default()
        };
        self.write(key(name), content, vec![unchanged]).await
    }

    /// Writes a record unconditionally.
    pub async fn put(&self, name: &str, content: Vec<u8>) -> Result<(), Error> {
        self.write(key(name), content, Vec::new()).await.map(drop)
    }

    async fn write(
        &self,
        key: Key,
        content: Vec<u8>,
        compare: Vec<Compare>,
    ) -> Result<bool, Error> {
        let put = PutRequest {
            key,
            value: content.into(),
            ..PutRequest::default()
        };
        let request = TxnRequest {
            compare,
            success: vec![RequestOp {
                request: Some(Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        Ok(self
            .0
            .transact(request, Effect::Repeatable)
            .await?
            .succeeded)
    }
}

/// The key of a record.
pub(super) fn key(name: &str) -> Key {
    Key::from(format!("{ROOT}{name}"))
}
