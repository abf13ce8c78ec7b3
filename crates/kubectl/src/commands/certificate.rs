//! `kubectl certificate approve` and `kubectl certificate deny`

use anyhow::{Result, bail};
use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::{json::str_of, session::Session};

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
    /// NAME, or csr/NAME
    #[arg(required = true)]
    names: Vec<String>,
    /// Write the decision even if the request already has it
    #[arg(long)]
    force: bool,
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
        for given in &requests.names {
            let name = match given.split_once('/') {
                None => given,
                Some((kind, name)) if is_request(kind) => name,
                Some((kind, _)) => bail!("can only decide certificatesigningrequests, not {kind}"),
            };
            let mut csr = session.api.get(&format!("{PATH}/{name}")).await?;
            let now = jiff::Timestamp::now();
            if decide(&mut csr, &decision, requests.force, now)? {
                let path = format!("{PATH}/{name}/approval");
                session.api.replace(&path, &csr, &[]).await?;
            }
            println!(
                "certificatesigningrequest.certificates.k8s.io/{name} {}",
                decision.said
            );
        }
        Ok(())
    }
}

fn is_request(kind: &str) -> bool {
    let kind = kind.split('.').next().unwrap_or_default();
    matches!(
        kind,
        "csr" | "certificatesigningrequest" | "certificatesigningrequests"
    )
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
        assert!(is_request("csr") && is_request("certificatesigningrequests.certificates.k8s.io"));
        assert!(!is_request("pods"));
    }
}
