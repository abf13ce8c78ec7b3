//! `kubectl create token`

use std::io::IsTerminal;

use anyhow::{Result, bail};
use clap::Args;
use serde_json::json;

use crate::{error::ServerError, json::str_of, output::PrintFlags, session::Session};

/// Flags of `create token`.
#[derive(Debug, Args)]
pub(super) struct Token {
    /// The service account
    name: String,
    /// Audience of the requested token; may be repeated
    #[arg(long)]
    audience: Vec<String>,
    /// Requested lifetime of the issued token
    #[arg(long, default_value = "0s", value_name = "DURATION")]
    duration: String,
    /// Kind of an object to bind the token to: Node, Pod or Secret
    #[arg(long, value_name = "KIND")]
    bound_object_kind: Option<String>,
    /// Name of an object to bind the token to
    #[arg(long, value_name = "NAME")]
    bound_object_name: Option<String>,
    /// UID of an object to bind the token to
    #[arg(long, value_name = "UID")]
    bound_object_uid: Option<String>,
    #[command(flatten)]
    print: PrintFlags,
}

impl Token {
    pub(super) async fn run(self, session: &Session) -> Result<()> {
        let mut spec = json!({"audiences": self.audience});
        let Ok(duration) = crate::duration::parse(&self.duration) else {
            bail!("--duration must be greater than or equal to 0");
        };
        if duration.as_nanos() % 1_000_000_000 != 0 {
            bail!("--duration cannot be expressed in units less than seconds");
        }
        if self.audience.iter().any(String::is_empty) {
            bail!("--audience must not be an empty string");
        }
        if !duration.is_zero() {
            spec["expirationSeconds"] = json!(duration.as_secs());
        }
        if let Some(kind) = self.bound_object_kind.as_deref()
            && !["Node", "Pod", "Secret"].contains(&kind)
        {
            bail!("supported --bound-object-kind values are Node, Pod, Secret");
        }
        match (&self.bound_object_kind, &self.bound_object_name) {
            (Some(kind), Some(name)) => {
                spec["boundObjectRef"] = json!({
                    "kind": kind, "apiVersion": "v1", "name": name,
                    "uid": self.bound_object_uid.as_deref().unwrap_or_default()});
            }
            (Some(_), None) => {
                bail!("--bound-object-name is required if --bound-object-kind is provided")
            }
            (None, None) if self.bound_object_uid.is_none() => {}
            (None, None) => {
                bail!("--bound-object-uid can only be set if --bound-object-kind is provided")
            }
            (None, Some(_)) => {
                bail!("--bound-object-name can only be set if --bound-object-kind is provided")
            }
        }
        let path = format!(
            "/api/v1/namespaces/{}/serviceaccounts/{}/token",
            session.namespace, self.name
        );
        let request = json!({"kind": "TokenRequest", "apiVersion": "authentication.k8s.io/v1", "metadata": {}, "spec": spec});
        let answer = session
            .api
            .managed_by("")
            .create(&path, &request, &[])
            .await;
        let answer = answer.map_err(|error| match error.downcast::<ServerError>() {
            Ok(ServerError(status)) => {
                anyhow::anyhow!("failed to create token: {}", status.message)
            }
            Err(error) => error,
        })?;
        if let Some(printer) = self.print.printer()? {
            return printer.print(&answer);
        }
        let token = str_of(&answer["status"]["token"]);
        if token.is_empty() {
            bail!("failed to create token: no token in server response");
        }
        match std::io::stdout().is_terminal() {
            true => println!("{token}"),
            false => print!("{token}"),
        }
        Ok(())
    }
}
