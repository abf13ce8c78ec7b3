//! A cluster of two machines on one network, with addresses of both families.

use testkit::{Agent, Cluster, Lan, Machine};

/// The server, which is the node "one", and the agent "two".
pub struct DualStack {
    // Fields are dropped in this order: machines before their network.
    pub two: Agent,
    pub cluster: Cluster,
    pub lan: Lan,
}

/// A machine with an address of both families, and these addresses.
fn machine(lan: &Lan, number: u8) -> (Machine, String) {
    let machine = Machine::on(lan, &lan.address(0, number));
    let v6 = format!("fd77::{number}");
    let with_length = format!("{v6}/64");
    let add = ["address", "add", &with_length, "dev", "eth0", "nodad"];
    machine.run("ip", &add).success();
    let both = format!("{},{v6}", machine.address());
    (machine, both)
}

impl Default for DualStack {
    fn default() -> Self {
        Self::start()
    }
}

impl DualStack {
    /// Both nodes are ready. The agent detects its addresses.
    pub fn start() -> Self {
        let lan = Lan::new();
        let (one, addresses) = machine(&lan, 2);
        let ranges = [
            "--node-ip",
            &addresses,
            "--cluster-cidr",
            "10.42.0.0/16,fd42::/56",
            "--service-cidr",
            "10.43.0.0/16,fd43::/112",
            "--node-cidr-mask-size",
            "25",
            "--node-cidr-mask-size-ipv6",
            "60",
        ];
        let mut cluster = Cluster::stopped_on(one, &ranges);
        cluster.start();
        let mut two = Agent::new(machine(&lan, 3).0, "two");
        two.follow_address();
        two.start(&cluster.join_flags());
        cluster.ready_nodes(2);
        Self { two, cluster, lan }
    }

    /// Removes everything from both machines.
    pub fn reset(&mut self) {
        self.two.reset();
        self.cluster.reset().success();
    }
}
