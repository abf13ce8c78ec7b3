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

/// What exists during the creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Beside {
    /// Nothing.
    Nothing,
    /// Webhooks for other resources.
    Webhooks,
    /// Ten ValidatingAdmissionPolicies of five expressions each, for ConfigMaps.
    Policies,
}

impl Beside {
    /// In turn, so that the cost of a growing list of objects is not attributed to one of them.
    const ALL: [Self; 4] = [Self::Nothing, Self::Webhooks, Self::Policies, Self::Nothing];

    /// Plurals and objects.
    fn objects(self) -> Vec<(&'static str, serde_json::Value)> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Webhooks => policies::webhooks().collect(),
            Self::Policies => policies::policies(),
        }
    }
}

/// Prints microseconds per create of some kinds, beside webhooks and policies.
pub(crate) async fn run(
    directory: &Path,
    rounds: usize,
    only: Option<&str>,
    beside: Option<Beside>,
) -> anyhow::Result<()> {
    let (server, supervisor) = serve::assemble(directory, ([127, 0, 0, 1], 0).into(), false)?;
    tokio::spawn(supervisor.run(CancellationToken::new()));
    server.address().await;
    let service = server.connect(User::new("bench", ["system:masters"]));
    for (path, body) in scenario::preparation() {
        post(service.clone(), path, body).await?;
    }
    println!("{:<24} {:>12} {:>12}", "create", "thread µs", "process µs");
    let turns: Vec<Beside> = beside.map_or(Beside::ALL.to_vec(), |one| vec![one]);
    for (plural, body) in scenario::bodies() {
        if only.is_some_and(|only| only != plural) {
            continue;
        }
        for (turn, beside) in turns.iter().enumerate() {
            let objects = beside.objects();
            for (plural, object) in &objects {
                let path = format!("{}/{plural}", policies::GROUP);
                post(service.clone(), path, object.to_string()).await?;
            }
            if *beside == Beside::Policies {
                policies_count(&service).await?;
            }
            let name = format!("t{turn}-{}", scenario::NUMBER);
            let body = body.replace(scenario::NUMBER, &name);
            let what = format!("{plural}, {beside:?}");
            measure(&service, &what, plural, &body, rounds).await?;
            for (plural, object) in &objects {
                let name = object["metadata"]["name"].as_str().unwrap_or_default();
                let path = format!("{}/{plural}/{name}", policies::GROUP);
                ask(service.clone(), http::Method::DELETE, path, String::new()).await?;
            }
        }
    }
    Ok(())
}

/// Waits until the last policy rejects what it rejects.
async fn policies_count(service: &LocalService) -> anyhow::Result<()> {
    let path = format!("{}?dryRun=All", scenario::path("configmaps"));
    let rejected = policies::rejected().to_string();
    while post(service.clone(), path.clone(), rejected.clone())
        .await
        .is_ok()
    {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
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
