//! Reads the runtime's state: a pod's sandboxes and containers.

use std::{
    collections::{BTreeMap, HashMap},
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use cri::v1;
use futures::{StreamExt, TryStreamExt, stream};
use jiff::Timestamp;
use tokio::sync::{OnceCell, watch};
use tonic::Status;

use crate::{
    logs::{self, LogFile},
    make::{cgroups::Driver, labels},
    pod::observed::{Container, Observed, Sandbox, Snapshot, State},
};

/// The maximum length of a termination message.
const MESSAGE_LIMIT: u64 = 4096;

/// The runtime's client. Clones share the connection.
#[derive(Clone)]
pub struct Runtime {
    pub client: cri::Client,
    /// Whether the runtime's event stream is open.
    pub events: watch::Sender<bool>,
    /// The directory of all pods' logs.
    pub logs_dir: PathBuf,
    /// The runtime's name, once it is known.
    pub name: Arc<OnceCell<String>>,
    /// The runtime's cgroup driver, once it is known.
    pub driver: Arc<OnceCell<Driver>>,
}

/// Ended containers by id, which never change again.
pub(crate) type Ended = HashMap<String, Container>;

impl Runtime {
    /// Observes one pod. `ended` caches ended containers.
    pub async fn observe(&self, uid: &str, ended: &mut Ended) -> Result<Observed, Status> {
        self.ask_name().await?;
        let selector = BTreeMap::from([(labels::POD_UID.to_owned(), uid.to_owned())]);
        let (sandboxes, containers) = tokio::try_join!(
            self.sandboxes(selector.clone()),
            self.containers(selector, ended)
        )?;
        ended.retain(|id, _| containers.iter().any(|container| container.id == *id));
        for container in containers.iter().filter(|c| c.state == State::Exited) {
            ended
                .entry(container.id.clone())
                .or_insert_with(|| container.clone());
        }
        Ok(Observed::new(sandboxes, containers))
    }

    /// The runtime's name, which is part of container ids in the API.
    async fn ask_name(&self) -> Result<&str, Status> {
        let ask = || async {
            let version = cri::API_VERSION.into();
            let mut runtime = self.client.clone().runtime;
            let answer = runtime.version(v1::VersionRequest { version }).await?;
            Ok(answer.into_inner().runtime_name)
        };
        self.name.get_or_try_init(ask).await.map(String::as_str)
    }

    /// The runtime's name; empty before the first pod was observed.
    pub fn known_name(&self) -> &str {
        self.name.get().map_or("", String::as_str)
    }

    async fn sandboxes(&self, selector: BTreeMap<String, String>) -> Result<Vec<Sandbox>, Status> {
        let ids = self
            .list_sandboxes(selector)
            .await?
            .into_iter()
            .map(|sandbox| sandbox.id);
        let statuses = stream::iter(ids).map(|pod_sandbox_id| async move {
            let request = v1::PodSandboxStatusRequest {
                pod_sandbox_id,
                verbose: false,
            };
            let answer = self
                .client
                .clone()
                .runtime
                .pod_sandbox_status(request)
                .await;
            gone_is_none(answer.map(|answer| answer.into_inner().status))
        });
        let all: Vec<Option<v1::PodSandboxStatus>> =
            statuses.buffer_unordered(8).try_collect().await?;
        Ok(all.into_iter().flatten().map(Sandbox::from).collect())
    }

    /// Lists sandboxes with these labels.
    pub async fn list_sandboxes(
        &self,
        label_selector: BTreeMap<String, String>,
    ) -> Result<Vec<v1::PodSandbox>, Status> {
        let filter = v1::PodSandboxFilter {
            label_selector,
            ..Default::default()
        };
        let request = v1::ListPodSandboxRequest {
            filter: Some(filter),
        };
        Ok(self
            .client
            .clone()
            .runtime
            .list_pod_sandbox(request)
            .await?
            .into_inner()
            .items)
    }

    /// Lists containers with these labels.
    pub async fn list_containers(
        &self,
        label_selector: BTreeMap<String, String>,
    ) -> Result<Vec<v1::Container>, Status> {
        let filter = v1::ContainerFilter {
            label_selector,
            ..Default::default()
        };
        let request = v1::ListContainersRequest {
            filter: Some(filter),
        };
        Ok(self
            .client
            .clone()
            .runtime
            .list_containers(request)
            .await?
            .into_inner()
            .containers)
    }

    async fn containers(
        &self,
        selector: BTreeMap<String, String>,
        ended: &Ended,
    ) -> Result<Vec<Container>, Status> {
        let listed = self.list_containers(selector).await?;
        let known: Vec<Container> = listed
            .iter()
            .filter_map(|container| ended.get(&container.id).cloned())
            .collect();
        let unknown = listed
            .into_iter()
            .filter(|container| !ended.contains_key(&container.id));
        let statuses = stream::iter(unknown).map(|listed| async move {
            let status = gone_is_none(self.container_status(&listed.id).await.map(Some))?;
            Ok::<_, Status>(status.map(|status| {
                let container = Container::from_status(status, listed.pod_sandbox_id);
                with_last_words(container, &self.logs_dir)
            }))
        });
        let fresh: Vec<Option<Container>> = statuses.buffer_unordered(16).try_collect().await?;
        Ok(known
            .into_iter()
            .chain(fresh.into_iter().flatten())
            .collect())
    }

    /// One container's status.
    pub async fn container_status(&self, id: &str) -> Result<v1::ContainerStatus, Status> {
        let request = v1::ContainerStatusRequest {
            container_id: id.to_owned(),
            verbose: false,
        };
        let answer = self
            .client
            .clone()
            .runtime
            .container_status(request)
            .await?
            .into_inner();
        answer
            .status
            .ok_or_else(|| Status::not_found("the runtime returned no container status"))
    }

    /// Runs a command in a container until it ends or times out.
    pub async fn exec_sync(
        &self,
        request: v1::ExecSyncRequest,
    ) -> Result<v1::ExecSyncResponse, Status> {
        let seconds = u64::try_from(request.timeout).unwrap_or(0);
        let mut request = tonic::Request::new(request);
        if seconds > 0 {
            // The runtime enforces the command's timeout; add time for its answer.
            request.set_timeout(time_for(seconds));
        }
        let answer = self.client.clone().runtime.exec_sync(request).await?;
        Ok(answer.into_inner())
    }

    /// Stops a container with a grace period in seconds. One that is gone is no error.
    pub async fn stop_container(&self, id: &str, grace: i64) -> Result<(), Status> {
        let mut request = tonic::Request::new(v1::StopContainerRequest {
            container_id: id.to_owned(),
            timeout: grace,
        });
        request.set_timeout(time_for(u64::try_from(grace).unwrap_or(0)));
        let answer = self.client.clone().runtime.stop_container(request).await;
        gone_is_none(answer.map(|_| Some(())))?;
        Ok(())
    }

    /// Removes a sandbox and all of its containers.
    pub async fn remove_sandbox(&self, id: &str) -> Result<(), Status> {
        let mut runtime = self.client.clone().runtime;
        let pod_sandbox_id = id.to_owned();
        let stop = v1::StopPodSandboxRequest {
            pod_sandbox_id: pod_sandbox_id.clone(),
        };
        gone_is_none(runtime.stop_pod_sandbox(stop).await.map(|_| Some(())))?;
        let remove = v1::RemovePodSandboxRequest { pod_sandbox_id };
        gone_is_none(runtime.remove_pod_sandbox(remove).await.map(|_| Some(())))?;
        Ok(())
    }

    /// Removes a container.
    pub async fn remove_container(&self, id: &str) -> Result<(), Status> {
        let request = v1::RemoveContainerRequest {
            container_id: id.to_owned(),
        };
        let answer = self.client.clone().runtime.remove_container(request).await;
        gone_is_none(answer.map(|_| Some(())))?;
        Ok(())
    }
}

/// The state that an event carries; `None` if it carries none.
pub(crate) fn snapshot(event: v1::ContainerEventResponse, logs_dir: &Path) -> Option<Snapshot> {
    let at = Timestamp::from_nanosecond(event.created_at.into()).ok()?;
    let started = event.container_event_type() == v1::ContainerEventType::ContainerStartedEvent;
    let sandbox = Sandbox::from(event.pod_sandbox_status?);
    // A sandbox that has just started has no containers.
    let is_new = started && sandbox.id == event.container_id;
    let containers: Vec<Container> = event
        .containers_statuses
        .into_iter()
        .map(|status| {
            let container = Container::from_status(status, sandbox.id.clone());
            with_last_words(container, logs_dir)
        })
        .collect();
    (is_new || !containers.is_empty()).then_some(Snapshot {
        at,
        sandbox,
        containers,
    })
}

/// Something that was removed between two calls is not an error.
pub(crate) fn gone_is_none<T>(result: Result<Option<T>, Status>) -> Result<Option<T>, Status> {
    match result {
        Err(status) if status.code() == tonic::Code::NotFound => Ok(None),
        other => other,
    }
}

/// Adds the termination message of an ended container: from its file, or from its log if the policy
/// allows.
fn with_last_words(mut container: Container, logs_dir: &Path) -> Container {
    let Some((file, policy)) = container.termination_message.clone() else {
        return container;
    };
    if container.state != State::Exited {
        return container;
    }
    let mut words = read_end(Path::new(&file));
    if words.is_empty() && policy == "FallbackToLogsOnError" && container.exit_code != 0 {
        let log = LogFile::new(logs_dir, Path::new(&container.log_path));
        words = logs::last_lines(&log, 80, 2048);
    }
    if !words.is_empty() {
        if !container.message.is_empty() {
            container.message.push_str(": ");
        }
        container.message.push_str(&words);
    }
    container
}

/// The end of a file, as far as a message may be long.
fn read_end(file: &Path) -> String {
    // The container controls this file: do not follow links, and do not block on a pipe.
    let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC | flags;
    let Ok(open) = rustix::fs::open(file, flags, rustix::fs::Mode::empty()) else {
        return String::new();
    };
    let mut open = std::fs::File::from(open);
    let mut bytes = Vec::new();
    if let Ok(size) = open.seek(SeekFrom::End(0)) {
        let start = size.saturating_sub(MESSAGE_LIMIT);
        let _ = open.seek(SeekFrom::Start(start));
    }
    let _ = open.take(MESSAGE_LIMIT).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The deadline of a call that itself lasts `seconds`, capped: users may write any number, but the
/// gRPC timeout header cannot hold it.
fn time_for(seconds: u64) -> Duration {
    const YEAR: u64 = 365 * 24 * 3600;
    Duration::from_secs(seconds.min(YEAR)) + cri::REQUEST_TIMEOUT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_message_the_end_is_shown_and_links_are_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("message"), dir.path().join("link"));
        std::fs::write(&file, "short").unwrap();
        assert_eq!(read_end(&file), "short");
        let limit = usize::try_from(MESSAGE_LIMIT).unwrap();
        std::fs::write(&file, "a".repeat(limit) + "the end").unwrap();
        let shown = read_end(&file);
        assert!(
            shown.ends_with("the end") && shown.len() == limit,
            "{shown}"
        );
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(read_end(&link), "");
    }

    #[test]
    fn every_grace_period_fits_into_a_header() {
        for (seconds, whole) in [(30, 150), (u64::MAX, 365 * 24 * 3600 + 120)] {
            let mut request = tonic::Request::new(());
            request.set_timeout(time_for(seconds));
            assert_eq!(time_for(seconds), Duration::from_secs(whole));
            assert!(request.metadata().contains_key("grpc-timeout"));
        }
    }
}
