//! The helper that creates a container, or a process in one, with libcontainer. It reports the pid
//! as soon as the process exists, and again when the container's program was executed, so that
//! "started" means executed.

use std::{
    error::Error,
    fs::File,
    io::{self, PipeReader, PipeWriter, Read},
    os::{
        fd::{AsFd, AsRawFd, OwnedFd, RawFd},
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
};

use libcontainer::{
    container::{Container, builder::ContainerBuilder},
    syscall::syscall::SyscallType,
};

use super::{Base, executor::Program, outside, prepare};
use crate::{
    shim::protocol::{Job, Report},
    wire::{Inbox, send_all},
};

pub(super) type Outcome<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Runs the helper; returns its exit code.
pub(super) fn run(job: Job, stdio: Option<[OwnedFd; 3]>, socket: UnixStream) -> i32 {
    complain_on_stderr();
    let mut shim = Shim { socket };
    let report = match perform(job, stdio, &mut shim) {
        Ok(slow) => Report::Running { slow },
        Err(error) => Report::Failed(chain(&*error)),
    };
    i32::from(shim.send(&report, None).is_err())
}

/// The connection to the shim.
pub(super) struct Shim {
    socket: UnixStream,
}

impl Shim {
    pub(super) fn send(&mut self, report: &Report, fd: Option<OwnedFd>) -> io::Result<()> {
        let raw = fd.as_ref().map(|fd| fd.as_raw_fd());
        send_all(self.socket.as_fd(), report, raw.as_slice())
    }

    pub(super) fn created(&mut self, pid: i32, terminal: Option<OwnedFd>) -> io::Result<()> {
        self.send(
            &Report::Created {
                pid,
                terminal: terminal.is_some(),
            },
            terminal,
        )
    }
}

/// Returns why it was slower than necessary, if it was.
fn perform(job: Job, stdio: Option<[OwnedFd; 3]>, shim: &mut Shim) -> Outcome<Option<String>> {
    match job {
        Job::Run {
            container,
            bundle,
            oci_root,
            oci_runtime: Some(binary),
            ..
        } => {
            let outside = outside::Runtime {
                binary,
                root: oci_root,
                container,
            };
            outside.run(&bundle, stdio, shim).map(|()| None)
        }
        Job::Exec {
            container,
            oci_root,
            oci_runtime: Some(binary),
            process,
            ..
        } => {
            let outside = outside::Runtime {
                binary,
                root: oci_root,
                container,
            };
            outside.exec(&process, stdio, shim).map(|()| None)
        }
        Job::Run {
            container,
            bundle,
            oci_root,
            oci_runtime: None,
            base,
        } => run_container(&container, &bundle, &oci_root, base, stdio, shim),
        Job::Exec {
            container,
            bundle,
            oci_root,
            oci_runtime: None,
            process,
            ..
        } => run_process(&container, &bundle, &oci_root, &process, stdio, shim).map(|()| None),
    }
}

fn run_container(
    id: &str,
    bundle: &Path,
    root: &Path,
    base: Option<Base>,
    stdio: Option<[OwnedFd; 3]>,
    shim: &mut Shim,
) -> Outcome<Option<String>> {
    std::fs::create_dir_all(root)?;
    let prepared = prepare::container(bundle, root, base)?;
    let (executed, program) = Program::new(prepared.finish)?;
    let console = Console::listen(root, stdio.is_none())?;
    let builder = ContainerBuilder::new(id.to_owned(), SyscallType::default())
        .with_root_path(root)?
        .with_console_socket(console.as_ref().map(|console| console.path.clone()))
        .with_executor(program);
    let mut container: Container = with_stdio(builder, stdio)
        .as_init(&prepared.bundle)
        .with_systemd(false)
        .with_detach(true)
        .build()?;
    let pid = container
        .pid()
        .ok_or("libcontainer created a container without a process")?;
    shim.created(pid.as_raw(), console.map(Console::receive).transpose()?)?;
    container.start()?;
    executed.wait()?;
    Ok(prepared.slow)
}

fn run_process(
    id: &str,
    bundle: &Path,
    root: &Path,
    process: &Path,
    stdio: Option<[OwnedFd; 3]>,
    shim: &mut Shim,
) -> Outcome<()> {
    let prepared = prepare::process(bundle, process)?;
    let (executed, program) = Program::new(prepared.finish)?;
    let console = Console::listen(root, stdio.is_none())?;
    let builder = ContainerBuilder::new(id.to_owned(), SyscallType::default())
        .with_root_path(root)?
        .with_console_socket(console.as_ref().map(|console| console.path.clone()))
        .with_executor(program);
    let built = with_stdio(builder, stdio)
        .as_tenant()
        .with_detach(true)
        .with_process(Some(process))
        .build();
    let _ = std::fs::remove_file(process);
    let pid = match built {
        Ok(pid) => pid,
        // Our executor's error is more precise.
        Err(error) => return Err(executed.wait().err().unwrap_or_else(|| error.into())),
    };
    shim.created(pid.as_raw(), console.map(Console::receive).transpose()?)?;
    executed.wait()
}

fn with_stdio(builder: ContainerBuilder, stdio: Option<[OwnedFd; 3]>) -> ContainerBuilder {
    match stdio {
        Some([stdin, stdout, stderr]) => builder
            .with_stdin(stdin)
            .with_stdout(stdout)
            .with_stderr(stderr),
        None => builder,
    }
}

/// The pipe that tells whether the program was executed: exec closes it.
pub(super) struct Executed {
    reader: PipeReader,
    /// Our copy of the end that the container's process inherits.
    writer: PipeWriter,
}

impl Executed {
    /// The pipe, and the descriptor of the inherited end.
    pub(super) fn pipe() -> io::Result<(Self, RawFd)> {
        let (reader, writer) = io::pipe()?;
        let inherited = writer.as_raw_fd();
        Ok((Self { reader, writer }, inherited))
    }

    fn wait(self) -> Outcome<()> {
        let Self { mut reader, writer } = self;
        drop(writer);
        let mut message = String::new();
        reader.read_to_string(&mut message)?;
        if message.is_empty() {
            Ok(())
        } else {
            Err(message.into())
        }
    }
}

/// The socket on which an OCI runtime passes the terminal.
pub(super) struct Console {
    pub path: PathBuf,
    listener: UnixListener,
}

impl Console {
    pub(super) fn listen(root: &Path, wanted: bool) -> Outcome<Option<Self>> {
        if !wanted {
            return Ok(None);
        }
        std::fs::create_dir_all(root)?;
        let path = root.join(format!("{}.tty", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path)?;
        Ok(Some(Self { path, listener }))
    }

    pub(super) fn receive(self) -> io::Result<OwnedFd> {
        let (stream, _) = self.listener.accept()?;
        let mut inbox = Inbox::default();
        inbox.fill(stream.as_fd())?;
        inbox.fd()
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// An error with its causes, without repetition.
fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        let message = inner.to_string();
        if !text.contains(&message) {
            text = format!("{text}: {message}");
        }
        cause = inner.source();
    }
    text
}

/// libcontainer reports errors of its child processes only through `tracing`.
fn complain_on_stderr() {
    let Ok(stderr) = io::stderr().as_fd().try_clone_to_owned() else {
        return;
    };
    let subscriber = super::complaints::Complaints::new(File::from(stderr));
    let _ = tracing::subscriber::set_global_default(subscriber);
}
