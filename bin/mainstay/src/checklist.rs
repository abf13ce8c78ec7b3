//! `mainstay up`, `server` and `agent` as a person sees them: a line per part, ticked off when the part is ready, then what
//! to try next. On a terminal with colours; plain lines otherwise. Where the log goes to the same file or journal, each
//! line is one of the log's.

use std::{
    io::{self, IsTerminal},
    os::fd::AsFd,
    path::Path,
    time::{Duration, Instant},
};

use cluster::{Role, Running, settings::DATA_DIR};
use lifecycle::State;

use crate::{
    notify,
    user_kubeconfig::{self, Added},
};

/// A component that takes longer gets a line about it.
const SAY_AFTER: Duration = Duration::from_secs(10);

/// How lines are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    Colours,
    Plain,
    Log,
}

impl Style {
    /// The style of this process' output.
    fn detect() -> Self {
        let is_terminal = io::stdout().is_terminal();
        match is_terminal && std::env::var_os("NO_COLOR").is_none() {
            true => Self::Colours,
            false if !is_terminal && is_same_file(io::stdout(), io::stderr()) => Self::Log,
            false => Self::Plain,
        }
    }
}

fn is_same_file(one: impl AsFd, other: impl AsFd) -> bool {
    let file = |of: &dyn AsFd| {
        let status = nix::sys::stat::fstat(of.as_fd()).ok()?;
        Some((status.st_dev, status.st_ino))
    };
    file(&one).is_some_and(|one| Some(one) == file(&other))
}

/// Prints a line for people, or for the log.
pub(crate) fn print_line(line: &str) {
    match Style::detect() {
        Style::Log => tracing::info!("{line}"),
        _ => println!("{line}"),
    }
}

/// Ticks off every part in order, then prints what to do next.
pub(crate) async fn show(running: &Running, begun: Instant) {
    let style = Style::detect();
    for (service, line) in running.parts() {
        let state = || state(running, service);
        patiently(&line, state, running.health().ready(service)).await;
        tick(style, &line, begun);
    }
    if running.role() != Role::Agent {
        let hint = || format!("see `{} kubectl get --raw '/livez?verbose'`", binary());
        patiently("the default roles", hint, running.api_started()).await;
    }
    if running.role() != Role::Server {
        let hint = || {
            format!(
                "see `{} why node/{}`",
                binary(),
                running.settings().node_name
            )
        };
        patiently("the node to be Ready", hint, running.node_ready()).await;
        let line = format!("node {} is Ready", running.settings().node_name);
        tick(style, &line, begun);
    }
    let kubeconfig = give_kubeconfig(running);
    let seconds = begun.elapsed().as_secs_f64();
    let end = match running.role() {
        Role::Up => format!("The cluster is up, after {seconds:.1} seconds."),
        Role::Server => format!(
            "The control plane is up, after {seconds:.1} seconds. `{} token create` prints the command that joins a node.",
            binary()
        ),
        Role::Agent => format!("This node has joined, after {seconds:.1} seconds."),
    };
    if style == Style::Log {
        return tracing::info!("{end}");
    }
    println!("\n{end}");
    if running.role() == Role::Up {
        println!("\n{}", next_steps(running, kubeconfig.as_ref()));
    }
}

/// Waits; prints what for, repeatedly, if it takes long.
async fn patiently(what: &str, state: impl Fn() -> String, ready: impl Future<Output = ()>) {
    let begun = Instant::now();
    let mut ready = std::pin::pin!(ready);
    while tokio::time::timeout(SAY_AFTER, &mut ready).await.is_err() {
        let seconds = begun.elapsed().as_secs();
        print_line(&format!(
            "waiting for {what}, {seconds} s so far: {}",
            state()
        ));
    }
}

/// Why a component is not ready.
fn state(running: &Running, service: &str) -> String {
    let all = running.health().all();
    let Some(health) = all.into_iter().find(|health| health.name == service) else {
        return "not started yet".to_owned();
    };
    let problems: Vec<String> = health.problems.values().cloned().collect();
    match health.state {
        _ if !problems.is_empty() => problems.join("; "),
        State::Failed(why) => why,
        State::Waiting => "waiting for components that it depends on".to_owned(),
        _ => starting(service, has_log()),
    }
}

/// Only with `--detach` and as a service there is a log that `mainstay logs` can read.
fn starting(service: &str, has_log: bool) -> String {
    match has_log {
        true => format!("starting; see `{} logs {service}`", binary()),
        false => "starting".to_owned(),
    }
}

/// Whether this process runs with `--detach` or as a service: both wait for its notification.
fn has_log() -> bool {
    std::env::var_os(notify::VARIABLE).is_some()
}

/// The cluster in the default directory is added to the user's kubeconfig.
fn give_kubeconfig(running: &Running) -> Option<Added> {
    let data_dir = &running.settings().data_dir;
    if running.role() == Role::Agent || data_dir != Path::new(DATA_DIR) {
        return None;
    }
    let added = user_kubeconfig::add_for_caller(data_dir);
    let failed = |error: &anyhow::Error| {
        tracing::warn!(
            error = format!("{error:#}"),
            "cannot add a context to the kubeconfig"
        );
    };
    added.inspect_err(failed).ok()
}

fn tick(style: Style, line: &str, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    match style {
        Style::Colours => println!("\x1b[32m✓\x1b[0m {line} \x1b[2m({seconds:.1} s)\x1b[0m"),
        Style::Plain => println!("ok: {line} ({seconds:.1} s)"),
        Style::Log => tracing::info!("ready after {seconds:.1} s: {line}"),
    }
}

/// The path of this program.
fn binary() -> String {
    let path = std::env::current_exe().map(|path| path.display().to_string());
    path.unwrap_or_else(|_| "mainstay".into())
}

/// Commands that work as printed.
fn next_steps(running: &Running, kubeconfig: Option<&Added>) -> String {
    let binary = binary();
    let (place, stop) = match has_log() {
        // `--detach`: the terminal is free, and its Ctrl-C does not reach this process.
        true => ("", format!("`{binary} down`")),
        false => (" in another terminal", "Ctrl-C".to_owned()),
    };
    let file = running.settings().data_dir.join("admin.kubeconfig");
    let choose = match kubeconfig {
        Some(added) if added.is_current => String::new(),
        Some(added) => format!("  {binary} kubectl config use-context {}\n", added.context),
        None => format!("  export KUBECONFIG={}\n", file.display()),
    };
    format!(
        "Try this{place}:\n\n\
         {choose}  \
           alias k='{binary} kubectl'\n\n  \
           k get nodes\n  \
           k create deployment web --image mainstay.local/hello --replicas 3\n  \
           k expose deployment web --port 80 --target-port 8080\n  \
           k rollout status deployment web\n  \
           k get pods -o wide\n  \
           {binary} hello get http://$(k get service web -o jsonpath={{.spec.clusterIP}})/\n\n\
         {stop} stops all components and leaves containers running; `{binary} reset` removes everything.",
    )
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn two_openings_of_one_file_are_the_same_file() {
        let directory = tempfile::tempdir().unwrap();
        let open = |name: &str| File::create(directory.path().join(name)).unwrap();
        assert!(is_same_file(open("a"), open("a")));
        assert!(!is_same_file(open("a"), open("b")));
    }

    #[test]
    fn a_process_in_the_foreground_does_not_refer_to_its_log() {
        assert_eq!(starting("dns", false), "starting");
        assert!(starting("dns", true).ends_with(" logs dns`"));
    }
}
