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

    /// Drops this percentage of a machine's packets at random, in both directions: a bad cable.
    /// Connections stay open and are slow, since the packets are sent again.
    pub fn lose(&self, address: &str, percent: u8) {
        let (port, table) = (port(address), loss_table(address));
        let mut rules = format!("add table netdev {table}");
        for hook in ["ingress", "egress"] {
            rules.push_str(&format!(
                "; add chain netdev {table} {hook} {{ type filter hook {hook} device {port} priority 0; }}\
                 ; add rule netdev {table} {hook} numgen random mod 100 < {percent} drop"
            ));
        }
        self.run("nft", &[&rules]).success();
    }

    /// Ends the loss of a machine's packets.
    pub fn lose_nothing(&self, address: &str) {
        let delete = format!("delete table netdev {}", loss_table(address));
        self.run("nft", &[&delete]).success();
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

/// The nftables table that drops packets of a machine.
fn loss_table(address: &str) -> String {
    format!("loss_{}", port(address).replace('-', "_"))
}

/// The bridge port of a machine.
fn port(address: &str) -> String {
    let numbers: Vec<&str> = address.rsplit('.').take(2).collect();
    format!("p{}-{}", numbers[1], numbers[0])
}

#[cfg(test)]
mod tests {
    use std::{net::UdpSocket, time::Duration};

    use super::*;
    use crate::Machine;

    /// How many of 100 datagrams come back from a machine that echoes them.
    fn echoed(from: &Machine, to: &str) -> usize {
        let to = format!("{to}:7");
        let ask = move || {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            let patience = Some(Duration::from_secs(2));
            socket.set_read_timeout(patience).expect("a timeout");
            for _ in 0..100 {
                socket.send_to(b"ping", &to).expect("it is sent");
            }
            let mut buffer = [0; 8];
            let answers = (0..100).take_while(|_| socket.recv(&mut buffer).is_ok());
            answers.count()
        };
        from.thread(ask).join().expect("a count")
    }

    /// Echoes datagrams until one is empty.
    fn echo(socket: &UdpSocket) {
        let mut buffer = [0; 8];
        loop {
            match socket.recv_from(&mut buffer).expect("a datagram") {
                (0, _) => return,
                (length, from) => {
                    let _ = socket.send_to(&buffer[..length], from);
                }
            }
        }
    }

    #[test]
    fn a_lossy_link_drops_a_part_of_the_packets_in_both_directions() {
        let lan = Lan::new();
        let (one, two) = (lan.address(0, 2), lan.address(0, 3));
        let (from, to) = (Machine::on(&lan, &one), Machine::on(&lan, &two));
        let bind = || UdpSocket::bind("0.0.0.0:7").expect("a socket");
        let socket = to.thread(bind).join().expect("a socket");
        let own = socket.try_clone().expect("a socket");
        let echoing = std::thread::spawn(move || echo(&own));

        assert_eq!(echoed(&from, &two), 100);
        lan.lose(&two, 50);
        // A quarter is expected: datagrams and echoes are dropped.
        let count = echoed(&from, &two);
        assert!((3..60).contains(&count), "{count}");
        lan.lose_nothing(&two);
        assert_eq!(echoed(&from, &two), 100);

        socket.send_to(&[], ("127.0.0.1", 7)).expect("it is sent");
        echoing.join().expect("it ends");
    }
}
