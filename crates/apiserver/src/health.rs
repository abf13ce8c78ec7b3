//! `/healthz`, `/livez`, `/readyz` with their individual checks, and `/version`.

use std::{collections::BTreeSet, sync::Arc};

use http::{HeaderMap, StatusCode};
use lifecycle::State;
use machinery::json::json;
use server_metrics::{PLATFORM, ServerMetrics};
use stdx::Version;
use tokio_util::sync::CancellationToken;

use crate::{
    Store,
    handlers::no_page,
    media,
    pipeline::Request,
    respond::{self, Answer},
    started::{HOOKS, ServerState, StartupPart},
};

/// Checks of the server itself and of its store.
const OWN: [&str; 5] = [
    "ping",
    "log",
    "etcd",
    "poststarthook/storage-object-count-tracker-hook",
    "poststarthook/storage-readiness",
];

/// The names of the checks that every endpoint has, and that can be requested individually.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    OWN.into_iter().chain(HOOKS.iter().map(|(name, _)| *name))
}

/// What is checked.
pub(crate) struct HealthChecks {
    pub(crate) store: Store,
    pub(crate) state: Arc<ServerState>,
    /// The services of this process.
    pub(crate) services: lifecycle::Health,
    pub(crate) stopping: CancellationToken,
    pub(crate) metrics: Arc<ServerMetrics>,
}

struct Check {
    name: String,
    failure: Option<String>,
}

/// Answers a health path: all checks of an endpoint, or a single one.
pub(crate) async fn serve(health: &HealthChecks, request: &Request) -> Answer {
    let path = request.info.path.trim_start_matches('/');
    let (endpoint, single) = path
        .split_once('/')
        .map_or((path, None), |(endpoint, single)| (endpoint, Some(single)));
    let mut checks = checks(health, endpoint).await;
    if let Some(single) = single {
        checks.retain(|check| check.name == single);
        return Ok(match checks.first() {
            None => no_page(),
            Some(Check { failure: None, .. }) => respond::text(StatusCode::OK, "ok"),
            Some(Check {
                failure: Some(why), ..
            }) => respond::unsniffed(respond::text(
                StatusCode::INTERNAL_SERVER_ERROR,
                format!("internal server error: {why}\n"),
            )),
        });
    }
    let excluded: BTreeSet<&str> = request.query.all("exclude").collect();
    for check in checks.iter().filter(|c| !excluded.contains(&*c.name)) {
        health
            .metrics
            .record_health_check(endpoint, &check.name, check.failure.is_none());
    }
    let verbose = request.query.get("verbose").is_some();
    let report = report(endpoint, &checks, excluded, verbose);
    Ok(respond::unsniffed(report))
}

/// The results of the checks as metrics.
pub(crate) fn indicators(health: &HealthChecks) -> Answer {
    let text = health.metrics.indicators();
    Ok(respond::bytes(StatusCode::OK, server_metrics::MEDIA, text))
}

async fn checks(health: &HealthChecks, endpoint: &str) -> Vec<Check> {
    let store = health.store.revision().await.err();
    let store = store.map(|error| error.to_string());
    let mut checks: Vec<Check> = Vec::new();
    let mut add = |name: &str, failure: Option<String>| {
        checks.push(Check {
            name: name.to_owned(),
            failure,
        });
    };
    for name in OWN {
        let is_of_store = !matches!(name, "ping" | "log");
        add(name, store.clone().filter(|_| is_of_store));
    }
    let unfinished = |part: StartupPart| {
        let is_finished = health.state.started.is_finished(part);
        (!is_finished).then(|| "not finished".to_owned())
    };
    for (name, part) in HOOKS {
        add(name, unfinished(*part));
    }
    if endpoint == "readyz" {
        let stopping = health.stopping.is_cancelled();
        let stopping = stopping.then(|| "process is shutting down".to_owned());
        add("etcd-readiness", store);
        let informers = [
            StartupPart::Plugins,
            StartupPart::FlowControl,
            StartupPart::Definitions,
        ];
        add("informer-sync", informers.into_iter().find_map(unfinished));
        add("shutdown", stopping);
    }
    if endpoint != "livez" {
        for service in health.services.all() {
            let problems: Vec<String> = service.problems.into_values().collect();
            let problems = problems.join("; ");
            let failure = match service.state {
                State::Failed(why) => Some(why),
                State::Stopped => Some("stopped".to_owned()),
                State::Waiting | State::Starting | State::Ready
                    if endpoint == "readyz" && !problems.is_empty() =>
                {
                    Some(problems)
                }
                State::Waiting | State::Starting if endpoint == "readyz" => {
                    Some("not ready yet".to_owned())
                }
                _ => None,
            };
            add(&format!("service/{}", service.name), failure);
        }
    }
    checks
}

fn report(
    endpoint: &str,
    checks: &[Check],
    mut excluded: BTreeSet<&str>,
    verbose: bool,
) -> http::Response<crate::Body> {
    let mut text = String::new();
    let mut failed = false;
    for check in checks {
        if excluded.remove(check.name.as_str()) {
            text += &format!("[+]{} excluded: ok\n", check.name);
        } else if let Some(why) = &check.failure {
            failed = true;
            tracing::debug!(endpoint, check = check.name, why, "check failed");
            text += &format!("[-]{} failed: reason withheld\n", check.name);
        } else {
            text += &format!("[+]{} ok\n", check.name);
        }
    }
    if !excluded.is_empty() {
        let unknown: Vec<String> = excluded.iter().map(|name| format!("{name:?}")).collect();
        let unknown = unknown.join(", ");
        text += "warn: some health checks cannot be excluded: no matches for ";
        text += &format!("{unknown}\n");
    }
    if failed {
        text += &format!("{endpoint} check failed\n");
        return respond::text(StatusCode::INTERNAL_SERVER_ERROR, text);
    }
    if verbose {
        text += &format!("{endpoint} check passed\n");
        return respond::text(StatusCode::OK, text);
    }
    respond::text(StatusCode::OK, "ok")
}

/// `/version`, always as JSON.
pub(crate) fn version(headers: &HeaderMap) -> Answer {
    media::takes(headers, respond::JSON)?;
    let own = Version::own();
    let (major, minor) = (own.major.to_string(), own.minor.to_string());
    Ok(respond::lines(&json!({
        "major": &major,
        "minor": &minor,
        "emulationMajor": &major,
        "emulationMinor": &minor,
        "minCompatibilityMajor": &major,
        "minCompatibilityMinor": own.minor.saturating_sub(1).to_string(),
        "gitVersion": format!("{own}+mainstay"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": PLATFORM,
    })))
}
