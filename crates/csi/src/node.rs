//! A driver's node service: every call has a deadline, and capabilities are queried once per
//! connection.

use std::{
    fmt,
    path::Path,
    time::{Duration, Instant},
};

use tokio::sync::OnceCell;
use tonic::{Code, Request, Status, transport::Channel};

pub use crate::v1::node_service_capability::rpc::Type as Capability;
use crate::v1::{self, node_client::NodeClient, node_service_capability};

/// The timeout of a call.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Called after each call with the method, the duration and the status code.
type Observe = Box<dyn Fn(&str, Duration, Code) + Send + Sync>;

struct Observer(Observe);

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// The node service of a registered driver.
#[derive(Debug)]
pub struct Node {
    client: NodeClient<Channel>,
    timeout: Duration,
    capabilities: OnceCell<Vec<Capability>>,
    observer: Option<Observer>,
}

impl Node {
    /// The service on a socket; does not connect yet.
    pub fn new(socket: impl AsRef<Path>, timeout: Duration) -> Self {
        Self {
            client: NodeClient::new(crate::channel(socket)),
            timeout,
            capabilities: OnceCell::new(),
            observer: None,
        }
    }

    /// Reports each call: its method, duration and status code.
    pub fn observed(
        mut self,
        observe: impl Fn(&str, Duration, Code) + Send + Sync + 'static,
    ) -> Self {
        self.observer = Some(Observer(Box::new(observe)));
        self
    }

    /// Whether the driver has a capability. Responses are cached, errors are not.
    pub async fn can(&self, capability: Capability) -> Result<bool, Status> {
        let known = self
            .capabilities
            .get_or_try_init(|| self.ask_capabilities());
        Ok(known.await?.contains(&capability))
    }

    async fn ask_capabilities(&self) -> Result<Vec<Capability>, Status> {
        let request = self.request(v1::NodeGetCapabilitiesRequest {});
        let mut client = self.client.clone();
        let call = client.node_get_capabilities(request);
        let answer = self.in_time("NodeGetCapabilities", call).await?;
        let types = answer.capabilities.into_iter().filter_map(|capability| {
            let node_service_capability::Type::Rpc(rpc) = capability.r#type?;
            Capability::try_from(rpc.r#type).ok()
        });
        Ok(types.collect())
    }

    /// The driver's information about this node.
    pub async fn info(&self) -> Result<v1::NodeGetInfoResponse, Status> {
        let request = self.request(v1::NodeGetInfoRequest {});
        let mut client = self.client.clone();
        self.in_time("NodeGetInfo", client.node_get_info(request))
            .await
    }

    /// Calls NodeStageVolume.
    pub async fn stage(&self, request: v1::NodeStageVolumeRequest) -> Result<(), Status> {
        let request = self.request(request);
        let mut client = self.client.clone();
        let call = client.node_stage_volume(request);
        self.in_time("NodeStageVolume", call).await.map(drop)
    }

    /// Undoes [`Node::stage`].
    pub async fn unstage(&self, request: v1::NodeUnstageVolumeRequest) -> Result<(), Status> {
        let request = self.request(request);
        let mut client = self.client.clone();
        let call = client.node_unstage_volume(request);
        self.in_time("NodeUnstageVolume", call).await.map(drop)
    }

    /// Calls NodePublishVolume.
    pub async fn publish(&self, request: v1::NodePublishVolumeRequest) -> Result<(), Status> {
        let request = self.request(request);
        let mut client = self.client.clone();
        let call = client.node_publish_volume(request);
        self.in_time("NodePublishVolume", call).await.map(drop)
    }

    /// Undoes [`Node::publish`].
    pub async fn unpublish(&self, request: v1::NodeUnpublishVolumeRequest) -> Result<(), Status> {
        let request = self.request(request);
        let mut client = self.client.clone();
        let call = client.node_unpublish_volume(request);
        self.in_time("NodeUnpublishVolume", call).await.map(drop)
    }

    /// Expands the volume on the node.
    pub async fn expand(&self, request: v1::NodeExpandVolumeRequest) -> Result<(), Status> {
        let request = self.request(request);
        let mut client = self.client.clone();
        let call = client.node_expand_volume(request);
        self.in_time("NodeExpandVolume", call).await.map(drop)
    }

    /// The usage of a volume.
    pub async fn stats(
        &self,
        request: v1::NodeGetVolumeStatsRequest,
    ) -> Result<v1::NodeGetVolumeStatsResponse, Status> {
        let request = self.request(request);
        let mut client = self.client.clone();
        let call = client.node_get_volume_stats(request);
        self.in_time("NodeGetVolumeStats", call).await
    }

    /// A request with its deadline, which drivers see, too.
    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    async fn in_time<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Status> {
        let begun = Instant::now();
        let answer = self.limited(what, call).await;
        if let Some(Observer(observe)) = &self.observer {
            let code = answer.as_ref().map_or_else(Status::code, |_| Code::Ok);
            observe(what, begun.elapsed(), code);
        }
        answer
    }

    async fn limited<T>(
        &self,
        what: &str,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Status> {
        let late = || {
            let within = self.timeout;
            Status::deadline_exceeded(format!(
                "the driver did not answer {what} within {within:?}"
            ))
        };
        match tokio::time::timeout(self.timeout, call).await {
            Ok(Ok(answer)) => Ok(answer.into_inner()),
            // The channel's own timer may fire first.
            Ok(Err(status)) if status.code() == Code::Cancelled && is_timeout(&status) => {
                Err(late())
            }
            Ok(Err(status)) => Err(unanswered(status)),
            Err(_) => Err(late()),
        }
    }
}

/// An error of the connection, not the driver's response: the driver died during the call and may
/// have done it. As in Go clients, the code is `Unavailable`; tonic uses codes that drivers use for
/// calls that failed.
fn unanswered(status: Status) -> Status {
    match std::error::Error::source(&status) {
        Some(_) if status.code() != Code::Cancelled => Status::unavailable(status.message()),
        _ => status,
    }
}

fn is_timeout(status: &Status) -> bool {
    status.message().contains("Timeout expired")
}

/// A status code in the spelling of Go clients.
pub fn go_code(code: Code) -> String {
    match code {
        Code::Ok => "OK".to_owned(),
        Code::Cancelled => "Canceled".to_owned(),
        code => format!("{code:?}"),
    }
}

/// An error in the format of Go clients.
pub fn go_error(status: &Status) -> String {
    format!(
        "rpc error: code = {} desc = {}",
        go_code(status.code()),
        status.message()
    )
}
