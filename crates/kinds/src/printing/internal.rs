//! Values as Kubernetes prints them in errors, by the schema table: its internal structs with Go's
//! names in Go's order, without omissions. Types of `meta/v1` keep their JSON form.

use machinery::json::Key;
use machinery::schema::{self, Field, Shape, Type};
use machinery::{Object, Value};

/// A struct of the table such as `core/v1.NodeSelector`; null if absent.
pub(crate) fn internal(name: &str, value: &Value) -> Value {
    match (schema::lookup(name), value.is_null()) {
        (Some(of), false) => printed_struct(of, value),
        _ => value.clone(),
    }
}

/// A list of such structs.
pub(crate) fn internal_list(name: &str, value: &Value) -> Value {
    match value {
        Value::Array(items) => items.iter().map(|item| internal(name, item)).collect(),
        _ => Value::Null,
    }
}

fn printed_struct(of: &Type, value: &Value) -> Value {
    if of.package == "meta/v1" {
        return value.clone();
    }
    let mut out = Object::new();
    for field in in_order(of) {
        let value = &value[field.name];
        // Embedded, so its fields are at this level.
        if field.name == "metadata" {
            out.extend(
                value
                    .as_object()
                    .into_iter()
                    .flatten()
                    .map(|(k, v)| (k.clone(), v.clone())),
            );
            continue;
        }
        out.insert(Key::new(&go_name(of, field)), printed_field(field, value));
    }
    Value::Object(out)
}

fn printed_field(field: &Field, value: &Value) -> Value {
    match (value, field.shape) {
        (Value::Null, Shape::Struct(of)) if !field.is_pointer() => printed_struct(of.get(), value),
        (Value::Null, shape) if !field.is_pointer() => schema::zero_of(shape),
        _ => printed(field.shape, value),
    }
}

fn printed(shape: Shape, value: &Value) -> Value {
    match (shape, value) {
        (_, Value::Null) => Value::Null,
        (Shape::Struct(of), _) => printed_struct(of.get(), value),
        (Shape::List(item), Value::Array(items)) => {
            items.iter().map(|value| printed(*item, value)).collect()
        }
        (Shape::Map(item), Value::Object(map)) => {
            let entries = map
                .iter()
                .map(|(key, value)| (key.clone(), printed(*item, value)));
            let mut entries: Object = entries.collect();
            entries.sort_keys();
            Value::Object(entries)
        }
        _ => value.clone(),
    }
}

/// The fields in the order of the internal struct, which differs for some types.
fn in_order(of: &Type) -> Vec<&Field> {
    let order: &[&str] = match of.name {
        "PersistentVolumeSource" | "PersistentVolumeSpec" => PERSISTENT_SOURCES,
        "Volume" | "VolumeSource" => SOURCES,
        "PodSecurityContext" => &["fsGroup", "fsGroupChangePolicy", "sysctls"],
        "PodSpec" => POD,
        _ => &[],
    };
    let place = |field: &Field| order.iter().position(|name| *name == field.name);
    let mut moved: Vec<&Field> = of.fields.iter().filter(|f| place(f).is_some()).collect();
    moved.sort_by_key(|field| place(field));
    let mut moved = moved.into_iter();
    let fields = of.fields.iter();
    // Reordered fields take the positions of each other.
    fields
        .filter_map(|field| match place(field) {
            Some(_) => moved.next(),
            None => Some(field),
        })
        .collect()
}

const SOURCES: &[&str] = &[
    "rbd",
    "quobyte",
    "flexVolume",
    "cinder",
    "cephfs",
    "flocker",
    "downwardAPI",
    "fc",
    "azureFile",
    "configMap",
    "vsphereVolume",
];

const POD: &[&str] = &[
    "setHostnameAsFQDN",
    "affinity",
    "schedulerName",
    "tolerations",
    "hostAliases",
    "priorityClassName",
    "priority",
    "preemptionPolicy",
    "dnsConfig",
    "readinessGates",
    "runtimeClassName",
    "overhead",
    "enableServiceLinks",
    "topologySpreadConstraints",
];

const PERSISTENT_SOURCES: &[&str] = &[
    "gcePersistentDisk",
    "awsElasticBlockStore",
    "hostPath",
    "glusterfs",
    "nfs",
    "rbd",
    "quobyte",
    "iscsi",
    "flexVolume",
    "cinder",
    "cephfs",
    "fc",
    "flocker",
    "azureFile",
    "vsphereVolume",
    "azureDisk",
    "photonPersistentDisk",
    "portworxVolume",
    "scaleIO",
    "local",
    "storageos",
    "csi",
];

/// Fields whose Go name is not their capitalised JSON name.
const RENAMED: &[(&str, &str, &str)] = &[
    ("Glusterfs", "endpoints", "EndpointsName"),
    ("RBD", "monitors", "CephMonitors"),
    ("RBD", "image", "RBDImage"),
    ("RBD", "pool", "RBDPool"),
    ("RBD", "user", "RadosUser"),
    ("ISCSI", "chapAuthDiscovery", "DiscoveryCHAPAuth"),
    ("ISCSI", "chapAuthSession", "SessionCHAPAuth"),
    ("AzureDisk", "diskURI", "DataDiskURI"),
    ("", "cel", "CEL"),
    ("", "uid", "UID"),
    ("", "ips", "IPs"),
    ("", "apiGroup", "APIGroup"),
    ("", "apiVersion", "APIVersion"),
    ("", "fsType", "FSType"),
    ("", "gcePersistentDisk", "GCEPersistentDisk"),
    ("", "awsElasticBlockStore", "AWSElasticBlockStore"),
    ("", "nfs", "NFS"),
    ("", "rbd", "RBD"),
    ("", "iscsi", "ISCSI"),
    ("", "cephfs", "CephFS"),
    ("", "fc", "FC"),
    ("", "storageos", "StorageOS"),
    ("", "csi", "CSI"),
    ("", "pdName", "PDName"),
    ("", "iqn", "IQN"),
    ("", "iscsiInterface", "ISCSIInterface"),
    ("", "wwids", "WWIDs"),
    ("", "sslEnabled", "SSLEnabled"),
    ("PodSpec", "os", "OS"),
    ("PodSpec", "dnsConfig", "DNSConfig"),
    ("PodSpec", "dnsPolicy", "DNSPolicy"),
    ("PodSecurityContext", "fsGroup", "FSGroup"),
    ("", "fsGroupChangePolicy", "FSGroupChangePolicy"),
    ("", "seLinuxChangePolicy", "SELinuxChangePolicy"),
    ("", "seLinuxOptions", "SELinuxOptions"),
    ("", "gmsaCredentialSpec", "GMSACredentialSpec"),
    ("", "gmsaCredentialSpecName", "GMSACredentialSpecName"),
    ("", "grpc", "GRPC"),
    ("", "httpGet", "HTTPGet"),
    ("", "httpHeaders", "HTTPHeaders"),
    ("", "tcpSocket", "TCPSocket"),
    ("", "tty", "TTY"),
    ("HostAlias", "ip", "IP"),
];

/// Go's name of a field.
fn go_name(of: &Type, field: &Field) -> String {
    if of.name == "DeviceAttribute" {
        return match field.name.strip_suffix('s') {
            Some(one) => format!("{}Values", capital(one)),
            None => format!("{}Value", capital(field.name)),
        };
    }
    let is_it = |(holder, name, _): &&(&str, &str, &str)| {
        of.name.starts_with(holder) && *name == field.name
    };
    match RENAMED.iter().find(is_it) {
        Some((_, _, go)) => (*go).to_owned(),
        None => capital(field.name),
    }
}

fn capital(name: &str) -> String {
    let mut out = name.to_owned();
    if let Some(first) = out.get_mut(..1) {
        first.make_ascii_uppercase();
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::equal::equal;
    use machinery::json::json;

    #[test]
    fn an_empty_list_is_none_and_an_empty_struct_is_one() {
        let name = "resource/v1.ExactDeviceRequest";
        let bare = json!({"deviceClassName": "c"});
        assert!(equal(
            name,
            &bare,
            &json!({"deviceClassName": "c", "selectors": []})
        ));
        assert!(!equal(
            name,
            &bare,
            &json!({"deviceClassName": "c", "capacity": {}})
        ));
        assert!(!equal(name, &bare, &json!({"deviceClassName": "d"})));
    }

    #[test]
    fn structs_are_printed_whole_with_the_names_of_go() {
        let cases = [
            (
                "resource/v1.DeviceRequest",
                json!({"name": "r", "exactly": {"deviceClassName": "c", "selectors": [{"cel": {"expression": "true"}}]}}),
                r#"{"Name":"r","Exactly":{"DeviceClassName":"c","Selectors":[{"CEL":{"Expression":"true"}}],"AllocationMode":"","Count":0,"AdminAccess":null,"Tolerations":null,"Capacity":null},"FirstAvailable":null}"#,
            ),
            (
                "resource/v1.DeviceAttribute",
                json!({"int": 1, "string": "a"}),
                r#"{"IntValue":1,"BoolValue":null,"StringValue":"a","VersionValue":null,"IntValues":null,"BoolValues":null,"StringValues":null,"VersionValues":null}"#,
            ),
            (
                "resource/v1.ResourceClaimTemplateSpec",
                json!({"metadata": {"labels": {"a": "b"}}}),
                r#"{"labels":{"a":"b"},"Spec":{"Devices":{"Requests":null,"Constraints":null,"Config":null}}}"#,
            ),
            (
                "core/v1.NodeSelectorTerm",
                json!({"matchFields": [{"key": "metadata.name"}]}),
                r#"{"MatchExpressions":null,"MatchFields":[{"Key":"metadata.name","Operator":"","Values":null}]}"#,
            ),
        ];
        for (name, value, expected) in cases {
            assert_eq!(internal(name, &value).to_string(), expected, "{name}");
        }
    }
}
