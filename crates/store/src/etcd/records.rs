//! Records beside the objects: keys of etcd outside of the store's root, which the API never serves.

use super::{
    Etcd,
    client::Client,
    proto::etcdserverpb::{
        Compare, PutRequest, RangeRequest, RequestOp, TxnRequest,
        compare::{CompareResult, CompareTarget, TargetUnion},
        request_op::Request,
    },
};
use crate::{Codec, Error, Key};

/// Where this server's own records are.
const ROOT: &str = "/mainstay/";

/// A way to the records.
pub struct Records<'a>(&'a Client);

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

    /// Writes a record unless it is there already; whether it did. An error leaves that open.
    pub async fn create(&self, name: &str, content: Vec<u8>) -> Result<bool, Error> {
        let key = key(name);
        let absent = Compare {
            result: CompareResult::Equal.into(),
            target: CompareTarget::Create.into(),
            key: key.clone(),
            target_union: Some(TargetUnion::CreateRevision(0)),
            ..Compare::default()
        };
        let put = PutRequest {
            key,
            value: content.into(),
            ..PutRequest::default()
        };
        let request = TxnRequest {
            compare: vec![absent],
            success: vec![RequestOp {
                request: Some(Request::RequestPut(put)),
            }],
            failure: Vec::new(),
        };
        Ok(self.0.transact(request).await?.succeeded)
    }
}

fn key(name: &str) -> Key {
    Key::from(format!("{ROOT}{name}"))
}
