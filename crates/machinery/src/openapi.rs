//! OpenAPI definitions of the types in the schema table, for `/openapi/v2` and `/openapi/v3`.
//! Descriptions are added by the server.

use crate::json;
use crate::schema::{Field, Presence, Shape, Topology, Type, zero_of};
use crate::{Object, Value, schema};
use std::collections::BTreeMap;

/// The version of the document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Swagger 2: `#/definitions/…`, no defaults.
    V2,
    /// OpenAPI 3: `#/components/schemas/…`, references wrapped in `allOf`.
    V3,
}

/// The name of a type's definition, such as `io.k8s.api.apps.v1.Deployment`.
pub fn name(schema: &Type) -> String {
    let package = schema.package.replace('/', ".");
    match schema.package {
        "meta/v1" => format!("io.k8s.apimachinery.pkg.apis.{package}.{}", schema.name),
        "apiextensions/v1" => {
            format!(
                "io.k8s.apiextensions-apiserver.pkg.apis.{package}.{}",
                schema.name
            )
        }
        "apiregistration/v1" => {
            format!("io.k8s.kube-aggregator.pkg.apis.{package}.{}", schema.name)
        }
        "metrics/v1beta1" => format!("io.k8s.metrics.pkg.apis.{package}.{}", schema.name),
        _ => format!("io.k8s.api.{package}.{}", schema.name),
    }
}

/// The definitions of types and of everything they refer to, by name.
pub fn definitions(
    dialect: Dialect,
    types: impl IntoIterator<Item = &'static Type>,
) -> BTreeMap<String, Value> {
    let mut out = BTreeMap::new();
    let mut open: Vec<&'static Type> = types.into_iter().collect();
    while let Some(schema) = open.pop() {
        let own = name(schema);
        if out.contains_key(&own) {
            continue;
        }
        out.insert(own, definition(dialect, schema));
        for field in &schema.fields {
            match root_of(field.shape) {
                Shape::Struct(id) => open.push(id.get()),
                shape => {
                    if let Some((name, value)) = special(dialect, shape) {
                        out.insert(name, value);
                    }
                    if matches!(
                        shape,
                        Shape::PropsOrBool | Shape::PropsOrArray | Shape::PropsOrStrings
                    ) {
                        open.extend(schema::lookup("apiextensions/v1.JSONSchemaProps"));
                    }
                }
            }
        }
    }
    out
}

/// The definition of one type.
pub fn definition(dialect: Dialect, schema: &Type) -> Value {
    let mut properties = BTreeMap::new();
    let mut required: Vec<&str> = Vec::new();
    for field in &schema.fields {
        properties.insert(field.name, property(dialect, field));
        if field.required {
            required.push(field.name);
        }
    }
    let mut out = Object::new();
    if !properties.is_empty() {
        out.insert("properties".to_owned(), json!(properties));
    }
    if !required.is_empty() {
        out.insert("required".to_owned(), json!(required));
    }
    out.insert("type".to_owned(), json!("object"));
    if schema.atomic {
        out.insert("x-kubernetes-map-type".to_owned(), json!("atomic"));
    }
    if let Some(union) = union(schema) {
        out.insert("x-kubernetes-unions".to_owned(), json!([union]));
    }
    Value::Object(out)
}

/// Union types, of whose fields at most one is set: the discriminator, if any, and the fields it
/// chooses from.
const UNIONS: &[(&str, &str, &str, &[&str])] = &[
    ("core/v1", "AppArmorProfile", "type", &["localhostProfile"]),
    ("core/v1", "PodSchedulingGroup", "", &["podGroupName"]),
    ("core/v1", "SeccompProfile", "type", &["localhostProfile"]),
    ("flowcontrol/v1", "LimitResponse", "type", &["queuing"]),
    (
        "flowcontrol/v1",
        "PriorityLevelConfigurationSpec",
        "type",
        &["exempt", "limited"],
    ),
    (
        "flowcontrol/v1",
        "Subject",
        "kind",
        &["group", "serviceAccount", "user"],
    ),
];

fn union(schema: &Type) -> Option<Value> {
    let is_its = |(package, name, ..): &&(&str, &str, &str, &[&str])| {
        (*package, *name) == (schema.package, schema.name)
    };
    let (_, _, discriminator, fields) = UNIONS.iter().find(is_its)?;
    let mut out = Object::new();
    if !discriminator.is_empty() {
        out.insert("discriminator".to_owned(), json!(discriminator));
    }
    // Named like the discriminator's values: as Go names the fields.
    let exported = |field: &&'static str| (*field, field[..1].to_ascii_uppercase() + &field[1..]);
    let fields: BTreeMap<_, _> = fields.iter().map(exported).collect();
    out.insert("fields-to-discriminateBy".to_owned(), json!(fields));
    Some(Value::Object(out))
}

fn property(dialect: Dialect, field: &Field) -> Value {
    let mut out = of_shape(dialect, field.shape, !field.is_pointer());
    if let Some(values) = field.values {
        let values: Vec<&str> = values.split('|').collect();
        innermost(&mut out)["enum"] = json!(values);
    }
    let Value::Object(map) = &mut out else {
        return out;
    };
    if dialect == Dialect::V3 {
        let declared = field.default.and_then(|d| crate::json::from_str(d).ok());
        let zero = (field.presence == Presence::Always
            && matches!(
                field.shape,
                Shape::String | Shape::Bool | Shape::Int32 | Shape::Int64 | Shape::Float64
            ))
        .then(|| zero_of(field.shape));
        if let Some(default) = declared.or(zero) {
            map.insert("default".to_owned(), default);
        }
    }
    let is_list = matches!(field.shape, Shape::List(_) | Shape::Bytes);
    let kind = if is_list {
        "x-kubernetes-list-type"
    } else {
        "x-kubernetes-map-type"
    };
    let mut put = |name: &str, value: Value| {
        map.insert(name.to_owned(), value);
    };
    match &field.topology {
        Topology::Default => {}
        Topology::Atomic => put(kind, json!("atomic")),
        Topology::Granular => put(kind, json!("granular")),
        Topology::Set => put(kind, json!("set")),
        Topology::Keyed(keys) => {
            put("x-kubernetes-list-map-keys", json!(keys));
            put(kind, json!("map"));
        }
    }
    if let Some(key) = field.patch.key {
        put("x-kubernetes-patch-merge-key", json!(key));
    }
    let strategies = [
        (field.patch.merge, "merge"),
        (field.patch.retain_keys, "retainKeys"),
        (field.patch.replace, "replace"),
    ];
    let strategies: Vec<&str> = strategies.iter().filter(|s| s.0).map(|s| s.1).collect();
    if !strategies.is_empty() {
        put("x-kubernetes-patch-strategy", json!(strategies.join(",")));
    }
    out
}

/// The element of nested lists and maps; anything else itself.
fn innermost(value: &mut Value) -> &mut Value {
    for key in ["items", "additionalProperties"] {
        if value.get(key).is_some() {
            return innermost(&mut value[key]);
        }
    }
    value
}

fn root_of(shape: Shape) -> Shape {
    match shape {
        Shape::List(element) | Shape::Map(element) => root_of(*element),
        shape => shape,
    }
}

const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";
const INT_OR_STRING: &str = "io.k8s.apimachinery.pkg.util.intstr.IntOrString";
const TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Time";
const MICRO_TIME: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime";
const DURATION: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.Duration";
const RAW: &str = "io.k8s.apimachinery.pkg.runtime.RawExtension";
const FIELDS: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// The name and definition of a type that is not a struct.
fn special(dialect: Dialect, shape: Shape) -> Option<(String, Value)> {
    let v2 = dialect == Dialect::V2;
    Some(match shape {
        Shape::Quantity if v2 => (QUANTITY.to_owned(), json!({"type": "string"})),
        Shape::Quantity => (
            QUANTITY.to_owned(),
            json!({"oneOf": [{"type": "string"}, {"type": "number"}]}),
        ),
        Shape::IntOrString if v2 => (
            INT_OR_STRING.to_owned(),
            json!({"format": "int-or-string", "type": "string"}),
        ),
        Shape::IntOrString => (
            INT_OR_STRING.to_owned(),
            json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]}),
        ),
        Shape::Time => (
            TIME.to_owned(),
            json!({"format": "date-time", "type": "string"}),
        ),
        Shape::MicroTime => (
            MICRO_TIME.to_owned(),
            json!({"format": "date-time", "type": "string"}),
        ),
        Shape::Duration => (DURATION.to_owned(), json!({"type": "string"})),
        Shape::Raw => (RAW.to_owned(), json!({"type": "object"})),
        Shape::FieldsV1 => (FIELDS.to_owned(), json!({"type": "object"})),
        Shape::Json => (format!("{EXTENSIONS}.JSON"), json!({})),
        Shape::PropsOrBool => (format!("{EXTENSIONS}.JSONSchemaPropsOrBool"), json!({})),
        Shape::PropsOrArray => (format!("{EXTENSIONS}.JSONSchemaPropsOrArray"), json!({})),
        Shape::PropsOrStrings => (
            format!("{EXTENSIONS}.JSONSchemaPropsOrStringArray"),
            json!({}),
        ),
        _ => return None,
    })
}

/// A value of a shape; `plain` when it is not behind a pointer.
fn of_shape(dialect: Dialect, shape: Shape, plain: bool) -> Value {
    match shape {
        Shape::String => json!({"type": "string"}),
        Shape::Bool => json!({"type": "boolean"}),
        Shape::Int32 => json!({"format": "int32", "type": "integer"}),
        Shape::Int64 => json!({"format": "int64", "type": "integer"}),
        Shape::Float64 => json!({"format": "double", "type": "number"}),
        Shape::Bytes => json!({"format": "byte", "type": "string"}),
        Shape::Any => json!({}),
        Shape::List(element) => json!({"items": element_of(dialect, *element), "type": "array"}),
        Shape::Map(element) => {
            json!({"additionalProperties": element_of(dialect, *element), "type": "object"})
        }
        Shape::Struct(id) => reference(dialect, &name(id.get()), plain.then(|| json!({}))),
        shape => match special(dialect, shape) {
            Some((name, _)) => reference(dialect, &name, None),
            None => json!({}),
        },
    }
}

/// An element of a list or map: in OpenAPI 3 a scalar states its zero as the default.
fn element_of(dialect: Dialect, shape: Shape) -> Value {
    let mut out = of_shape(dialect, shape, true);
    let scalar = matches!(
        shape,
        Shape::String | Shape::Bool | Shape::Int32 | Shape::Int64 | Shape::Float64
    );
    if dialect == Dialect::V3 && scalar {
        out["default"] = zero_of(shape);
    }
    // A reference alone needs no `allOf`.
    if dialect == Dialect::V3 && special(dialect, shape).is_some() {
        out = out["allOf"][0].clone();
    }
    out
}

fn reference(dialect: Dialect, name: &str, default: Option<Value>) -> Value {
    match dialect {
        Dialect::V2 => json!({"$ref": format!("#/definitions/{name}")}),
        Dialect::V3 => {
            let mut out = json!({"allOf": [{"$ref": format!("#/components/schemas/{name}")}]});
            if let Some(default) = default {
                out["default"] = default;
            }
            out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn enums_are_published_for_closed_sets_of_values() {
        let of = |of: &str, field: &str| {
            let definition = definition(Dialect::V3, schema::lookup(of).unwrap());
            definition["properties"][field].clone()
        };
        assert_eq!(
            of("core/v1.Container", "imagePullPolicy"),
            json!({"type": "string", "enum": ["Always", "IfNotPresent", "Never"]})
        );
        let families = of("core/v1.ServiceSpec", "ipFamilies");
        assert_eq!(families["items"]["enum"], json!(["", "IPv4", "IPv6"]));
        let usages = of("certificates/v1.CertificateSigningRequestSpec", "usages");
        let usages = usages["items"]["enum"].as_array().unwrap().len();
        assert_eq!(usages, 23);
        let claim = of(
            "core/v1.PersistentVolumeClaimStatus",
            "allocatedResourceStatuses",
        );
        assert!(claim["additionalProperties"]["enum"].is_array(), "{claim}");
        let scope = of("admissionregistration/v1.RuleWithOperations", "scope");
        assert_eq!(scope["enum"], json!(["*", "Cluster", "Namespaced"]));
        assert_eq!(of("core/v1.Container", "image"), json!({"type": "string"}));
    }

    #[test]
    fn definitions_agree_with_the_schema_table() {
        let container = definition(Dialect::V3, schema::lookup("core/v1.Container").unwrap());
        assert_eq!(container["required"], json!(["name"]));
        assert_eq!(
            container["properties"]["ports"],
            json!({"items": {"allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.ContainerPort"}], "default": {}},
                "type": "array", "x-kubernetes-list-map-keys": ["containerPort", "protocol"], "x-kubernetes-list-type": "map",
                "x-kubernetes-patch-merge-key": "containerPort", "x-kubernetes-patch-strategy": "merge"})
        );
    }

    #[test]
    fn every_reference_has_its_definition() {
        for dialect in [Dialect::V2, Dialect::V3] {
            let all = definitions(dialect, schema::all());
            let text = json!(all).to_string();
            for part in text.split("\"$ref\":\"").skip(1) {
                let target = part.split('"').next().unwrap();
                let name = target.rsplit('/').next().unwrap();
                assert!(all.contains_key(name), "{target}");
            }
        }
    }
}
