//! `/healthz`, `/livez`, `/readyz`, with their single checks, and `/version`.

use http::StatusCode;
use lifecycle::State;
use machinery::Status;
use machinery::json::json;

use crate::{
    pipeline::{Core, Request},
    respond::{self, Answer},
};

/// The Kubernetes version this server speaks.
pub(crate) const VERSION: (&str, &str, &str) = ("1", "36", "v1.36.4");

struct Check {
    name: String,
    failure: Option<String>,
}

/// Answers a health path.
pub(crate) async fn serve(request: &Request) -> Answer {
    let mut parts = request.info.path.trim_matches('/').split('/');
    let endpoint = parts.next().unwrap_or_default().to_owned();
    let single = parts.collect::<Vec<_>>().join("/");
    let mut checks = checks(&request.core, &endpoint).await;
    if !single.is_empty() {
        checks.retain(|check| check.name == single);
        if checks.is_empty() {
            return Err(Status::path_not_found());
        }
    }
    let excluded: Vec<&str> = request.query.all("exclude").collect();
    Ok(report(
        &endpoint,
        &checks,
        &excluded,
        request.query.get("verbose").is_some(),
    ))
}

async fn checks(core: &Core, endpoint: &str) -> Vec<Check> {
    let store = core
        .store
        .revision()
        .await
        .err()
        .map(|error| error.to_string());
    let mut checks = vec![
        Check {
            name: "ping".to_owned(),
            failure: None,
        },
        Check {
            name: "store".to_owned(),
            failure: store,
        },
    ];
    if endpoint == "readyz" {
        let stopping = core
            .stopping
            .is_cancelled()
            .then(|| "process is shutting down".to_owned());
        checks.push(Check {
            name: "shutdown".to_owned(),
            failure: stopping,
        });
    }
    if endpoint != "livez" {
        for service in core.config.health.all() {
            let failure = match service.state {
                State::Failed(why) => Some(why),
                State::Stopped => Some("stopped".to_owned()),
                State::Waiting | State::Starting if endpoint == "readyz" => {
                    Some("not ready yet".to_owned())
                }
                _ => None,
            };
            checks.push(Check {
                name: format!("service/{}", service.name),
                failure,
            });
        }
    }
    checks
}

fn report(
    endpoint: &str,
    checks: &[Check],
    excluded: &[&str],
    verbose: bool,
) -> http::Response<crate::Body> {
    let mut text = String::new();
    let mut failed = false;
    for check in checks {
        if excluded.contains(&check.name.as_str()) {
            text += &format!("[+]{} excluded: ok\n", check.name);
        } else if let Some(why) = &check.failure {
            failed = true;
            tracing::debug!(endpoint, check = check.name, why, "check failed");
            text += &format!("[-]{} failed: reason withheld\n", check.name);
        } else {
            text += &format!("[+]{} ok\n", check.name);
        }
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

/// `/version`.
pub(crate) fn version() -> http::Response<crate::Body> {
    let (major, minor, git) = VERSION;
    respond::json(&json!({
        "major": major,
        "minor": minor,
        "emulationMajor": major,
        "emulationMinor": minor,
        "minCompatibilityMajor": major,
        "minCompatibilityMinor": "35",
        "gitVersion": format!("{git}+mainstay"),
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("linux/{}", if cfg!(target_arch = "x86_64") { "amd64" } else { "arm64" }),
    }))
}
