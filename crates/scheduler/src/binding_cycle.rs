//! The binding cycle of a pod: PreBind, Bind and PostBind, and what undoes them after an error.

use std::{sync::Arc, time::Instant};

use crate::{
    extender::Extenders,
    framework::{Plugin, Point, profile::Profile},
    pod::PodInfo,
    write::Writes,
};

/// Whether the binding of a pod is one request: with claims it may wait for them to be provisioned.
pub(crate) fn is_quick(pod: &PodInfo) -> bool {
    let template = &pod.template;
    template.claims.is_empty()
        && template.resource_claims.is_empty()
        && template.extended.is_empty()
}

/// Undoes PreBind after an error, unless the pod has a node: the response of a binding may be lost.
/// Returns whether the pod is bound to this node.
pub(crate) async fn undo_bind(
    profile: &Profile,
    writes: &Writes,
    pod: &PodInfo,
    node: &str,
) -> bool {
    let Some(bound) = writes.node_of(pod).await else {
        for enabled in profile.at(Point::PreBind) {
            enabled.plugin.roll_back(writes, pod).await;
        }
        return false;
    };
    let is_bound = bound == node;
    if is_bound {
        post_bind(profile, pod, node);
    }
    is_bound
}

fn post_bind(profile: &Profile, pod: &PodInfo, node: &str) {
    for enabled in profile.at(Point::PostBind) {
        enabled.plugin.post_bind(pod, node);
    }
}

/// Runs PreBind, Bind and PostBind.
pub(crate) async fn bind(
    profile: &Profile,
    extenders: &Extenders,
    writes: &Writes,
    pod: &PodInfo,
    node: &str,
) -> Result<(), kube::Error> {
    let measured = profile.meter().filter(|meter| meter.begin());
    let took = |point, plugin: &Arc<dyn Plugin>, is_ok: bool, since| {
        if let Some(meter) = measured {
            let status = if is_ok { "Success" } else { "Error" };
            meter.plugin_took(point, plugin.name(), status, since);
        }
    };
    for enabled in profile.at(Point::PreBind) {
        let since = Instant::now();
        let prepared = enabled.plugin.pre_bind(writes, pod, node).await;
        took(Point::PreBind, &enabled.plugin, prepared.is_ok(), since);
        prepared.map_err(|error| {
            let why = match error {
                kube::Error::Service(why) => why.to_string(),
                other => other.to_string(),
            };
            let plugin = enabled.plugin.name();
            kube::Error::Service(format!("running PreBind plugin {plugin:?}: {why}").into())
        })?;
    }
    let by_extender = extenders.bind(pod, node).await;
    if let Some(Err(why)) = &by_extender {
        return Err(kube::Error::Service(why.clone().into()));
    }
    let plugins = match by_extender {
        Some(_) => {
            writes.say_bound(pod, node);
            &[]
        }
        None => profile.at(Point::Bind),
    };
    for enabled in plugins {
        let since = Instant::now();
        if let Some(bound) = enabled.plugin.bind(writes, pod, node).await {
            took(Point::Bind, &enabled.plugin, bound.is_ok(), since);
            bound?;
            break;
        }
    }
    post_bind(profile, pod, node);
    Ok(())
}
