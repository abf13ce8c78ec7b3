//! Follows the servers of the cluster by the EndpointSlices of the `kubernetes` Service: agents and
//! kubeconfigs know all of them, so that any may go.

use std::{collections::BTreeSet, sync::Arc};

use client::{Informer, kube};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use lifecycle::{Context, Run, Service};

use crate::Error;

/// Called with the changed servers, as `https://ADDRESS:PORT`.
pub(crate) type Changed = dyn Fn(&[String]) -> Result<(), Error> + Send + Sync;

/// Keeps a list of servers up to date.
pub(crate) struct KnownServers {
    /// May watch slices in the namespace `default`.
    pub client: kube::Client,
    pub changed: Box<Changed>,
    pub after: &'static [&'static str],
}

impl Service for KnownServers {
    fn name(&self) -> &'static str {
        "servers"
    }

    fn after(&self) -> &'static [&'static str] {
        self.after
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let slices = Informer::<EndpointSlice>::builder(self.client.clone())
                .namespace("default")
                .labels("kubernetes.io/service-name=kubernetes")
                .start(&context);
            let mut events = slices.subscribe();
            context.ready();
            slices.synced().await;
            let mut known = Vec::new();
            loop {
                while events.try_next().is_some() {}
                let now: BTreeSet<String> = slices
                    .list()
                    .iter()
                    .flat_map(|slice| servers(slice))
                    .collect();
                let now = Vec::from_iter(now);
                // An empty list is an error of a writer, not the absence of servers.
                if !now.is_empty() && now != known {
                    (self.changed)(&now)?;
                    known = now;
                }
                tokio::select! {
                    event = events.next() => if event.is_none() {
                        return Err("the informer of slices ended".into());
                    },
                    () = context.shutdown() => return Ok(()),
                }
            }
        })
    }
}

fn servers(slice: &EndpointSlice) -> Vec<String> {
    let ports = slice.ports.iter().flatten();
    let mut https = ports.filter(|port| port.name.as_deref() == Some("https"));
    let Some(port) = https.find_map(|port| port.port) else {
        return Vec::new();
    };
    let endpoints = slice.endpoints.iter().flatten();
    let addresses = endpoints.flat_map(|one| &one.addresses);
    let url = |address: &String| match address.contains(':') {
        true => format!("https://[{address}]:{port}"),
        false => format!("https://{address}:{port}"),
    };
    addresses.map(url).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn server_addresses_are_read_from_the_kubernetes_endpoint_slice() {
        let slice = |kind: &str, endpoints| -> EndpointSlice {
            let ports = json!([{"name": "https", "port": 6443}]);
            let slice = json!({"addressType": kind, "endpoints": endpoints, "ports": ports});
            serde_json::from_value(slice).unwrap()
        };
        let two = json!([{"addresses": ["192.0.2.1"]}, {"addresses": ["192.0.2.2"]}]);
        let expected = ["https://192.0.2.1:6443", "https://192.0.2.2:6443"];
        assert_eq!(servers(&slice("IPv4", two)), expected);
        let one = json!([{"addresses": ["2001:db8::1"]}]);
        assert_eq!(servers(&slice("IPv6", one)), ["https://[2001:db8::1]:6443"]);
        assert!(servers(&EndpointSlice::default()).is_empty());
    }
}
