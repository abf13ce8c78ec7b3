//! Whether credentials and certificates of a kubeconfig and flags can be used, in the words of
//! upstream.

use anyhow::Result;
use client::kubeconfig::{Cluster, User};

use crate::error::{Plain, io_reason};

/// What was resolved, with the names of its entries.
pub(super) struct Resolved<'a> {
    pub user_name: &'a str,
    pub user: &'a User,
    pub cluster_name: &'a str,
    pub cluster: &'a Cluster,
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
        if self.impersonates_nobody {
            problems.push(format!(
                "requesting uid, groups or user-extra for {name} without impersonating a user"
            ));
        }
        let authority = self.cluster.certificate_authority.as_deref();
        problems.extend(unreadable(
            "certificate-authority",
            authority,
            self.cluster_name,
        ));
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
    use super::*;

    #[test]
    fn everything_that_is_wrong_is_named_at_once() {
        let missing = || Some("/nowhere/x".to_owned());
        let check = |user: User, cluster: Cluster, impersonates_nobody: bool| {
            let resolved = Resolved {
                user_name: "jane",
                user: &user,
                cluster_name: "one",
                cluster: &cluster,
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
}
