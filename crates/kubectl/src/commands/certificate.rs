//! `kubectl certificate approve` and `kubectl certificate deny`

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{
    args::{DryRunMode, Files},
    error,
    json::str_of,
    manifest,
    output::PrintFlags,
    resources::{Target, from_manifests, target},
    session::Session,
};

use super::report::Report;

/// How often the decision is written again after a conflict.
const MAX_RETRIES: usize = 10;
const PATH: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";

/// The decision on a CertificateSigningRequest.
#[derive(Debug, Subcommand)]
pub(crate) enum Certificate {
    /// Approve a certificate signing request
    Approve(Requests),
    /// Deny a certificate signing request
    Deny(Requests),
}

/// Which requests.
#[derive(Debug, Args)]
pub(crate) struct Requests {
    /// NAME…
    names: Vec<String>,
    #[command(flatten)]
    files: Files,
    /// Write the decision even if the request already has it
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    print: PrintFlags,
}

/// The condition of a decision.
struct Decision {
    kind: &'static str,
    opposite: &'static str,
    reason: &'static str,
    message: &'static str,
    said: &'static str,
}

const APPROVE: Decision = Decision {
    kind: "Approved",
    opposite: "Denied",
    reason: "KubectlApprove",
    message: "This CSR was approved by kubectl certificate approve.",
    said: "approved",
};

const DENY: Decision = Decision {
    kind: "Denied",
    opposite: "Approved",
    reason: "KubectlDeny",
    message: "This CSR was denied by kubectl certificate deny.",
    said: "denied",
};

impl Certificate {
    pub(crate) async fn run(self, session: &Session) -> Result<()> {
        let (decision, requests) = match self {
            Self::Approve(requests) => (APPROVE, requests),
            Self::Deny(requests) => (DENY, requests),
        };
        requests.decide(session, &decision).await
    }
}

impl Requests {
    async fn decide(&self, session: &Session, decision: &Decision) -> Result<()> {
        let report = Report::new(&self.print, DryRunMode::None)?;
        let mut errors = Vec::new();
        let mut found = 0;
        for target in self.targets(session).await? {
            match decide_one(session, &target, decision, self.force).await {
                Ok(csr) => {
                    found += 1;
                    report.print(&csr, decision.said)?;
                }
                Err(error) => errors.push(error),
            }
        }
        if found == 0 && errors.is_empty() {
            println!("No resources found");
        }
        error::aggregate(errors)
    }

    async fn targets(&self, session: &Session) -> Result<Vec<Target>> {
        if self.names.is_empty() && self.files.is_empty() {
            bail!("one or more CSRs must be specified as <name> or -f <filename>");
        }
        if !self.names.is_empty() && !self.files.is_empty() {
            bail!(
                "when paths, URLs, or stdin is provided as input, you may not specify resource arguments as well"
            );
        }
        if !self.files.is_empty() {
            return from_manifests(session, manifest::read(&self.files).await?).await;
        }
        let mut targets = Vec::new();
        for given in &self.names {
            // As upstream: `csr/NAME` is taken too.
            let (kind, name) = match given.split_once('/') {
                Some((kind, name)) => (kind, name),
                None => ("certificatesigningrequests", given.as_str()),
            };
            let resource = session.discovery.resolve(kind).await?;
            targets.push(target(session, resource, name.to_owned()));
        }
        Ok(targets)
    }
}

/// Writes the decision; the object is given as it was before.
async fn decide_one(
    session: &Session,
    target: &Target,
    decision: &Decision,
    force: bool,
) -> Result<Value> {
    let before = session.api.get(&target.path()).await?;
    let resource = &target.resource;
    if resource.kind != "CertificateSigningRequest" {
        bail!(
            "can only handle CertificateSigningRequest.certificates.k8s.io objects, got {}",
            match resource.group.as_str() {
                "" => resource.kind.clone(),
                group => format!("{}.{group}", resource.kind),
            }
        );
    }
    for attempt in 0.. {
        let mut csr = session.api.get(&format!("{PATH}/{}", target.name)).await?;
        if !decide(&mut csr, decision, force, jiff::Timestamp::now())? {
            break;
        }
        let path = format!("{PATH}/{}/approval", target.name);
        match session.api.replace(&path, &csr, &[]).await {
            Err(error) if error::code_is(&error, 409) && attempt < MAX_RETRIES => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    Ok(before)
}

/// Adds the decision; returns false if it is already there.
fn decide(csr: &mut Value, decision: &Decision, force: bool, now: jiff::Timestamp) -> Result<bool> {
    if !csr["status"].is_object() {
        csr["status"] = json!({});
    }
    let name = str_of(&csr["metadata"]["name"]).to_owned();
    let conditions = &mut csr["status"]["conditions"];
    if !conditions.is_array() {
        *conditions = json!([]);
    }
    let Some(list) = conditions.as_array_mut() else {
        return Ok(false);
    };
    if list.iter().any(|known| known["type"] == decision.opposite) {
        bail!(
            "certificate signing request {name:?} is already {}",
            decision.opposite
        );
    }
    let known = list.iter().position(|known| known["type"] == decision.kind);
    if known.is_some() && !force {
        return Ok(false);
    }
    let time = format!("{:.0}", now);
    let condition = json!({
        "type": decision.kind, "status": "True", "reason": decision.reason,
        "message": decision.message, "lastUpdateTime": time,
    });
    match known {
        Some(at) => list[at] = condition,
        None => list.push(condition),
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_decision_is_made_once_and_never_turned_around() {
        let now = "2026-06-01T00:00:00Z".parse().unwrap();
        let mut csr = json!({"metadata": {"name": "c"}});
        assert!(decide(&mut csr, &APPROVE, false, now).unwrap());
        let condition = &csr["status"]["conditions"][0];
        assert_eq!(condition["reason"], "KubectlApprove");
        assert_eq!(condition["lastUpdateTime"], "2026-06-01T00:00:00Z");
        assert!(!decide(&mut csr, &APPROVE, false, now).unwrap());
        assert!(decide(&mut csr, &APPROVE, true, now).unwrap());
        assert_eq!(csr["status"]["conditions"].as_array().unwrap().len(), 1);
        let refused = decide(&mut csr, &DENY, true, now).unwrap_err();
        assert!(refused.to_string().contains("is already Approved"));
    }
}
