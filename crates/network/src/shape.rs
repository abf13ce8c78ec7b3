//! Bandwidth limits of pods: token buckets on the host side of their links, where pods cannot
//! change them.
//!
//! What the pod receives leaves the node through the link's root qdisc. What it sends arrives
//! there, and only outgoing traffic can be queued: it is redirected through an `ifb` link of its
//! own.

use std::collections::BTreeMap;

use futures::StreamExt;
use rtnetlink::{
    LinkIfb, LinkUnspec,
    packet_core::{
        DefaultNla, NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage,
        NetlinkPayload,
    },
    packet_route::{
        RouteNetlinkMessage,
        tc::{TcAttribute, TcHandle, TcMessage, TcOption},
    },
};
use serde::{Deserialize, Serialize};

use crate::{Error, Result, cni::bits, links, netns::Netlink};

/// Kubernetes' annotations, in bits per second.
pub(crate) const INGRESS: &str = "kubernetes.io/ingress-bandwidth";
pub(crate) const EGRESS: &str = "kubernetes.io/egress-bandwidth";
/// Kubernetes' bounds of a limit.
const LEAST: u64 = 1_000;
const MOST: u64 = 1_000_000_000_000_000;
/// Constants of the kernel.
const TBF_PARMS: u16 = 1;
const TBF_RATE64: u16 = 4;
const TBF_BURST: u16 = 6;
const LINK_LAYER_ETHERNET: u8 = 1;
const ALL_PROTOCOLS: u16 = 0x0003;
const INGRESS_QUEUE: u32 = 0xffff_0000;
/// The minimum bucket size: the largest packet that the kernel makes.
const LEAST_BURST: u64 = 64 * 1024;
/// The maximum latency of a packet in milliseconds.
const LATENCY: u64 = 25;

/// A pod's bandwidth limits, in bits per second.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limits {
    /// The limit for receiving.
    pub ingress: Option<u64>,
    /// The limit for sending.
    pub egress: Option<u64>,
}

impl Limits {
    /// The limits of a pod's annotations.
    pub(crate) fn from_annotations(annotations: &BTreeMap<String, String>) -> Result<Self> {
        let limit = |name: &str| match annotations.get(name) {
            None => Ok(None),
            Some(text) => match bits(text) {
                Some(rate) if (LEAST..=MOST).contains(&rate) => Ok(Some(rate)),
                _ => Err(Error::Bandwidth(format!(
                    "{name}: {text:?} is not between 1k and 1P"
                ))),
            },
        };
        Ok(Self {
            ingress: limit(INGRESS)?,
            egress: limit(EGRESS)?,
        })
    }
}

/// Sets limits on a pod's link. `through` is the name of the ifb link for the egress limit.
pub(crate) async fn limit(
    host: &Netlink,
    link: &str,
    through: &str,
    limits: &Limits,
) -> Result<()> {
    if *limits == Limits::default() {
        return Ok(());
    }
    let Some(index) = links::index_of(host, link).await? else {
        return Err(Error::Bandwidth(format!("there is no link {link}")));
    };
    if let Some(rate) = limits.ingress {
        bucket(host, index, rate).await?;
    }
    if let Some(rate) = limits.egress {
        let out = through_link(host, through).await?;
        bucket(host, out, rate).await?;
        lead_through(host, index, out).await?;
    }
    Ok(())
}

async fn through_link(host: &Netlink, name: &str) -> Result<u32> {
    if let Some(index) = links::index_of(host, name).await? {
        return Ok(index);
    }
    let made = host.handle.link().add(LinkIfb::new(name).build()).execute();
    made.await
        .map_err(Error::netlink("limit bandwidth: make an ifb link"))?;
    let index = links::index_of(host, name).await?;
    let index = index.ok_or_else(|| Error::Bandwidth(format!("link {name} was removed")))?;
    let up = LinkUnspec::new_with_index(index).up().build();
    let raised = host.handle.link().set(up).execute().await;
    raised.map_err(Error::netlink("limit bandwidth: set the ifb link up"))?;
    Ok(index)
}

/// Redirects what arrives on a link through another one.
async fn lead_through(host: &Netlink, index: u32, out: u32) -> Result<()> {
    let number = signed(index);
    let handle = host.handle.clone();
    let queue = handle.qdisc().replace(number).ingress().execute().await;
    queue.map_err(Error::netlink("limit bandwidth: add the ingress qdisc"))?;
    let filter = handle
        .traffic_filter(number)
        .replace()
        .parent(INGRESS_QUEUE)
        .priority(1)
        .protocol(ALL_PROTOCOLS.to_be())
        .redirect(out)
        .map_err(Error::netlink("limit bandwidth"))?;
    let led = filter.execute().await;
    led.map_err(Error::netlink(
        "limit bandwidth: redirect packets to the ifb link",
    ))
}

fn signed(index: u32) -> i32 {
    // The kernel's interface indexes are signed.
    i32::try_from(index).unwrap_or(i32::MAX)
}

/// Makes the root qdisc of a link a token bucket.
async fn bucket(host: &Netlink, index: u32, rate: u64) -> Result<()> {
    let mut message = TcMessage::default();
    message.header.index = signed(index);
    message.header.parent = TcHandle::ROOT;
    message.attributes = vec![
        TcAttribute::Kind("tbf".to_owned()),
        TcAttribute::Options(options(rate / 8)),
    ];
    let mut request = NetlinkMessage::from(RouteNetlinkMessage::NewQueueDiscipline(message));
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE;
    let failed = || Error::netlink("limit bandwidth: a token bucket (tbf)");
    let mut answers = host.handle.clone().request(request).map_err(failed())?;
    while let Some(answer) = answers.next().await {
        if let NetlinkPayload::Error(error) = answer.payload
            && error.code.is_some()
        {
            return Err(failed()(rtnetlink::Error::NetlinkError(error)));
        }
    }
    Ok(())
}

/// The token bucket's options for a rate in bytes per second: `struct tc_tbf_qopt`, and 64-bit
/// attributes.
fn options(rate: u64) -> Vec<TcOption> {
    let burst = (rate / 20).clamp(LEAST_BURST, u64::from(u32::MAX) / 2);
    let queue = (rate.saturating_mul(LATENCY) / 1000).saturating_add(burst);
    let short = |value: u64| u32::try_from(value).unwrap_or(u32::MAX).to_ne_bytes();
    let mut parms = Vec::with_capacity(36);
    // struct tc_ratespec: cell_log, linklayer, overhead, cell_align, mpu, rate.
    parms.extend([0, LINK_LAYER_ETHERNET, 0, 0, 0, 0, 0, 0]);
    parms.extend(short(rate));
    // No peak rate.
    parms.extend([0; 12]);
    parms.extend(short(queue));
    // The burst is given in bytes below; the kernel's ticks are not needed.
    parms.extend(short(0));
    parms.extend(short(0));
    let option = |kind: u16, value: Vec<u8>| TcOption::Other(DefaultNla::new(kind, value));
    let mut options = vec![
        option(TBF_PARMS, parms),
        option(TBF_BURST, short(burst).to_vec()),
    ];
    if rate >= u64::from(u32::MAX) {
        options.push(option(TBF_RATE64, rate.to_ne_bytes().to_vec()));
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_read_within_kubernetes_bounds() {
        let limits = |text: &str| {
            let annotations = BTreeMap::from([(INGRESS.to_owned(), text.to_owned())]);
            Limits::from_annotations(&annotations)
                .map(|limits| limits.ingress)
                .ok()
        };
        assert_eq!(limits("10M"), Some(Some(10_000_000)));
        assert_eq!(limits("1k"), Some(Some(1000)));
        for wrong in ["", "999", "2P", "fast", "-1M"] {
            assert_eq!(limits(wrong), None, "{wrong:?}");
        }
        assert_eq!(
            Limits::from_annotations(&BTreeMap::new()).unwrap(),
            Limits::default()
        );
    }

    #[test]
    fn a_bucket_has_the_form_that_the_kernel_reads() {
        let found = options(1_000_000);
        let TcOption::Other(parms) = &found[0] else {
            panic!()
        };
        let mut bytes = [0; 36];
        rtnetlink::packet_core::Nla::emit_value(parms, &mut bytes);
        assert_eq!(rtnetlink::packet_core::Nla::value_len(parms), 36);
        assert_eq!(bytes[8..12], 1_000_000_u32.to_ne_bytes());
        assert_eq!(found.len(), 2);
        assert_eq!(options(10_000_000_000).len(), 3);
    }
}
