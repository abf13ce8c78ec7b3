//! RuntimeService.

use std::{pin::Pin, sync::Arc, time::Duration};

use cri::{
    tonic::{Request, Response, Status, async_trait},
    v1::{self, runtime_service_server::RuntimeService},
};
use futures::{Stream, StreamExt, stream};
use tokio_stream::wrappers::{BroadcastStream, errors::BroadcastStreamRecvError};

use super::Cri;
use crate::{engine::Engine, error::Error, error::Result as Outcome, shim::protocol::Call};

type Answer<T> = Result<Response<T>, Status>;
type Streamed<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// The number of items per message of a streamed list.
const CHUNK: usize = 256;

impl Cri {
    /// Runs a change to its end even if the caller disconnects.
    async fn change<T, F>(&self, work: impl FnOnce(Arc<Engine>) -> F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Outcome<T>> + Send + 'static,
    {
        Ok(self.0.finish(work(self.0.clone())).await?)
    }
}

fn chunks<T: Clone + Send + 'static, M: Send + 'static>(
    items: Vec<T>,
    message: impl Fn(Vec<T>) -> M,
) -> Streamed<M> {
    let messages: Vec<_> = items
        .chunks(CHUNK)
        .map(|chunk| Ok(message(chunk.to_vec())))
        .collect();
    Box::pin(stream::iter(messages))
}

#[async_trait]
impl RuntimeService for Cri {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            version: "0.1.0".into(),
            runtime_name: "mainstay".into(),
            runtime_version: env!("CARGO_PKG_VERSION").into(),
            runtime_api_version: cri::API_VERSION.into(),
        }))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let request = request.into_inner();
        let config = request
            .config
            .ok_or_else(|| Error::Invalid("no sandbox config".into()))?;
        let handler = request.runtime_handler;
        let pod_sandbox_id = self
            .change(|engine| async move { engine.run_sandbox(config, handler).await })
            .await?;
        Ok(Response::new(v1::RunPodSandboxResponse { pod_sandbox_id }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.change(|engine| async move { engine.stop_sandbox(&id).await })
            .await?;
        Ok(Response::new(Default::default()))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        self.change(|engine| async move { engine.remove_sandbox(&id).await })
            .await?;
        Ok(Response::new(Default::default()))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let request = request.into_inner();
        let sandbox = self.0.sandbox(&request.pod_sandbox_id)?;
        let containers = self.0.containers_of(&sandbox.id);
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status: Some(sandbox.status()),
            info: if request.verbose {
                sandbox.info()
            } else {
                Default::default()
            },
            containers_statuses: containers.iter().map(|c| c.cri_status()).collect(),
            timestamp: crate::stamp::now(),
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let items = self.0.list_sandboxes(request.into_inner().filter);
        Ok(Response::new(v1::ListPodSandboxResponse { items }))
    }

    async fn stream_pod_sandboxes(
        &self,
        request: Request<v1::StreamPodSandboxesRequest>,
    ) -> Answer<Streamed<v1::StreamPodSandboxesResponse>> {
        let items = self.0.list_sandboxes(request.into_inner().filter);
        let message = |pod_sandboxes| v1::StreamPodSandboxesResponse { pod_sandboxes };
        Ok(Response::new(chunks(items, message)))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let config = request
            .config
            .ok_or_else(|| Error::Invalid("no container config".into()))?;
        let sandbox = request.pod_sandbox_id;
        let container_id = self
            .change(|engine| async move { engine.create_container(&sandbox, config).await })
            .await?;
        Ok(Response::new(v1::CreateContainerResponse { container_id }))
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        self.change(|engine| async move { engine.start_container(&id).await })
            .await?;
        Ok(Response::new(Default::default()))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let request = request.into_inner();
        let timeout = seconds(request.timeout);
        let id = request.container_id;
        self.change(|engine| async move { engine.stop_container(&id, timeout).await })
            .await?;
        Ok(Response::new(Default::default()))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        let id = request.into_inner().container_id;
        self.change(|engine| async move { engine.remove_container(&id).await })
            .await?;
        Ok(Response::new(Default::default()))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let containers = self.0.list_containers(request.into_inner().filter);
        Ok(Response::new(v1::ListContainersResponse { containers }))
    }

    async fn stream_containers(
        &self,
        request: Request<v1::StreamContainersRequest>,
    ) -> Answer<Streamed<v1::StreamContainersResponse>> {
        let items = self.0.list_containers(request.into_inner().filter);
        Ok(Response::new(chunks(items, |containers| {
            v1::StreamContainersResponse { containers }
        })))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let request = request.into_inner();
        let container = self.0.container(&request.container_id)?;
        Ok(Response::new(v1::ContainerStatusResponse {
            status: Some(container.cri_status()),
            info: if request.verbose {
                container.info()
            } else {
                Default::default()
            },
        }))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let container = self.0.container(&request.container_id)?;
        if let Some(resources) = request.linux {
            self.0.update_resources(&container, resources).await?;
        }
        Ok(Response::new(Default::default()))
    }

    async fn reopen_container_log(
        &self,
        request: Request<v1::ReopenContainerLogRequest>,
    ) -> Answer<v1::ReopenContainerLogResponse> {
        let container = self.0.container(&request.into_inner().container_id)?;
        if !container.is_running() {
            return Err(Error::Precondition("the container is not running".into()).into());
        }
        let shim = self.0.sandbox(&container.facts.sandbox)?.shim()?;
        shim.ask(Call::ReopenLog {
            container: container.id.clone(),
        })
        .await?;
        Ok(Response::new(Default::default()))
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Answer<v1::ExecSyncResponse> {
        let request = request.into_inner();
        let timeout = seconds(request.timeout);
        let output = self
            .change(|engine| async move {
                engine
                    .exec_sync(&request.container_id, &request.cmd, timeout)
                    .await
            })
            .await?;
        Ok(Response::new(v1::ExecSyncResponse {
            stdout: output.stdout,
            stderr: output.stderr,
            exit_code: output.code,
        }))
    }

    async fn exec(&self, request: Request<v1::ExecRequest>) -> Answer<v1::ExecResponse> {
        let url = self.0.exec_url(request.into_inner())?;
        Ok(Response::new(v1::ExecResponse { url }))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let url = self.0.attach_url(request.into_inner())?;
        Ok(Response::new(v1::AttachResponse { url }))
    }

    async fn port_forward(
        &self,
        request: Request<v1::PortForwardRequest>,
    ) -> Answer<v1::PortForwardResponse> {
        let url = self.0.forward_url(request.into_inner())?;
        Ok(Response::new(v1::PortForwardResponse { url }))
    }

    async fn container_stats(
        &self,
        request: Request<v1::ContainerStatsRequest>,
    ) -> Answer<v1::ContainerStatsResponse> {
        let container = self.0.container(&request.into_inner().container_id)?;
        let stats = self.0.container_stats(vec![container]).await?.pop();
        Ok(Response::new(v1::ContainerStatsResponse { stats }))
    }

    async fn list_container_stats(
        &self,
        request: Request<v1::ListContainerStatsRequest>,
    ) -> Answer<v1::ListContainerStatsResponse> {
        let stats = self
            .0
            .list_container_stats(request.into_inner().filter)
            .await?;
        Ok(Response::new(v1::ListContainerStatsResponse { stats }))
    }

    async fn stream_container_stats(
        &self,
        request: Request<v1::StreamContainerStatsRequest>,
    ) -> Answer<Streamed<v1::StreamContainerStatsResponse>> {
        let items = self
            .0
            .list_container_stats(request.into_inner().filter)
            .await?;
        let message = |container_stats| v1::StreamContainerStatsResponse { container_stats };
        Ok(Response::new(chunks(items, message)))
    }

    async fn pod_sandbox_stats(
        &self,
        request: Request<v1::PodSandboxStatsRequest>,
    ) -> Answer<v1::PodSandboxStatsResponse> {
        let sandbox = self.0.sandbox(&request.into_inner().pod_sandbox_id)?;
        let stats = self.0.sandbox_stats(&sandbox).await?;
        Ok(Response::new(v1::PodSandboxStatsResponse {
            stats: Some(stats),
        }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        request: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        let stats = self
            .0
            .list_sandbox_stats(request.into_inner().filter)
            .await?;
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats }))
    }

    async fn stream_pod_sandbox_stats(
        &self,
        request: Request<v1::StreamPodSandboxStatsRequest>,
    ) -> Answer<Streamed<v1::StreamPodSandboxStatsResponse>> {
        let items = self
            .0
            .list_sandbox_stats(request.into_inner().filter)
            .await?;
        let message = |pod_sandbox_stats| v1::StreamPodSandboxStatsResponse { pod_sandbox_stats };
        Ok(Response::new(chunks(items, message)))
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let config = request.into_inner().runtime_config.unwrap_or_default();
        let cidrs = config.network_config.unwrap_or_default().pod_cidr;
        let parsed: Result<Vec<network::IpNet>, _> = cidrs
            .split(',')
            .filter(|cidr| !cidr.is_empty())
            .map(str::parse)
            .collect();
        let parsed = parsed.map_err(|_| Error::Invalid(format!("{cidrs:?} are not CIDRs")))?;
        if !parsed.is_empty() {
            self.0
                .config
                .network
                .set_pod_cidrs(parsed)
                .await
                .map_err(Error::from)?;
        }
        Ok(Response::new(Default::default()))
    }

    async fn status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        Ok(Response::new(
            self.0.node_status(request.into_inner().verbose).await,
        ))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<Streamed<v1::ContainerEventResponse>> {
        let events = BroadcastStream::new(self.0.events.subscribe());
        let stop = self.0.shutdown();
        let events = events.map(|event| match event {
            Ok(event) => Ok(event),
            // A client that missed events must list again.
            Err(BroadcastStreamRecvError::Lagged(missed)) => {
                Err(Status::data_loss(format!("{missed} events were missed")))
            }
        });
        Ok(Response::new(Box::pin(
            events.take_until(stop.cancelled_owned()),
        )))
    }

    async fn runtime_config(
        &self,
        _: Request<v1::RuntimeConfigRequest>,
    ) -> Answer<v1::RuntimeConfigResponse> {
        let driver = match self.0.config.systemd_cgroups {
            true => v1::CgroupDriver::Systemd,
            false => v1::CgroupDriver::Cgroupfs,
        };
        let linux = v1::LinuxRuntimeConfiguration {
            cgroup_driver: driver.into(),
        };
        Ok(Response::new(v1::RuntimeConfigResponse {
            linux: Some(linux),
        }))
    }
}

fn seconds(timeout: i64) -> Duration {
    Duration::from_secs(u64::try_from(timeout).unwrap_or(0))
}
