//! The shim's event loop: runs until a shutdown was requested and nothing is left.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{self, Write},
    os::{fd::OwnedFd, unix::net::UnixListener},
    process::ExitCode,
};

use nix::sys::signalfd::SignalFd;

use super::{
    conn::Conn,
    down::Down,
    held::Container,
    protocol::{Answer, Message, Start},
    ready::Ready,
    reap::Unclaimed,
    tasks::Task,
};

/// The state of a shim.
pub(super) struct Shim {
    /// The orders file, locked.
    _held: File,
    pub(super) orders: Start,
    pub(super) listener: UnixListener,
    pub(super) signals: SignalFd,
    /// The init of the pod's shared PID namespace.
    pub(super) init: Option<i32>,
    pub(super) conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    pub(super) containers: BTreeMap<String, Container>,
    /// Pids of exec processes by id.
    pub(super) execs: BTreeMap<String, i32>,
    pub(super) helpers: Vec<Task>,
    pub(super) unclaimed: Unclaimed,
    pub(super) down: Option<Down>,
    /// Whether something was done since memory was last released.
    pub(super) fat: bool,
}

impl Shim {
    pub(super) fn new(
        orders: Start,
        held: File,
        listener: UnixListener,
        signals: SignalFd,
        init: Option<i32>,
    ) -> Self {
        Self {
            _held: held,
            listener,
            signals,
            init,
            conns: BTreeMap::new(),
            next_conn: 0,
            containers: BTreeMap::new(),
            execs: BTreeMap::new(),
            helpers: Vec::new(),
            unclaimed: Unclaimed::default(),
            down: None,
            fat: true,
            orders,
        }
    }

    pub(super) fn serve(mut self) -> ExitCode {
        loop {
            match self.wait() {
                Ok(ready) if ready.is_empty() && self.down.is_none() => {
                    let _ = super::slim::slim();
                    self.fat = false;
                }
                Ok(ready) => {
                    self.fat = true;
                    for source in ready {
                        self.handle(source);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    let _ = writeln!(io::stderr(), "poll: {error}");
                    return ExitCode::FAILURE;
                }
            }
            if self.is_down() {
                let _ = std::fs::remove_file(&self.orders.socket);
                return ExitCode::SUCCESS;
            }
        }
    }

    fn handle(&mut self, source: Ready) {
        match source {
            Ready::Listener => self.accept(),
            Ready::Signals => self.collect(),
            Ready::Conn(id) => self.read(id),
            Ready::Helper(index) => self.advance(index),
            Ready::Output(id, stream) => {
                if let Some(container) = self.containers.get_mut(&id) {
                    container.pump(stream);
                }
            }
            Ready::Input(id) => {
                if let Some(container) = self.containers.get_mut(&id)
                    && container
                        .stdin
                        .as_mut()
                        .is_some_and(|stdin| stdin.flush().is_err())
                {
                    container.stdin = None;
                }
            }
            Ready::ClientInput(id, client) => {
                if let Some(container) = self.containers.get_mut(&id) {
                    container.pump_input(client);
                }
            }
            Ready::ClientOutput(id, client, stream) => {
                if let Some(container) = self.containers.get_mut(&id) {
                    container.flush_client(client, stream);
                }
            }
        }
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if let Ok(conn) = Conn::new(stream) {
                self.conns.insert(self.next_conn, conn);
                self.next_conn += 1;
            }
        }
    }

    fn read(&mut self, id: u64) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        let mut alive = conn.fill() && conn.flush().is_ok();
        loop {
            let Some(conn) = self.conns.get_mut(&id) else {
                return;
            };
            match conn.request() {
                Ok(Some((number, Ok(call)))) => self.call(id, number, call),
                Ok(Some((number, Err(error)))) => {
                    let unknown = format!("unknown call: {error}");
                    self.reply(id, number, Err(unknown), None);
                }
                Ok(None) => break,
                Err(error) => {
                    let _ = writeln!(io::stderr(), "unreadable request: {error}");
                    alive = false;
                    break;
                }
            }
        }
        if !alive {
            self.conns.remove(&id);
        }
    }

    pub(super) fn reply(
        &mut self,
        conn: u64,
        id: u64,
        result: Result<Answer, String>,
        fd: Option<OwnedFd>,
    ) {
        self.send(conn, &Message::Reply { id, result }, fd);
    }

    fn send(&mut self, id: u64, message: &Message, fd: Option<OwnedFd>) {
        let lost = self
            .conns
            .get_mut(&id)
            .is_some_and(|conn| conn.send(message, fd).is_err());
        if lost {
            self.conns.remove(&id);
        }
    }

    pub(super) fn announce(&mut self, message: &Message) {
        for id in self.conns.keys().copied().collect::<Vec<_>>() {
            self.send(id, message, None);
        }
    }
}
