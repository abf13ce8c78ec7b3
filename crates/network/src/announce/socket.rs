//! A packet socket on one link, for ARP and neighbour discovery.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
};

use tokio::io::unix::AsyncFd;

use super::packets::{Mac, multicast_mac, solicited_group};
use crate::links::LinkAt;

/// The maximum length of a request.
const LONGEST: usize = 256;

/// A packet socket on one link.
pub(super) struct LinkSocket {
    socket: AsyncFd<OwnedFd>,
    index: i32,
    mac: Mac,
}

/// A BPF program that accepts ARP, and IPv6 with ICMPv6 of type 135.
fn filter() -> [libc::sock_filter; 9] {
    const LOAD_HALF: u16 = 0x28;
    const LOAD_BYTE: u16 = 0x30;
    const JUMP_EQUAL: u16 = 0x15;
    const RETURN: u16 = 0x06;
    let step = |code: u16, jt: u8, jf: u8, k: u32| libc::sock_filter { code, jt, jf, k };
    [
        step(LOAD_HALF, 0, 0, 12),
        step(JUMP_EQUAL, 5, 0, 0x0806),
        step(JUMP_EQUAL, 0, 5, 0x86dd),
        step(LOAD_BYTE, 0, 0, 20),
        step(JUMP_EQUAL, 0, 3, 58),
        step(LOAD_BYTE, 0, 0, 54),
        step(JUMP_EQUAL, 0, 1, 135),
        step(RETURN, 0, 0, LONGEST as u32),
        step(RETURN, 0, 0, 0),
    ]
}

fn check(code: i32) -> io::Result<i32> {
    match code {
        -1 => Err(io::Error::last_os_error()),
        code => Ok(code),
    }
}

fn option<T>(socket: &OwnedFd, level: i32, name: i32, value: &T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: `value` lives through the call and `length` is its size; the kernel only reads it.
    let code = unsafe {
        let value = std::ptr::from_ref(value).cast();
        libc::setsockopt(socket.as_raw_fd(), level, name, value, length)
    };
    check(code).map(|_| ())
}

impl LinkSocket {
    pub(super) fn open(link: &LinkAt) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers; the descriptor is owned from the next line on. Protocol 0 receives
        // nothing until the filter is in place and the socket is bound.
        let socket = check(unsafe { libc::socket(libc::AF_PACKET, kind, 0) })?;
        // SAFETY: just opened, and nothing else owns it.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        let mut program = filter();
        let program = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        option(&socket, libc::SOL_SOCKET, libc::SO_ATTACH_FILTER, &program)?;
        let index = link.index as i32;
        // SAFETY: all zeros are a valid address of this kind.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = (libc::ETH_P_ALL as u16).to_be();
        address.sll_ifindex = index;
        let length = size_of::<libc::sockaddr_ll>() as libc::socklen_t;
        // SAFETY: `address` lives through the call and `length` is its size.
        check(unsafe {
            let address = std::ptr::from_ref(&address).cast();
            libc::bind(socket.as_raw_fd(), address, length)
        })?;
        // SAFETY: the descriptor is owned by what is registered, and closed after it is deregistered.
        let socket = unsafe { AsyncFd::register(socket)? };
        Ok(Self {
            socket,
            index,
            mac: link.mac,
        })
    }

    pub(super) fn mac(&self) -> Mac {
        self.mac
    }

    /// Joins the multicast group that solicitations for an IPv6 address are sent to.
    pub(super) fn listen_for(&self, ip: IpAddr) {
        let IpAddr::V6(ip) = ip else { return };
        let mac = multicast_mac(solicited_group(ip));
        let mut address = [0; 8];
        address[..6].copy_from_slice(&mac);
        let membership = libc::packet_mreq {
            mr_ifindex: self.index,
            mr_type: libc::PACKET_MR_MULTICAST as u16,
            mr_alen: 6,
            mr_address: address,
        };
        let socket = self.socket.get_ref();
        let joined = option(
            socket,
            libc::SOL_PACKET,
            libc::PACKET_ADD_MEMBERSHIP,
            &membership,
        );
        if let Err(error) = joined {
            tracing::warn!(%ip, %error, "cannot join the multicast group of this address");
        }
    }

    pub(super) async fn receive(&self) -> io::Result<Vec<u8>> {
        loop {
            let mut ready = self.socket.readable().await?;
            let received = ready.try_io(|socket| {
                let mut buffer = vec![0; LONGEST];
                // SAFETY: the buffer outlives the call and has LONGEST bytes.
                let length = unsafe {
                    libc::recv(socket.as_raw_fd(), buffer.as_mut_ptr().cast(), LONGEST, 0)
                };
                let length = usize::try_from(length).map_err(|_| io::Error::last_os_error())?;
                buffer.truncate(length);
                Ok(buffer)
            });
            match received {
                // The link is down and may come up again.
                Ok(Err(error)) if error.raw_os_error() == Some(libc::ENETDOWN) => {}
                Ok(received) => return received,
                Err(_would_block) => {}
            }
        }
    }

    pub(super) async fn send(&self, frame: &[u8]) -> io::Result<()> {
        loop {
            let mut ready = self.socket.writable().await?;
            let sent = ready.try_io(|socket| {
                // SAFETY: the frame outlives the call, and its length is passed.
                let sent = unsafe {
                    libc::send(socket.as_raw_fd(), frame.as_ptr().cast(), frame.len(), 0)
                };
                usize::try_from(sent).map_err(|_| io::Error::last_os_error())
            });
            if let Ok(sent) = sent {
                return sent.map(|_| ());
            }
        }
    }
}
