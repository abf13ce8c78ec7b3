//! Console output of `mainstay up`, `server` and `agent`: a line per component, ticked off when it
//! is ready, then next steps. With colours on a terminal; plain lines otherwise.

use std::{
    io::IsTerminal,
    path::Path,
    time::{Duration, Instant},
};

use cluster::{Role, Running, settings::DATA_DIR};
use lifecycle::State;

use crate::user_kubeconfig::{self, Added};

/// A component that takes longer gets a line about it.
const SAY_AFTER: Duration = Duration::from_secs(10);

/// Ticks off every component in order, then prints the next steps.
pub(crate) async fn show(running: &Running, begun: Instant) {
    let colours = std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none();
    for (service, line) in running.parts() {
        let state = || state(running, service);
        patiently(&line, state, running.health().ready(service)).await;
        tick(colours, &line, begun);
    }
    if running.role() != Role::Server {
        let hint = || {
            format!(
                "`{} why node/{}` says more",
                binary(),
                running.settings().node_name
            )
        };
        patiently("the node to be Ready", hint, running.node_ready()).await;
        let line = format!("node {} is Ready", running.settings().node_name);
        tick(colours, &line, begun);
    }
    let kubeconfig = give_kubeconfig(running);
    let seconds = begun.elapsed().as_secs_f64();
    match running.role() {
        Role::Up => println!(
            "\nThe cluster is up, after {seconds:.1} seconds.\n\n{}",
            next_steps(running, kubeconfig.as_ref())
        ),
        Role::Server => println!(
            "\nThe control plane is up, after {seconds:.1} seconds. `{} token create` makes the \
             command that joins a node.",
            binary()
        ),
        Role::Agent => println!("\nThis node has joined, after {seconds:.1} seconds."),
    }
}

/// Waits; prints what for, repeatedly, if it takes long.
async fn patiently(what: &str, state: impl Fn() -> String, ready: impl Future<Output = ()>) {
    let begun = Instant::now();
    let mut ready = std::pin::pin!(ready);
    while tokio::time::timeout(SAY_AFTER, &mut ready).await.is_err() {
        let seconds = begun.elapsed().as_secs();
        println!("waiting for {what}, {seconds} s so far: {}", state());
    }
}

/// Why a component is not ready.
fn state(running: &Running, service: &str) -> String {
    let all = running.health().all();
    let Some(health) = all.into_iter().find(|health| health.name == service) else {
        return "it has not begun".to_owned();
    };
    let problems: Vec<String> = health.problems.values().cloned().collect();
    match health.state {
        _ if !problems.is_empty() => problems.join("; "),
        State::Failed(why) => why,
        State::Waiting => "parts that it needs are not ready".to_owned(),
        _ => format!(
            "it is starting; `{} logs {service}` shows what it says",
            binary()
        ),
    }
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

fn tick(colours: bool, line: &str, begun: Instant) {
    let seconds = begun.elapsed().as_secs_f64();
    if colours {
        println!("\x1b[32m✓\x1b[0m {line} \x1b[2m({seconds:.1} s)\x1b[0m");
    } else {
        println!("ok: {line} ({seconds:.1} s)");
    }
}

/// The path of this program.
fn binary() -> String {
    let path = std::env::current_exe().map(|path| path.display().to_string());
    path.unwrap_or_else(|_| "mainstay".into())
}

/// Commands that work as printed, from another terminal.
fn next_steps(running: &Running, kubeconfig: Option<&Added>) -> String {
    let binary = binary();
    let file = running.settings().data_dir.join("admin.kubeconfig");
    let choose = match kubeconfig {
        Some(added) if added.is_current => String::new(),
        Some(added) => format!("  {binary} kubectl config use-context {}\n", added.context),
        None => format!("  export KUBECONFIG={}\n", file.display()),
    };
    format!(
        "Try this in another terminal:\n\n\
         {choose}  \
           alias k='{binary} kubectl'\n\n  \
           k get nodes\n  \
           k create deployment web --image mainstay.local/hello --replicas 3\n  \
           k expose deployment web --port 80 --target-port 8080\n  \
           k rollout status deployment web\n  \
           k get pods -o wide\n  \
           {binary} hello get http://$(k get service web -o jsonpath={{.spec.clusterIP}})/\n\n\
         Ctrl-C stops the control plane and leaves containers running; `{binary} reset` removes everything.",
    )
}
