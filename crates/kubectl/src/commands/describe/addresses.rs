//! Endpoints, ingress classes, and the ranges and addresses of Services.

use serde_json::Value;

use crate::json::{list, str_of};

use super::text::{Text, number};

pub(super) fn endpoints(text: &mut Text, object: &Value) {
    text.head(object);
    text.maps(object);
    text.line(0, "Subsets:");
    for subset in list(&object["subsets"]) {
        for (name, field) in [
            ("Addresses", "addresses"),
            ("NotReadyAddresses", "notReadyAddresses"),
        ] {
            let addresses: Vec<&str> = list(&subset[field])
                .map(|address| str_of(&address["ip"]))
                .collect();
            let addresses = match addresses.is_empty() {
                true => "<none>".to_owned(),
                false => addresses.join(","),
            };
            text.field(1, name, &addresses);
        }
        if list(&subset["ports"]).len() > 0 {
            text.line(1, "Ports:");
            text.line(2, "Name\tPort\tProtocol");
            text.line(2, "----\t----\t--------");
        }
        for port in list(&subset["ports"]) {
            let name = match str_of(&port["name"]) {
                "" => "<unset>",
                name => name,
            };
            let protocol = str_of(&port["protocol"]);
            text.line(2, &format!("{name}\t{}\t{protocol}", number(&port["port"])));
        }
        text.line(0, "");
    }
}

pub(super) fn ingress_class(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.maps(object);
    text.field(0, "Controller", str_of(&object["spec"]["controller"]));
    let parameters = &object["spec"]["parameters"];
    if !parameters.is_null() {
        text.line(0, "Parameters:");
        text.optional(1, "APIGroup", &parameters["apiGroup"]);
        text.field(1, "Kind", str_of(&parameters["kind"]));
        text.field(1, "Name", str_of(&parameters["name"]));
    }
}

pub(super) fn service_cidr(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.maps(object);
    let ranges: Vec<&str> = list(&object["spec"]["cidrs"]).map(str_of).collect();
    text.field(0, "CIDRs", &ranges.join(", "));
    let conditions = &object["status"]["conditions"];
    if list(conditions).len() > 0 {
        text.line(0, "Status:");
        let columns = [
            ("Type", "type"),
            ("Status", "status"),
            ("LastTransitionTime", "lastTransitionTime"),
            ("Reason", "reason"),
            ("Message", "message"),
        ];
        text.conditions(conditions, &columns, "");
    }
}

pub(super) fn ip_address(text: &mut Text, object: &Value) {
    text.field(0, "Name", str_of(&object["metadata"]["name"]));
    text.maps(object);
    let parent = &object["spec"]["parentRef"];
    if !parent.is_null() {
        text.line(0, "Parent Reference:");
        for (name, field) in [
            ("Group", "group"),
            ("Resource", "resource"),
            ("Namespace", "namespace"),
            ("Name", "name"),
        ] {
            text.field(1, name, str_of(&parent[field]));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn subsets_show_addresses_and_a_table_of_ports() {
        let object = json!({"metadata": {"name": "e", "namespace": "n"}, "subsets": [
            {"addresses": [{"ip": "10.0.0.1"}, {"ip": "10.0.0.2"}], "ports": [{"port": 80, "protocol": "TCP"}]}]});
        let mut text = Text::default();
        endpoints(&mut text, &object);
        let text = text.finish();
        assert!(
            text.ends_with("Subsets:\n  Addresses:          10.0.0.1,10.0.0.2\n  NotReadyAddresses:  <none>\n  Ports:\n    Name     Port  Protocol\n    ----     ----  --------\n    <unset>  80    TCP\n\n"),
            "{text}"
        );
    }
}
