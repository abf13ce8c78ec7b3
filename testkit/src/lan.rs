//! A network for several machines: a bridge in a network namespace of its own, which is also their
//! router. It has no route out.

use std::process::{Child, Command};

use crate::machine::{Ran, hold, inside};

/// The subnets of a LAN. Machines of one subnet reach each other directly, others through the
/// router.
const SUBNETS: [&str; 2] = ["192.168.77", "192.168.78"];

/// A bridge that exists as long as this value. Machines must be dropped first.
pub struct Lan {
    holder: Child,
}

impl Default for Lan {
    fn default() -> Self {
        Self::new()
    }
}

impl Lan {
    pub fn new() -> Self {
        let mut setup = String::from(
            "ip link set lo up && ip link add lan type bridge && ip link set lan up \
             && echo 1 > /proc/sys/net/ipv4/ip_forward",
        );
        for subnet in SUBNETS {
            setup.push_str(&format!(" && ip address add {subnet}.1/24 dev lan"));
        }
        // The router must not send redirects to hosts of different subnets.
        setup.push_str(" && echo 0 > /proc/sys/net/ipv4/conf/all/send_redirects");
        setup.push_str(" && echo 0 > /proc/sys/net/ipv4/conf/lan/send_redirects");
        Self {
            holder: hold(&["--net"], &setup),
        }
    }

    /// The address of host `number` in one of the two subnets.
    pub fn address(&self, subnet: usize, number: u8) -> String {
        format!("{}.{number}", SUBNETS[subnet])
    }

    /// Adds a link and routes to a machine, given its holder's pid.
    pub(crate) fn attach(&self, machine: u32, address: &str) {
        let port = port(address);
        let pid = machine.to_string();
        let gateway = format!("{}.1", address.rsplit_once('.').expect("an address").0);
        self.run(
            "ip",
            &[
                "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &pid,
            ],
        )
        .success();
        self.run("ip", &["link", "set", &port, "master", "lan"])
            .success();
        self.run("ip", &["link", "set", &port, "up"]).success();
        let setup = format!(
            "ip address add {address}/24 dev eth0 && ip link set eth0 up \
             && ip route add default via {gateway}"
        );
        let mut command = Command::new("nsenter");
        command.args(["--target", &pid, "--net", "sh", "-ec", &setup]);
        let ran: Ran = command.output().expect("nsenter starts").into();
        ran.success();
    }

    /// Disconnects a machine, as if its cable were pulled at the other end.
    pub fn cut(&self, address: &str) {
        self.run("ip", &["link", "set", &port(address), "nomaster"])
            .success();
    }

    /// Reconnects a machine.
    pub fn mend(&self, address: &str) {
        self.run("ip", &["link", "set", &port(address), "master", "lan"])
            .success();
    }

    /// Runs a command on the router.
    pub fn run(&self, program: &str, args: &[&str]) -> Ran {
        let mut command = Command::new("nsenter");
        let pid = inside(&self.holder).to_string();
        command
            .args(["--target", &pid, "--net", program])
            .args(args);
        command.output().expect("nsenter starts").into()
    }
}

impl Drop for Lan {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}

/// The bridge port of a machine.
fn port(address: &str) -> String {
    let numbers: Vec<&str> = address.rsplit('.').take(2).collect();
    format!("p{}-{}", numbers[1], numbers[0])
}
