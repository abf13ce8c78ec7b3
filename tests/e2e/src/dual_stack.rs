//! A cluster of two machines on one network, with addresses of both families.

use testkit::{Agent, Cluster, Lan, Machine};

/// The server, which is the node "one", and the agent "two".
pub struct DualStack {
    // Fields are dropped in this order: machines before their network.
    pub two: Agent,
    pub cluster: Cluster,
    pub lan: Lan,
}

/// The IPv6 prefixes of the network's two subnets.
const PREFIXES: [&str; 2] = ["fd77::", "fd78::"];

/// A machine with an address of both families in a subnet, and these addresses.
fn machine(lan: &Lan, subnet: usize, number: u8) -> (Machine, String) {
    let machine = Machine::on(lan, &lan.address(subnet, number));
    let v6 = format!("{}{number}", PREFIXES[subnet]);
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
    /// Both nodes are ready, on one subnet. The agent detects its addresses.
    pub fn start() -> Self {
        let lan = Lan::new();
        let machines = [machine(&lan, 0, 2), machine(&lan, 0, 3)];
        Self::on(lan, machines)
    }

    /// The same with a router of both families between the nodes.
    pub fn across() -> Self {
        let lan = Lan::new();
        for prefix in PREFIXES {
            let router = format!("{prefix}1/64");
            lan.run("ip", &["address", "add", &router, "dev", "lan", "nodad"])
                .success();
        }
        let forward = "echo 1 > /proc/sys/net/ipv6/conf/all/forwarding";
        lan.run("sh", &["-ec", forward]).success();
        let machines = [0, 1].map(|subnet| {
            let machine = machine(&lan, subnet, 2);
            let router = format!("{}1", PREFIXES[subnet]);
            let route = ["-6", "route", "add", "default", "via", &router];
            machine.0.run("ip", &route).success();
            machine
        });
        Self::on(lan, machines)
    }

    fn on(lan: Lan, machines: [(Machine, String); 2]) -> Self {
        let [(one, addresses), (two, _)] = machines;
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
        let mut two = Agent::new(two, "two");
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
