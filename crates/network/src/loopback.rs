//! A pod network with only the loopback interface. For tests of the runtime, and for nodes without
//! a managed network.

use std::{collections::BTreeSet, path::Path};

use async_trait::async_trait;
use rtnetlink::LinkUnspec;

use crate::{
    AttachRequest, Attachment, Error, IpNet, PodNetwork, Result, Status,
    netns::{Netlink, answered},
};

/// The loopback link's index in every namespace.
const LOOPBACK_INDEX: u32 = 1;

/// Sets `lo` up and assigns no addresses.
#[derive(Debug, Default, Clone, Copy)]
pub struct LoopbackNetwork;

#[async_trait]
impl PodNetwork for LoopbackNetwork {
    async fn attach(&self, request: AttachRequest) -> Result<Attachment> {
        raise_loopback(&request.netns).await?;
        Ok(Attachment {
            addresses: Vec::new(),
            interface: "lo".into(),
        })
    }

    async fn attachment(&self, _sandbox_id: &str) -> Option<Attachment> {
        None
    }

    async fn detach(&self, _sandbox_id: &str, _netns: Option<&Path>) -> Result<()> {
        Ok(())
    }

    async fn retain(&self, _alive: &BTreeSet<String>) -> Result<()> {
        Ok(())
    }

    async fn set_pod_cidrs(&self, _cidrs: Vec<IpNet>) -> Result<()> {
        Ok(())
    }

    async fn status(&self) -> Status {
        Status::Ready
    }
}

/// Sets `lo` up in the namespace at `netns`.
pub(crate) async fn raise_loopback(netns: &Path) -> Result<()> {
    let action = "set lo up";
    let raised = async {
        let netlink = Netlink::at(netns).await?;
        let up = LinkUnspec::new_with_index(LOOPBACK_INDEX).up().build();
        let raised = netlink.handle.link().set(up).execute().await;
        raised.map_err(Error::netlink(action))
    };
    answered(action, raised).await
}
