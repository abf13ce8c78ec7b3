//! The runtime's state of a pod, reduced to what decisions need.

use std::collections::BTreeMap;

use cri::v1;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;

use super::spec;
use crate::make::{labels, mounts, resources::Bounds};

/// The state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum State {
    /// Created, not started.
    Created,
    /// Runs.
    Running,
    /// Has ended.
    Exited,
    /// The runtime does not know.
    #[default]
    Unknown,
}

/// One container, running or ended.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Container {
    pub id: String,
    pub sandbox_id: String,
    pub name: String,
    pub restart_count: u32,
    pub state: State,
    pub created_at: Timestamp,
    pub started_at: Option<Timestamp>,
    pub finished_at: Option<Timestamp>,
    pub exit_code: i32,
    pub reason: String,
    pub message: String,
    pub image: String,
    pub image_ref: String,
    pub hash: String,
    pub log_path: String,
    /// uid, gid and supplementary groups of its first process.
    pub user: Option<(i64, i64, Vec<i64>)>,
    /// The applied resources, if the runtime reports them.
    pub bounds: Option<Bounds>,
    /// The host path of the termination message file, and the policy.
    pub termination_message: Option<(String, String)>,
}

/// One sandbox.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Sandbox {
    pub id: String,
    pub attempt: u32,
    pub ready: bool,
    pub created_at: Timestamp,
    pub ips: Vec<String>,
    pub host_network: bool,
}

/// All sandboxes and containers of one pod, newest first.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    pub sandboxes: Vec<Sandbox>,
    pub containers: Vec<Container>,
}

/// One sandbox with all of its containers at one time, from an event of the runtime.
#[derive(Debug, Clone, PartialEq)]
pub struct Snapshot {
    pub at: Timestamp,
    pub sandbox: Sandbox,
    pub containers: Vec<Container>,
}

/// Whether the pod's sandbox can be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SandboxNeed {
    /// The existing sandbox fits.
    Use(String),
    /// A new sandbox is needed: its attempt number, and why.
    New { attempt: u32, why: &'static str },
}

impl Observed {
    /// Sorts newest first.
    pub fn new(mut sandboxes: Vec<Sandbox>, mut containers: Vec<Container>) -> Self {
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.created_at, s.attempt)));
        containers.sort_by_key(|c| std::cmp::Reverse((c.created_at, c.restart_count)));
        Self {
            sandboxes,
            containers,
        }
    }

    /// Replaces one sandbox by its newer state.
    pub fn with(mut self, snapshot: Snapshot) -> Self {
        let id = &snapshot.sandbox.id;
        self.sandboxes.retain(|sandbox| sandbox.id != *id);
        self.containers.retain(|c| c.sandbox_id != *id);
        self.sandboxes.push(snapshot.sandbox);
        self.containers.extend(snapshot.containers);
        Self::new(self.sandboxes, self.containers)
    }

    /// The newest container of this name.
    pub fn latest(&self, name: &str) -> Option<&Container> {
        self.containers
            .iter()
            .find(|container| container.name == name)
    }

    /// The newest container of this name in the newest sandbox.
    pub fn active(&self, name: &str) -> Option<&Container> {
        let sandbox = self.sandboxes.first()?;
        self.containers
            .iter()
            .find(|c| c.name == name && c.sandbox_id == sandbox.id)
    }

    /// Whether any main container has started in the newest sandbox.
    pub fn is_initialized(&self, pod: &Pod) -> bool {
        spec::spec(pod).containers.iter().any(|container| {
            self.active(&container.name)
                .is_some_and(|c| c.state != State::Created)
        })
    }

    /// Whether any main container was ever created.
    pub fn has_main_container(&self, pod: &Pod) -> bool {
        spec::spec(pod)
            .containers
            .iter()
            .any(|container| self.latest(&container.name).is_some())
    }

    /// Containers that may have a process; one that was only created has none.
    pub fn alive(&self) -> impl Iterator<Item = &Container> {
        self.containers
            .iter()
            .filter(|c| matches!(c.state, State::Running | State::Unknown))
    }

    /// Whether the newest sandbox fits the pod.
    pub fn sandbox_need(&self, pod: &Pod) -> SandboxNeed {
        let Some(newest) = self.sandboxes.first() else {
            return SandboxNeed::New {
                attempt: 0,
                why: "no pod sandbox exists",
            };
        };
        let host_network = spec::is_host_network(pod);
        let why = if self.sandboxes.iter().filter(|s| s.ready).count() > 1 {
            "multiple pod sandboxes are ready and need to be reconciled"
        } else if !newest.ready {
            "pod sandbox is not ready"
        } else if newest.host_network != host_network {
            "network namespace mode changed and sandbox needs to be recreated"
        } else if !host_network && newest.ips.is_empty() {
            "pod sandbox has no IP address"
        } else {
            return SandboxNeed::Use(newest.id.clone());
        };
        SandboxNeed::New {
            attempt: newest.attempt + 1,
            why,
        }
    }

    /// The addresses of the newest sandbox.
    pub fn ips(&self) -> &[String] {
        self.sandboxes.first().map_or(&[], |sandbox| &sandbox.ips)
    }
}

fn timestamp(nanos: i64) -> Option<Timestamp> {
    (nanos > 0)
        .then(|| Timestamp::from_nanosecond(i128::from(nanos)).ok())
        .flatten()
}

impl From<v1::PodSandboxStatus> for Sandbox {
    fn from(status: v1::PodSandboxStatus) -> Self {
        let namespaces = status.linux.as_ref().and_then(|l| l.namespaces.as_ref());
        let network = namespaces
            .and_then(|n| n.options.as_ref())
            .map(|o| o.network());
        let ips = status.network.iter().flat_map(|network| {
            let more = network.additional_ips.iter().map(|ip| ip.ip.clone());
            std::iter::once(network.ip.clone())
                .chain(more)
                .filter(|ip| !ip.is_empty())
        });
        Self {
            ready: status.state() == v1::PodSandboxState::SandboxReady,
            attempt: status
                .metadata
                .as_ref()
                .map_or(0, |metadata| metadata.attempt),
            created_at: timestamp(status.created_at).unwrap_or_default(),
            ips: ips.collect(),
            host_network: network == Some(v1::NamespaceMode::Node),
            id: status.id,
        }
    }
}

impl Container {
    /// Converts the runtime's status, which lacks `sandbox_id`.
    pub fn from_status(status: v1::ContainerStatus, sandbox_id: String) -> Self {
        let label =
            |map: &BTreeMap<String, String>, key: &str| map.get(key).cloned().unwrap_or_default();
        let state = match status.state() {
            v1::ContainerState::ContainerCreated => State::Created,
            v1::ContainerState::ContainerRunning => State::Running,
            v1::ContainerState::ContainerExited => State::Exited,
            v1::ContainerState::ContainerUnknown => State::Unknown,
        };
        let attempt = status
            .metadata
            .as_ref()
            .map_or(0, |metadata| metadata.attempt);
        let counted = label(&status.annotations, labels::RESTART_COUNT)
            .parse()
            .unwrap_or(attempt);
        let message_path = mounts::absolute(&label(&status.annotations, labels::MESSAGE_PATH));
        let policy = label(&status.annotations, labels::MESSAGE_POLICY);
        let source = status
            .mounts
            .iter()
            .find(|mount| mount.container_path == message_path);
        let image = status.image.as_ref();
        let image = image.map(|image| {
            [&image.user_specified_image, &image.image]
                .into_iter()
                .find(|s| !s.is_empty())
        });
        let linux_user = status.user.as_ref().and_then(|user| user.linux.clone());
        Self {
            name: status
                .metadata
                .as_ref()
                .map(|m| m.name.clone())
                .unwrap_or_default(),
            restart_count: counted,
            state,
            created_at: timestamp(status.created_at).unwrap_or_default(),
            started_at: timestamp(status.started_at),
            finished_at: timestamp(status.finished_at),
            exit_code: status.exit_code,
            image: image.flatten().cloned().unwrap_or_default(),
            hash: label(&status.annotations, labels::HASH),
            termination_message: source.map(|mount| (mount.host_path.clone(), policy)),
            bounds: status
                .resources
                .as_ref()
                .and_then(|resources| resources.linux.as_ref())
                .map(|linux| Bounds {
                    memory_request: label(&status.annotations, labels::MEMORY_REQUEST)
                        .parse()
                        .ok(),
                    ..Bounds::from(linux)
                }),
            user: linux_user.map(|user| (user.uid, user.gid, user.supplemental_groups)),
            id: status.id,
            sandbox_id,
            reason: status.reason,
            message: status.message,
            image_ref: status.image_ref,
            log_path: status.log_path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sandbox(id: &str, attempt: u32, ready: bool, ips: &[&str]) -> Sandbox {
        let created_at = Timestamp::from_second(i64::from(attempt) + 1).unwrap();
        let ips = ips.iter().map(|ip| (*ip).to_owned()).collect();
        Sandbox {
            id: id.into(),
            attempt,
            ready,
            created_at,
            ips,
            host_network: false,
        }
    }

    #[test]
    fn a_new_sandbox_is_needed_when_the_newest_does_not_fit() {
        let pod = Pod::default();
        let need = |sandboxes| Observed::new(sandboxes, vec![]).sandbox_need(&pod);
        assert_eq!(
            need(vec![]),
            SandboxNeed::New {
                attempt: 0,
                why: "no pod sandbox exists"
            }
        );
        assert_eq!(
            need(vec![sandbox("a", 0, true, &["10.0.0.1"])]),
            SandboxNeed::Use("a".into())
        );
        assert_eq!(
            need(vec![sandbox("a", 0, false, &["10.0.0.1"])]),
            SandboxNeed::New {
                attempt: 1,
                why: "pod sandbox is not ready"
            }
        );
        assert_eq!(
            need(vec![sandbox("a", 2, true, &[])]),
            SandboxNeed::New {
                attempt: 3,
                why: "pod sandbox has no IP address"
            }
        );
        let two = vec![sandbox("a", 0, true, &["x"]), sandbox("b", 1, true, &["y"])];
        assert_eq!(
            need(two),
            SandboxNeed::New {
                attempt: 2,
                why: "multiple pod sandboxes are ready and need to be reconciled"
            }
        );
    }

    #[test]
    fn a_termination_message_is_found_by_a_relative_path_too() {
        for path in ["/tmp/message", "tmp/message"] {
            let status = v1::ContainerStatus {
                annotations: [(labels::MESSAGE_PATH.to_owned(), path.to_owned())].into(),
                mounts: vec![v1::Mount {
                    container_path: "/tmp/message".into(),
                    host_path: "/file".into(),
                    ..Default::default()
                }],
                ..Default::default()
            };
            let container = Container::from_status(status, "s".into());
            let file = container.termination_message.map(|(file, _)| file);
            assert_eq!(file.as_deref(), Some("/file"), "{path}");
        }
    }

    #[test]
    fn a_snapshot_replaces_only_the_containers_of_its_sandbox() {
        let container = |id: &str, sandbox: &str, state| Container {
            id: id.into(),
            sandbox_id: sandbox.into(),
            name: "c".into(),
            created_at: Timestamp::from_second(if sandbox == "b" { 2 } else { 1 }).unwrap(),
            state,
            ..Default::default()
        };
        let before = Observed::new(
            vec![sandbox("a", 0, false, &[]), sandbox("b", 1, true, &["x"])],
            vec![
                container("1", "a", State::Exited),
                container("2", "b", State::Running),
            ],
        );
        let now = before.clone().with(Snapshot {
            at: Timestamp::UNIX_EPOCH,
            sandbox: sandbox("b", 1, false, &["x"]),
            containers: vec![container("2", "b", State::Exited)],
        });
        assert_eq!(now.latest("c").unwrap().state, State::Exited);
        assert!(!now.sandboxes[0].ready);
        assert_eq!(now.containers[1], before.containers[1]);
        assert_eq!(now.sandboxes[1], before.sandboxes[1]);
    }
}
