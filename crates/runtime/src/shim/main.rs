//! The shim's life: it is started with its orders on standard input, makes and pins the sandbox's
//! namespaces, leaves its parent behind, and then serves until it is told to shut down.

use std::{
    collections::BTreeMap,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixListener,
    },
    process::ExitCode,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::{
        signal::{SigSet, Signal},
        signalfd::{SfdFlags, SignalFd},
    },
    unistd::{ForkResult, Pid, fork, setsid},
};

use super::{
    attached::{Attached, Sink},
    conn::Conn,
    held::Container,
    log::Stream,
    pin,
    protocol::{Answer, Call, Exec, Exit, Held, Message, Request, Run, Start, VERSION},
    reap::{self, Unclaimed},
};
use crate::{
    cgroup::Cgroup,
    helper::{Helper, Progress},
    stamp::now,
};

/// How long killed containers may take to be collected at shutdown.
const SHUTDOWN_DEADLINE: Duration = Duration::from_secs(5);

/// How long nothing must happen before memory is given back.
const IDLE_MILLIS: u16 = 500;

/// The entry point, called before any thread exists.
pub(crate) fn run() -> ExitCode {
    match start() {
        Ok(Some(shim)) => shim.serve(),
        Ok(None) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            ExitCode::FAILURE
        }
    }
}

/// Sets everything up. `None` in the process that the daemon waits for: the shim itself goes on as
/// its child, in a session of its own.
fn start() -> io::Result<Option<Shim>> {
    // The file stays open, and so locked, for life: that is how the daemon knows that we are there.
    let held = File::from(io::stdin().as_fd().try_clone_to_owned()?);
    let orders: Start = serde_json::from_reader(&held)?;
    setsid()?;
    let _ = nix::sys::prctl::set_name(c"mainstay-shim");
    Cgroup::new(&orders.cgroup).join(std::process::id().cast_signed())?;
    std::env::set_current_dir("/")?;
    let mut signals = SigSet::empty();
    for signal in [
        Signal::SIGCHLD,
        Signal::SIGHUP,
        Signal::SIGINT,
        Signal::SIGTERM,
        Signal::SIGQUIT,
        Signal::SIGUSR1,
        Signal::SIGUSR2,
    ] {
        signals.add(signal);
    }
    signals.thread_block()?;
    pin::pin(&orders)?;
    let _ = std::fs::remove_file(&orders.socket);
    let listener = UnixListener::bind(&orders.socket)?;
    listener.set_nonblocking(true)?;
    let (mut told, mut tell) = io::pipe()?;
    // SAFETY: this process has one thread, so the child may do whatever it likes.
    if let ForkResult::Parent { .. } = unsafe { fork() }? {
        drop(tell);
        let mut message = String::new();
        told.read_to_string(&mut message)?;
        return if message.is_empty() {
            Ok(None)
        } else {
            Err(io::Error::other(message))
        };
    }
    drop(told);
    match settle(orders, held, listener, &signals) {
        Ok(shim) => Ok(Some(shim)),
        Err(error) => {
            let _ = write!(tell, "{error}");
            Ok(None)
        }
    }
}

/// The second half, in the process that stays.
fn settle(orders: Start, held: File, listener: UnixListener, signals: &SigSet) -> io::Result<Shim> {
    nix::sys::prctl::set_child_subreaper(true)?;
    let init = orders
        .namespaces
        .pid
        .as_deref()
        .map(pin::start_init)
        .transpose()?;
    detach_stdio(&orders)?;
    let signals = SignalFd::with_flags(signals, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
    Ok(Shim {
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
    })
}

fn detach_stdio(orders: &Start) -> io::Result<()> {
    let null = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/null")?;
    let log = OpenOptions::new()
        .create(true)
        .append(true)
        .open(&orders.log)?;
    nix::unistd::dup2_stdin(&null)?;
    nix::unistd::dup2_stdout(&null)?;
    nix::unistd::dup2_stderr(&log)?;
    Ok(())
}

/// A helper at work, and who waits for it.
struct Task {
    helper: Helper,
    conn: u64,
    request: u64,
    purpose: Purpose,
    terminal: Option<OwnedFd>,
    pid: i32,
}

enum Purpose {
    Run { container: String },
    Exec { exec: String },
}

/// Who asked to shut down, and since when.
struct Down {
    conn: u64,
    request: u64,
    until: Instant,
}

struct Shim {
    /// Our orders, locked.
    _held: File,
    orders: Start,
    listener: UnixListener,
    signals: SignalFd,
    /// The first process of the pod's shared PID namespace.
    init: Option<i32>,
    conns: BTreeMap<u64, Conn>,
    next_conn: u64,
    containers: BTreeMap<String, Container>,
    /// Processes started in containers: their pids by their ids.
    execs: BTreeMap<String, i32>,
    helpers: Vec<Task>,
    unclaimed: Unclaimed,
    down: Option<Down>,
    /// Something was done since memory was given back.
    fat: bool,
}

/// What one `poll` found ready.
enum Ready {
    Listener,
    Signals,
    Conn(u64),
    Helper(usize),
    Output(String, Stream),
    Input(String),
    ClientInput(String, usize),
    ClientOutput(String, usize, Stream),
}

impl Shim {
    fn serve(mut self) -> ExitCode {
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

    /// Waits for something to do. Descriptors of watchers are listened to only for their end, and
    /// for room while they are behind.
    fn wait(&self) -> io::Result<Vec<Ready>> {
        let mut sources = vec![
            (self.listener.as_fd(), PollFlags::POLLIN, Ready::Listener),
            (self.signals.as_fd(), PollFlags::POLLIN, Ready::Signals),
        ];
        for (id, conn) in &self.conns {
            sources.push((
                conn.fd(),
                interest(PollFlags::POLLIN, conn.is_behind()),
                Ready::Conn(*id),
            ));
        }
        for (index, task) in self.helpers.iter().enumerate() {
            sources.push((task.helper.fd(), PollFlags::POLLIN, Ready::Helper(index)));
        }
        for (id, container) in &self.containers {
            watch_container(id, container, &mut sources);
        }
        let mut fds: Vec<_> = sources
            .iter()
            .map(|(fd, want, _)| PollFd::new(*fd, *want))
            .collect();
        let timeout = match &self.down {
            Some(_) => PollTimeout::from(20u8),
            None if self.fat => PollTimeout::from(IDLE_MILLIS),
            None => PollTimeout::NONE,
        };
        poll(&mut fds, timeout)?;
        let happened = fds
            .iter()
            .map(|fd| fd.revents().is_some_and(|events| !events.is_empty()));
        let ready = happened.collect::<Vec<_>>().into_iter().zip(sources);
        Ok(ready
            .filter_map(|(happened, (_, _, source))| happened.then_some(source))
            .collect())
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
                Ok(Some(request)) => self.call(id, request),
                Ok(None) => break,
                Err(error) => {
                    // A call that this build does not know cannot be told apart from garbage; its
                    // number is unknown, so the connection ends and the daemon hears of it.
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

    fn reply(&mut self, conn: u64, id: u64, result: Result<Answer, String>, fd: Option<OwnedFd>) {
        self.tell(conn, &Message::Reply { id, result }, fd);
    }

    fn tell(&mut self, id: u64, message: &Message, fd: Option<OwnedFd>) {
        let lost = self
            .conns
            .get_mut(&id)
            .is_some_and(|conn| conn.send(message, fd).is_err());
        if lost {
            self.conns.remove(&id);
        }
    }

    fn announce(&mut self, message: &Message) {
        for id in self.conns.keys().copied().collect::<Vec<_>>() {
            self.tell(id, message, None);
        }
    }

    fn call(&mut self, conn: u64, request: Request) {
        let id = request.id;
        let result = match request.call {
            Call::Run(run) => match self.start_container(conn, id, run) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Call::Exec(exec) => match self.start_exec(conn, id, exec) {
                Ok(()) => return,
                Err(error) => Err(error),
            },
            Call::Shutdown => {
                self.shut_down(conn, id);
                return;
            }
            other => self.answer(conn, other),
        };
        self.reply(conn, id, result.map_err(|error| error.to_string()), None);
    }

    /// Calls that are answered at once.
    fn answer(&mut self, conn: u64, call: Call) -> io::Result<Answer> {
        match call {
            Call::Hello { .. } => return Ok(self.hello()),
            Call::Signal {
                container,
                signal,
                all,
            } => self.signal(&container, signal, all)?,
            Call::SignalExec { exec, signal } => {
                let pid = self
                    .execs
                    .get(&exec)
                    .ok_or_else(|| missing("process", &exec))?;
                send_signal(*pid, signal)?;
            }
            Call::ReopenLog { container } => self.held(&container)?.reopen_log()?,
            Call::Resize {
                container,
                width,
                height,
            } => {
                self.held(&container)?.resize(width, height)?;
            }
            Call::Attach {
                container,
                stdin,
                stdout,
                stderr,
            } => {
                self.attach(conn, &container, [stdin, stdout, stderr])?;
            }
            Call::Forget { container } => {
                self.containers.remove(&container);
            }
            Call::Run(_) | Call::Exec(_) | Call::Shutdown => {
                return Err(io::Error::other("answered elsewhere"));
            }
        }
        Ok(Answer::Done)
    }

    fn hello(&self) -> Answer {
        let held = self
            .containers
            .iter()
            .filter(|(_, c)| c.pid != 0)
            .map(|(id, c)| Held {
                id: id.clone(),
                pid: c.pid,
                started_at: c.started_at,
                exit: c.exit,
            });
        let pid = std::process::id().cast_signed();
        Answer::Hello {
            version: VERSION,
            pid,
            containers: held.collect(),
        }
    }

    fn held(&mut self, id: &str) -> io::Result<&mut Container> {
        self.containers
            .get_mut(id)
            .ok_or_else(|| missing("container", id))
    }

    fn signal(&mut self, id: &str, signal: i32, all: bool) -> io::Result<()> {
        let container = self.held(id)?;
        if container.exit.is_some() || container.pid == 0 {
            return Ok(());
        }
        if all {
            for pid in Cgroup::new(&container.run.cgroup).processes() {
                send_signal(pid, signal)?;
            }
        }
        send_signal(container.pid, signal)
    }

    fn attach(&mut self, conn: u64, id: &str, wanted: [bool; 3]) -> io::Result<()> {
        let Some(inbox) = self.conns.get_mut(&conn).map(|conn| &mut conn.inbox) else {
            return Ok(());
        };
        let mut fds = [None, None, None];
        for (slot, wanted) in fds.iter_mut().zip(wanted) {
            if wanted {
                *slot = Some(inbox.fd()?);
            }
        }
        let [stdin, stdout, stderr] = fds;
        let container = self.held(id)?;
        if container.exit.is_some() {
            return Err(io::Error::other("the container has ended"));
        }
        container.attached.push(Attached {
            stdin,
            stdout: stdout.map(Sink::new).transpose()?,
            stderr: stderr.map(Sink::new).transpose()?,
        });
        Ok(())
    }

    fn start_container(&mut self, conn: u64, request: u64, run: Run) -> io::Result<()> {
        let id = run.container.clone();
        if self.containers.contains_key(&id) {
            return Err(io::Error::other(format!("container {id} exists")));
        }
        let job = Helper::run_job(&run);
        let (container, ends) = Container::prepare(run)?;
        let stdio = ends.map(|ends| [ends.stdin, ends.stdout, ends.stderr]);
        let helper = Helper::start(&job, stdio)?;
        self.containers.insert(id.clone(), container);
        let purpose = Purpose::Run { container: id };
        self.helpers.push(Task {
            helper,
            conn,
            request,
            purpose,
            terminal: None,
            pid: 0,
        });
        Ok(())
    }

    fn start_exec(&mut self, conn: u64, request: u64, exec: Exec) -> io::Result<()> {
        let stdio = if exec.tty {
            None
        } else {
            let Some(conn) = self.conns.get_mut(&conn) else {
                return Ok(());
            };
            Some([conn.inbox.fd()?, conn.inbox.fd()?, conn.inbox.fd()?])
        };
        let container = self.held(&exec.container)?;
        if container.exit.is_some() || container.pid == 0 {
            return Err(io::Error::other("the container is not running"));
        }
        let job = Helper::exec_job(&container.run, &exec);
        let helper = Helper::start(&job, stdio)?;
        let purpose = Purpose::Exec { exec: exec.exec };
        self.helpers.push(Task {
            helper,
            conn,
            request,
            purpose,
            terminal: None,
            pid: 0,
        });
        Ok(())
    }

    /// Takes a helper's reports; its task ends with the last one.
    fn advance(&mut self, index: usize) {
        loop {
            let Some(task) = self.helpers.get_mut(index) else {
                return;
            };
            match task.helper.progress() {
                Progress::Waiting => return,
                Progress::Created { pid, terminal } => {
                    task.pid = pid;
                    task.terminal = terminal;
                }
                Progress::Running => {
                    let task = self.helpers.swap_remove(index);
                    return self.started(task);
                }
                Progress::Failed(message) => {
                    let task = self.helpers.swap_remove(index);
                    return self.failed(task, message);
                }
            }
        }
    }

    fn started(&mut self, mut task: Task) {
        let (pid, terminal) = (task.pid, task.terminal.take());
        let mut passed = None;
        match &task.purpose {
            Purpose::Run { container } => {
                if let Some(container) = self.containers.get_mut(container) {
                    container.pid = pid;
                    container.started_at = now();
                    if let Some(Err(error)) = terminal.map(|t| container.set_terminal(t)) {
                        let _ = writeln!(io::stderr(), "terminal: {error}");
                    }
                }
            }
            Purpose::Exec { exec } => {
                self.execs.insert(exec.clone(), pid);
                passed = terminal;
            }
        }
        let answer = Answer::Started {
            pid,
            terminal: passed.is_some(),
        };
        self.reply(task.conn, task.request, Ok(answer), passed);
        if let Some(code) = self.unclaimed.claim(pid) {
            self.ended(pid, code);
        }
        self.forget_unclaimed();
    }

    fn failed(&mut self, task: Task, message: String) {
        if task.pid != 0 {
            let _ = send_signal(task.pid, libc::SIGKILL);
        }
        if let Purpose::Run { container } = &task.purpose {
            self.containers.remove(container);
        }
        self.reply(task.conn, task.request, Err(message), None);
        self.forget_unclaimed();
    }

    fn forget_unclaimed(&mut self) {
        if self.helpers.is_empty() {
            self.unclaimed.clear();
        }
    }

    fn collect(&mut self) {
        while let Ok(Some(_)) = self.signals.read_signal() {}
        for (pid, code) in reap::ended() {
            self.ended(pid, code);
        }
    }

    fn ended(&mut self, pid: i32, code: i32) {
        if self.init == Some(pid) {
            self.init = None;
        } else if let Some(index) = self.helpers.iter().position(|t| t.helper.pid() == pid) {
            self.helpers[index].helper.set_ended(code);
            self.advance(index);
        } else if let Some((id, container)) = self
            .containers
            .iter_mut()
            .find(|(_, c)| c.pid == pid && c.exit.is_none())
        {
            let (container, exit) = (id.clone(), container.finish(code));
            self.announce(&Message::Exited { container, exit });
        } else if let Some(exec) = self
            .execs
            .iter()
            .find(|(_, p)| **p == pid)
            .map(|(id, _)| id.clone())
        {
            self.execs.remove(&exec);
            let exit = Exit {
                code,
                oom: false,
                finished_at: now(),
            };
            self.announce(&Message::ExecExited { exec, exit });
        } else if !self.helpers.is_empty() {
            self.unclaimed.keep(pid, code);
        }
    }

    fn shut_down(&mut self, conn: u64, request: u64) {
        for container in self.containers.values() {
            if container.exit.is_none() && container.pid != 0 {
                let _ = send_signal(container.pid, libc::SIGKILL);
                if container.run.kill_cgroup {
                    Cgroup::new(&container.run.cgroup).kill_all(Duration::from_millis(100));
                }
            }
        }
        if let Some(init) = self.init {
            let _ = send_signal(init, libc::SIGKILL);
        }
        self.down = Some(Down {
            conn,
            request,
            until: Instant::now() + SHUTDOWN_DEADLINE,
        });
    }

    /// Everything has ended, or had its time to.
    fn is_down(&mut self) -> bool {
        let Some(down) = &self.down else { return false };
        let alive = self
            .containers
            .values()
            .any(|c| c.exit.is_none() && c.pid != 0);
        let busy = alive || self.init.is_some() || !self.helpers.is_empty();
        if busy && Instant::now() < down.until {
            return false;
        }
        let (conn, request) = (down.conn, down.request);
        self.reply(conn, request, Ok(Answer::Done), None);
        true
    }
}

fn interest(always: PollFlags, is_behind: bool) -> PollFlags {
    if is_behind {
        always | PollFlags::POLLOUT
    } else {
        always
    }
}

fn watch_container<'a>(
    id: &str,
    container: &'a Container,
    sources: &mut Vec<(std::os::fd::BorrowedFd<'a>, PollFlags, Ready)>,
) {
    let id = || id.to_owned();
    let none = PollFlags::empty();
    for (index, client) in container.attached.iter().enumerate() {
        if let Some(stdin) = client.stdin.as_ref().filter(|_| container.takes_input()) {
            sources.push((
                stdin.as_fd(),
                PollFlags::POLLIN,
                Ready::ClientInput(id(), index),
            ));
        }
        for (sink, stream) in [
            (&client.stdout, Stream::Stdout),
            (&client.stderr, Stream::Stderr),
        ] {
            if let Some(sink) = sink {
                let ready = Ready::ClientOutput(id(), index, stream);
                sources.push((sink.fd(), interest(none, sink.is_behind()), ready));
            }
        }
    }
    if let Some(stdin) = container.stdin.as_ref().filter(|stdin| stdin.is_behind()) {
        sources.push((stdin.fd(), PollFlags::POLLOUT, Ready::Input(id())));
    }
    for (output, stream) in [
        (&container.stdout, Stream::Stdout),
        (&container.stderr, Stream::Stderr),
    ] {
        if let Some(output) = output {
            sources.push((
                output.as_fd(),
                PollFlags::POLLIN,
                Ready::Output(id(), stream),
            ));
        }
    }
}

fn missing(what: &str, id: &str) -> io::Error {
    io::Error::other(format!("no {what} {id:?}"))
}

/// A process that has ended needs no signal.
fn send_signal(pid: i32, signal: i32) -> io::Result<()> {
    // Not every signal has a name in nix: real-time ones do not.
    // SAFETY: kill takes two numbers.
    match unsafe { libc::kill(Pid::from_raw(pid).as_raw(), signal) } {
        0 => Ok(()),
        _ => match io::Error::last_os_error() {
            error if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            error => Err(error),
        },
    }
}
