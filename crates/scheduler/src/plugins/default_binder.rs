//! Binds a pod to its node through the pod's `binding` subresource.

use std::sync::Arc;

use futures::future::BoxFuture;
use serde_json::Value;

use super::no_arguments;
use crate::{
    framework::{BindResult, Plugin, Point},
    pod::PodInfo,
    write::Writes,
};

/// The plugin's name.
pub(super) const NAME: &str = "DefaultBinder";

/// The plugin.
pub(super) struct DefaultBinder;

/// Creates the plugin.
pub(super) fn new(arguments: &Value) -> Result<Arc<dyn Plugin>, String> {
    no_arguments(arguments)?;
    Ok(Arc::new(DefaultBinder))
}

impl Plugin for DefaultBinder {
    fn name(&self) -> &'static str {
        NAME
    }

    fn points(&self) -> &'static [Point] {
        &[Point::Bind]
    }

    fn bind<'a>(
        &'a self,
        writes: &'a Writes,
        pod: &'a PodInfo,
        node: &'a str,
    ) -> BoxFuture<'a, Option<BindResult>> {
        Box::pin(async move { Some(writes.bind(pod, node).await) })
    }
}
