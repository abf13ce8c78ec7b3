//! `mainstay up`, `server` and `agent` as a person sees them: a line per part, ticked off when the part is ready, then what
//! to try next. On a terminal with colours; plain lines otherwise.

use std::{io::IsTerminal, time::Instant};

use cluster::{Role, Running};

/// Ticks off every part in order, then prints what to do next.
pub async fn show(running: &Running, begun: Instant) {
    let colours = std::io::stdout().is_terminal();
    for (service, line) in running.parts() {
        running.health().ready(service).await;
        tick(colours, &line);
    }
    if running.role() != Role::Server {
        running.node_ready().await;
        let line = format!("node {} is Ready", running.settings().node_name);
        tick(colours, &line);
    }
    let seconds = begun.elapsed().as_secs_f64();
    match running.role() {
        Role::Up => println!(
            "\nThe cluster is up, after {seconds:.1} seconds.\n\n{}",
            next_steps(running)
        ),
        Role::Server => println!(
            "\nThe control plane is up, after {seconds:.1} seconds. `{} token create` makes the \
             command that joins a node.",
            binary()
        ),
        Role::Agent => println!("\nThis node has joined, after {seconds:.1} seconds."),
    }
}

fn tick(colours: bool, line: &str) {
    if colours {
        println!("\x1b[32m✓\x1b[0m {line}");
    } else {
        println!("ok: {line}");
    }
}

/// This program, as it can be called.
fn binary() -> String {
    let path = std::env::current_exe().map(|path| path.display().to_string());
    path.unwrap_or_else(|_| "mainstay".into())
}

/// Commands that work as printed, from another terminal.
fn next_steps(running: &Running) -> String {
    let binary = binary();
    let kubeconfig = running.settings().data_dir.join("admin.kubeconfig");
    format!(
        "Try this in another terminal:\n\n  \
           export KUBECONFIG={}\n  \
           alias k='{binary} kubectl'\n\n  \
           k get nodes\n  \
           k create deployment web --image mainstay.local/hello --replicas 3\n  \
           k expose deployment web --port 80 --target-port 8080\n  \
           k rollout status deployment web\n  \
           k get pods -o wide\n  \
           {binary} hello get http://$(k get service web -o jsonpath={{.spec.clusterIP}})/\n\n\
         Ctrl-C stops the control plane and leaves containers running; `{binary} reset` removes everything.",
        kubeconfig.display(),
    )
}
