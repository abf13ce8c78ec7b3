//! The kinds of admissionregistration.k8s.io.

pub mod policies;
mod rules;
pub mod webhooks;

use crate::tree::{child, default_to, each, name};
use machinery::Object;
use machinery::json::json;

/// Warns of names reserved for configuration that is read from files.
fn warn_static(object: &Object) -> Vec<String> {
    let reserved = ".static.k8s.io";
    if !name(object).ends_with(reserved) {
        return Vec::new();
    }
    vec![format!(
        "metadata.name: names ending with {reserved:?} are reserved for static manifest-based configurations and cannot be managed via the API"
    )]
}

/// Defaults of match fields: Equivalent, and selectors that match everything.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::object;

    #[test]
    fn names_that_files_will_have_are_warned_about() {
        let of =
            |name: &str| warn_static(&object(&format!(r#"{{"metadata": {{"name": "{name}"}}}}"#)));
        assert_eq!(of("a.k8s.io"), [""; 0]);
        assert_eq!(
            of("a.static.k8s.io"),
            [
                "metadata.name: names ending with \".static.k8s.io\" are reserved for static manifest-based configurations and cannot be managed via the API"
            ]
        );
    }
}
