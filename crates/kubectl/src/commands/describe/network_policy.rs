//! Network policies: the traffic they allow, in words.

use serde_json::Value;

use crate::json::{list, str_of};

use super::text::{Text, plain, selector};

const INDENT: &str = "    ";

pub(super) fn describe(text: &mut Text, object: &Value) {
    let spec = &object["spec"];
    text.head(object);
    text.field(
        0,
        "Created on",
        &created(&object["metadata"]["creationTimestamp"]),
    );
    text.maps(object);
    text.line(0, "Spec:");
    let pods = match is_empty(&spec["podSelector"]) {
        true => "<none> (Allowing the specific traffic to all pods in this namespace)".to_owned(),
        false => selector(&spec["podSelector"]),
    };
    text.line(1, &format!("PodSelector:     {pods}"));
    for (kind, field, peers, side, source) in [
        ("Ingress", "ingress", "from", "From", "source"),
        ("Egress", "egress", "to", "To", "destination"),
    ] {
        let is_on = list(&spec["policyTypes"]).any(|one| one == kind);
        if !is_on {
            text.line(1, &format!("Not affecting {field} traffic"));
            continue;
        }
        text.line(1, &format!("Allowing {field} traffic:"));
        let rules: Vec<&Value> = list(&spec[field]).collect();
        if rules.is_empty() {
            text.line(
                0,
                &format!("{INDENT}<none> (Selected pods are isolated for {field} connectivity)"),
            );
        }
        for (at, rule) in rules.iter().enumerate() {
            ports(text, rule);
            if list(&rule[peers]).len() == 0 {
                text.line(
                    0,
                    &format!("{INDENT}{side}: <any> (traffic not restricted by {source})"),
                );
            }
            for peer in list(&rule[peers]) {
                text.line(0, &format!("{INDENT}{side}:"));
                put_peer(text, peer);
            }
            if at + 1 < rules.len() {
                text.line(0, &format!("{INDENT}----------"));
            }
        }
    }
    let types: Vec<&str> = list(&spec["policyTypes"]).map(str_of).collect();
    let types = match types.is_empty() {
        true => "<none>".to_owned(),
        false => types.join(", "),
    };
    text.line(1, &format!("Policy Types: {types}"));
}

fn is_empty(selector: &Value) -> bool {
    selector.as_object().is_none_or(|map| {
        map.values().all(|part| {
            part.as_object().is_none_or(serde_json::Map::is_empty) && list(part).len() == 0
        })
    })
}

fn ports(text: &mut Text, rule: &Value) {
    if list(&rule["ports"]).len() == 0 {
        text.line(
            0,
            &format!("{INDENT}To Port: <any> (traffic allowed to all ports)"),
        );
    }
    for port in list(&rule["ports"]) {
        let protocol = port["protocol"].as_str().unwrap_or("TCP");
        let number = match &port["port"] {
            Value::Null => "<nil>".to_owned(),
            number => plain(number),
        };
        text.line(
            0,
            &match port["endPort"].as_i64() {
                None => format!("{INDENT}To Port: {number}/{protocol}"),
                Some(end) => format!("{INDENT}To Port Range: {number}-{end}/{protocol}"),
            },
        );
    }
}

fn put_peer(text: &mut Text, peer: &Value) {
    let mut is_selector = false;
    for (field, name) in [
        ("namespaceSelector", "NamespaceSelector"),
        ("podSelector", "PodSelector"),
    ] {
        if !peer[field].is_null() {
            is_selector = true;
            text.line(1, &format!("{INDENT}{name}: {}", selector(&peer[field])));
        }
    }
    let block = &peer["ipBlock"];
    if !is_selector && !block.is_null() {
        let except: Vec<&str> = list(&block["except"]).map(str_of).collect();
        text.line(1, &format!("{INDENT}IPBlock:"));
        text.line(2, &format!("{INDENT}CIDR: {}", str_of(&block["cidr"])));
        text.line(2, &format!("{INDENT}Except: {}", except.join(", ")));
    }
}

/// A time in Go's default format.
fn created(value: &Value) -> String {
    match str_of(value).parse::<jiff::Timestamp>() {
        Ok(at) => at
            .to_zoned(jiff::tz::TimeZone::system())
            .strftime("%Y-%m-%d %H:%M:%S %z %Z")
            .to_string(),
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_are_described_by_ports_and_peers() {
        let object = json!({"metadata": {"name": "p", "namespace": "n"}, "spec": {
            "podSelector": {"matchLabels": {"a": "b"}}, "policyTypes": ["Ingress"],
            "ingress": [{"ports": [{"port": 80}, {"port": 90, "endPort": 99, "protocol": "UDP"}],
                "from": [{"podSelector": {}, "namespaceSelector": {"matchLabels": {"c": "d"}}},
                    {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}]}, {}]}});
        let mut text = Text::default();
        describe(&mut text, &object);
        let text = text.finish();
        let spec = text.split_once("Spec:\n").unwrap().1;
        assert_eq!(
            spec,
            "  PodSelector:     a=b\n  Allowing ingress traffic:\n    To Port: 80/TCP\n    To Port Range: 90-99/UDP\n    From:\n      NamespaceSelector: c=d\n      PodSelector: <none>\n    From:\n      IPBlock:\n        CIDR: 10.0.0.0/8\n        Except: 10.1.0.0/16\n    ----------\n    To Port: <any> (traffic allowed to all ports)\n    From: <any> (traffic not restricted by source)\n  Not affecting egress traffic\n  Policy Types: Ingress\n"
        );
    }
}
