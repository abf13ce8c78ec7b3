//! Authorizers in the order of a file. The file is read again when it changes; an invalid file is logged and ignored.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use arc_swap::ArcSwap;
use async_trait::async_trait;
use parking_lot::Mutex;

use super::{
    Attributes, Authorizer, Decision, decide,
    webhook::{Webhook, config::AuthorizationConfiguration},
};

/// How often the file is read.
const INTERVAL: Duration = Duration::from_secs(10);

type Chain = Vec<Arc<dyn Authorizer>>;

#[derive(Clone)]
pub(super) struct Configured(Arc<Shared>);

struct Shared {
    path: PathBuf,
    node: Arc<dyn Authorizer>,
    rbac: Arc<dyn Authorizer>,
    current: ArcSwap<Chain>,
    /// Guards the text that was read last.
    text: Mutex<String>,
}

impl Configured {
    pub(super) fn load(
        path: &Path,
        node: Arc<dyn Authorizer>,
        rbac: Arc<dyn Authorizer>,
    ) -> Result<Self, String> {
        let failed = |why: String| format!("{}: {why}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let chain = chain(&text, &node, &rbac).map_err(failed)?;
        Ok(Self(Arc::new(Shared {
            path: path.to_owned(),
            node,
            rbac,
            current: ArcSwap::from_pointee(chain),
            text: Mutex::new(text),
        })))
    }

    fn reload_if_changed(&self) {
        let path = self.0.path.display();
        let text = match std::fs::read_to_string(&self.0.path) {
            Ok(text) => text,
            Err(error) => {
                return tracing::error!(%path, %error, "cannot read the authorization configuration");
            }
        };
        let mut known = self.0.text.lock();
        if *known == text {
            return;
        }
        match chain(&text, &self.0.node, &self.0.rbac) {
            Ok(chain) => {
                self.0.current.store(Arc::new(chain));
                tracing::info!(%path, "authorization configuration replaced");
            }
            Err(error) => {
                tracing::error!(%path, %error, "invalid authorization configuration, keeping the current one");
            }
        }
        *known = text;
    }
}

fn chain(
    text: &str,
    node: &Arc<dyn Authorizer>,
    rbac: &Arc<dyn Authorizer>,
) -> Result<Chain, String> {
    let config = AuthorizationConfiguration::parse(text)?;
    let authorizers = config.authorizers.iter().map(|one| match &one.webhook {
        Some(webhook) => {
            let webhook = Webhook::new(&one.name, webhook)?;
            Ok(Arc::new(webhook) as Arc<dyn Authorizer>)
        }
        None if one.kind == "Node" => Ok(node.clone()),
        None => Ok(rbac.clone()),
    });
    authorizers.collect()
}

#[async_trait]
impl Authorizer for Configured {
    fn name(&self) -> &'static str {
        "configured"
    }

    async fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        decide(&self.0.current.load_full(), attributes).await
    }

    fn start(&self, context: &lifecycle::Context) {
        self.0.node.start(context);
        self.0.rbac.start(context);
        let (own, shutdown) = (self.clone(), context.token());
        context.spawn("authorization-configuration", async move {
            loop {
                tokio::select! {
                    () = shutdown.cancelled() => return,
                    () = tokio::time::sleep(INTERVAL) => own.reload_if_changed(),
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use request::User;

    struct Says(Decision);

    #[async_trait]
    impl Authorizer for Says {
        fn name(&self) -> &'static str {
            "says"
        }

        async fn authorize(&self, _: &Attributes<'_>) -> Decision {
            self.0.clone()
        }
    }

    #[tokio::test]
    async fn the_order_is_that_of_the_file_and_a_wrong_file_replaces_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        let file = |first: &str, second: &str| {
            format!(
                "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers:\n- {{type: {first}, name: a}}\n- {{type: {second}, name: b}}\n"
            )
        };
        std::fs::write(&path, file("Node", "RBAC")).unwrap();
        let node = Arc::new(Says(Decision::Deny("node".to_owned())));
        let rbac = Arc::new(Says(Decision::Allow));
        let configured = Configured::load(&path, node, rbac).unwrap();
        let user = User::new("eve", ["a"]);
        let attributes = Attributes {
            user: &user,
            verb: "get",
            is_resource: false,
            group: "",
            version: "",
            resource: "",
            subresource: "",
            namespace: "",
            name: "",
            path: "/",
            field_selector: "",
            label_selector: "",
        };
        let denied = Decision::Deny("node".to_owned());
        assert_eq!(configured.authorize(&attributes).await, denied);
        std::fs::write(&path, file("RBAC", "ABAC")).unwrap();
        configured.reload_if_changed();
        assert_eq!(configured.authorize(&attributes).await, denied);
        std::fs::write(&path, file("RBAC", "Node")).unwrap();
        configured.reload_if_changed();
        assert_eq!(configured.authorize(&attributes).await, Decision::Allow);
    }
}
