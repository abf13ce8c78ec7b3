//! The commands, one file each.

mod backup;
mod detach;
mod down;
mod image;
mod install;
mod kubeconfig;
mod logs;
mod migrate;
mod reset;
mod run;
mod scheduler;
mod simulate;
mod status;
mod token;
mod version;
mod why;

use std::{fs::File, io, path::PathBuf, process::ExitCode};

use anyhow::Context;
use nix::errno::Errno;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::{Cli, Cluster, Command, Reference};

/// Runs a command; an error is printed with its causes.
pub(crate) fn run(cli: Cli) -> ExitCode {
    let outcome = match cli.command {
        Command::Status(asked) => status::run(&asked),
        other => run_plain(other).map(|()| ExitCode::SUCCESS),
    };
    match outcome {
        Ok(code) => code,
        Err(error) => {
            let is_root = nix::unistd::geteuid().is_root();
            eprintln!("mainstay: {}{}", explain(&error), hint(&error, is_root));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes on one line, deduplicated: some errors include their cause.
fn explain(error: &anyhow::Error) -> String {
    let mut line = error.to_string();
    for cause in error.chain().skip(1).map(ToString::to_string) {
        // The client's error and its causes repeat the server's message, with all of its Status.
        if cause.starts_with("ApiError: ") {
            break;
        }
        if !line.ends_with(&cause) {
            line = format!("{line}: {cause}");
        }
    }
    line
}

/// What to do about an error of permissions.
fn hint(error: &anyhow::Error, is_root: bool) -> &'static str {
    let is_denied = |cause: &(dyn std::error::Error + 'static)| {
        let number = cause.downcast_ref::<Errno>().copied().map(io::Error::from);
        let error = number.as_ref().or_else(|| cause.downcast_ref());
        error.is_some_and(|error| error.kind() == io::ErrorKind::PermissionDenied)
    };
    match !is_root && error.chain().any(is_denied) {
        true => "; it needs root: run it with sudo",
        false => "",
    }
}

/// The administrator's kubeconfig of the cluster in the data directory.
fn admin_kubeconfig(cluster: &Cluster) -> anyhow::Result<PathBuf> {
    let options = cluster::Options {
        data_dir: cluster.data_dir.clone(),
        ..cluster::Options::default()
    };
    Ok(cluster::settings::data_dir(&options)?.join("admin.kubeconfig"))
}

/// For commands that only read: the named kubeconfig, the administrator's, or the user's own if the
/// administrator's is not readable. A data directory that was given is never replaced by another
/// cluster.
fn find_kubeconfig(named: Option<PathBuf>, cluster: &Cluster) -> anyhow::Result<PathBuf> {
    if let Some(path) = named {
        return Ok(path);
    }
    let home = std::env::var_os("HOME").filter(|_| cluster.data_dir.is_none());
    let own = home.map(|home| PathBuf::from(home).join(".kube/config"));
    Ok(choose_kubeconfig(admin_kubeconfig(cluster)?, own))
}

fn choose_kubeconfig(admin: PathBuf, own: Option<PathBuf>) -> PathBuf {
    match own {
        Some(own) if own.exists() && File::open(&admin).is_err() => own,
        _ => admin,
    }
}

/// The named kubeconfig, or the administrator's of the cluster in the data directory.
fn read_kubeconfig(
    named: Option<PathBuf>,
    cluster: &Cluster,
) -> anyhow::Result<client::Kubeconfig> {
    let path = match named {
        Some(path) => path,
        None => admin_kubeconfig(cluster)?,
    };
    let config = client::Kubeconfig::read_list(&path);
    config.context("run it on a server of the cluster, or give a --kubeconfig")
}

/// Resolves when a stop signal arrives.
async fn stopped() -> anyhow::Result<()> {
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    tokio::select! {
        _ = interrupt.recv() => {}
        _ = terminate.recv() => {}
    }
    Ok(())
}

/// Commands without an exit code of their own.
fn run_plain(command: Command) -> anyhow::Result<()> {
    match command {
        Command::Up(up) => run::start(up.options, run::Run::Up, up.detach),
        Command::Server(up) => run::start(up.options, run::Run::Server, up.detach),
        Command::Agent(agent) => {
            let join = cluster::agent::Join {
                server: agent.server,
                token: agent.token,
                ca_hashes: agent.ca_hash,
            };
            run::start(agent.options, run::Run::Agent(join), agent.detach)
        }
        Command::Down(cluster) => down::run(cluster),
        Command::Token(command) => token::run(command),
        Command::Reset(reset) => reset::run(reset),
        Command::Backup(backup) => backup::backup(backup),
        Command::Restore(restore) => backup::restore(restore),
        Command::Migrate(asked) => migrate::run(asked),
        Command::Version(asked) => version::run(asked),
        Command::Why(why) => why::run(why),
        Command::Kubeconfig(asked) => kubeconfig::run(asked),
        Command::Scheduler(asked) => scheduler::run(asked),
        Command::Simulate(asked) => simulate::run(asked),
        Command::Logs(asked) => logs::run(&asked),
        Command::Install(asked) => install::install(&asked),
        Command::Uninstall(asked) => install::uninstall(&asked),
        Command::Image(image) => image::run(image),
        Command::Reference { page } => {
            let text = match page {
                Reference::Configuration => crate::reference::page(),
                Reference::Kubectl => kubectl::reference(),
            };
            print!("{text}");
            Ok(())
        }
        Command::Cni => {
            anyhow::bail!("CNI_COMMAND is not set: container runtimes call this (docs/cni.md)")
        }
        Command::Status(_) | Command::Kubectl { .. } | Command::Hello { .. } => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;

    #[test]
    fn a_lack_of_permission_refers_to_sudo() {
        let denied = anyhow::Error::new(Errno::EPERM).context("cannot stop process 1");
        assert!(hint(&denied, false).ends_with("run it with sudo"));
        assert_eq!(hint(&denied, true), "");
        let denied = anyhow::Error::new(io::Error::from(Errno::EACCES));
        assert!(hint(&denied, false).ends_with("run it with sudo"));
        let absent = anyhow::Error::new(io::Error::from(Errno::ENOENT));
        assert_eq!(hint(&absent, false), "");
    }

    #[test]
    fn the_users_kubeconfig_is_read_if_the_administrators_is_not_readable() {
        let directory = tempfile::tempdir().unwrap();
        let path = |name: &str| directory.path().join(name);
        let (admin, own) = (path("admin"), path("own"));
        let choose = || choose_kubeconfig(admin.clone(), Some(own.clone()));
        assert_eq!(choose(), admin);
        File::create(&own).unwrap();
        assert_eq!(choose(), own);
        assert_eq!(choose_kubeconfig(admin.clone(), None), admin);
        File::create(&admin).unwrap();
        assert_eq!(choose(), admin);
    }

    #[test]
    fn an_error_is_not_printed_twice_in_the_chain() {
        let unreadable = client::Error::Read {
            path: PathBuf::from("/a"),
            source: std::io::Error::from_raw_os_error(2),
        };
        let error = anyhow::Error::new(unreadable).context("name a file");
        let reason = "No such file or directory (os error 2)";
        assert_eq!(
            explain(&error),
            format!("name a file: cannot read /a: {reason}")
        );
        let error = anyhow!("inner").context("outer");
        assert_eq!(explain(&error), "outer: inner");
        let status = "ApiError: pods \"a\" not found: NotFound (Status { code: 404 })";
        let error = anyhow!(status).context("pods \"a\" not found (NotFound)");
        assert_eq!(explain(&error), "pods \"a\" not found (NotFound)");
    }
}
