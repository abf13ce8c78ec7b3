//! A small CSI driver for tests: it keeps volumes as directories, records every call, fails or
//! hangs as a test says, and detects calls in an order that the protocol forbids.

mod services;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Shutdown,
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::{net::UnixListener, task::JoinHandle};
use tokio_stream::{StreamExt, wrappers::UnixListenerStream};
pub use tonic::Code;
use tonic::{Status, transport::Server};

use crate::{
    Capability,
    registration::registration_server::RegistrationServer,
    v1::{
        VolumeCondition, controller_server::ControllerServer, identity_server::IdentityServer,
        node_server::NodeServer,
    },
};

/// The properties of the driver.
#[derive(Debug, Clone)]
pub struct Options {
    /// The driver's name.
    pub name: String,
    /// The capabilities of its node service.
    pub capabilities: Vec<Capability>,
    /// The driver's id of the node.
    pub node_id: String,
    /// The node's topology.
    pub topology: BTreeMap<String, String>,
    /// The volume limit; 0 for none.
    pub max_volumes: i64,
    /// The directory of all volumes, which are bind mounted to their targets; without it, targets
    /// are plain directories.
    pub data: Option<PathBuf>,
}

impl Options {
    /// A driver that can stage, expand and report statistics.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            capabilities: vec![
                Capability::StageUnstageVolume,
                Capability::ExpandVolume,
                Capability::GetVolumeStats,
            ],
            node_id: "test-node".to_owned(),
            topology: BTreeMap::new(),
            max_volumes: 0,
            data: None,
        }
    }
}

/// A fault of calls of a method.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// An error; nothing is done.
    Refuse(Code),
    /// Done, but answered with an error.
    Lose(Code),
    /// Not done, and never answered.
    Hang,
    /// Done, but never answered.
    Stall,
    /// Done, but the driver dies before it answers: all of its connections end.
    Die,
}

/// One call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// For example `NodePublishVolume`.
    pub method: &'static str,
    /// The volume.
    pub volume: String,
    /// The staging path of stage and unstage, else the target.
    pub path: String,
    /// The staging path of other calls.
    pub staging: String,
    /// Its read-only flag.
    pub readonly: bool,
    /// The volume context.
    pub context: BTreeMap<String, String>,
    /// The publish context.
    pub publish_context: BTreeMap<String, String>,
    /// Its secrets.
    pub secrets: BTreeMap<String, String>,
    /// The volume mount group.
    pub mount_group: String,
    /// File system and mount flags, or `block`.
    pub access: String,
    /// The requested size.
    pub bytes: i64,
}

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    /// By method, and by volume if the fault is one of a volume.
    faults: BTreeMap<(&'static str, Option<String>), Fault>,
    staged: BTreeMap<String, String>,
    /// Targets by volume.
    published: BTreeMap<String, BTreeSet<String>>,
    volumes: BTreeMap<String, i64>,
    violations: Vec<String>,
    condition: Option<VolumeCondition>,
    max_volumes: i64,
    registered: Option<bool>,
    registration_error: String,
    /// The connections of its callers.
    connections: Vec<UnixStream>,
}

struct Shared {
    options: Options,
    socket: Mutex<PathBuf>,
    /// Guards the state; never held across an await.
    state: Mutex<State>,
}

/// The driver. Clones share it.
#[derive(Clone)]
pub struct Driver(Arc<Shared>);

/// Stops the driver's server and removes its sockets when dropped.
pub struct Served {
    tasks: Vec<JoinHandle<()>>,
    sockets: Vec<PathBuf>,
}

impl Drop for Served {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        for socket in &self.sockets {
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl Driver {
    /// A driver that is not served yet.
    pub fn new(options: Options) -> Self {
        let state = State {
            max_volumes: options.max_volumes,
            ..State::default()
        };
        Self(Arc::new(Shared {
            options,
            socket: Mutex::default(),
            state: Mutex::new(state),
        }))
    }

    /// Serves identity, controller and node on a socket below `plugins/NAME`, and the registration
    /// on one in `plugins_registry` of this kubelet root.
    pub fn serve(&self, kubelet_root: &Path) -> std::io::Result<Served> {
        let name = &self.0.options.name;
        let socket = kubelet_root.join("plugins").join(name).join("csi.sock");
        let register = kubelet_root.join("plugins_registry");
        let register = register.join(format!("{name}-reg.sock"));
        let (own, registry) = (listen(&socket)?, listen(&register)?);
        *self.0.socket.lock() = socket.clone();
        let services = Server::builder()
            .add_service(IdentityServer::new(self.clone()))
            .add_service(ControllerServer::new(self.clone()))
            .add_service(NodeServer::new(self.clone()));
        let connected = self.clone();
        let own = own.map(move |stream| {
            connected.connected(stream.as_ref());
            stream
        });
        let registration = Server::builder().add_service(RegistrationServer::new(self.clone()));
        let tasks = vec![
            tokio::spawn(async move {
                let _ = services.serve_with_incoming(own).await;
            }),
            tokio::spawn(async move {
                let _ = registration.serve_with_incoming(registry).await;
            }),
        ];
        Ok(Served {
            tasks,
            sockets: vec![register, socket],
        })
    }

    /// Sets a fault of a method.
    pub fn break_method(&self, method: &'static str, fault: Fault) {
        let mut state = self.0.state.lock();
        state.faults.insert((method, None), fault);
    }

    /// Sets a fault of a method for one volume.
    pub fn break_volume(&self, method: &'static str, volume: &str, fault: Fault) {
        let mut state = self.0.state.lock();
        state
            .faults
            .insert((method, Some(volume.to_owned())), fault);
    }

    /// Removes the faults of a method. Calls that hang go on hanging.
    pub fn heal(&self, method: &'static str) {
        let mut state = self.0.state.lock();
        state.faults.retain(|(broken, _), _| *broken != method);
    }

    /// Changes the volume limit.
    pub fn set_max_volumes(&self, count: i64) {
        self.0.state.lock().max_volumes = count;
    }

    /// Makes all volumes abnormal, with this message.
    pub fn set_abnormal(&self, message: &str) {
        self.0.state.lock().condition = Some(VolumeCondition {
            abnormal: true,
            message: message.to_owned(),
        });
    }

    /// All calls so far.
    pub fn calls(&self) -> Vec<Call> {
        self.0.state.lock().calls.clone()
    }

    /// The calls of one method.
    pub fn calls_of(&self, method: &str) -> Vec<Call> {
        let mut calls = self.calls();
        calls.retain(|call| call.method == method);
        calls
    }

    /// Methods in order, without queries.
    pub fn order(&self) -> Vec<&'static str> {
        let asks = ["NodeGetCapabilities", "NodeGetInfo", "NodeGetVolumeStats"];
        let methods = self.calls().into_iter().map(|call| call.method);
        methods.filter(|method| !asks.contains(method)).collect()
    }

    /// Staged volumes with their paths.
    pub fn staged(&self) -> BTreeMap<String, String> {
        self.0.state.lock().staged.clone()
    }

    /// Targets by volume.
    pub fn published(&self) -> BTreeMap<String, BTreeSet<String>> {
        self.0.state.lock().published.clone()
    }

    /// Violations of the protocol by the caller.
    pub fn violations(&self) -> Vec<String> {
        self.0.state.lock().violations.clone()
    }

    /// Whether the kubelet registered the driver.
    pub fn registered(&self) -> Option<bool> {
        self.0.state.lock().registered
    }

    /// Why the kubelet did not register the driver.
    pub fn registration_error(&self) -> String {
        self.0.state.lock().registration_error.clone()
    }

    /// Keeps a second handle of a connection.
    fn connected(&self, stream: Result<&tokio::net::UnixStream, &std::io::Error>) {
        let handle = stream
            .ok()
            .and_then(|stream| stream.as_fd().try_clone_to_owned().ok());
        let handle = handle.map(UnixStream::from);
        self.0.state.lock().connections.extend(handle);
    }

    /// Ends all connections, as the end of the driver's process does.
    fn die(&self) {
        for connection in self.0.state.lock().connections.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }

    /// Records a call and applies its fault: with `Lost`, the call is done and its response lost.
    async fn enter(&self, call: Call) -> Result<Option<Lost>, Status> {
        let fault = {
            let mut state = self.0.state.lock();
            let of_volume = state.faults.get(&(call.method, Some(call.volume.clone())));
            let fault = of_volume.or_else(|| state.faults.get(&(call.method, None)));
            let fault = fault.copied();
            state.calls.push(call);
            fault
        };
        match fault {
            None => Ok(None),
            Some(Fault::Lose(code)) => Ok(Some(Lost::Code(code))),
            Some(Fault::Stall) => Ok(Some(Lost::Answer)),
            Some(Fault::Die) => Ok(Some(Lost::Connections(self.clone()))),
            Some(Fault::Refuse(code)) => Err(Status::new(code, "a test says so")),
            // Until the caller gives up.
            Some(Fault::Hang) => std::future::pending().await,
        }
    }
}

/// How the response of a completed call is lost.
enum Lost {
    Code(Code),
    Answer,
    Connections(Driver),
}

async fn lost<T: Default>(lost: Option<Lost>) -> Result<tonic::Response<T>, Status> {
    match lost {
        Some(Lost::Code(code)) => Err(Status::new(code, "done, and a test says so")),
        Some(Lost::Answer) => std::future::pending().await,
        Some(Lost::Connections(driver)) => {
            driver.die();
            std::future::pending().await
        }
        None => Ok(tonic::Response::new(T::default())),
    }
}

fn listen(socket: &Path) -> std::io::Result<UnixListenerStream> {
    if let Some(parent) = socket.parent() {
        std::fs::create_dir_all(parent)?;
    }
    let _ = std::fs::remove_file(socket);
    Ok(UnixListenerStream::new(UnixListener::bind(socket)?))
}
