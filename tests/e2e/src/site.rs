//! Several servers with several etcd members, and a node.

use std::path::PathBuf;

use serde_json::Value;
use testkit::{Agent, Etcd, Lan, Machine, Ran, Server, eventually};

/// Three machines with a server and an etcd member each, and one with a node.
pub struct Site {
    // Fields are dropped in this order: machines before their network.
    pub agent: Agent,
    pub servers: Vec<Server>,
    pub etcd: Etcd,
    pub lan: Lan,
}

impl Default for Site {
    fn default() -> Self {
        Self::new()
    }
}

impl Site {
    pub fn new() -> Self {
        let lan = Lan::new();
        let machine = |number| Machine::on(&lan, &lan.address(0, number));
        let machines: Vec<Machine> = (2..5).map(machine).collect();
        let mut etcd = Etcd::on(&machines.iter().collect::<Vec<_>>());
        for (number, machine) in machines.iter().enumerate() {
            etcd.start(number, machine);
        }
        let flags = etcd.flags();
        let numbered = machines.into_iter().enumerate();
        let servers =
            numbered.map(|(n, machine)| Server::stopped(machine, &format!("s{n}"), &flags));
        Self {
            servers: servers.collect(),
            agent: Agent::new(machine(9), "node"),
            etcd,
            lan,
        }
    }

    pub fn kubectl(&self, args: &[&str]) -> Ran {
        self.agent.kubectl(&self.kubeconfig(), args)
    }

    pub fn get(&self, args: &[&str]) -> Value {
        eventually(&format!("{args:?}"), || {
            let ran = self.kubectl(&[&["get"], args, &["-o", "json"]].concat());
            serde_json::from_str(&ran.stdout).map_err(|_| ran.stderr)
        })
    }

    /// Waits until the endpoints of the `kubernetes` Service are the running servers, which are this
    /// many.
    pub fn wait_for_servers(&self, count: usize) {
        let running = self.servers.iter().filter(|server| server.is_running());
        let mut running: Vec<&str> = running.map(|server| server.machine().address()).collect();
        running.sort_unstable();
        assert_eq!(running.len(), count, "{running:?}");
        eventually(&format!("the endpoints {running:?}"), || {
            let slice = self.get(&["endpointslice", "kubernetes"]);
            let endpoints = slice["endpoints"].as_array().into_iter().flatten();
            let addresses = endpoints.filter_map(|endpoint| endpoint["addresses"][0].as_str());
            let mut addresses: Vec<&str> = addresses.collect();
            addresses.sort_unstable();
            match addresses == running {
                true => Ok(()),
                false => Err(slice.to_string()),
            }
        });
    }

    /// Runs a Deployment, which shows that controllers, a scheduler and the node work.
    pub fn deploy(&self, name: &str) {
        let image = "--image=mainstay.local/hello";
        self.kubectl(&["create", "deployment", name, image])
            .success();
        eventually(&format!("{name} to be available"), || {
            let deployment = self.get(&["deployment", name]);
            match deployment["status"]["availableReplicas"].as_u64() {
                Some(1) => Ok(()),
                _ => Err(deployment["status"].to_string()),
            }
        });
    }

    /// The server that leads the controllers; `None` while the lease has no holder.
    pub fn leader(&self) -> Option<usize> {
        let lease = ["lease", "kube-controller-manager", "-n", "kube-system"];
        let holder = self.get(&lease)["spec"]["holderIdentity"].clone();
        let holder = holder.as_str().unwrap_or_default();
        let number = holder.strip_prefix('s').and_then(|rest| rest.get(..1));
        number.and_then(|text| text.parse().ok())
    }

    /// The administrator's kubeconfig on the node, with all servers; exists once the site is
    /// complete.
    pub fn kubeconfig(&self) -> PathBuf {
        self.agent.machine().dir().join("kubeconfig")
    }

    /// Starts the first server and returns its token, which the others need.
    pub fn start_first(&mut self) -> String {
        self.servers[0].start();
        let token = self.servers[0].mainstay(&["token", "server"]).success();
        token.trim().to_owned()
    }

    /// Starts the other servers with the token.
    pub fn start_others(&mut self, token: &str) {
        for server in &mut self.servers[1..] {
            server.set_flag("--server-token", token);
            server.start();
        }
    }

    /// Joins the node, and waits until all servers know each other.
    pub fn complete(&mut self) {
        let line = self.servers[0].mainstay(&["token", "create"]).success();
        let words = line.trim().strip_prefix("mainstay agent ").expect("flags");
        let join: Vec<String> = words.split(' ').map(str::to_owned).collect();
        self.agent.start(&join);
        let kubeconfig = eventually("a kubeconfig of three servers", || {
            let text = self.servers[0].kubeconfig();
            if text.matches(":6443").count() == 4 {
                Ok(text)
            } else {
                Err(text)
            }
        });
        std::fs::write(self.kubeconfig(), kubeconfig).expect("a file");
        self.wait_for_servers(3);
    }
}
