//! Exec credential plugins: programs that print an ExecCredential.

use std::{
    io::IsTerminal,
    process::{Command, Stdio},
};

use anyhow::{Context, Result, bail};
use base64::{Engine, prelude::BASE64_STANDARD};
use jiff::Timestamp;
use serde_json::{Value, json};

use crate::{
    error::{Plain, io_reason},
    json::{list, str_of},
};

/// The credentials from a plugin.
#[derive(Debug, Default)]
pub(crate) struct Credential {
    pub token: Option<String>,
    pub certificate: Option<String>,
    pub key: Option<String>,
    /// When the plugin must be asked again.
    pub expires: Option<Timestamp>,
}

/// Runs the plugin and parses its output.
pub(crate) fn credential(exec: &Value, cluster: &Value, server: &str) -> Result<Credential> {
    let version = str_of(&exec["apiVersion"]);
    if ![
        "client.authentication.k8s.io/v1",
        "client.authentication.k8s.io/v1beta1",
    ]
    .contains(&version)
    {
        bail!("exec plugin: invalid apiVersion {version:?}");
    }
    let program = str_of(&exec["command"]);
    if program.is_empty() {
        bail!("exec plugin: command must be specified");
    }
    let is_interactive = match str_of(&exec["interactiveMode"]) {
        "Never" => false,
        "Always" if !std::io::stdin().is_terminal() => {
            bail!("exec plugin cannot support interactive mode: standard input is not a terminal")
        }
        _ => std::io::stdin().is_terminal(),
    };
    let mut command = Command::new(program);
    command.args(list(&exec["args"]).map(str_of));
    for variable in list(&exec["env"]) {
        command.env(str_of(&variable["name"]), str_of(&variable["value"]));
    }
    command.env(
        "KUBERNETES_EXEC_INFO",
        info(exec, cluster, server, version, is_interactive).to_string(),
    );
    command.stdin(if is_interactive {
        Stdio::inherit()
    } else {
        Stdio::null()
    });
    command.stderr(Stdio::inherit());
    let output = command.output().map_err(|error| {
        let why = match program.contains('/') {
            true => format!("exec: fork/exec {program}: {}", io_reason(&error)),
            false => format!("exec: executable {program} not found"),
        };
        let hint = match str_of(&exec["installHint"]) {
            "" => String::new(),
            // It says how to install a program that is not on the PATH.
            _ if program.contains('/') => String::new(),
            hint => format!("\n\n{hint}\n"),
        };
        failed(&format!("{why}{hint}"))
    })?;
    if !output.status.success() {
        let code = output.status.code().unwrap_or(1);
        return Err(failed(&format!(
            "exec: executable {program} failed with exit code {code}"
        )));
    }
    read(&output.stdout, version)
}

/// The error of a connection that has no credentials.
fn failed(why: &str) -> anyhow::Error {
    Plain(format!(
        "Unable to connect to the server: getting credentials: {why}"
    ))
    .into()
}

/// The ExecCredential passed to the plugin.
fn info(exec: &Value, cluster: &Value, server: &str, version: &str, is_interactive: bool) -> Value {
    let mut spec = json!({"interactive": is_interactive});
    if exec["provideClusterInfo"] == true {
        let mut given = json!({"server": server});
        for field in [
            "tls-server-name",
            "insecure-skip-tls-verify",
            "certificate-authority-data",
            "proxy-url",
        ] {
            if !cluster[field].is_null() {
                given[field] = cluster[field].clone();
            }
        }
        // The plugin gets the certificates themselves, not the name of a file.
        let file = str_of(&cluster["certificate-authority"]);
        if cluster["certificate-authority-data"].is_null()
            && let Ok(pem) = std::fs::read(file)
        {
            given["certificate-authority-data"] = json!(BASE64_STANDARD.encode(pem));
        }
        let config = list(&cluster["extensions"])
            .find(|one| one["name"] == "client.authentication.k8s.io/exec");
        if let Some(config) = config {
            given["config"] = config["extension"].clone();
        }
        spec["cluster"] = given;
    }
    json!({"kind": "ExecCredential", "apiVersion": version, "spec": spec})
}

fn read(stdout: &[u8], version: &str) -> Result<Credential> {
    let answer: Value =
        serde_json::from_slice(stdout).context("decoding stdout of the exec plugin")?;
    if answer["apiVersion"] != version {
        bail!(
            "exec plugin is configured to use API version {version}, plugin returned version {}",
            str_of(&answer["apiVersion"])
        );
    }
    let status = &answer["status"];
    let text =
        |field: &str| Some(str_of(&status[field]).to_owned()).filter(|text| !text.is_empty());
    let credential = Credential {
        token: text("token"),
        certificate: text("clientCertificateData"),
        key: text("clientKeyData"),
        expires: str_of(&status["expirationTimestamp"]).parse().ok(),
    };
    match (&credential.token, &credential.certificate, &credential.key) {
        (None, None, None) => bail!("exec plugin didn't return a token or cert/key pair"),
        (_, Some(_), None) | (_, None, Some(_)) => {
            bail!("exec plugin returned only certificate or key, not both")
        }
        _ => Ok(credential),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plugin_gets_the_cluster_and_gives_a_token() {
        let script = r#"printf '{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{"token":"%s"}}' "$(printf %s "$KUBERNETES_EXEC_INFO" | grep -c '"server":"https://s"')-$X""#;
        let exec = json!({
            "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script],
            "env": [{"name": "X", "value": "y"}], "provideClusterInfo": true, "interactiveMode": "Never"});
        let credential = credential(&exec, &json!({}), "https://s").unwrap();
        assert_eq!(credential.token.as_deref(), Some("1-y"));
    }

    #[test]
    fn a_plugin_that_fails_or_answers_with_nothing_is_an_error() {
        for script in [
            "exit 3",
            "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"status\":{}}'",
            "echo '{\"apiVersion\":\"client.authentication.k8s.io/v1beta1\",\"status\":{\"token\":\"x\"}}'",
        ] {
            let exec = json!({
                "apiVersion": "client.authentication.k8s.io/v1", "command": "sh", "args": ["-c", script]});
            assert!(
                credential(&exec, &json!({}), "https://s").is_err(),
                "{script}"
            );
        }
    }
}
