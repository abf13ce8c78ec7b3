//! Validation of services, rule by rule.

use super::super::tests::defaulted;
use super::*;
use crate::testing::{lines, object};

fn spec(fields: &str) -> Object {
    defaulted(&format!(r#"{{"spec": {{{fields}}}}}"#))
}

fn messages(fields: &str) -> Vec<String> {
    lines(all(&spec(fields), None))
}

const PORTS: &str = r#""ports": [{"port": 80}]"#;

#[test]
fn invalid_service_fields_are_reported_in_order() {
    let cases: &[(&str, &[&str])] = &[
        ("", &["spec.ports: Required value"]),
        (r#""clusterIP": "None", "clusterIPs": ["None"]"#, &[]),
        (
            r#""ports": [{"port": 80, "nodePort": 30000}, {"port": 80, "targetPort": "A"}]"#,
            &[
                "spec.ports[0].name: Required value",
                "spec.ports[1].name: Required value",
                "spec.ports[1].targetPort: Invalid value: \"A\": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
                "spec.ports[1].targetPort: Invalid value: \"A\": must contain at least one letter (a-z)",
                "spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'",
                r#"spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}"#,
            ],
        ),
        (
            r#""ports": [{"port": 80}], "loadBalancerSourceRanges": ["a", " 10.0.0.0/8 "], "loadBalancerClass": "a""#,
            &[
                "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
                "spec.LoadBalancerSourceRanges[0]: Invalid value: \"a\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
                "spec.loadBalancerClass: Forbidden: may only be used when `type` is 'LoadBalancer'",
            ],
        ),
        (
            r#""ports": [{"port": 80}], "trafficDistribution": "a", "healthCheckNodePort": 1"#,
            &[
                "spec.healthCheckNodePort: Invalid value: 1: may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'",
                r#"spec.trafficDistribution: Unsupported value: "a": supported values: "PreferClose", "PreferSameZone", "PreferSameNode""#,
            ],
        ),
        (
            r#""ports": [{"port": 80}], "externalIPs": ["x", "127.0.0.1"]"#,
            &[
                "spec.externalIPs[0]: Invalid value: \"x\": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
                "spec.externalIPs[1]: Invalid value: \"127.0.0.1\": may not be in the loopback range (127.0.0.0/8, ::1/128)",
            ],
        ),
        (
            r#""type": "ExternalName", "externalName": "a.", "ipFamilyPolicy": "SingleStack""#,
            &["spec.ipFamilyPolicy: Forbidden: may not be set for ExternalName services"],
        ),
        (
            r#""ports": [{"port": 80}], "sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}"#,
            &[
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds: Invalid value: 0: must be greater than 0 and less than 86400",
            ],
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(messages(fields), *expected, "{fields}");
    }
}

#[test]
fn addresses_and_families_agree() {
    let update_messages = |fields: &str| {
        let spec = spec(fields);
        lines(address_errors(get(&spec, "spec"), &Value::Null))
    };
    let cases: &[(&str, &[&str])] = &[
        (
            r#""clusterIPs": ["10.0.0.1"]"#,
            &[
                r#"spec.clusterIPs: Invalid value: ["10.0.0.1"]: must be empty when `clusterIP` is not specified"#,
            ],
        ),
        (
            r#""clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.2"]"#,
            &[
                r#"spec.clusterIPs: Invalid value: ["10.0.0.2"]: first value must match `clusterIP`"#,
            ],
        ),
        (
            r#""clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "10.0.0.2"]"#,
            &[
                r#"spec.clusterIPs: Invalid value: ["10.0.0.1","10.0.0.2"]: may specify no more than one IP for each IP family"#,
            ],
        ),
        (
            r#""clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv6"]"#,
            &[
                "spec.clusterIPs[0]: Invalid value: \"10.0.0.1\": expected an IPv6 value as indicated by `ipFamilies[0]`",
            ],
        ),
        (
            r#""ipFamilies": ["a", "a"], "ipFamilyPolicy": """#,
            &[
                r#"spec.ipFamilies[0]: Unsupported value: "a": supported values: "IPv4", "IPv6""#,
                r#"spec.ipFamilies[1]: Unsupported value: "a": supported values: "IPv4", "IPv6""#,
                r#"spec.ipFamilies[1]: Duplicate value: "a""#,
                r#"spec.ipFamilyPolicy: Unsupported value: "": supported values: "PreferDualStack", "RequireDualStack", "SingleStack""#,
            ],
        ),
    ];
    for (fields, expected) in cases {
        assert_eq!(update_messages(fields), *expected, "{fields}");
    }
}

#[test]
fn source_ranges_may_be_in_an_annotation() {
    let service = defaulted(
        r#"{"metadata": {"annotations": {"service.beta.kubernetes.io/load-balancer-source-ranges": "a"}},
            "spec": {"ports": [{"port": 80}]}}"#,
    );
    let at = "metadata.annotations[service.beta.kubernetes.io/load-balancer-source-ranges]";
    let expected = [
        format!("{at}: Forbidden: may only be used when `type` is 'LoadBalancer'"),
        format!(
            "{at}: Invalid value: \"a\": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
        ),
    ];
    assert_eq!(lines(all(&service, None)), expected);
    assert_eq!(lines(all(&service, Some(&service))), expected[..1]);
}

#[test]
fn allocated_addresses_and_families_are_immutable() {
    let change = |old: &str, new: &str| {
        let with = |fields: &str| spec(&format!("{PORTS}, {fields}"));
        lines(update(&with(new), &with(old), None))
    };
    let single = r#""clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"], "ipFamilyPolicy": "SingleStack""#;
    let dual = r#""clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1", "fd00::1"], "ipFamilies": ["IPv4", "IPv6"], "ipFamilyPolicy": "PreferDualStack""#;
    let cases: &[(&str, &str, &[&str])] = &[
        (single, dual, &[]),
        (
            single,
            r#""clusterIP": "10.0.0.2", "clusterIPs": ["10.0.0.2"]"#,
            &[r#"spec.clusterIPs[0]: Invalid value: ["10.0.0.2"]: may not change once set"#],
        ),
        (
            dual,
            r#""clusterIP": "10.0.0.1", "clusterIPs": ["10.0.0.1"], "ipFamilies": ["IPv4"]"#,
            &[
                "spec.ipFamilyPolicy: Invalid value: null: must be set to 'SingleStack' when releasing the secondary clusterIP",
                "spec.ipFamilyPolicy: Invalid value: null: must be set to 'SingleStack' when releasing the secondary ipFamily",
            ],
        ),
        (
            r#""type": "LoadBalancer", "loadBalancerClass": "a""#,
            r#""type": "LoadBalancer""#,
            &["spec.loadBalancerClass: Invalid value: null: may not change once set"],
        ),
        (
            r#""type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 1"#,
            r#""type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": 2"#,
            &["spec.healthCheckNodePort: Forbidden: field is immutable"],
        ),
    ];
    for (old, new, expected) in cases {
        assert_eq!(change(old, new), *expected, "{new}");
    }
}

#[test]
fn the_status_names_where_a_balancer_is() {
    let ingress_messages = |kind: &str, ingress: &str| {
        let service = object(&format!(
            r#"{{"spec": {{"type": "{kind}"}}, "status": {{"loadBalancer": {{"ingress": [{ingress}]}}}}}}"#
        ));
        lines(update(&service, &Object::new(), Some("status")))
    };
    let at = "status.loadBalancer.ingress";
    assert_eq!(
        ingress_messages("ClusterIP", r#"{"hostname": "a"}"#),
        [format!(
            "{at}: Forbidden: may only be used when `spec.type` is 'LoadBalancer'"
        )]
    );
    let cases = [
        (r#"{"ip": "1.2.3.4", "ipMode": "VIP"}"#, String::new()),
        (
            r#"{"ip": "1.2.3.4"}"#,
            format!("{at}[0].ipMode: Required value: must be specified when `ip` is set"),
        ),
        (
            r#"{"hostname": "a", "ipMode": "VIP"}"#,
            format!("{at}[0].ipMode: Forbidden: may not be specified when `ip` is not set"),
        ),
        (
            r#"{"ip": "1.2.3.4", "ipMode": "x"}"#,
            format!(r#"{at}[0].ipMode: Unsupported value: "x": supported values: "Proxy", "VIP""#),
        ),
        (
            r#"{"hostname": "1.2.3.4"}"#,
            format!(
                r#"{at}[0].hostname: Invalid value: "1.2.3.4": must be a DNS name, not an IP address"#
            ),
        ),
    ];
    for (ingress, expected) in cases {
        assert_eq!(
            ingress_messages("LoadBalancer", ingress).join(" "),
            expected,
            "{ingress}"
        );
    }
}
