//! Ports that processes of the node listen on: neither pods nor load balancers take them.

use std::net::SocketAddr;

use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, setsockopt, socket,
    sockopt::{IpFreebind, Ipv6V6Only, ReuseAddr},
};

use crate::Protocol;

/// Whether no process of this machine listens on the port, at this address or all addresses.
pub fn is_free(address: SocketAddr, protocol: Protocol) -> bool {
    let kind = match protocol {
        Protocol::Tcp => SockType::Stream,
        Protocol::Udp => SockType::Datagram,
        Protocol::Sctp => return true,
    };
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::Inet,
        SocketAddr::V6(_) => AddressFamily::Inet6,
    };
    let tried = || -> nix::Result<()> {
        let socket = socket(family, kind, SockFlag::SOCK_CLOEXEC, None)?;
        // With SO_REUSEADDR only a listening TCP socket conflicts. With UDP every socket would
        // share the port.
        setsockopt(&socket, ReuseAddr, &(protocol == Protocol::Tcp))?;
        setsockopt(&socket, IpFreebind, &true)?;
        if address.is_ipv6() {
            setsockopt(&socket, Ipv6V6Only, &true)?;
        }
        bind(
            std::os::fd::AsRawFd::as_raw_fd(&socket),
            &SockaddrStorage::from(address),
        )
    };
    tried() != Err(nix::Error::EADDRINUSE)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, UdpSocket};

    use super::*;

    #[test]
    fn a_port_is_free_when_no_process_listens_on_it() {
        for (listens, asked) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("0.0.0.0:0", "127.0.0.1"),
            ("0.0.0.0:0", "192.0.2.1"),
        ] {
            let tcp = TcpListener::bind(listens).unwrap();
            let tcp_port = tcp.local_addr().unwrap().port();
            let udp = UdpSocket::bind(listens).unwrap();
            let udp_port = udp.local_addr().unwrap().port();
            let at = |port: u16| SocketAddr::new(asked.parse().unwrap(), port);
            assert!(!is_free(at(tcp_port), Protocol::Tcp), "{listens}");
            assert!(!is_free(at(udp_port), Protocol::Udp), "{listens}");
            drop((tcp, udp));
            assert!(is_free(at(tcp_port), Protocol::Tcp), "{listens}");
            assert!(is_free(at(udp_port), Protocol::Udp), "{listens}");
        }
    }
}
