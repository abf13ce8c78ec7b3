//! Whether credentials and certificates of a kubeconfig and flags can be used, in the words of
//! upstream.

use anyhow::Result;
use client::kubeconfig::{Cluster, User};
use serde_json::Value;

use crate::{
    error::{Plain, io_reason},
    json::{list, str_of},
};

/// What was resolved, with the names of its entries.
pub(super) struct Resolved<'a> {
    pub user_name: &'a str,
    pub user: &'a User,
    /// The plugin that gives credentials, if it is used.
    pub exec: &'a Value,
    /// Basic authentication is used.
    pub has_password: bool,
    pub cluster_name: &'a str,
    pub cluster: &'a Cluster,
    /// The proxy in the kubeconfig.
    pub proxy: &'a str,
    /// Groups, a UID or extra values are impersonated without a user.
    pub impersonates_nobody: bool,
}

impl Resolved<'_> {
    /// Fails with everything that is wrong.
    pub(super) fn check(&self) -> Result<()> {
        match self.problems().as_slice() {
            [] => Ok(()),
            [one] => Err(anyhow::anyhow!("{one}")),
            many => {
                let lines: Vec<String> = many.iter().map(|one| format!("\n* {one}")).collect();
                Err(Plain(format!("Error in configuration: {}", lines.concat())).into())
            }
        }
    }

    fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        let name = self.user_name;
        let User {
            client_certificate,
            client_certificate_data,
            client_key,
            client_key_data,
            ..
        } = self.user;
        if client_certificate.is_some() || client_certificate_data.is_some() {
            if client_certificate.is_some() && client_certificate_data.is_some() {
                problems.push(format!(
                    "client-cert-data and client-cert are both specified for {name}. client-cert-data will override."
                ));
            }
            if client_key.is_some() && client_key_data.is_some() {
                problems.push(format!(
                    "client-key-data and client-key are both specified for {name}; client-key-data will override"
                ));
            }
            if client_key.is_none() && client_key_data.is_none() {
                problems.push(format!(
                    "client-key-data or client-key must be specified for {name} to use the clientCert authentication method."
                ));
            }
            for (what, file) in [
                ("client-cert", client_certificate),
                ("client-key", client_key),
            ] {
                problems.extend(unreadable(what, file.as_deref(), name));
            }
        }
        problems.extend(self.problems_of_plugin());
        if self.user.token.is_some() && self.has_password {
            problems.push(format!(
                "more than one authentication method found for {name}; found [token basicAuth], only one is allowed"
            ));
        }
        if self.impersonates_nobody {
            problems.push(format!(
                "requesting uid, groups or user-extra for {name} without impersonating a user"
            ));
        }
        let (proxy, cluster) = (self.proxy, self.cluster_name);
        let scheme = proxy.split_once("://").map_or("", |(scheme, _)| scheme);
        if !proxy.is_empty() && !["http", "https", "socks5"].contains(&scheme) {
            problems.push(format!(
                "invalid 'proxy-url' {proxy:?} for cluster {cluster:?}: unsupported scheme {scheme:?}, must be http, https, or socks5"
            ));
        }
        let authority = self.cluster.certificate_authority.as_deref();
        if authority.is_some() && self.cluster.certificate_authority_data.is_some() {
            problems.push(format!(
                "certificate-authority-data and certificate-authority are both specified for {}. certificate-authority-data will override.",
                self.cluster_name
            ));
        }
        problems.extend(unreadable(
            "certificate-authority",
            authority,
            self.cluster_name,
        ));
        problems
    }
}

impl Resolved<'_> {
    fn problems_of_plugin(&self) -> Vec<String> {
        if self.exec.is_null() {
            return Vec::new();
        }
        let name = self.user_name;
        let text = |field: &str| str_of(&self.exec[field]);
        let required = |what: &str| {
            format!("{what} must be specified for {name} to use exec authentication plugin")
        };
        let mut problems = Vec::new();
        let fields = ["command", "apiVersion"].into_iter();
        problems.extend(fields.filter(|field| text(field).is_empty()).map(required));
        let variables = list(&self.exec["env"]);
        let unnamed = variables.filter(|variable| str_of(&variable["name"]).is_empty());
        problems.extend(unnamed.map(|_| required("env variable name")));
        match text("interactiveMode") {
            // Version v1beta1 has a default.
            "" if text("apiVersion") == "client.authentication.k8s.io/v1beta1" => {}
            "" => problems.push(required("interactiveMode")),
            "Never" | "IfAvailable" | "Always" => {}
            other => problems.push(format!("invalid interactiveMode for {name}: {other:?}")),
        }
        problems
    }
}

fn unreadable(what: &str, file: Option<&str>, name: &str) -> Option<String> {
    let file = file?;
    let error = std::fs::File::open(file).err()?;
    let why = io_reason(&error);
    Some(format!(
        "unable to read {what} {file} for {name} due to open {file}: {why}"
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn everything_that_is_wrong_is_named_at_once() {
        let missing = || Some("/nowhere/x".to_owned());
        let check = |user: User, cluster: Cluster, impersonates_nobody: bool| {
            let resolved = Resolved {
                user_name: "jane",
                user: &user,
                exec: &Value::Null,
                has_password: false,
                cluster_name: "one",
                cluster: &cluster,
                proxy: "",
                impersonates_nobody,
            };
            resolved.check().map_err(|error| error.to_string())
        };
        assert_eq!(check(User::default(), Cluster::default(), false), Ok(()));
        assert_eq!(
            check(User::default(), Cluster::default(), true).unwrap_err(),
            "requesting uid, groups or user-extra for jane without impersonating a user"
        );
        let user = User {
            client_certificate: missing(),
            ..User::default()
        };
        let cluster = Cluster {
            certificate_authority: missing(),
            ..Cluster::default()
        };
        assert_eq!(
            check(user, cluster, false).unwrap_err(),
            "Error in configuration: \n\
             * client-key-data or client-key must be specified for jane to use the clientCert authentication method.\n\
             * unable to read client-cert /nowhere/x for jane due to open /nowhere/x: no such file or directory\n\
             * unable to read certificate-authority /nowhere/x for one due to open /nowhere/x: no such file or directory"
        );
    }

    #[test]
    fn a_plugin_must_be_described_and_be_the_only_method() {
        let problems = |exec: Value, token: Option<&str>| {
            let user = User {
                token: token.map(str::to_owned),
                ..User::default()
            };
            let resolved = Resolved {
                user_name: "jane",
                user: &user,
                exec: &exec,
                has_password: true,
                cluster_name: "one",
                cluster: &Cluster::default(),
                proxy: "nope://x",
                impersonates_nobody: false,
            };
            resolved.problems()
        };
        let proxy = "invalid 'proxy-url' \"nope://x\" for cluster \"one\": unsupported scheme \"nope\", must be http, https, or socks5";
        let required = |what: &str| {
            format!("{what} must be specified for jane to use exec authentication plugin")
        };
        let fields = [
            "command",
            "apiVersion",
            "env variable name",
            "interactiveMode",
        ];
        let mut expected: Vec<String> = fields.into_iter().map(required).collect();
        expected.push(proxy.to_owned());
        assert_eq!(problems(json!({"env": [{"value": "x"}]}), None), expected);
        let old = json!({"command": "x", "apiVersion": "client.authentication.k8s.io/v1beta1"});
        assert_eq!(problems(old, None), [proxy]);
        let mode = json!({"command": "x", "apiVersion": "y", "interactiveMode": "z"});
        assert_eq!(
            problems(mode, Some("t")),
            [
                "invalid interactiveMode for jane: \"z\"",
                "more than one authentication method found for jane; found [token basicAuth], only one is allowed",
                proxy,
            ]
        );
    }
}
