//! In-process clients: each component calls the API server as its own user, by a function call.

use std::{net::IpAddr, sync::Arc};

use apiserver::{ApiServer, User};
use client::{Connector, kube};

/// Makes clients for components in the API server's process.
#[derive(Clone)]
pub(crate) struct InProcess(pub Arc<ApiServer>);

impl InProcess {
    /// A client that acts as this user.
    pub(crate) fn as_user(&self, user: User) -> kube::Client {
        let agent = agent(&user.name);
        client::in_process(self.0.connect(user).agent(agent))
    }

    /// A client of a leader: none of its writes is committed after its term.
    pub(crate) fn fenced(&self, user: User, fence: &reconcile::election::Fence) -> kube::Client {
        let agent = agent(&user.name);
        let service = self.0.connect(user).agent(agent);
        let lease = apiserver::Fence::lease(&fence.namespace, &fence.name, &fence.resource_version);
        // Our stores only give numeric versions: with another one nothing may be written.
        let never = || apiserver::Fence::lease(&fence.namespace, &fence.name, "0");
        match lease.or_else(never) {
            Some(fence) => client::in_process(service.fenced_by(fence)),
            None => client::fenced(&client::in_process(service), || false),
        }
    }

    /// A client for the kubelet of this machine's node.
    pub(crate) fn as_node(&self, name: &str, address: IpAddr) -> kube::Client {
        let user = user(&format!("system:node:{name}"));
        let service = self.0.connect(user).agent("kubelet");
        client::in_process(service.of_node(address))
    }
}

impl Connector for InProcess {
    fn client(&self, name: &str) -> kube::Client {
        self.as_user(user(name))
    }
}

/// The User-Agent of a component, as upstream's.
fn agent(user: &str) -> &'static str {
    match user {
        "system:kube-scheduler" => "kube-scheduler",
        "system:kube-proxy" => "kube-proxy",
        "system:kube-controller-manager" => "kube-controller-manager",
        // Each controller writes as its own service account.
        _ if user.starts_with("system:serviceaccount:kube-system:") => "kube-controller-manager",
        _ if user.starts_with("system:node:") => "kubelet",
        _ => "mainstay",
    }
}

/// A component's user with its groups.
pub(crate) fn user(name: &str) -> User {
    let account = name
        .strip_prefix("system:serviceaccount:")
        .and_then(|rest| rest.split_once(':'));
    if let Some((namespace, account)) = account {
        return User::service_account(namespace, account);
    }
    let groups: &[&str] = if name.starts_with("system:node:") {
        &["system:nodes"]
    } else {
        &[]
    };
    User::new(name, groups.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names_imply_their_groups() {
        for (name, group) in [
            ("system:node:one", "system:nodes"),
            (
                "system:serviceaccount:kube-system:x",
                "system:serviceaccounts:kube-system",
            ),
            ("system:kube-scheduler", "system:authenticated"),
        ] {
            assert!(user(name).is_in(group), "{name}");
            assert_eq!(user(name).name, name);
        }
        for (name, expected) in [
            ("system:node:one", "kubelet"),
            ("system:kube-scheduler", "kube-scheduler"),
            (
                "system:serviceaccount:kube-system:job-controller",
                "kube-controller-manager",
            ),
            ("kubernetes-admin", "mainstay"),
        ] {
            assert_eq!(agent(name), expected, "{name}");
        }
        assert!(!user("system:kube-scheduler").is_in("system:masters"));
    }
}
