//! Ensures that every namespace has the ServiceAccount "default", which pods use by default.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::ObjectMeta;
use reconcile::{Action, Controller, Error, Key, Writer};

use crate::shared::{Shared, is_active_namespace};

/// The name in [`crate::ALL`].
pub const NAME: &str = "serviceaccount";
const ACCOUNT: &str = "service-account-controller";
const DEFAULT: &str = "default";

struct Accounts {
    namespaces: client::Informer<Namespace>,
    accounts: Writer<ServiceAccount>,
}

/// Starts the controller.
pub fn start(shared: &Arc<Shared>) {
    let controller = Arc::new(Accounts {
        namespaces: shared.informer(),
        accounts: shared.writer(ACCOUNT),
    });
    shared
        .controller(&controller)
        .watches(&controller.namespaces)
        .watches_with(controller.accounts.cache(), |event| {
            let meta = &event.object().metadata;
            let lost =
                matches!(event, client::Event::Deleted(_)) && meta.name.as_deref() == Some(DEFAULT);
            let namespace = meta.namespace.clone().filter(|_| lost);
            let namespace = namespace.into_iter();
            namespace.map(|namespace| Key::new("", namespace)).collect()
        })
        .workers(8)
        .start();
}

impl Controller for Accounts {
    fn name(&self) -> &'static str {
        NAME
    }

    async fn reconcile(&self, key: &Key) -> Result<Action, Error> {
        let namespace = self.namespaces.get("", &key.name);
        let wanted = namespace.is_some_and(|namespace| is_active_namespace(&namespace));
        if !wanted || self.accounts.cache().get(&key.name, DEFAULT).is_some() {
            return Ok(Action::Done);
        }
        let metadata = ObjectMeta {
            name: Some(DEFAULT.to_owned()),
            namespace: Some(key.name.clone()),
            ..Default::default()
        };
        let account = ServiceAccount {
            metadata,
            ..Default::default()
        };
        match self.accounts.create(&key.name, &account).await {
            Ok(_) => Ok(Action::Done),
            Err(error) if error.is_conflict() || error.is_namespace_terminating() => {
                Ok(Action::Done)
            }
            Err(error) => Err(error),
        }
    }
}
