//! The kinds of admissionregistration.k8s.io.

pub mod policies;
mod rules;
pub mod webhooks;

use crate::tree::{child, default_to, each};
use machinery::Object;
use machinery::json::json;

/// Where a match is left open, it is wide.
fn default_match(object: &mut Object) {
    default_to(object, "matchPolicy", "Equivalent");
    default_to(object, "namespaceSelector", json!({}));
    default_to(object, "objectSelector", json!({}));
}

fn default_rules(object: &mut Object, list: &str) {
    for rule in each(object, list) {
        default_to(rule, "scope", "*");
    }
}

fn default_service(webhook: &mut Object) {
    if let Some(service) = child(webhook, "clientConfig").and_then(|c| child(c, "service")) {
        default_to(service, "port", 443);
    }
}
