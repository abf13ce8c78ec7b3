//! `mainstay up` as a person sees it: a line per part, ticked off when the part is ready, then what
//! to try next. On a terminal with colours; plain lines otherwise.

use std::{io::IsTerminal, time::Instant};

use cluster::Running;

/// Ticks off every part in order, then prints what to do next.
pub async fn show(running: &Running, begun: Instant) {
    let colours = std::io::stdout().is_terminal();
    for (service, line) in running.parts() {
        running.health().ready(service).await;
        tick(colours, &line);
    }
    running.node_ready().await;
    tick(
        colours,
        &format!("node {} is Ready", running.settings().node_name),
    );
    let seconds = begun.elapsed().as_secs_f64();
    println!(
        "\nThe cluster is up, after {seconds:.1} seconds.\n\n{}",
        next_steps(running)
    );
}

fn tick(colours: bool, line: &str) {
    if colours {
        println!("\x1b[32m✓\x1b[0m {line}");
    } else {
        println!("ok: {line}");
    }
}

/// Commands that work as printed, from another terminal.
fn next_steps(running: &Running) -> String {
    let binary = std::env::current_exe().map(|path| path.display().to_string());
    let binary = binary.unwrap_or_else(|_| "mainstay".into());
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
