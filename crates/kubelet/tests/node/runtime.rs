//! A fake container runtime: sandboxes and containers are entries in a map, and a test decides when
//! one ends.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use cri::v1::{
    self,
    image_service_server::{ImageService, ImageServiceServer},
    runtime_service_server::{RuntimeService, RuntimeServiceServer},
};
use parking_lot::Mutex;
use tokio::sync::broadcast;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, transport::Server};

type Answer<T> = Result<Response<T>, Status>;

/// A container's configuration and status.
#[derive(Clone)]
pub(crate) struct Container {
    pub config: v1::ContainerConfig,
    pub status: v1::ContainerStatus,
    pub sandbox: String,
}

#[derive(Default)]
pub(crate) struct State {
    pub sandboxes: BTreeMap<String, v1::PodSandboxStatus>,
    pub containers: BTreeMap<String, Container>,
    /// Names and grace periods, in order.
    pub stops: Vec<(String, i64)>,
    pub executed: Vec<Vec<String>>,
    pub pod_cidr: String,
    /// The exit code of stopped containers; 143 unless a test sets another.
    pub stop_code: Option<i32>,
    /// Whether the runtime has no event stream.
    pub is_mute: bool,
    /// Pulled images. Those named `odd` have no status afterwards.
    pub pulled: Vec<String>,
    /// Present images that were pulled with credentials.
    pub private: Vec<String>,
    /// Whether pulls wait.
    pub holds_pulls: bool,
    /// Commands that the runtime cannot run, and how often it was asked to.
    pub broken: BTreeMap<String, u32>,
    /// Whether containers keep running after a stop request.
    pub holds_stops: bool,
    /// Commands that never end.
    pub hanging: Vec<String>,
    /// The bytes in each container's writable layer, by name.
    pub written: BTreeMap<String, u64>,
    count: u64,
}

/// The runtime, shared with the test.
#[derive(Clone)]
pub(crate) struct Fake {
    pub state: Arc<Mutex<State>>,
    events: broadcast::Sender<v1::ContainerEventResponse>,
}

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_nanos()).unwrap()
}

impl Fake {
    pub(crate) fn new() -> Self {
        Self {
            state: Arc::default(),
            events: broadcast::channel(1000).0,
        }
    }

    /// Serves on a socket until the token is cancelled.
    pub(crate) async fn serve(&self, socket: &Path, stop: CancellationToken) {
        let incoming = cri::listen(socket).await.unwrap();
        let server = Server::builder()
            .add_service(RuntimeServiceServer::new(self.clone()))
            .add_service(ImageServiceServer::new(self.clone()))
            .serve_with_incoming_shutdown(incoming, stop.cancelled_owned());
        tokio::spawn(server);
    }

    /// The newest container of this name.
    pub(crate) fn container(&self, name: &str) -> Option<Container> {
        let state = self.state.lock();
        let named = state
            .containers
            .values()
            .filter(|c| c.status.metadata.as_ref().unwrap().name == name);
        named.max_by_key(|c| c.status.created_at).cloned()
    }

    /// How many containers were ever created.
    pub(crate) fn made(&self) -> u64 {
        self.state.lock().count
    }

    /// Ends the newest container of this name.
    pub(crate) fn exit(&self, name: &str, code: i32) {
        let id = self.container(name).unwrap().status.id;
        self.end(&id, code);
    }

    fn end(&self, id: &str, code: i32) {
        {
            let mut state = self.state.lock();
            let Some(container) = state.containers.get_mut(id) else {
                return;
            };
            if container.status.state() == v1::ContainerState::ContainerExited {
                return;
            }
            container.status.state = v1::ContainerState::ContainerExited as i32;
            container.status.exit_code = code;
            container.status.finished_at = now();
        }
        self.tell(id, v1::ContainerEventType::ContainerStoppedEvent);
    }

    fn tell(&self, id: &str, kind: v1::ContainerEventType) {
        let state = self.state.lock();
        let sandbox = state.containers.get(id).map_or(id, |c| c.sandbox.as_str());
        let _ = self.events.send(v1::ContainerEventResponse {
            container_id: id.to_owned(),
            container_event_type: kind as i32,
            created_at: now(),
            pod_sandbox_status: state.sandboxes.get(sandbox).cloned(),
            containers_statuses: state
                .containers
                .values()
                .filter(|container| container.sandbox == sandbox)
                .map(|container| container.status.clone())
                .collect(),
        });
    }
}

fn matches(labels: &BTreeMap<String, String>, selector: &BTreeMap<String, String>) -> bool {
    selector
        .iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

fn image(name: String) -> v1::Image {
    v1::Image {
        id: format!("sha256:{name}"),
        repo_tags: vec![name],
        ..Default::default()
    }
}

fn container_stats(state: &State, container: &Container) -> v1::ContainerStats {
    let status = &container.status;
    let name = &status.metadata.as_ref().unwrap().name;
    let number = |value| Some(v1::UInt64Value { value });
    v1::ContainerStats {
        attributes: Some(v1::ContainerAttributes {
            id: status.id.clone(),
            metadata: status.metadata.clone(),
            labels: status.labels.clone(),
            ..Default::default()
        }),
        cpu: Some(v1::CpuUsage {
            usage_core_nano_seconds: number(5_000_000_000),
            ..Default::default()
        }),
        memory: Some(v1::MemoryUsage {
            working_set_bytes: number(1 << 20),
            ..Default::default()
        }),
        writable_layer: Some(v1::FilesystemUsage {
            used_bytes: number(state.written.get(name).copied().unwrap_or(0)),
            ..Default::default()
        }),
        ..Default::default()
    }
}

#[tonic::async_trait]
impl RuntimeService for Fake {
    async fn version(&self, _: Request<v1::VersionRequest>) -> Answer<v1::VersionResponse> {
        Ok(Response::new(v1::VersionResponse {
            runtime_name: "fake".into(),
            runtime_version: "1.0".into(),
            ..Default::default()
        }))
    }

    async fn status(&self, _: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let condition = |kind: &str| v1::RuntimeCondition {
            r#type: kind.into(),
            status: true,
            ..Default::default()
        };
        let conditions = vec![condition("RuntimeReady"), condition("NetworkReady")];
        let status = Some(v1::RuntimeStatus { conditions });
        Ok(Response::new(v1::StatusResponse {
            status,
            ..Default::default()
        }))
    }

    async fn update_runtime_config(
        &self,
        request: Request<v1::UpdateRuntimeConfigRequest>,
    ) -> Answer<v1::UpdateRuntimeConfigResponse> {
        let config = request
            .into_inner()
            .runtime_config
            .unwrap()
            .network_config
            .unwrap();
        self.state.lock().pod_cidr = config.pod_cidr;
        Ok(Response::new(Default::default()))
    }

    async fn run_pod_sandbox(
        &self,
        request: Request<v1::RunPodSandboxRequest>,
    ) -> Answer<v1::RunPodSandboxResponse> {
        let config = request.into_inner().config.unwrap();
        let mut state = self.state.lock();
        state.count += 1;
        let id = format!("sandbox{}", state.count);
        let network = v1::PodSandboxNetworkStatus {
            ip: format!("10.42.0.{}", state.count % 250 + 2),
            ..Default::default()
        };
        let status = v1::PodSandboxStatus {
            id: id.clone(),
            metadata: config.metadata,
            created_at: now(),
            network: Some(network),
            labels: config.labels,
            annotations: config.annotations,
            ..Default::default()
        };
        state.sandboxes.insert(id.clone(), status);
        Ok(Response::new(v1::RunPodSandboxResponse {
            pod_sandbox_id: id,
        }))
    }

    async fn stop_pod_sandbox(
        &self,
        request: Request<v1::StopPodSandboxRequest>,
    ) -> Answer<v1::StopPodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        if let Some(sandbox) = self.state.lock().sandboxes.get_mut(&id) {
            sandbox.state = v1::PodSandboxState::SandboxNotready as i32;
        }
        Ok(Response::new(Default::default()))
    }

    async fn remove_pod_sandbox(
        &self,
        request: Request<v1::RemovePodSandboxRequest>,
    ) -> Answer<v1::RemovePodSandboxResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let mut state = self.state.lock();
        state.sandboxes.remove(&id);
        state
            .containers
            .retain(|_, container| container.sandbox != id);
        Ok(Response::new(Default::default()))
    }

    async fn pod_sandbox_status(
        &self,
        request: Request<v1::PodSandboxStatusRequest>,
    ) -> Answer<v1::PodSandboxStatusResponse> {
        let id = request.into_inner().pod_sandbox_id;
        let status = self.state.lock().sandboxes.get(&id).cloned();
        let status = status.ok_or_else(|| Status::not_found(id))?;
        Ok(Response::new(v1::PodSandboxStatusResponse {
            status: Some(status),
            ..Default::default()
        }))
    }

    async fn list_pod_sandbox(
        &self,
        request: Request<v1::ListPodSandboxRequest>,
    ) -> Answer<v1::ListPodSandboxResponse> {
        let selector = request
            .into_inner()
            .filter
            .unwrap_or_default()
            .label_selector;
        let state = self.state.lock();
        let items = state
            .sandboxes
            .values()
            .filter(|s| matches(&s.labels, &selector));
        let items = items.map(|s| v1::PodSandbox {
            id: s.id.clone(),
            metadata: s.metadata.clone(),
            state: s.state,
            created_at: s.created_at,
            labels: s.labels.clone(),
            ..Default::default()
        });
        Ok(Response::new(v1::ListPodSandboxResponse {
            items: items.collect(),
        }))
    }

    async fn create_container(
        &self,
        request: Request<v1::CreateContainerRequest>,
    ) -> Answer<v1::CreateContainerResponse> {
        let request = request.into_inner();
        let config = request.config.unwrap();
        let logs = request.sandbox_config.unwrap().log_directory;
        let log_path = Path::new(&logs).join(&config.log_path);
        std::fs::create_dir_all(log_path.parent().unwrap()).unwrap();
        std::fs::write(&log_path, "2026-01-01T00:00:00Z stdout F hello\n").unwrap();
        let mut state = self.state.lock();
        state.count += 1;
        let id = format!("container{}", state.count);
        let status = v1::ContainerStatus {
            id: id.clone(),
            metadata: config.metadata.clone(),
            created_at: now(),
            image: config.image.clone(),
            image_ref: "sha256:image".into(),
            labels: config.labels.clone(),
            annotations: config.annotations.clone(),
            mounts: config.mounts.clone(),
            resources: Some(v1::ContainerResources {
                linux: config
                    .linux
                    .as_ref()
                    .and_then(|linux| linux.resources.clone()),
                windows: None,
            }),
            log_path: log_path.to_string_lossy().into_owned(),
            ..Default::default()
        };
        let container = Container {
            config,
            status,
            sandbox: request.pod_sandbox_id,
        };
        state.containers.insert(id.clone(), container);
        Ok(Response::new(v1::CreateContainerResponse {
            container_id: id,
        }))
    }

    async fn start_container(
        &self,
        request: Request<v1::StartContainerRequest>,
    ) -> Answer<v1::StartContainerResponse> {
        let id = request.into_inner().container_id;
        {
            let mut state = self.state.lock();
            let container = state
                .containers
                .get_mut(&id)
                .ok_or_else(|| Status::not_found(&*id))?;
            container.status.state = v1::ContainerState::ContainerRunning as i32;
            container.status.started_at = now();
        }
        self.tell(&id, v1::ContainerEventType::ContainerStartedEvent);
        Ok(Response::new(Default::default()))
    }

    async fn stop_container(
        &self,
        request: Request<v1::StopContainerRequest>,
    ) -> Answer<v1::StopContainerResponse> {
        let request = request.into_inner();
        {
            let mut state = self.state.lock();
            let found = state.containers.get(&request.container_id).cloned();
            if let Some(metadata) = found.and_then(|container| container.status.metadata) {
                state.stops.push((metadata.name, request.timeout));
            }
        }
        while self.state.lock().holds_stops {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let code = self.state.lock().stop_code.unwrap_or(143);
        self.end(&request.container_id, code);
        Ok(Response::new(Default::default()))
    }

    async fn remove_container(
        &self,
        request: Request<v1::RemoveContainerRequest>,
    ) -> Answer<v1::RemoveContainerResponse> {
        self.state
            .lock()
            .containers
            .remove(&request.into_inner().container_id);
        Ok(Response::new(Default::default()))
    }

    async fn list_containers(
        &self,
        request: Request<v1::ListContainersRequest>,
    ) -> Answer<v1::ListContainersResponse> {
        let selector = request
            .into_inner()
            .filter
            .unwrap_or_default()
            .label_selector;
        let state = self.state.lock();
        let all = state
            .containers
            .values()
            .filter(|c| matches(&c.status.labels, &selector));
        let all = all.map(|c| v1::Container {
            id: c.status.id.clone(),
            pod_sandbox_id: c.sandbox.clone(),
            metadata: c.status.metadata.clone(),
            state: c.status.state,
            created_at: c.status.created_at,
            labels: c.status.labels.clone(),
            ..Default::default()
        });
        Ok(Response::new(v1::ListContainersResponse {
            containers: all.collect(),
        }))
    }

    async fn list_pod_sandbox_stats(
        &self,
        _: Request<v1::ListPodSandboxStatsRequest>,
    ) -> Answer<v1::ListPodSandboxStatsResponse> {
        let state = self.state.lock();
        let stats = state.sandboxes.values().map(|sandbox| {
            let containers = state.containers.values();
            let containers = containers.filter(|c| c.sandbox == sandbox.id);
            let containers: Vec<_> = containers.map(|c| container_stats(&state, c)).collect();
            v1::PodSandboxStats {
                attributes: Some(v1::PodSandboxAttributes {
                    id: sandbox.id.clone(),
                    metadata: sandbox.metadata.clone(),
                    labels: sandbox.labels.clone(),
                    ..Default::default()
                }),
                linux: Some(v1::LinuxPodSandboxStats {
                    cpu: containers.first().and_then(|c| c.cpu),
                    memory: containers.first().and_then(|c| c.memory),
                    containers,
                    ..Default::default()
                }),
                ..Default::default()
            }
        });
        let stats = stats.collect();
        Ok(Response::new(v1::ListPodSandboxStatsResponse { stats }))
    }

    async fn container_status(
        &self,
        request: Request<v1::ContainerStatusRequest>,
    ) -> Answer<v1::ContainerStatusResponse> {
        let id = request.into_inner().container_id;
        let status = self
            .state
            .lock()
            .containers
            .get(&id)
            .map(|c| c.status.clone());
        let status = status.ok_or_else(|| Status::not_found(id))?;
        Ok(Response::new(v1::ContainerStatusResponse {
            status: Some(status),
            ..Default::default()
        }))
    }

    async fn update_container_resources(
        &self,
        request: Request<v1::UpdateContainerResourcesRequest>,
    ) -> Answer<v1::UpdateContainerResourcesResponse> {
        let request = request.into_inner();
        let mut state = self.state.lock();
        let container = state.containers.get_mut(&request.container_id);
        let container = container.ok_or_else(|| Status::not_found(request.container_id))?;
        let resources = v1::ContainerResources {
            linux: request.linux,
            windows: None,
        };
        container.status.resources = Some(resources);
        Ok(Response::new(Default::default()))
    }

    async fn exec_sync(
        &self,
        request: Request<v1::ExecSyncRequest>,
    ) -> Answer<v1::ExecSyncResponse> {
        let request = request.into_inner();
        self.state.lock().executed.push(request.cmd.clone());
        if let Some(times) = self.state.lock().broken.get_mut(&request.cmd[0]) {
            *times += 1;
            return Err(Status::internal("cannot run it"));
        }
        let hangs = |state: &State| state.hanging.contains(&request.cmd[0]);
        if hangs(&self.state.lock()) {
            std::future::pending::<()>().await;
        }
        // A probe succeeds once the test has created its file.
        let exit_code = match request.cmd.as_slice() {
            [test, path] if test == "exists" => i32::from(!PathBuf::from(path).exists()),
            _ => 0,
        };
        Ok(Response::new(v1::ExecSyncResponse {
            exit_code,
            ..Default::default()
        }))
    }

    async fn get_container_events(
        &self,
        _: Request<v1::GetEventsRequest>,
    ) -> Answer<tonic::codegen::BoxStream<v1::ContainerEventResponse>> {
        if self.state.lock().is_mute {
            return Err(Status::unimplemented("no events"));
        }
        let events = tokio_stream::wrappers::BroadcastStream::new(self.events.subscribe());
        let events = futures::StreamExt::filter_map(events, |event| async { event.ok().map(Ok) });
        Ok(Response::new(Box::pin(events)))
    }
}

#[tonic::async_trait]
impl ImageService for Fake {
    async fn image_status(
        &self,
        request: Request<v1::ImageStatusRequest>,
    ) -> Answer<v1::ImageStatusResponse> {
        let name = request.into_inner().image.unwrap().image;
        if self.state.lock().pulled.contains(&name) {
            return Err(Status::internal("cannot look"));
        }
        let is_there = self.state.lock().private.contains(&name);
        let image = (is_there || name.starts_with("here")).then(|| image(name));
        Ok(Response::new(v1::ImageStatusResponse {
            image,
            ..Default::default()
        }))
    }

    async fn list_images(
        &self,
        _: Request<v1::ListImagesRequest>,
    ) -> Answer<v1::ListImagesResponse> {
        let images = self.state.lock().private.clone().into_iter();
        Ok(Response::new(v1::ListImagesResponse {
            images: images.map(image).collect(),
        }))
    }

    async fn pull_image(
        &self,
        request: Request<v1::PullImageRequest>,
    ) -> Answer<v1::PullImageResponse> {
        let request = request.into_inner();
        let name = request.image.unwrap().image;
        while self.state.lock().holds_pulls {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        if name.starts_with("private.example/") && request.auth.is_some() {
            self.state.lock().private.push(name);
            return Ok(Response::new(Default::default()));
        }
        if name.starts_with("odd") {
            self.state.lock().pulled.push(name);
            return Ok(Response::new(Default::default()));
        }
        Err(Status::not_found(format!("{name}: no such image")))
    }
}
