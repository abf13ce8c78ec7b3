//! The last steps of a container's process before it executes the program: drops capabilities that
//! were needed to get here, installs the seccomp filter, and resets signals.

use std::{
    ffi::CString,
    io,
    os::fd::{BorrowedFd, RawFd},
    path::{Path, PathBuf},
    rc::Rc,
};

use libcontainer::workload::{Executor, ExecutorError, ExecutorValidationError};
use nix::{
    sys::signal::{SigHandler, SigSet, Signal, signal},
    unistd::{AccessFlags, access, execv},
};
use oci_spec::runtime::{Capabilities, LinuxCapabilities, Spec};
use seccompiler::BpfProgram;

use super::{
    mount_points,
    oci::{Executed, Outcome},
};

/// The remaining steps inside the container.
#[derive(Clone, Default)]
pub(super) struct Finish {
    /// Filters to install, the one that denies by default last.
    pub filters: Rc<Vec<BpfProgram>>,
    /// The final capabilities, if installing a filter needs more than the container may keep.
    pub capabilities: Option<LinuxCapabilities>,
    /// Whether to check where the mounts ended up.
    pub checks_mounts: bool,
}

/// Executes the container's program.
#[derive(Clone)]
pub(super) struct Program {
    finish: Finish,
    report: RawFd,
}

impl Program {
    pub(super) fn new(finish: Finish) -> io::Result<(Executed, Self)> {
        let (executed, report) = Executed::pipe()?;
        Ok((executed, Self { finish, report }))
    }

    /// Returns only if it fails.
    fn execute(&self, spec: &Spec) -> Outcome<()> {
        let args = spec
            .process()
            .as_ref()
            .and_then(|p| p.args().as_ref())
            .ok_or("no command")?;
        let name = args.first().ok_or("no command")?;
        let path = find(name, &search_path(spec))?;
        let path = CString::new(path.into_os_string().into_encoded_bytes())?;
        let args: Vec<_> = args
            .iter()
            .map(|arg| CString::new(arg.as_str()))
            .collect::<Result<_, _>>()?;
        if self.finish.checks_mounts {
            mount_points::check_result(spec)?;
        }
        reset_signals()?;
        self.finish.apply()?;
        let Err(error) = execv(&path, &args);
        Err(format!("exec {}: {}", path.to_string_lossy(), error.desc()).into())
    }
}

impl Executor for Program {
    fn exec(&self, spec: &Spec) -> Result<(), ExecutorError> {
        let Err(error) = self.execute(spec) else {
            return Ok(());
        };
        // SAFETY: the descriptor was opened before this process was cloned and is closed only by
        // executing the program, which has not happened.
        let report = unsafe { BorrowedFd::borrow_raw(self.report) };
        let _ = nix::unistd::write(report, error.to_string().as_bytes());
        Err(ExecutorError::Other(error.to_string()))
    }

    fn validate(&self, spec: &Spec) -> Result<(), ExecutorValidationError> {
        let args = spec.process().as_ref().and_then(|p| p.args().as_ref());
        let wrong = ExecutorValidationError::ArgValidationError;
        let name = args
            .and_then(|args| args.first())
            .ok_or_else(|| wrong("no command".into()))?;
        find(name, &search_path(spec)).map_err(|error| wrong(error.to_string()))?;
        Ok(())
    }
}

fn search_path(spec: &Spec) -> String {
    let env = spec
        .process()
        .as_ref()
        .and_then(|process| process.env().clone());
    let path = env
        .iter()
        .flatten()
        .rev()
        .find_map(|entry| entry.strip_prefix("PATH="));
    path.unwrap_or(crate::spec::DEFAULT_PATH).to_owned()
}

/// The path of the program, as seen by the container's user.
fn find(name: &str, search: &str) -> Outcome<PathBuf> {
    if name.contains('/') {
        return match access(name, AccessFlags::X_OK) {
            Ok(()) if Path::new(name).is_dir() => Err(failure(name, "is a directory")),
            Ok(()) => Ok(name.into()),
            Err(nix::Error::ENOENT) => Err(failure(name, "no such file or directory")),
            Err(error) => Err(failure(name, error.desc())),
        };
    }
    let mut denied = false;
    for dir in search.split(':') {
        let candidate = Path::new(if dir.is_empty() { "." } else { dir }).join(name);
        match access(&candidate, AccessFlags::X_OK) {
            Ok(()) if candidate.is_file() => return Ok(candidate),
            Err(nix::Error::EACCES) => denied |= candidate.is_file(),
            _ => {}
        }
    }
    let why = if denied {
        "permission denied"
    } else {
        "executable file not found in $PATH"
    };
    Err(failure(name, why))
}

fn failure(name: &str, why: &str) -> Box<dyn std::error::Error + Send + Sync> {
    format!("exec: {name:?}: {why}").into()
}

/// Resets ignored and blocked signals: Rust's startup ignores SIGPIPE.
fn reset_signals() -> nix::Result<()> {
    for number in Signal::iterator() {
        // SAFETY: restoring the default disposition installs no handler.
        let _ = unsafe { signal(number, SigHandler::SigDfl) };
    }
    SigSet::empty().thread_set_mask()
}

impl Finish {
    fn apply(&self) -> Outcome<()> {
        let Some(capabilities) = &self.capabilities else {
            return self.install();
        };
        let set = |set: &Option<Capabilities>| -> caps::CapsHashSet {
            set.iter()
                .flatten()
                .filter_map(|c| format!("CAP_{c}").parse().ok())
                .collect()
        };
        let bounding = set(capabilities.bounding());
        for capability in caps::read(None, caps::CapSet::Bounding)? {
            if !bounding.contains(&capability) {
                caps::drop(None, caps::CapSet::Bounding, capability)?;
            }
        }
        caps::set(
            None,
            caps::CapSet::Inheritable,
            &set(capabilities.inheritable()),
        )?;
        caps::set(None, caps::CapSet::Ambient, &set(capabilities.ambient()))?;
        self.install()?;
        caps::set(
            None,
            caps::CapSet::Effective,
            &set(capabilities.effective()),
        )?;
        caps::set(
            None,
            caps::CapSet::Permitted,
            &set(capabilities.permitted()),
        )?;
        Ok(())
    }

    fn install(&self) -> Outcome<()> {
        for filter in self.filters.iter() {
            super::seccomp::install(filter).map_err(|error| format!("seccomp: {error}"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_reported_with_the_reason() {
        assert!(find("sh", "/nonexistent:/usr/bin:/bin").is_ok());
        let why = |name| find(name, "/usr/bin:/bin").unwrap_err().to_string();
        assert_eq!(
            why("no-such"),
            "exec: \"no-such\": executable file not found in $PATH"
        );
        assert_eq!(
            why("/no/such"),
            "exec: \"/no/such\": no such file or directory"
        );
        assert_eq!(why("/tmp"), "exec: \"/tmp\": is a directory");
        assert_eq!(
            why("/etc/passwd"),
            "exec: \"/etc/passwd\": Permission denied"
        );
    }
}
