//! The cost of a create in the server itself, without sockets, TLS and HTTP: CPU time of the thread
//! that handles requests and of the whole process, so that the figures hardly depend on other load.

use std::path::Path;

use anyhow::ensure;
use apiserver::{LocalService, User};
use http_body_util::{BodyExt, Full};
use tokio_util::sync::CancellationToken;
use tower::Service;

use crate::{policies, scenario, serve};

/// Concurrent requests.
const AT_ONCE: usize = 64;

/// Prints microseconds per create of some kinds, without webhooks and with webhooks for other
/// resources.
pub(crate) async fn run(directory: &Path, rounds: usize, only: Option<&str>) -> anyhow::Result<()> {
    let (server, supervisor) = serve::assemble(directory, ([127, 0, 0, 1], 0).into(), false)?;
    tokio::spawn(supervisor.run(CancellationToken::new()));
    server.address().await;
    let service = server.connect(User::new("bench", ["system:masters"]));
    for (path, body) in scenario::preparation() {
        post(service.clone(), path, body).await?;
    }
    println!("{:<24} {:>12} {:>12}", "create", "thread µs", "process µs");
    for (plural, body) in scenario::bodies() {
        if only.is_some_and(|only| only != plural) {
            continue;
        }
        measure(&service, plural, plural, &body, rounds).await?;
        for (plural, configuration) in policies::webhooks() {
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}");
            post(service.clone(), path, configuration.to_string()).await?;
        }
        // Alternating, so that the cost of a growing list of objects is not attributed to webhooks.
        let body = body.replace(scenario::NUMBER, &format!("w{}", scenario::NUMBER));
        let what = format!("{plural}, webhooks");
        measure(&service, &what, plural, &body, rounds).await?;
        for (plural, configuration) in policies::webhooks() {
            let name = configuration["metadata"]["name"]
                .as_str()
                .unwrap_or_default();
            let path = format!("/apis/admissionregistration.k8s.io/v1/{plural}/{name}");
            ask(service.clone(), http::Method::DELETE, path, String::new()).await?;
        }
        let body = body.replace(scenario::NUMBER, &format!("n{}", scenario::NUMBER));
        measure(&service, plural, plural, &body, rounds).await?;
    }
    Ok(())
}

/// Creates objects, and prints the cost of each.
async fn measure(
    service: &LocalService,
    what: &str,
    plural: &str,
    body: &str,
    rounds: usize,
) -> anyhow::Result<()> {
    let before = (of_thread()?, of_process()?);
    for round in 0..rounds / AT_ONCE {
        let requests = (0..AT_ONCE).map(|number| {
            let name = format!("{:016x}", round * AT_ONCE + number);
            let body = body.replace(scenario::NUMBER, &name);
            post(service.clone(), scenario::path(plural), body)
        });
        futures::future::try_join_all(requests).await?;
    }
    let count = (rounds / AT_ONCE * AT_ONCE) as f64;
    println!(
        "{what:<24} {:>12.1} {:>12.1}",
        (of_thread()? - before.0) / count,
        (of_process()? - before.1) / count,
    );
    Ok(())
}

async fn post(service: LocalService, path: String, body: String) -> anyhow::Result<()> {
    ask(service, http::Method::POST, path, body).await
}

async fn ask(
    mut service: LocalService,
    method: http::Method,
    path: String,
    body: String,
) -> anyhow::Result<()> {
    let request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("content-type", "application/json")
        .body(Full::new(bytes::Bytes::from(body)))?;
    let answer = service.call(request).await?;
    let code = answer.status();
    let said = answer
        .into_body()
        .collect()
        .await
        .map_err(|error| anyhow::anyhow!("{error}"))?
        .to_bytes();
    ensure!(
        code.is_success(),
        "{code}: {}",
        String::from_utf8_lossy(&said)
    );
    Ok(())
}

/// Microseconds of CPU time that this thread has used.
fn of_thread() -> anyhow::Result<f64> {
    used(Path::new("/proc/thread-self"))
}

/// Microseconds of CPU time that all threads of this process have used.
fn of_process() -> anyhow::Result<f64> {
    let threads = std::fs::read_dir("/proc/self/task")?;
    threads.map(|thread| used(&thread?.path())).sum()
}

fn used(thread: &Path) -> anyhow::Result<f64> {
    let said = std::fs::read_to_string(thread.join("schedstat"))?;
    let nanoseconds: u64 = said.split(' ').next().unwrap_or_default().parse()?;
    Ok(nanoseconds as f64 / 1e3)
}
