//! Echo servers.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
    thread,
};

use crate::{Command, Outcome, http::listen, number, print_line, signals};

pub(crate) const COMMANDS: &[Command] = &[Command {
    name: "echo",
    arguments: "tcp|udp [PORT]",
    help: "echo what is received on a port (7)",
    run,
}];

fn run(args: &[String]) -> Outcome {
    let port = number(args, 1, "a port")?.unwrap_or(7);
    signals::end_when_asked()?;
    match args.first().map(String::as_str) {
        Some("tcp") => tcp(port),
        Some("udp") => udp(port),
        _ => Err("tcp or udp?".into()),
    }
}

fn tcp(port: u16) -> Outcome {
    let listener = listen(port)?;
    print_line(format_args!("echoes TCP on port {port}"))?;
    for stream in listener.incoming().flatten() {
        let _ = thread::Builder::new()
            .stack_size(256 * 1024)
            .spawn(move || {
                let (mut reader, mut writer) = (&stream, &stream);
                let _ = io::copy(&mut reader, &mut writer);
            });
    }
    Ok(0)
}

fn udp(port: u16) -> Outcome {
    let socket = UdpSocket::bind(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
        .or_else(|_| UdpSocket::bind(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port))))?;
    print_line(format_args!("echoes UDP on port {port}"))?;
    let mut buffer = [0; 65536];
    loop {
        let (length, from) = socket.recv_from(&mut buffer)?;
        let _ = socket.send_to(&buffer[..length], from);
    }
}
