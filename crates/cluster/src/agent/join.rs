//! The steps of joining, in order: discover the CA, reject a name that is taken, request the node's
//! certificate with the token, and the others with that certificate.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use client::Api;
use client::kube::{self};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use pki::Renewing;
use reconcile::placement;
use stdx::Backoff;

use super::{
    CONFIG_MAP, Facts, Join, Membership, Token,
    certificates::{Purpose, request},
    discovery,
};
use crate::{Error, Settings, skew};

/// How long an agent that has joined before waits for a server at startup.
const SERVER_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a server's first start, or the signature of a new token, is waited for.
const START_TIMEOUT: Duration = Duration::from_secs(5);

/// The CA must be one of the pinned ones, if any. All certificates of a bundle are trusted, so that
/// each must be pinned: a server that knows the token could add its own.
pub(super) fn check_pins(ca: &str, pins: &[String]) -> Result<(), Error> {
    let hashes = pki::public_key_hashes(ca.as_bytes())?;
    let is_pinned = |hash: &&String| pins.iter().any(|pin| pin.eq_ignore_ascii_case(hash));
    match hashes.iter().find(|hash| !is_pinned(hash)) {
        Some(hash) if !pins.is_empty() => Err(Error::Join(format!(
            "the hash of the cluster's CA is {hash}, but --ca-hash is {}",
            pins.join(", ")
        ))),
        _ => Ok(()),
    }
}

/// Joins with a token. Retries while the server does not answer, and for a moment while it seems to start; all other
/// errors are final.
pub(super) async fn first(
    settings: &Settings,
    join: &Join,
    kubelet: &Arc<Renewing>,
) -> Result<(Facts, String), Error> {
    let (Some(server), Some(token)) = (&join.server, &join.token) else {
        let flag = if join.server.is_none() {
            "server"
        } else {
            "token"
        };
        let why =
            "is needed: this machine has not joined a cluster yet, or its certificate has expired";
        return Err(Error::Option(flag, why.to_owned()));
    };
    let token = Token::parse(token).ok_or_else(|| {
        let why = "is not of the form abcdef.0123456789abcdef".to_owned();
        Error::Option("token", why)
    })?;
    let mut backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(5));
    // Since when it answers like a server that starts.
    let mut starting: Option<Instant> = None;
    loop {
        let error = match discovery::authority(server, &token, &join.ca_hashes).await {
            Ok(ca) => match attempt(settings, server, &token, ca, kubelet).await {
                Err(error) if is_passing(&error) => error,
                done => return done.map_err(|error| explain(error, &token)),
            },
            Err(error) if discovery::may_be_starting(&error) => {
                if starting.get_or_insert_with(Instant::now).elapsed() > START_TIMEOUT {
                    return Err(discovery::explain(error));
                }
                error
            }
            Err(error) if is_passing(&error) => error,
            Err(error) => return Err(discovery::explain(error)),
        };
        tracing::warn!(%error, server, "server not reachable yet");
        tokio::time::sleep(backoff.step()).await;
    }
}

/// What a refusal of the token means. It may have been deleted since it was verified.
fn explain(error: Error, token: &Token) -> Error {
    let Error::Api(kube::Error::Api(status)) = &error else {
        return error;
    };
    let id = &token.id;
    match status.code {
        401 => Error::Join(format!(
            "the server does not accept the token {id}: it has expired, was deleted, or has no usage \
             \"authentication\""
        )),
        403 => Error::Join(format!(
            "the groups of the token {id} may not join nodes: {}",
            status.message
        )),
        _ => error,
    }
}

/// Whether a retry may help: the server did not answer, or is starting.
pub(super) fn is_passing(error: &Error) -> bool {
    match error {
        Error::Api(kube::Error::Api(status)) => status.code >= 500 || status.code == 429,
        Error::Api(_) => true,
        _ => false,
    }
}

async fn attempt(
    settings: &Settings,
    server: &str,
    token: &Token,
    ca: String,
    kubelet: &Arc<Renewing>,
) -> Result<(Facts, String), Error> {
    let tls = pki::bearer_client_config(ca.as_bytes())?;
    let options = client::Options {
        token: Some(token.reveal()),
        headers: super::agent_header("kubelet"),
        ..client::Options::default()
    };
    let client = client::https(server, tls, options)?;
    skew::check_server(&client).await?;
    refuse_taken_name(&client, &settings.node_name).await?;
    let facts = facts(&client, server).await?;
    request(&client, settings, Purpose::Kubelet, kubelet).await?;
    Ok((facts, ca))
}

/// A Ready node of this name is another machine. One that is not Ready may be this one, set up
/// anew, or one that is gone for good.
async fn refuse_taken_name(client: &kube::Client, name: &str) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(client.clone());
    match nodes.get_opt(name).await? {
        Some(node) if placement::is_ready(&node) => Err(Error::Join(format!(
            "a Ready node {name:?} is already in the cluster: choose another name with \
             --node-name, or delete that node first"
        ))),
        _ => Ok(()),
    }
}

async fn facts(client: &kube::Client, server: &str) -> Result<Facts, Error> {
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), CONFIG_MAP.0);
    let map = maps.get(CONFIG_MAP.1).await?;
    Facts::parse(server, &map.data.unwrap_or_default())
}

/// Requests what a member still lacks, and what may have changed since it joined.
pub(super) async fn complete(
    settings: &Settings,
    membership: &mut Membership,
) -> Result<(), Error> {
    let client = membership.client(&membership.kubelet)?;
    let steps = async {
        skew::check_server(&client).await?;
        let facts = Facts {
            servers: membership.facts.servers.clone(),
            ..facts(&client, &membership.facts.server).await?
        };
        if !membership.proxy.is_valid(jiff::Timestamp::now()) {
            request(&client, settings, Purpose::Proxy, &membership.proxy).await?;
        }
        Ok::<_, Error>(facts)
    };
    let steps = tokio::time::timeout(SERVER_TIMEOUT, steps).await;
    membership.facts =
        steps.map_err(|_| Error::Join(format!("no answer within {SERVER_TIMEOUT:?}")))??;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(code: u16) -> Error {
        let status = kube::core::Status {
            code,
            message: "nodes is forbidden".to_owned(),
            ..kube::core::Status::default()
        };
        Error::Api(kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn a_refusal_of_the_token_is_explained() {
        let token = Token::parse("abcdef.0123456789abcdef").unwrap();
        let explained = |code| explain(status(code), &token).to_string();
        for (code, expected) in [
            (401, "does not accept the token abcdef"),
            (403, "may not join nodes: nodes is forbidden"),
            (404, "API: nodes is forbidden"),
        ] {
            let why = explained(code);
            assert!(why.contains(expected), "{why}");
            assert!(
                !why.contains("Status {") && !why.contains(&token.secret),
                "{why}"
            );
        }
    }

    #[test]
    fn only_silence_and_a_starting_server_are_waited_for() {
        assert!(is_passing(&status(503)) && is_passing(&status(429)));
        assert!(!is_passing(&status(401)) && !is_passing(&status(403)));
        assert!(!is_passing(&Error::Join("no".into())));
    }
}
