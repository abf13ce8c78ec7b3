//! The daemon's side of the CNI plugin: handles its calls with the node's pod network.

use std::{
    collections::BTreeSet, fs, net::IpAddr, os::unix::fs::PermissionsExt, path::PathBuf, sync::Arc,
    time::Duration,
};

use lifecycle::{Context, Run, Service};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    sync::{Semaphore, watch},
    time::timeout,
};
use tracing::{debug, info, warn};

use super::call::{self, Call, Failure};
use crate::{
    Attachment, Error, PodNetwork, RoutedNetwork, Status,
    links::{self, gateway},
    routes::Peer,
};

/// The maximum number of concurrent calls.
const AT_ONCE: usize = 64;
/// The timeout for receiving a call, and its maximum length.
const ARRIVES_WITHIN: Duration = Duration::from_secs(5);
const LONGEST: u64 = 1 << 20;

/// Serves the plugin's socket.
pub struct CniServer {
    /// The socket, accessible only to root.
    pub socket: PathBuf,
    /// Attaches pods.
    pub network: Arc<dyn PodNetwork>,
    /// The same network without wrappers, to inspect links.
    pub routed: Arc<RoutedNetwork>,
    /// The nodes of the cluster, for this node's pod CIDRs. Our own runtime gets these from the
    /// kubelet; another one does not pass them on.
    pub nodes: watch::Receiver<Option<Vec<Peer>>>,
    /// This node.
    pub node_name: String,
}

impl Service for CniServer {
    fn name(&self) -> &'static str {
        "cni"
    }

    fn after(&self) -> &'static [&'static str] {
        &["network"]
    }

    fn run(self: Arc<Self>, context: Context) -> Run {
        Box::pin(async move {
            let listener = self.listen()?;
            context.spawn("ranges", self.clone().follow_ranges());
            context.ready();
            info!(socket = %self.socket.display(), "serving CNI calls");
            let limit = Arc::new(Semaphore::new(AT_ONCE));
            loop {
                let stream = tokio::select! {
                    accepted = listener.accept() => accepted?.0,
                    () = context.shutdown() => return Ok(()),
                };
                let Ok(permit) = limit.clone().acquire_owned().await else {
                    return Ok(());
                };
                let server = self.clone();
                context.spawn("call", async move {
                    let _permit = permit;
                    if let Err(error) = server.talk(stream).await {
                        debug!(%error, "CNI call ended early");
                    }
                });
            }
        })
    }
}

impl CniServer {
    fn listen(&self) -> Result<UnixListener, Error> {
        let failed = || Error::file(&self.socket);
        if let Some(directory) = self.socket.parent() {
            fs::create_dir_all(directory).map_err(failed())?;
        }
        match fs::remove_file(&self.socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed()(error));
            }
            _ => {}
        }
        let listener = UnixListener::bind(&self.socket).map_err(failed())?;
        let only_root = fs::Permissions::from_mode(0o600);
        fs::set_permissions(&self.socket, only_root).map_err(failed())?;
        Ok(listener)
    }

    /// Sets the network's pod CIDRs to those of the node.
    async fn follow_ranges(self: Arc<Self>) {
        let mut nodes = self.nodes.clone();
        loop {
            let own = nodes.borrow_and_update().as_ref().and_then(|nodes| {
                let own = nodes.iter().find(|node| node.name == self.node_name);
                own.map(|node| node.pod_cidrs.clone())
            });
            if let Some(cidrs) = own.filter(|cidrs| !cidrs.is_empty())
                && let Err(error) = self.network.set_pod_cidrs(cidrs).await
            {
                warn!(%error, "cannot apply the node's pod CIDRs");
            }
            if nodes.changed().await.is_err() {
                return;
            }
        }
    }

    async fn talk(&self, mut stream: UnixStream) -> std::io::Result<()> {
        let mut bytes = Vec::new();
        let mut limited = (&mut stream).take(LONGEST);
        timeout(ARRIVES_WITHIN, limited.read_to_end(&mut bytes)).await??;
        let answer = match serde_json::from_slice::<Call>(&bytes) {
            Ok(call) => match call.check_id() {
                Ok(()) => self.answer(&call).await,
                Err(failure) => Err(failure),
            },
            Err(error) => Err(Failure::new(call::DECODING, "not a call", error)),
        };
        stream.write_all(&serde_json::to_vec(&answer)?).await?;
        stream.shutdown().await
    }

    async fn answer(&self, call: &Call) -> Result<Value, Failure> {
        match call.command.as_str() {
            "ADD" => self.add(call).await,
            "DEL" => {
                let netns = call.netns.as_deref();
                let gone = self.network.detach(&call.container_id, netns).await;
                gone.map_err(failure).map(|()| Value::Null)
            }
            "CHECK" => self.check(call).await,
            "GC" => {
                let alive: BTreeSet<String> = call.valid_attachments()?.into_iter().collect();
                let kept = self.network.retain(&alive).await;
                kept.map_err(failure).map(|()| Value::Null)
            }
            "STATUS" => match self.network.status().await {
                Status::Ready => Ok(Value::Null),
                Status::NotReady(why) => Err(Failure::new(
                    call::NOT_AVAILABLE,
                    "the network is not ready",
                    why,
                )),
            },
            other => Err(Failure::new(
                call::INVALID_ENVIRONMENT,
                "unknown command",
                other,
            )),
        }
    }

    async fn add(&self, call: &Call) -> Result<Value, Failure> {
        let request = call.request()?;
        let attachment = self.network.attach(request).await.map_err(failure)?;
        let host_link = self
            .routed
            .host_link(&call.container_id)
            .unwrap_or_default();
        let mtu = self.routed.mtu().await.map_err(failure)?;
        Ok(result(call, &attachment, &host_link, mtu))
    }

    /// Checks that the result of ADD still exists; changes nothing.
    async fn check(&self, call: &Call) -> Result<Value, Failure> {
        let missing = |what: String| {
            Failure::new(
                call::UNKNOWN_CONTAINER,
                "the attachment differs from its record",
                what,
            )
        };
        let attachment = self.network.attachment(&call.container_id).await;
        let attachment = attachment.ok_or_else(|| missing(call.container_id.clone()))?;
        for ip in call.config["prevResult"]["ips"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let text = ip["address"].as_str().unwrap_or_default();
            let address = text.split('/').next().unwrap_or_default();
            if !address
                .parse()
                .is_ok_and(|ip| attachment.addresses.contains(&ip))
            {
                return Err(missing(format!("address {text}")));
            }
        }
        let netns = call.netns.clone().unwrap_or_default();
        let wrong = self.routed.missing_link(&call.container_id, &netns).await;
        match wrong.map_err(failure)? {
            Some(what) => Err(missing(what)),
            None => Ok(Value::Null),
        }
    }
}

fn failure(error: Error) -> Failure {
    match error {
        Error::NoPodCidr => Failure::new(call::TRY_AGAIN, error.to_string(), ""),
        error => Failure::new(call::NETWORK, error.to_string(), ""),
    }
}

/// The result of ADD in the requested version.
fn result(call: &Call, attachment: &Attachment, host_link: &str, mtu: u32) -> Value {
    let version = call.version();
    let netns = call.netns.clone().unwrap_or_default();
    let (host_hardware, pod_hardware) = links::hardware_of(host_link);
    let mut interfaces = json!([
        {"name": host_link, "mac": host_hardware},
        {"name": attachment.interface, "mac": pod_hardware, "sandbox": netns}]);
    if version == "1.1.0" {
        for link in interfaces.as_array_mut().into_iter().flatten() {
            link["mtu"] = json!(mtu);
        }
    }
    let ips: Vec<Value> = attachment
        .addresses
        .iter()
        .map(|ip| shown(*ip, version))
        .collect();
    let routes = attachment.addresses.iter().map(|ip| {
        let all = if ip.is_ipv4() { "0.0.0.0/0" } else { "::/0" };
        json!({"dst": all, "gw": gateway(*ip)})
    });
    json!({
        "cniVersion": version, "interfaces": interfaces, "ips": ips,
        "routes": routes.collect::<Vec<_>>(), "dns": call.config.get("dns").cloned().unwrap_or(json!({})),
    })
}

fn shown(ip: IpAddr, version: &str) -> Value {
    let (length, family) = if ip.is_ipv4() { (32, "4") } else { (128, "6") };
    let address = format!("{ip}/{length}");
    let mut shown = json!({"address": address, "gateway": gateway(ip), "interface": 1});
    if version.starts_with("0.") {
        shown["version"] = json!(family);
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_has_the_form_of_its_version() {
        let mut call = Call {
            command: "ADD".into(),
            container_id: "c".into(),
            netns: Some("/run/netns/x".into()),
            arguments: Default::default(),
            config: json!({"cniVersion": "1.1.0", "name": "n"}),
        };
        let attachment = Attachment {
            addresses: vec!["10.42.0.5".parse().unwrap(), "fd00:42::5".parse().unwrap()],
            interface: "eth0".into(),
        };
        let shown = result(&call, &attachment, "m0", 1400);
        assert_eq!(shown["interfaces"][1]["sandbox"], "/run/netns/x");
        assert_eq!(shown["interfaces"][1]["mtu"], 1400);
        assert_eq!(shown["ips"][0]["address"], "10.42.0.5/32");
        assert_eq!(shown["ips"][1]["gateway"], "fe80::1");
        assert_eq!(shown["routes"][1]["dst"], "::/0");
        assert!(shown["ips"][0].get("version").is_none());
        call.config["cniVersion"] = json!("0.3.1");
        let shown = result(&call, &attachment, "m0", 1400);
        assert_eq!(shown["ips"][1]["version"], "6");
        assert!(shown["interfaces"][0].get("mtu").is_none());
    }
}
