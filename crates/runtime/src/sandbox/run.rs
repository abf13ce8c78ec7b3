//! Creates a sandbox. If a step fails, the earlier ones are undone; what a crash leaves half-made
//! is found by its record and torn down at the next start.

use std::{fs, sync::Arc};

use cri::v1::{PodSandboxConfig, PortMapping, Protocol};
use network::{AttachRequest, DnsSettings};
use parking_lot::Mutex;

use super::{Execs, Facts, Paths, Phase, Sandbox, State, files, namespace_options, pins};
use crate::{
    cgroup::Hierarchies,
    disk,
    engine::Engine,
    error::{Error, Result},
    id, mounts,
    shim::{self, protocol::Start},
    stamp,
};

/// The default handler: no RuntimeClass.
const BUILT_IN: &str = "";

impl Engine {
    /// Creates a sandbox and returns its id.
    pub(crate) async fn run_sandbox(
        self: &Arc<Self>,
        config: PodSandboxConfig,
        handler: String,
    ) -> Result<String> {
        let metadata = config.metadata.clone().unwrap_or_default();
        if metadata.name.is_empty() || metadata.namespace.is_empty() || metadata.uid.is_empty() {
            return Err(Error::Invalid(
                "a sandbox needs a name, a namespace and a uid".into(),
            ));
        }
        if handler != BUILT_IN && !self.config.handlers.contains_key(&handler) {
            return Err(Error::Invalid(format!(
                "no runtime handler {handler:?} is configured"
            )));
        }
        let sandbox = Arc::new(self.record_sandbox(config, handler)?);
        self.sandboxes
            .write()
            .insert(sandbox.id.clone(), sandbox.clone());
        match self.raise_sandbox(&sandbox).await {
            Ok(()) => {
                self.announce_sandbox_ready(&sandbox);
                Ok(sandbox.id.clone())
            }
            Err(error) => {
                if let Err(left) = self.remove_sandbox(&sandbox.id).await {
                    tracing::warn!(sandbox = sandbox.id, error = %left, "cannot remove failed sandbox");
                }
                Err(error)
            }
        }
    }

    /// Persists the record of the sandbox before anything else is created.
    fn record_sandbox(&self, config: PodSandboxConfig, handler: String) -> Result<Sandbox> {
        let id = id::generate();
        let paths = Paths::new(&self.config, &id);
        fs::create_dir_all(&paths.root).map_err(Error::file(&paths.root))?;
        let options = namespace_options(&config);
        let wanted = config
            .linux
            .as_ref()
            .map(|linux| linux.cgroup_parent.clone());
        let wanted = wanted.filter(|parent| !parent.is_empty());
        let facts = Facts {
            created_at: stamp::now(),
            handler,
            pins: pins(&options, &paths.state),
            owns_cgroup: wanted.is_none(),
            cgroup_parent: wanted.unwrap_or_else(|| self.config.sandbox_cgroup(&id)),
        };
        let state = State::default();
        disk::save_message(&paths.root.join("config.pb"), &config)?;
        disk::save(&paths.root.join("facts.json"), &facts)?;
        disk::record(&paths.root.join("state.json"), &state)?;
        // Last: without a complete record there is nothing else to clean up.
        fs::create_dir_all(&paths.state).map_err(Error::file(&paths.state))?;
        Ok(Sandbox {
            id,
            config,
            facts,
            paths,
            state: Mutex::new(state),
            shim: Mutex::default(),
            execs: Execs::default(),
            changing: tokio::sync::Mutex::default(),
        })
    }

    async fn raise_sandbox(self: &Arc<Self>, sandbox: &Arc<Sandbox>) -> Result<()> {
        let (config, facts, paths) = (&sandbox.config, &sandbox.facts, &sandbox.paths);
        let sysctls = config
            .linux
            .as_ref()
            .map(|linux| linux.sysctls.clone())
            .unwrap_or_default();
        if facts.pins.net.is_none() && sysctls.keys().any(|name| name.starts_with("net")) {
            let message = "network sysctls are not allowed in the node's network namespace";
            return Err(Error::Invalid(message.into()));
        }
        let orders = Start {
            sandbox_id: sandbox.id.clone(),
            socket: paths.socket(),
            log: paths.state.join("shim.log"),
            cgroup: self.config.shim_cgroup(&sandbox.id),
            namespaces: facts.pins.clone(),
            hostname: config.hostname.clone(),
            sysctls,
            hierarchies: Some(Hierarchies::host().clone()),
        };
        let (starting, pinned) =
            shim::start(&self.zygote, &self.program, &orders, &paths.orders())?;
        // The files are written while the process starts, and the network is attached as soon as its namespace
        // exists. All of it ends before an error is handled: nothing is left that is not torn down.
        let files = write_files(sandbox);
        let serve = async {
            starting.serves().await?;
            self.connect_shim(sandbox).await
        };
        let network = async {
            match pinned.wait().await {
                true => self.attach_network(sandbox).await,
                false => Ok(Vec::new()),
            }
        };
        let (served, addresses) = tokio::join!(serve, network);
        served?;
        files?;
        let addresses = addresses?;
        sandbox.set_state(|state| {
            state.phase = Phase::Ready;
            state.addresses = addresses;
        })
    }

    /// Attaches the sandbox to the network, also again after a restart.
    pub(crate) async fn attach_network(&self, sandbox: &Sandbox) -> Result<Vec<std::net::IpAddr>> {
        let Some(netns) = &sandbox.facts.pins.net else {
            return Ok(Vec::new());
        };
        let metadata = sandbox.config.metadata.clone().unwrap_or_default();
        let mappings = sandbox.config.port_mappings.iter().map(port_mapping);
        let request = AttachRequest {
            sandbox_id: sandbox.id.clone(),
            netns: netns.clone(),
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
            port_mappings: mappings
                .filter_map(Result::transpose)
                .collect::<Result<_>>()?,
            annotations: sandbox.config.annotations.clone(),
            dns: dns_settings(&sandbox.config),
            cgroup_path: sandbox.facts.cgroup_parent.clone(),
        };
        Ok(self.config.network.attach(request).await?.addresses)
    }
}

/// Makes the files that the containers share.
fn write_files(sandbox: &Sandbox) -> Result<()> {
    let (pins, paths) = (&sandbox.facts.pins, &sandbox.paths);
    files::write(paths, &sandbox.config, pins.uts.is_some())?;
    if pins.ipc.is_some() {
        mounts::shm(&paths.state.join("shm"))?;
    }
    Ok(())
}

fn dns_settings(config: &PodSandboxConfig) -> DnsSettings {
    let dns = config.dns_config.clone().unwrap_or_default();
    DnsSettings {
        servers: dns.servers,
        searches: dns.searches,
        options: dns.options,
    }
}

/// A mapping without a host port is only informative.
fn port_mapping(mapping: &PortMapping) -> Result<Option<network::PortMapping>> {
    if mapping.host_port == 0 {
        return Ok(None);
    }
    let port = |number: i32| {
        u16::try_from(number).map_err(|_| Error::Invalid(format!("{number} is not a port")))
    };
    let protocol = match Protocol::try_from(mapping.protocol) {
        Ok(Protocol::Tcp) => network::Protocol::Tcp,
        Ok(Protocol::Udp) => network::Protocol::Udp,
        Ok(Protocol::Sctp) => network::Protocol::Sctp,
        Err(_) => {
            return Err(Error::Invalid(format!(
                "unknown protocol {}",
                mapping.protocol
            )));
        }
    };
    let host_ip = match mapping.host_ip.as_str() {
        "" => None,
        text => Some(
            text.parse()
                .map_err(|_| Error::Invalid(format!("{text:?} is not an address")))?,
        ),
    };
    Ok(Some(network::PortMapping {
        protocol,
        container_port: port(mapping.container_port)?,
        host_port: port(mapping.host_port)?,
        host_ip,
    }))
}
