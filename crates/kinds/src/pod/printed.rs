//! A pod's spec as Kubernetes prints it in errors: its internal type has the host namespaces in the
//! security context.

use crate::internal::internal;
use machinery::{Object, Value};

/// The fields in the security context, in its order.
const SHARED: &[&str] = &[
    "HostNetwork",
    "HostPID",
    "HostIPC",
    "ShareProcessNamespace",
    "HostUsers",
];

pub(crate) fn printed_spec(spec: &Value) -> Value {
    let mut printed = internal("core/v1.PodSpec", spec);
    let Value::Object(map) = &mut printed else {
        return printed;
    };
    // The internal type has no deprecated serviceAccount.
    map.shift_remove("ServiceAccount");
    let mut context = Object::new();
    for name in SHARED {
        let value = map.shift_remove(name).unwrap_or_default();
        context.insert((*name).to_owned(), value);
    }
    let empty = Value::Object(Object::new());
    let own = match &spec["securityContext"] {
        Value::Null => internal("core/v1.PodSecurityContext", &empty),
        own => internal("core/v1.PodSecurityContext", own),
    };
    if let Value::Object(own) = own {
        context.extend(own);
    }
    map.insert("SecurityContext".to_owned(), Value::Object(context));
    printed
}

/// A pod template, whose metadata is embedded.
pub(crate) fn printed_template(template: &Value) -> Value {
    let mut printed = Object::new();
    if let Value::Object(metadata) = &template["metadata"] {
        printed.extend(metadata.iter().map(|(k, v)| (k.clone(), v.clone())));
    }
    let empty = Value::Object(Object::new());
    let spec = match &template["spec"] {
        Value::Null => &empty,
        spec => spec,
    };
    printed.insert("Spec".to_owned(), printed_spec(spec));
    Value::Object(printed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use machinery::json::json;

    #[test]
    fn host_namespaces_are_printed_in_the_security_context() {
        let spec = json!({"hostNetwork": true, "serviceAccount": "a", "serviceAccountName": "a",
            "securityContext": {"fsGroup": 1}, "containers": [{"name": "c", "tty": true}]});
        let printed = printed_spec(&spec);
        let names: Vec<&str> = printed
            .as_object()
            .unwrap()
            .keys()
            .map(|k| k.as_str())
            .collect();
        assert_eq!(
            names,
            [
                "Volumes",
                "InitContainers",
                "Containers",
                "EphemeralContainers",
                "RestartPolicy",
                "TerminationGracePeriodSeconds",
                "ActiveDeadlineSeconds",
                "DNSPolicy",
                "NodeSelector",
                "ServiceAccountName",
                "AutomountServiceAccountToken",
                "NodeName",
                "SecurityContext",
                "ImagePullSecrets",
                "Hostname",
                "Subdomain",
                "SetHostnameAsFQDN",
                "Affinity",
                "SchedulerName",
                "Tolerations",
                "HostAliases",
                "PriorityClassName",
                "Priority",
                "PreemptionPolicy",
                "DNSConfig",
                "ReadinessGates",
                "RuntimeClassName",
                "Overhead",
                "EnableServiceLinks",
                "TopologySpreadConstraints",
                "OS",
                "SchedulingGates",
                "ResourceClaims",
                "Resources",
                "HostnameOverride",
                "SchedulingGroup",
            ]
        );
        let context = &printed["SecurityContext"];
        assert_eq!(
            (&context["HostNetwork"], &context["FSGroup"]),
            (&json!(true), &json!(1))
        );
        assert_eq!(printed["Containers"][0]["TTY"], true);
    }
}
